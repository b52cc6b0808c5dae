"""Program `recurrent`: one pass over decode rows and prompt rows, each at its own depth.

Every option of a request is data in the request table, so no mix of requests makes another
executable, and a launch says of a decode row no more than its slot.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from looped.device.pytree import register_pytree
from looped.device.request_table import RowOptions, RowProgress, read_rows, write_rows
from looped.device.state import DeviceState, StateShape
from looped.models.scopes import GATE
from looped.pallas_kernels import NO_BLOCK, AttentionMetadata
from looped.sched import Batch

from .exit_decisions import after_pass
from .packed_layout import PackedLayout, PackedType
from .paged_attention import PagedAttention
from .parameters import Parameters
from .program import Program, pack_head_slots, slots_of
from .prompt_arrays import (
    PromptArrays,
    RowMap,
    finish_prompts,
    pack_prompts,
    prompt_shapes,
    store_prompt_rows,
)


@register_pytree
class RecurrentArrays:
    """One pass over decode rows 0..R-1 and prompt items behind them: R decode rows, at most one a
    request, and I prompt items, of which a request may have several."""

    token_ids: Any
    """[T] tokens of prompt rows that are embedded in this launch."""
    decode_slots: Any
    """[R] slot of each decode row, or max_num_seqs for none."""
    head_slots: Any
    """[H] slots whose rows may finish in this launch, then max_num_seqs."""
    prompts: PromptArrays


def recurrent_layout(shape: StateShape, num_rows: int) -> PackedLayout[RecurrentArrays]:
    """Layout of a recurrent launch of T = num_rows."""
    num_decode = min(num_rows, shape.max_num_seqs)
    num_items = min(num_rows, shape.num_prompt_places)
    per_row: tuple[tuple[int, ...], PackedType] = ((num_decode,), "int32")
    return PackedLayout(
        RecurrentArrays,
        {
            "token_ids": ((num_rows,), "int32"),
            "decode_slots": per_row,
            "head_slots": per_row,
            **prompt_shapes(num_items),
        },
    )


def pack_recurrent(
    shape: StateShape, batch: Batch, arrays: RecurrentArrays, call_index: int
) -> None:
    """One pass of a batch: of a prefill batch that is split, the one of that index."""
    decode, prompts = batch.items[: batch.num_decode], batch.items[batch.num_decode :]
    count = len(decode)
    arrays.decode_slots[:] = shape.max_num_seqs
    arrays.decode_slots[:count] = slots_of(decode)
    pack_head_slots(shape, batch, arrays.head_slots)
    pack_prompts(shape, prompts, arrays.prompts, arrays.token_ids, count, call_index, 1)


def recurrent(
    shape: StateShape,
    backend: str,
    parameters: Parameters,
    state: DeviceState,
    arrays: RecurrentArrays,
) -> tuple[DeviceState, Int[Array, " 1"]]:
    """One pass: gather or embed rows, L layers and the final norm, scatter back, gate, exits.

    Rows of requests that have ended are masked: they write nothing.

    Returns:
        The state, and what the host may wait for.
    """
    model, prompts = parameters.model, arrays.prompts
    num_rows, num_decode = arrays.token_ids.shape[0], arrays.decode_slots.shape[0]
    progress = read_rows(RowProgress, state.progress, arrays.decode_slots)
    is_decode = (arrays.decode_slots < shape.max_num_seqs) & (progress.is_done == 0)
    slots = jnp.where(is_decode, arrays.decode_slots, shape.max_num_seqs)
    decode_tables = state.block_tables.at[slots, progress.depth].get(mode="clip")
    prompt_tables = state.block_tables[prompts.slots, prompts.depths]
    row_map = RowMap.from_items(prompts, num_rows)

    # Decode rows come first and prompt rows behind them; both views of a row are gathered and
    # one is kept. Indices of absent rows are clamped, and what they gather is never used.
    to_rows = partial(_pad_rows, num_rows=num_rows)
    slot = to_rows(slots)
    token_ids = jnp.where(row_map.is_prompt, arrays.token_ids, to_rows(progress.last_token))
    depth = jnp.where(row_map.is_prompt, prompts.depths[row_map.item], to_rows(progress.depth))
    kept = jnp.where(
        row_map.is_prompt[:, None],
        state.prompt_hidden[prompts.places[row_map.item], row_map.offset],
        state.hidden.at[slot].get(mode="clip"),
    )
    rows = jnp.where((depth == 0)[:, None], model.embed(token_ids), kept)

    position = jnp.where(
        row_map.is_prompt,
        prompts.first_positions[row_map.item] + row_map.offset,
        to_rows(progress.position),
    )
    block_index = position // shape.block_size
    decode_block = jnp.take_along_axis(
        decode_tables, block_index[:num_decode, None], axis=1, mode="clip"
    )[:, 0]
    write_blocks = jnp.where(
        row_map.is_prompt,
        prompt_tables.at[row_map.item, block_index].get(mode="clip"),
        to_rows(jnp.where(is_decode, decode_block, NO_BLOCK), fill=NO_BLOCK),
    )
    attend = PagedAttention(
        shape=shape,
        backend=backend,
        write_blocks=write_blocks,
        write_offsets=position % shape.block_size,
        metadata=AttentionMetadata(
            decode_tables=decode_tables,
            decode_lengths=jnp.where(is_decode, progress.position + 1, 0),
            prompt_tables=prompt_tables,
            prompt_position=prompts.first_positions,
            prompt_first_row=prompts.first_rows,
            prompt_rows=prompts.num_rows,
        ),
    )
    rows, (key_pool, value_pool) = model.recurrent_pass(
        rows, position, attend, (state.key_pool, state.value_pool)
    )

    state = replace(
        state,
        key_pool=key_pool,
        value_pool=value_pool,
        hidden=state.hidden.at[slots].set(rows[:num_decode], mode="drop"),
        prompt_hidden=store_prompt_rows(state.prompt_hidden, rows, prompts, row_map),
        head_slots=with_head_slots(state, arrays.head_slots),
    )
    with jax.named_scope(GATE):
        state = _decide(parameters, state, rows[:num_decode], slots, progress)
    state = finish_prompts(state, rows, prompts, shape.config.num_loops)
    return state, state.progress[:1, 0]


def _decide(
    parameters: Parameters,
    state: DeviceState,
    rows: Float[Array, "R E"],
    slots: Int[Array, " R"],
    progress: RowProgress,
) -> DeviceState:
    """The state with the decode rows one loop further, and their exits decided."""
    options = read_rows(RowOptions, state.options, slots)
    traced = state.traces.at[slots, progress.num_outputs].get(mode="clip").astype(jnp.int32)
    after, leave = after_pass(parameters, rows, progress, options, traced)
    return replace(
        state,
        progress=write_rows(state.progress, slots, after),
        gates=state.gates.at[slots, progress.depth].set(leave, mode="drop"),
    )


def with_head_slots(state: DeviceState, head_slots: Int[Array, " H"]) -> Int[Array, " slots"]:
    """The slots of those who may finish in a launch, padded to all slots; written in place."""
    num_slots = state.head_slots.shape[0]
    padding = num_slots - head_slots.shape[0]
    padded = jnp.pad(head_slots, (0, padding), constant_values=num_slots)
    return lax.dynamic_update_slice(state.head_slots, padded, (0,))


def _pad_rows(values: Int[Array, " R"], *, num_rows: int, fill: Any = 0) -> Int[Array, " T"]:
    """Values of the decode rows, continued over all T rows."""
    return jnp.pad(values, (0, num_rows - values.shape[0]), constant_values=fill)


RECURRENT = Program(
    layout=recurrent_layout,
    pack=pack_recurrent,
    step=lambda shape, backend, form: partial(recurrent, shape, backend),
)
