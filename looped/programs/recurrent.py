"""Program `recurrent`: one pass over decode rows and prompt rows, each at its own depth.

Every option of a request is data here, so no mix of requests makes another executable.
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
from looped.models.scopes import GATE
from looped.pallas_kernels import NO_BLOCK, AttentionMetadata
from looped.sched import Batch, RecurrentResult

from .gates import GATE_RECORDED, gate_of, run_gates
from .packed_layout import PackedLayout, PackedType
from .paged_attention import PagedAttention
from .parameters import Parameters
from .program import Packing, Program, slots_of
from .prompt_arrays import (
    PromptArrays,
    RowMap,
    finish_items,
    pack_prompts,
    prompt_shapes,
    store_prompt_rows,
)


@register_pytree
class RecurrentArrays:
    """One pass over decode rows 0..R-1 and prompt items behind them: R decode rows, at most one a
    request, and I prompt items, of which a request may have several."""

    runs_gate: Any
    """[] whether any row needs a gate."""
    token_ids: Any
    """[T] tokens of prompt rows that are embedded in this launch."""
    decode_slots: Any
    """[R] slot of each decode row, or max_num_seqs for none."""
    decode_depths: Any
    """[R] depth that the row runs; at 0 it embeds its slot's last token."""
    decode_positions: Any
    """[R] the row's place in its sequence."""
    decode_gates: Any
    """[R] GATE_NONE, GATE_OURO, GATE_RANDOM_LOOKAHEAD, GATE_LOOKAHEAD or GATE_RECORDED."""
    decode_tables: Any
    """[R B] blocks of the plane of the row's depth."""
    prompts: PromptArrays
    prompt_tables: Any
    """[I B] blocks of the plane of the item's depth."""


def recurrent_layout(shape: StateShape, num_rows: int) -> PackedLayout[RecurrentArrays]:
    """Layout of a recurrent launch of T = num_rows."""
    num_decode = min(num_rows, shape.max_num_seqs)
    num_items = min(num_rows, shape.num_prompt_places)
    per_row: tuple[tuple[int, ...], PackedType] = ((num_decode,), "int32")
    return PackedLayout(
        RecurrentArrays,
        {
            "runs_gate": ((), "int32"),
            "token_ids": ((num_rows,), "int32"),
            "decode_slots": per_row,
            "decode_depths": per_row,
            "decode_positions": per_row,
            "decode_gates": per_row,
            "decode_tables": ((num_decode, shape.blocks_per_seq), "int32"),
            **prompt_shapes(num_items),
            "prompt_tables": ((num_items, shape.blocks_per_seq), "int32"),
        },
    )


def pack_recurrent(
    packing: Packing, batch: Batch, arrays: RecurrentArrays, call_index: int
) -> None:
    """One pass of a batch: of a prefill batch that is split, the one of that index."""
    decode, prompts = batch.items[: batch.num_decode], batch.items[batch.num_decode :]
    count, slots, depths = len(decode), slots_of(decode), [item.depth for item in decode]
    records_gates = packing.records_gates and count > 0
    arrays.runs_gate[...] = batch.runs_gate or records_gates
    arrays.decode_slots[:] = packing.shape.max_num_seqs
    arrays.decode_slots[:count] = slots
    arrays.decode_depths[:count] = depths
    arrays.decode_positions[:count] = [item.first_position for item in decode]
    arrays.decode_gates[:count] = (
        GATE_RECORDED if records_gates else [gate_of(item) for item in decode]
    )
    arrays.decode_tables[:count] = packing.blocks[slots, depths]
    pack_prompts(packing.shape, prompts, arrays.prompts, arrays.token_ids, count, call_index, 1)
    arrays.prompt_tables[: len(prompts)] = packing.blocks[
        slots_of(prompts), [item.depth + call_index for item in prompts]
    ]


def recurrent(
    shape: StateShape,
    backend: str,
    parameters: Parameters,
    state: DeviceState,
    arrays: RecurrentArrays,
) -> tuple[DeviceState, Float[Array, " R"]]:
    """One pass: gather or embed rows, L layers and the final norm, scatter back, gate.

    Returns:
        The state, and one signal per decode row: 1 - survival for Ouro's gate, the look-ahead
        head's score, sigmoid of the gate where that is recorded, 0 for a row without a gate in
        this launch.
    """
    model, prompts = parameters.model, arrays.prompts
    num_rows, num_decode = arrays.token_ids.shape[0], arrays.decode_slots.shape[0]
    is_decode = arrays.decode_slots < shape.max_num_seqs
    row_map = RowMap.from_items(prompts, num_rows)

    # Decode rows come first and prompt rows behind them; both views of a row are gathered and
    # one is kept. Indices of absent rows are clamped, and what they gather is never used.
    to_rows = partial(_pad_rows, num_rows=num_rows)
    slot = to_rows(arrays.decode_slots)
    token_ids = jnp.where(
        row_map.is_prompt, arrays.token_ids, state.last_token.at[slot].get(mode="clip")
    )
    needs_embedding = jnp.where(
        row_map.is_prompt,
        prompts.is_embedded[row_map.item] == 0,
        to_rows(arrays.decode_depths) == 0,
    )
    kept = jnp.where(
        row_map.is_prompt[:, None],
        state.prompt_hidden[prompts.places[row_map.item], row_map.offset],
        state.hidden.at[slot].get(mode="clip"),
    )
    rows = jnp.where(needs_embedding[:, None], model.embed(token_ids), kept)

    position = jnp.where(
        row_map.is_prompt,
        prompts.first_positions[row_map.item] + row_map.offset,
        to_rows(arrays.decode_positions),
    )
    block_index = position // shape.block_size
    decode_block = jnp.take_along_axis(
        arrays.decode_tables, block_index[:num_decode, None], axis=1, mode="clip"
    )[:, 0]
    write_blocks = jnp.where(
        row_map.is_prompt,
        arrays.prompt_tables.at[row_map.item, block_index].get(mode="clip"),
        to_rows(jnp.where(is_decode, decode_block, NO_BLOCK), fill=NO_BLOCK),
    )
    attend = PagedAttention(
        shape=shape,
        backend=backend,
        write_blocks=write_blocks,
        write_offsets=position % shape.block_size,
        metadata=AttentionMetadata(
            decode_tables=arrays.decode_tables,
            decode_lengths=jnp.where(is_decode, arrays.decode_positions + 1, 0),
            prompt_tables=arrays.prompt_tables,
            prompt_position=prompts.first_positions,
            prompt_first_row=prompts.first_rows,
            prompt_rows=prompts.num_rows,
        ),
    )
    rows, (key_pool, value_pool) = model.recurrent_pass(
        rows, position, attend, (state.key_pool, state.value_pool)
    )

    survival, signals = lax.cond(
        arrays.runs_gate > 0,
        jax.named_scope(GATE)(run_gates),
        lambda *_: (state.survival, jnp.zeros((num_decode,), jnp.float32)),
        parameters,
        state.survival,
        rows[:num_decode],
        arrays.decode_slots,
        arrays.decode_depths,
        arrays.decode_gates,
    )
    hidden = state.hidden.at[arrays.decode_slots].set(rows[:num_decode], mode="drop")
    state = replace(
        state,
        key_pool=key_pool,
        value_pool=value_pool,
        hidden=finish_items(hidden, rows, prompts),
        prompt_hidden=store_prompt_rows(state.prompt_hidden, rows, prompts, row_map),
        survival=survival,
    )
    return state, signals


def collect_passes(batch: Batch, values: np.ndarray[Any, Any] | None) -> RecurrentResult:
    """A signal for each decode item, if the launch was read."""
    return RecurrentResult(None if values is None else values[: batch.num_decode].tolist())


def _pad_rows(values: Int[Array, " R"], *, num_rows: int, fill: Any = 0) -> Int[Array, " T"]:
    """Values of the decode rows, continued over all T rows."""
    return jnp.pad(values, (0, num_rows - values.shape[0]), constant_values=fill)


RECURRENT = Program(
    layout=recurrent_layout,
    pack=pack_recurrent,
    step=lambda shape, backend: partial(recurrent, shape, backend),
    collect=collect_passes,
)
