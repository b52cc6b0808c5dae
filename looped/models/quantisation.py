"""Quantised checkpoints: how their configurations and tensors show it, and how they are refused."""

from collections.abc import Mapping
from typing import Any

from looped.errors import ForeignCheckpointError, brief

# Where config.json says it: transformers, MLX, and compressed-tensors before 2024.
CONFIG_KEYS = ("quantization_config", "quantization", "compression_config")

SMALL_FLOATS = ("float8_", "float6_", "float4")
"""How their types begin, as safetensors' own names are spelled here."""

# Who stores tensors of such names beside, or in place of, a matrix.
TENSOR_MARKS: Mapping[str, tuple[str, ...]] = {
    "GPTQ or AWQ": (".qweight", ".qzeros"),
    "bitsandbytes": (".SCB", ".absmax", ".quant_map", ".nested_absmax", ".quant_state."),
    "compressed-tensors": (".weight_packed", ".weight_zero_point"),
    "scaled weights": (".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".input_scale"),
    "MLX": (".scales", ".biases"),
}


def check_config(values: Mapping[str, Any], source: str) -> None:
    """ForeignCheckpointError if a config.json says that its weights are quantised.

    Args:
        values: the file's top-level object.
        source: names the file in the message.
    """
    for key in CONFIG_KEYS:
        if settings := values.get(key):
            raise refusal(_described(key, settings), source)


def check_tensors(dtypes: Mapping[str, str], source: str) -> None:
    """ForeignCheckpointError if names or types of tensors say that they are quantised.

    Args:
        dtypes: type by name; `float8_…` and the like are small floats that need scales.
        source: names the folder in the message.
    """
    for method, marks in TENSOR_MARKS.items():
        marked = [name for name in dtypes if any(_is_marked(name, mark) for mark in marks)]
        if marked:
            small = next((kind for kind in dtypes.values() if kind.startswith(SMALL_FLOATS)), None)
            raise refusal(f"{small or method}, with tensors such as {marked[0]}", source)
    for name, dtype in dtypes.items():
        if dtype.startswith(SMALL_FLOATS):
            raise refusal(f"{dtype}, with tensors such as {name}", source)


def refusal(method: str, source: str) -> ForeignCheckpointError:
    """The error for a quantised checkpoint."""
    return ForeignCheckpointError(
        f"a quantised checkpoint ({method}), and only float32, float16 and bfloat16 weights are "
        f"served; take the checkpoint that it was made from: {source}"
    )


def _described(key: str, settings: object) -> str:
    if not isinstance(settings, Mapping):
        return f"{key} = {brief(repr(settings), 40)}"
    method = settings.get("quant_method") or ("MLX" if "group_size" in settings else key)
    bits = settings.get("bits") or next(
        (number for number in (4, 8) if settings.get(f"load_in_{number}bit")), None
    )
    return brief(method, 40) + (f", {brief(bits, 10)} bits" if bits else "")


def _is_marked(name: str, mark: str) -> bool:
    """Whether a tensor's name has the mark: at its end, or anywhere for `.mark.`."""
    return mark in name if mark.endswith(".") else name.endswith(mark)
