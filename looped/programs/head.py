"""The compiled LM head: `coda` draws the next token of each row and fills the planes that it
skipped, `score` looks up what the model says about the tokens of a prompt.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from looped.device.state import DeviceState, StateShape
from looped.models.scopes import SAMPLER
from looped.pallas_kernels import NO_BLOCK, copy_positions
from looped.sampling_params import MAX_LOGPROBS

from .head_output import HeadOutput
from .layouts import CodaArrays, ScoreArrays
from .logit_edits import count_outputs, edit_logits
from .passes import Parameters
from .sampler import raw_logprobs, sample, top_logprobs


def coda(
    shape: StateShape, parameters: Parameters, state: DeviceState, arrays: CodaArrays
) -> tuple[DeviceState, Int[Array, "outputs R"]]:
    """LM head, sampling, and the deeper planes of tokens that left early.

    Returns:
        The state, and one array for the host's one read, as `HeadOutput` cuts it up.
    """
    num_planes = shape.config.num_loops
    rows = state.hidden.at[arrays.slots].get(mode="clip")
    logits = parameters.model.logits(rows)
    with jax.named_scope(SAMPLER):
        token_ids = sample(_edited(logits, state, arrays), arrays.sampling)
    logprobs = raw_logprobs(logits, token_ids)
    is_finite = jnp.isfinite(logits).all(axis=-1)
    top_ids, top_values = _top_logprobs(logits, arrays.needs_top_logprobs)

    is_real = arrays.slots < shape.max_num_seqs
    last_plane = (arrays.exit_loops - 1).clip(0)
    is_skipped = jnp.arange(num_planes) >= arrays.exit_loops[:, None]
    targets = jnp.where(is_skipped & is_real[:, None], arrays.plane_blocks, NO_BLOCK)
    sources = jnp.take_along_axis(arrays.plane_blocks, last_plane[:, None], axis=1)[:, 0]
    key_pool, value_pool = copy_positions(
        state.key_pool,
        state.value_pool,
        sources,
        arrays.offsets,
        targets,
        num_layers=shape.config.num_layers,
    )
    state = replace(
        state,
        key_pool=key_pool,
        value_pool=value_pool,
        last_token=state.last_token.at[arrays.slots].set(token_ids, mode="drop"),
        token_marks=count_outputs(state.token_marks, arrays.slots, token_ids, arrays.sampling),
    )
    output = HeadOutput(
        token_ids=token_ids,
        logprobs=logprobs,
        is_finite=is_finite.astype(jnp.int32),
        top_token_ids=top_ids.T,
        top_logprobs=top_values.T,
    )
    return state, output.pack()


def score(
    shape: StateShape, parameters: Parameters, state: DeviceState, arrays: ScoreArrays
) -> tuple[DeviceState, Int[Array, "outputs C"]]:
    """LM head at the rows of one prompt item, after whatever depth it has reached.

    Returns:
        The state as it was, and one array for the host's one read, as `HeadOutput` cuts it up.
    """
    num_padded = arrays.targets.shape[0] - shape.chunk_size
    rows = jnp.pad(state.prompt_hidden[arrays.place], ((0, num_padded), (0, 0)))
    logits = parameters.model.logits(rows)
    top_ids, top_values = _top_logprobs(logits, arrays.needs_top_logprobs)
    output = HeadOutput(
        token_ids=jnp.argmax(logits, axis=-1).astype(jnp.int32),
        logprobs=raw_logprobs(logits, arrays.targets),
        is_finite=jnp.isfinite(logits).all(axis=-1).astype(jnp.int32),
        top_token_ids=top_ids.T,
        top_logprobs=top_values.T,
    )
    return state, output.pack()


def _edited(
    logits: Float[Array, "R V"], state: DeviceState, arrays: CodaArrays
) -> Float[Array, "R V"]:
    """Logits to draw from; a launch without edited rows reads no marks and no bias."""

    def edit() -> Float[Array, "R V"]:
        marks = state.token_marks.at[arrays.slots].get(mode="clip")
        bias = state.logit_bias.at[arrays.slots].get(mode="clip")
        return edit_logits(logits, marks, bias, arrays.sampling)

    return lax.cond(jnp.any(arrays.sampling.is_edited != 0), edit, lambda: logits)


def _top_logprobs(
    logits: Float[Array, "R V"], is_needed: Int[Array, ""]
) -> tuple[Int[Array, "R N"], Float[Array, "R N"]]:
    """The most likely tokens, as many as can be asked for; zeros where no row asks."""
    num_rows, vocab_size = logits.shape
    width = min(MAX_LOGPROBS, vocab_size)
    return lax.cond(
        is_needed > 0,
        lambda: top_logprobs(logits, width),
        lambda: (jnp.zeros((num_rows, width), jnp.int32), jnp.zeros((num_rows, width))),
    )
