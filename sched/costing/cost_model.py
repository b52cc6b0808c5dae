"""What a launch costs in seconds: a few numbers of one model on one device, kept as JSON.

    passes = num_calls * overhead[kind][bucket] + num_passes * pass    over the layers
    pass   = max(weight_floor, bucket * row_seconds)
             + decode_keys * decode_key_seconds + prompt_keys * prompt_key_seconds
    head   = factor[form] * (overhead[kind][bucket]
                             + max(head_floor, bucket * head_row_seconds))    LM head, or scores
    host   = host_launch_seconds + num_calls * (num_items * host_item_seconds
                                                + bucket * host_row_seconds)
    call   = host_call_seconds + bucket * host_call_row_seconds        one for each call

A launch takes its passes, and then its head if a row may finish in it: two works, priced apart.
A device computes the rows of the bucket, padding included, and reads the weights once a pass
however few rows there are: that is the floor. Overheads are what is left of each bucket that was
measured, so those are met exactly; the rest of the formula carries to buckets that were not.
The passes of a launch are one call, but a deterministic engine runs several as calls of a single
one; its head is one more.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..launches import LaunchKind, launch_kind
from .work import LaunchWork

SCHEMA_VERSION = 2
"""Of the JSON form. In 1 an LM head was a launch of its own, `coda`."""
FORM_PARTS = "_"
"""Between the parts of a form's name."""
TABLES = "cost_tables"
"""Folder of the tables that are shipped, beside this file."""


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Times launches by a linear formula; is a `LaunchCosts`. Numbers are seconds, 0 or more."""

    name: str
    """What users call the table."""
    source: str
    """How the numbers came about: a command, or data-sheet numbers and assumptions."""
    num_planes: int
    """P, loops of the model that the table is of."""
    weight_floor: float
    """The shortest pass over the layers: that of few rows."""
    row_seconds: float
    """Of a row of the bucket, in a pass of many rows."""
    decode_key_seconds: float
    """Of a key that a decode row sees, in a pass."""
    prompt_key_seconds: float
    """Of a key that a prompt row sees, in a pass."""
    head_floor: float
    """The shortest LM head, of form `greedy`."""
    head_row_seconds: float
    """Of a row of the bucket, in an LM head of many rows."""
    overheads: Mapping[LaunchKind, Mapping[int, float]] = field(default_factory=dict)
    """Of a call beyond its passes or its LM head, by kind and bucket. Between two buckets that are
    named it is interpolated, outside them it is that of the nearest one. A kind without any has
    the overhead of its stand-in, else none."""
    head_factors: Mapping[str, float] = field(default_factory=dict)
    """What a head of a form costs over one of form `greedy`, by the form's name (`sampled_copies`)
    or by its parts (`sampled`, `copies`), which multiply; 1 of what is not named."""
    host_launch_seconds: float = 0.0
    """Of the host before a call: to apply the launch before, to schedule and to pack."""
    host_item_seconds: float = 0.0
    """The same, for each item of each call."""
    host_row_seconds: float = 0.0
    """The same, for each row of each call's bucket: larger launches leave colder caches, on a
    CPU."""
    host_call_seconds: float = 0.0
    """Of the host from the call, with which the device begins, to its return."""
    host_call_row_seconds: float = 0.0
    """The same, for each row of the bucket: host and device may share their cores."""
    is_estimate: bool = False
    """Whether the numbers were computed and never measured; said with every result."""
    _known: dict[tuple[LaunchKind, int], float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if type(self.num_planes) is not int or self.num_planes < 1:
            raise ConfigError(f"num_planes must be at least 1, got {self.num_planes!r}")
        numbers = {name: getattr(self, name) for name in SECONDS}
        for kind, buckets in self.overheads.items():
            numbers |= {f"overhead of {kind.name} {b}": value for b, value in buckets.items()}
            if any(bucket < 1 for bucket in buckets):
                raise ConfigError(f"overheads of {kind.name}: buckets must be at least 1 row")
        for name, value in (numbers | self._factors()).items():
            if type(value) not in (int, float) or not 0 <= value < math.inf:
                unit = "" if name in self._factors() else " seconds"
                raise ConfigError(
                    f"cost table {self.name}: {name} must be 0 or more{unit}, got {value!r}"
                )

    def seconds(self, work: LaunchWork) -> float:
        """Return how long the device takes for the passes of a launch, or for a head or scores.

        See the module.
        """
        seconds = work.num_calls * self.overhead(work.kind, work.bucket)
        if not work.kind.runs_layers:
            seconds += max(self.head_floor, work.bucket * self.head_row_seconds)
            return seconds * self.head_factor(work.form)
        keys = (
            work.decode_keys * self.decode_key_seconds + work.prompt_keys * self.prompt_key_seconds
        )
        rows = max(self.weight_floor, work.bucket * self.row_seconds)
        return seconds + work.num_passes * (rows + keys)

    def host_seconds(self, num_items: int, bucket: int, num_calls: int = 1) -> float:
        """Return how long the host is busy before the first call of a launch of so many items."""
        packing = num_items * self.host_item_seconds + bucket * self.host_row_seconds
        return self.host_launch_seconds + num_calls * packing

    def call_seconds(self, bucket: int) -> float:
        """Return how long a call takes the host, while the device works already."""
        return self.host_call_seconds + bucket * self.host_call_row_seconds

    def head_factor(self, form: str) -> float:
        """Return what a head of a form costs over one of form `greedy`."""
        if form in self.head_factors:
            return self.head_factors[form]
        return math.prod(self.head_factors.get(part, 1.0) for part in form.split(FORM_PARTS))

    def overhead(self, kind: LaunchKind, bucket: int) -> float:
        """Return the overhead of a kind at a bucket, whether the table names it or not."""
        key = kind, bucket
        if key not in self._known:
            named = self.overheads.get(kind) or self.overheads.get(kind.stand_in, {})
            self._known[key] = _interpolate(named, bucket)
        return self._known[key]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CostModel:
        """Build a model from what `to_json` returned.

        Raises:
            ConfigError: another schema, a name that is missing or unknown, or a wrong number.
        """
        given = dict(values)
        if (schema := given.pop("schema", None)) != SCHEMA_VERSION:
            raise ConfigError(
                f"cost table {given.get('name')}: expected schema {SCHEMA_VERSION}, got "
                f"{schema!r}; tables of schema 1 price the LM head as a launch of its own, which "
                "no engine has any more: fit the table again (looped simulate fit)"
            )
        known = {one.name for one in fields(cls) if one.init}
        host = {name for name in known if name.startswith("host_")}
        needed = known - {"overheads", "head_factors", "is_estimate", *host}
        if (unknown := given.keys() - known) or needed - given.keys():
            found = {"unknown": unknown, "missing": needed - given.keys()}
            told = [f"{what} names {sorted(names)}" for what, names in found.items() if names]
            raise ConfigError(f"cost table: {' and '.join(told)}")
        try:
            given["overheads"] = {
                launch_kind(kind): {int(bucket): value for bucket, value in buckets.items()}
                for kind, buckets in given.get("overheads", {}).items()
            }
        except (KeyError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"cost table: overheads must be {{kind: {{rows: seconds}}}} ({error!r})"
            ) from None
        if not isinstance(given.get("head_factors", {}), Mapping):
            raise ConfigError("cost table: head_factors must be {form: factor}")
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """Return the model as an object of JSON."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        values["overheads"] = {
            kind.name.lower(): {str(bucket): value for bucket, value in sorted(buckets.items())}
            for kind, buckets in self.overheads.items()
        }
        values["head_factors"] = dict(self.head_factors)
        return {"schema": SCHEMA_VERSION, **values}

    def _factors(self) -> dict[str, float]:
        return {f"head factor of {form}": factor for form, factor in self.head_factors.items()}


SECONDS = tuple(one.name for one in fields(CostModel) if one.type == "float")
"""Fields that are times."""


def cost_table_names() -> tuple[str, ...]:
    """Return the names of the tables that are shipped."""
    folder = files(__package__) / TABLES
    return tuple(sorted(one.name[:-5] for one in folder.iterdir() if one.name.endswith(".json")))


def read_cost_table(name_or_path: str | Path) -> CostModel:
    """Read a table that is shipped, by name, or a file that ends in `.json`.

    Raises:
        ConfigError: no such table or file, or a file that holds no table.
    """
    path = Path(name_or_path)
    if path.suffix != ".json":
        if str(name_or_path) not in cost_table_names():
            raise ConfigError(
                f"cost table must be one of {', '.join(cost_table_names())}, or a file that ends "
                f"in .json; got {str(name_or_path)!r}"
            )
        text = (files(__package__) / TABLES / f"{name_or_path}.json").read_text(encoding="utf-8")
        return CostModel.from_json(json.loads(text))
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"cost table {path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cost table {path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"cost table {path}: expected a JSON object, got {values!r}")
    try:
        return CostModel.from_json(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _interpolate(points: Mapping[int, float], place: int) -> float:
    """Return a value between its neighbours', the nearest one outside them, 0 of no points."""
    if not points:
        return 0.0
    places = sorted(points)
    index = bisect_left(places, place)
    if index == len(places) or index == 0:
        return points[places[min(index, len(places) - 1)]]
    below, above = places[index - 1], places[index]
    share = (place - below) / (above - below)
    return points[below] + share * (points[above] - points[below])
