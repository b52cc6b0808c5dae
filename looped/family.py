"""The one family of models that is served, and the refusal of a configuration of another."""

from collections.abc import Mapping
from typing import Any

from .errors import ForeignCheckpointError, brief

FAMILY, ARCHITECTURE = "ouro", "OuroForCausalLM"
"""Its `model_type`, and the name that transformers gives its class."""


def check_family(values: Mapping[str, Any], source: str) -> None:
    """ForeignCheckpointError if a config.json describes a model of another family.

    Args:
        values: the file's top-level object. Without a `model_type`, the class says it.
        source: names the file in the message.
    """
    named = values.get("architectures") or values.get("_class_name")
    architecture = named[0] if isinstance(named, list) and named else named
    family = values.get("model_type")
    if family == FAMILY or (family is None and architecture in (None, ARCHITECTURE)):
        return
    names = [name for name in (family, architecture) if name is not None]
    detail = f" ({brief(names[1], 40)})" if len(names) == 2 else ""
    raise ForeignCheckpointError(
        f"a model of the family {brief(names[0], 40)}{detail}, and only {FAMILY} (ByteDance's Ouro "
        f"and its fine-tunes) is served: {source}"
    )
