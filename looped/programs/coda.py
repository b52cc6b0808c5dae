"""Program `coda`: the LM head and what follows from it, for one row a request.

Logits are edited, a token is drawn, and the planes that it skipped are filled. It reads hidden rows
that passes have left in device state, so it can be called right behind one.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from looped.device.state import DeviceState, StateShape, register_pytree
from looped.models.scopes import SAMPLER
from looped.pallas_kernels import NO_BLOCK, copy_positions
from looped.sched import Batch, CodaResult

from .packed_layout import PackedLayout, PackedType
from .parameters import Parameters
from .program import Packing, Program, slots_of
from .sampling.head_output import HeadOutput
from .sampling.logit_edits import count_outputs, edit_logits
from .sampling.request_sampling import sampling_of
from .sampling.sampler import SamplingRows, sample


@register_pytree
class CodaArrays:
    """LM head and sampling of one row per request."""

    slots: Any
    """[R] slot of each row, or max_num_seqs for none."""
    exit_loops: Any
    """[R] loops that the row's token ran; below P, its deeper planes are filled."""
    offsets: Any
    """[R] the token's place in its block."""
    plane_blocks: Any
    """[R P] the block that holds the token's position, in each plane."""
    needs_top_logprobs: Any
    """[] whether any row wants the log-probabilities of the most likely tokens."""
    sampling: SamplingRows


def coda_layout(shape: StateShape, num_rows: int) -> PackedLayout[CodaArrays]:
    """Layout of a coda launch of R = num_rows."""
    per_row: tuple[tuple[int, ...], PackedType] = ((num_rows,), "int32")
    return PackedLayout(
        CodaArrays,
        {
            "slots": per_row,
            "exit_loops": per_row,
            "offsets": per_row,
            "plane_blocks": ((num_rows, shape.config.num_loops), "int32"),
            "needs_top_logprobs": ((), "int32"),
            "sampling.temperature": ((num_rows,), "float32"),
            "sampling.top_k": per_row,
            "sampling.top_p": ((num_rows,), "float32"),
            "sampling.min_p": ((num_rows,), "float32"),
            "sampling.is_edited": per_row,
            "sampling.repetition_penalty": ((num_rows,), "float32"),
            "sampling.presence_penalty": ((num_rows,), "float32"),
            "sampling.frequency_penalty": ((num_rows,), "float32"),
            "sampling.min_tokens": per_row,
            "sampling.seed": ((num_rows, 2), "uint32"),
            "sampling.sample_index": per_row,
            "sampling.output_index": per_row,
        },
    )


def pack_coda(packing: Packing, batch: Batch, arrays: CodaArrays, call_index: int) -> None:
    """The LM-head rows of a batch."""
    count, slots = len(batch.items), slots_of(batch.items)
    positions = np.array([item.first_position for item in batch.items])
    block_size = packing.shape.block_size
    arrays.slots[:] = packing.shape.max_num_seqs
    arrays.slots[:count] = slots
    arrays.exit_loops[:count] = [item.exit_loop for item in batch.items]
    arrays.offsets[:count] = positions % block_size
    arrays.plane_blocks[:count] = packing.blocks[slots, :, positions // block_size]
    samplings = [sampling_of(item.request) for item in batch.items]
    for index, sampling in enumerate(samplings):
        sampling.write(arrays.sampling, index)
    arrays.needs_top_logprobs[...] = any(sampling.num_logprobs for sampling in samplings)
    arrays.sampling.sample_index[:count] = [item.request.sample_index for item in batch.items]
    arrays.sampling.output_index[:count] = [item.output_index for item in batch.items]


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
    output = HeadOutput.of(logits, token_ids, token_ids, arrays.needs_top_logprobs)

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
    return state, output.pack()


def collect_coda(batch: Batch, values: np.ndarray[Any, Any] | None) -> CodaResult:
    """A token for each item, with what its request asks for beside it."""
    assert values is not None, "an LM head is always read"
    wanted = [sampling_of(item.request).num_logprobs for item in batch.items]
    return HeadOutput.unpack(values).to_coda_result(wanted)


def _edited(
    logits: Float[Array, "R V"], state: DeviceState, arrays: CodaArrays
) -> Float[Array, "R V"]:
    """Logits to draw from; a launch without edited rows reads no marks and no bias."""

    def edit() -> Float[Array, "R V"]:
        marks = state.token_marks.at[arrays.slots].get(mode="clip")
        bias = state.logit_bias.at[arrays.slots].get(mode="clip")
        return edit_logits(logits, marks, bias, arrays.sampling)

    return lax.cond(jnp.any(arrays.sampling.is_edited != 0), edit, lambda: logits)


CODA = Program(
    layout=coda_layout,
    pack=pack_coda,
    step=lambda shape, backend: partial(coda, shape),
    collect=collect_coda,
)
