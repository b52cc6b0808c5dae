"""Program `prefill`: prompt rows through every depth, in one launch."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from looped.device.pytree import register_pytree
from looped.device.state import DeviceState, StateShape
from looped.pallas_kernels import NO_BLOCK, AttentionMetadata
from looped.sched import Batch

from .packed_layout import PackedLayout
from .paged_attention import PagedAttention, Pools
from .parameters import Parameters
from .program import Program, pack_head_slots
from .prompt_arrays import (
    PromptArrays,
    RowMap,
    finish_prompts,
    pack_prompts,
    prompt_shapes,
    store_prompt_rows,
)
from .recurrent import with_head_slots


@register_pytree
class PrefillArrays:
    """All passes of prompt items, from the first on."""

    token_ids: Any
    """[T] tokens of the items."""
    head_slots: Any
    """[H] as in RecurrentArrays."""
    prompts: PromptArrays


def prefill_layout(shape: StateShape, num_rows: int) -> PackedLayout[PrefillArrays]:
    """Layout of a prefill launch of T = num_rows."""
    num_items = min(num_rows, shape.max_num_seqs)  # each of a request of its own
    return PackedLayout(
        PrefillArrays,
        {
            "token_ids": ((num_rows,), "int32"),
            "head_slots": ((num_items,), "int32"),
            **prompt_shapes(num_items),
        },
    )


def pack_prefill(shape: StateShape, batch: Batch, arrays: PrefillArrays, call_index: int) -> None:
    """All passes of a batch, in one call."""
    pack_head_slots(shape, batch, arrays.head_slots)
    pack_prompts(shape, batch.items, arrays.prompts, arrays.token_ids, 0, 0, batch.num_passes)


def prefill(
    shape: StateShape,
    backend: str,
    parameters: Parameters,
    state: DeviceState,
    arrays: PrefillArrays,
) -> tuple[DeviceState, Int[Array, " 1"]]:
    """Every pass of prompt rows, from their embedding on.

    The loop runs P times, whatever the data: a GPU has no trip count to ask the host for.

    Returns:
        The state, and what the host may wait for.
    """
    model, prompts = parameters.model, arrays.prompts
    num_rows, num_items = arrays.token_ids.shape[0], prompts.places.shape[0]
    row_map = RowMap.from_items(prompts, num_rows)
    rows = model.embed(arrays.token_ids)
    item_tables = state.block_tables[prompts.slots]
    position = prompts.first_positions[row_map.item] + row_map.offset

    def run_depth(depth: Int[Array, ""], carry: tuple[Array, Pools]) -> tuple[Array, Pools]:
        rows, pools = carry
        tables = item_tables[:, depth]
        blocks = tables.at[row_map.item, position // shape.block_size].get(mode="clip")
        attend = PagedAttention(
            shape=shape,
            backend=backend,
            write_blocks=jnp.where(row_map.is_prompt, blocks, NO_BLOCK),
            write_offsets=position % shape.block_size,
            metadata=AttentionMetadata(
                decode_tables=jnp.zeros((num_items, shape.blocks_per_seq), jnp.int32),
                decode_lengths=jnp.zeros((num_items,), jnp.int32),
                prompt_tables=tables,
                prompt_position=prompts.first_positions,
                prompt_first_row=prompts.first_rows,
                prompt_rows=prompts.num_rows,
            ),
        )
        return model.recurrent_pass(rows, position, attend, pools)

    rows, (key_pool, value_pool) = lax.fori_loop(
        0, shape.config.num_loops, run_depth, (rows, (state.key_pool, state.value_pool))
    )
    state = replace(
        state,
        key_pool=key_pool,
        value_pool=value_pool,
        prompt_hidden=store_prompt_rows(state.prompt_hidden, rows, prompts, row_map),
        head_slots=with_head_slots(state, arrays.head_slots),
    )
    state = finish_prompts(state, rows, prompts, shape.config.num_loops)
    return state, state.progress[:1, 0]


PREFILL = Program(
    layout=prefill_layout,
    pack=pack_prefill,
    step=lambda shape, backend, form: partial(prefill, shape, backend),
)
