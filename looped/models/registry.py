"""The families that are served, and the way from a config.json to one of them.

A new family is its own files in this folder and a place in `FAMILIES`; nothing outside names one.
"""

from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from looped.config import ModelConfig
from looped.errors import ForeignCheckpointError, brief
from looped.model_files import read_json

from . import quantisation
from .config_keys import ConfigKeys
from .family import Family
from .ouro_family import OuroFamily

FAMILIES: Mapping[str, Family] = {family.model_type: family for family in (OuroFamily(),)}
"""By `model_type`."""

DEFAULT_MODEL_TYPE = OuroFamily.model_type
"""Family of models that are made here: trained from nothing, or random ones to measure with."""


def family_of(config: ModelConfig) -> Family:
    """The family of a configuration that was read, or made for one of `FAMILIES`."""
    return FAMILIES[config.model_type]


def read_config(path: Path) -> ModelConfig:
    """Reads a config.json; raises as `parse_config` does, and for a file that cannot be read."""
    return parse_config(read_json(path), source=str(path))


def parse_config(values: Mapping[str, Any], *, source: str = "config.json") -> ModelConfig:
    """What a config.json says, of whichever family it is.

    Args:
        values: the file's top-level object.
        source: names the file where it is of another kind of model altogether.

    Raises:
        ForeignCheckpointError: a model of a family that is not served, or a quantised one.
        LoopedError: naming every key that is missing, unknown or unsupported, at once.
    """
    family = find_family(values, source)
    quantisation.check_config(values, source)
    keys = ConfigKeys(values)
    if values.get("model_type") is None:
        keys.add_problem(f"model_type is missing; {_listed(map(repr, FAMILIES))} supported")
    return family.read_config(keys)


def find_family(values: Mapping[str, Any], source: str) -> Family:
    """The family of a config.json.

    A missing `model_type` is a fault of its own, which reading finds beside others: here the
    class says the family, and where that is missing, too, the default is as good as any.

    Args:
        values: the file's top-level object.
        source: names the file in the message.

    Raises:
        ForeignCheckpointError: one that is not served; the message says which are.
    """
    named = values.get("architectures") or values.get("_class_name")
    architecture = named[0] if isinstance(named, list) and named else named
    model_type = values.get("model_type")
    for family in FAMILIES.values():
        if model_type == family.model_type:
            return family
        if model_type is None and architecture == family.architecture:
            return family
    if model_type is None and architecture is None:
        return FAMILIES[DEFAULT_MODEL_TYPE]
    names = [name for name in (model_type, architecture) if name is not None]
    detail = f" ({brief(names[1], 40)})" if len(names) == 2 else ""
    served = _listed(f"{family.model_type} ({family.description})" for family in FAMILIES.values())
    raise ForeignCheckpointError(
        f"a model of the family {brief(names[0], 40)}{detail}, and only {served} served: {source}"
    )


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the tree on disk, in the order in which it is written."""
    return family_of(config).parameter_shapes(config)


def num_parameters(config: ModelConfig) -> int:
    """Parameters of the whole model: each loop reuses the same L layers."""
    return sum(prod(shape) for shape in parameter_shapes(config).values())


def _listed(names: Iterable[str]) -> str:
    """Some names and a verb: "a is", "a and b are"."""
    texts = list(names)
    return " and ".join(texts) + (" is" if len(texts) == 1 else " are")
