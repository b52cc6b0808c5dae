"""Program `prefill`: several passes over prompt rows that share a depth, in one launch."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from looped.device.state import DeviceState, StateShape, register_pytree
from looped.pallas_kernels import NO_BLOCK, AttentionMetadata
from looped.sched import Batch

from .packed_layout import PackedLayout
from .paged_attention import PagedAttention, Pools
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
from .recurrent import collect_passes


@register_pytree
class PrefillArrays:
    """Several passes over prompt items that share a depth."""

    first_depth: Any
    """[] depth of the first pass."""
    num_passes: Any
    """[] how many passes run."""
    token_ids: Any
    """[T] as in RecurrentArrays."""
    prompts: PromptArrays
    prompt_tables: Any
    """[P I B] blocks of every plane."""


def prefill_layout(shape: StateShape, num_rows: int) -> PackedLayout[PrefillArrays]:
    """Layout of a prefill launch of T = num_rows."""
    num_items = min(num_rows, shape.max_num_seqs)  # each of a request of its own
    tables = (shape.config.num_loops, num_items, shape.blocks_per_seq)
    return PackedLayout(
        PrefillArrays,
        {
            "first_depth": ((), "int32"),
            "num_passes": ((), "int32"),
            "token_ids": ((num_rows,), "int32"),
            **prompt_shapes(num_items),
            "prompt_tables": (tables, "int32"),
        },
    )


def pack_prefill(packing: Packing, batch: Batch, arrays: PrefillArrays, call_index: int) -> None:
    """All passes of a batch, in one call."""
    arrays.first_depth[...] = batch.items[0].depth
    arrays.num_passes[...] = batch.num_passes
    pack_prompts(
        packing.shape, batch.items, arrays.prompts, arrays.token_ids, 0, 0, batch.num_passes
    )
    slots = slots_of(batch.items)
    arrays.prompt_tables[:, : len(slots)] = packing.blocks[slots].swapaxes(0, 1)


def prefill(
    shape: StateShape,
    backend: str,
    parameters: Parameters,
    state: DeviceState,
    arrays: PrefillArrays,
) -> tuple[DeviceState, None]:
    """Several passes of prompt rows that share a depth, without a look at the host between."""
    model, prompts = parameters.model, arrays.prompts
    num_rows, num_items = arrays.token_ids.shape[0], prompts.places.shape[0]
    row_map = RowMap.from_items(prompts, num_rows)
    kept = state.prompt_hidden[prompts.places[row_map.item], row_map.offset]
    needs_embedding = prompts.is_embedded[row_map.item] == 0
    rows = jnp.where(needs_embedding[:, None], model.embed(arrays.token_ids), kept)
    position = prompts.first_positions[row_map.item] + row_map.offset

    def run_depth(depth: Int[Array, ""], carry: tuple[Array, Pools]) -> tuple[Array, Pools]:
        rows, pools = carry
        tables = arrays.prompt_tables[depth]
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
        arrays.first_depth,
        arrays.first_depth + arrays.num_passes,
        run_depth,
        (rows, (state.key_pool, state.value_pool)),
    )
    state = replace(
        state,
        key_pool=key_pool,
        value_pool=value_pool,
        hidden=finish_items(state.hidden, rows, prompts),
        prompt_hidden=store_prompt_rows(state.prompt_hidden, rows, prompts, row_map),
    )
    return state, None


PREFILL = Program(
    layout=prefill_layout,
    pack=pack_prefill,
    step=lambda shape, backend: partial(prefill, shape, backend),
    collect=collect_passes,
)
