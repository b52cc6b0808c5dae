"""From a folder on disk to a model in memory, whichever of the two forms the folder has."""

import logging
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from looped.convert import (
    ConvertedFolder,
    HuggingFaceFolder,
    LookaheadGate,
    read_lookahead_gate,
)
from looped.models import num_parameters
from looped.models.looped_model import LoopedModel
from looped.models.parameters import load_model
from looped.process.jax_options import with_own_jax_options

from .config import LAYER_FORMS, ModelConfig
from .errors import UsageError

logger = logging.getLogger(__name__)

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}

# A scan copies each layer's weights out of the stack: measured on CPU; on GPU seen in compiled
# steps (docs/aot.md) and not timed yet.
BEST_LAYERS = {"cpu": "unrolled", "gpu": "unrolled"}


@dataclass(frozen=True)
class LoadedModel:
    """A model and the configuration it runs with (`num_loops` may differ from the file's)."""

    folder: Path
    config: ModelConfig
    model: LoopedModel
    dtype: str
    lookahead_gate: LookaheadGate | None = None
    """Trained heads of exit mode `lookahead`, where the folder has them."""

    @property
    def layers(self) -> str:
        """Form of the model's layers, a name of `LAYER_FORMS`."""
        return "scanned" if self.model.is_stacked else "unrolled"


@with_own_jax_options
def load_folder(
    folder: Path | str,
    *,
    dtype: str | None = None,
    num_loops: int | None = None,
    layers: str | None = None,
) -> LoadedModel:
    """Loads a converted folder, or a Hugging Face folder by converting it in memory.

    Args:
        folder: either form.
        dtype: "float32" or "bfloat16"; None takes the checkpoint's (float32 for float16).
        num_loops: run the model with this P, prompts included; None takes the checkpoint's.
        layers: "unrolled" or "scanned"; None takes the platform's best.

    Raises:
        LoopedError: for a folder that is not a sound model, with all reasons.
    """
    folder = Path(folder)
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
    if layers is None:
        layers = BEST_LAYERS.get(jax.default_backend(), "unrolled")
    if layers not in LAYER_FORMS:
        raise UsageError(f"layers must be one of {', '.join(LAYER_FORMS)}; got {layers!r}")
    source: ConvertedFolder | HuggingFaceFolder
    if ConvertedFolder.is_at(folder):
        source = ConvertedFolder(folder)
    else:
        source = HuggingFaceFolder(folder)
        source.check_values()
    gate = read_lookahead_gate(folder, source.config)
    config = source.config.with_num_loops(num_loops)
    dtype = dtype or ("bfloat16" if source.dtype == "bfloat16" else "float32")
    model = load_model(config, source.read, DTYPES[dtype])
    if layers == "scanned":
        model.stack_layers()
    logger.info("loaded %s: %d parameters, %s", folder, num_parameters(config), dtype)
    return LoadedModel(folder, config, model, dtype, gate)
