"""Workloads that are read from a file.

It has one JSON object a line: `prompt_tokens`, `output_tokens`, and, if it knows, `arrival_time` in
seconds, `depths`, the loops of every output token (an empty list: all loops), `priority`, and
`shared_prefix_tokens`, how much of one common text its prompt begins with. Where it does not,
arrivals and depths are made up as for any other workload, and nothing is shared.
"""

import json
from pathlib import Path
from typing import Any

from looped.errors import UsageError

from .workload import WorkloadRequest

KEYS = frozenset(
    {
        "arrival_time",
        "prompt_tokens",
        "output_tokens",
        "depths",
        "priority",
        "shared_prefix_tokens",
    }
)

LATEST = 1e12
"""Arrival, in seconds; moments of a calendar are far below."""


def read_workload(path: Path) -> list[WorkloadRequest]:
    """Reads a workload file.

    Raises:
        UsageError: no such file, no request in it, or a line that is none; or some lines with an
            arrival time and some without.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text in UTF-8: {error}") from None
    requests = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                requests.append(_parse(json.loads(line)))
            except (ValueError, TypeError, KeyError) as error:
                raise UsageError(f"{path}, line {number} is no request: {error}") from None
    if not requests:
        raise UsageError(f"{path} holds no request")
    if len({request.arrival_time is None for request in requests}) > 1:
        raise UsageError(f"{path}: either every request has an arrival_time or none has")
    return requests


def _parse(values: Any) -> WorkloadRequest:
    if not isinstance(values, dict) or values.keys() - KEYS:
        raise ValueError(f"expected an object with {', '.join(sorted(KEYS))}; got {values!r:.80}")
    for name in ("prompt_tokens", "output_tokens"):
        if type(values.get(name)) is not int or values[name] < 1:
            raise ValueError(f"{name} must be a whole number of at least 1")
    time, depths = values.get("arrival_time"), values.get("depths")
    if time is not None and (type(time) not in (int, float) or not 0 <= time <= LATEST):
        raise ValueError(f"arrival_time must be 0 to {LATEST:g} seconds, got {time!r}")
    if depths is not None and (
        not isinstance(depths, list) or not all(type(depth) is int for depth in depths)
    ):
        raise ValueError("depths must be a list of whole numbers")
    if type(values.get("priority", 0)) is not int:
        raise ValueError(f"priority must be a whole number, got {values['priority']!r}")
    num_shared = values.get("shared_prefix_tokens", 0)
    if type(num_shared) is not int or not 0 <= num_shared < values["prompt_tokens"]:
        raise ValueError(
            "shared_prefix_tokens must be a whole number of 0 or more, below prompt_tokens; got "
            f"{num_shared!r}"
        )
    return WorkloadRequest(
        values["prompt_tokens"],
        values["output_tokens"],
        None if time is None else float(time),
        None if depths is None else tuple(depths),
        priority=values.get("priority", 0),
        shared_prefix_tokens=num_shared,
    )
