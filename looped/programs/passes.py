"""The compiled passes, as functions of parameters, donated state and one packed array.

`recurrent` is one pass over any rows, `prefill` several passes over prompt rows; the LM head is in
`coda`. Every option of a request is data here, so no mix of requests makes another executable.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from looped.device.state import DeviceState, StateShape, register_pytree
from looped.models.looped_model import LoopedModel
from looped.models.scopes import ATTENTION, GATE, KV_WRITE
from looped.pallas_kernels import NO_BLOCK, ragged_paged_attention, write_kv

from .layouts import (
    GATE_LOOKAHEAD,
    GATE_OURO,
    GATE_RANDOM_LOOKAHEAD,
    GATE_RECORDED,
    PrefillArrays,
    PromptArrays,
    RecurrentArrays,
)
from .lookahead import LookaheadHeads

Pools = tuple[Float[Array, "LN K S D"], Float[Array, "LN K S D"]]


@register_pytree
class Parameters:
    """What steps read and never write."""

    model: LoopedModel
    lookahead: LookaheadHeads


@register_pytree
class RowMap:
    """Which prompt item each of T rows belongs to, worked out from the items' ranges."""

    is_prompt: Bool[Array, " T"]
    item: Int[Array, " T"]
    """Item of a prompt row; 0 for the others."""
    offset: Int[Array, " T"]
    """Row within its item; 0 for the others."""

    @classmethod
    def from_items(cls, prompts: PromptArrays, num_rows: int) -> "RowMap":
        row = jnp.arange(num_rows)
        first = prompts.first_rows[:, None]
        is_owner = (row >= first) & (row < first + prompts.num_rows[:, None])
        is_prompt = is_owner.any(axis=0)
        item = jnp.argmax(is_owner, axis=0)
        offset = jnp.where(is_prompt, row - prompts.first_rows[item], 0)
        return cls(is_prompt=is_prompt, item=item, offset=offset)


@dataclass(frozen=True)
class PagedAttention:
    """The model's `attend` over the flat pool: write these rows' keys and values, then attend."""

    shape: StateShape
    backend: str
    write_blocks: Int[Array, " T"]
    write_offsets: Int[Array, " T"]
    decode_tables: Int[Array, "R B"]
    decode_lengths: Int[Array, " R"]
    prompts: PromptArrays
    prompt_tables: Int[Array, "I B"]

    def __call__(
        self,
        layer: int | Int[Array, ""],
        query: Float[Array, "T H D"],
        key: Float[Array, "T K D"],
        value: Float[Array, "T K D"],
        cache: Pools,
    ) -> tuple[Float[Array, "T H D"], Pools]:
        first_block = layer * self.shape.num_blocks
        with jax.named_scope(KV_WRITE):
            pools = write_kv(*cache, key, value, self.write_blocks, self.write_offsets, first_block)
        with jax.named_scope(ATTENTION):
            mixed = ragged_paged_attention(
                query,
                *pools,
                self.decode_tables,
                self.decode_lengths,
                self.prompt_tables,
                self.prompts.first_positions,
                self.prompts.first_rows,
                self.prompts.num_rows,
                first_block,
                self.shape.config.head_dim**-0.5,
                backend=self.backend,
            )
        return mixed, pools


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
        decode_tables=arrays.decode_tables,
        decode_lengths=jnp.where(is_decode, arrays.decode_positions + 1, 0),
        prompts=prompts,
        prompt_tables=arrays.prompt_tables,
    )
    rows, (key_pool, value_pool) = model.recurrent_pass(
        rows, position, attend, (state.key_pool, state.value_pool)
    )

    survival, signals = lax.cond(
        arrays.runs_gate > 0,
        jax.named_scope(GATE)(_gate),
        lambda *_: (state.survival, jnp.zeros((num_decode,), jnp.float32)),
        parameters,
        state.survival,
        rows[:num_decode],
        arrays,
    )
    hidden = state.hidden.at[arrays.decode_slots].set(rows[:num_decode], mode="drop")
    state = replace(
        state,
        key_pool=key_pool,
        value_pool=value_pool,
        hidden=_finish_items(hidden, rows, prompts),
        prompt_hidden=_store_prompt_rows(state.prompt_hidden, rows, prompts, row_map),
        survival=survival,
    )
    return state, signals


def prefill(
    shape: StateShape,
    backend: str,
    parameters: Parameters,
    state: DeviceState,
    arrays: PrefillArrays,
) -> DeviceState:
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
            decode_tables=jnp.zeros((num_items, shape.blocks_per_seq), jnp.int32),
            decode_lengths=jnp.zeros((num_items,), jnp.int32),
            prompts=prompts,
            prompt_tables=tables,
        )
        return model.recurrent_pass(rows, position, attend, pools)

    rows, (key_pool, value_pool) = lax.fori_loop(
        arrays.first_depth,
        arrays.first_depth + arrays.num_passes,
        run_depth,
        (rows, (state.key_pool, state.value_pool)),
    )
    return replace(
        state,
        key_pool=key_pool,
        value_pool=value_pool,
        hidden=_finish_items(state.hidden, rows, prompts),
        prompt_hidden=_store_prompt_rows(state.prompt_hidden, rows, prompts, row_map),
    )


def _gate(
    parameters: Parameters,
    survival: Float[Array, " slots"],
    rows: Float[Array, "R E"],
    arrays: RecurrentArrays,
) -> tuple[Float[Array, " slots"], Float[Array, " R"]]:
    """Survival products with this loop's gate multiplied in, and the signals of all rows."""
    leave = jax.nn.sigmoid(parameters.model.gate_logits(rows))
    before = survival.at[arrays.decode_slots].get(mode="clip")
    after = jnp.where(arrays.decode_depths == 0, 1.0, before) * (1.0 - leave)
    is_ouro = arrays.decode_gates == GATE_OURO
    # A slot past the end is dropped: rows without Ouro's gate keep their product.
    slots = jnp.where(is_ouro, arrays.decode_slots, survival.shape[0])
    is_trained = arrays.decode_gates == GATE_LOOKAHEAD
    is_lookahead = is_trained | (arrays.decode_gates == GATE_RANDOM_LOOKAHEAD)
    scores = parameters.lookahead.scores(rows, arrays.decode_depths, is_trained)
    recorded = jnp.where(arrays.decode_gates == GATE_RECORDED, leave, 0.0)
    signals = jnp.where(is_ouro, 1.0 - after, jnp.where(is_lookahead, scores, recorded))
    return survival.at[slots].set(after, mode="drop"), signals


def _finish_items(
    hidden: Float[Array, "slots E"], rows: Float[Array, "T E"], prompts: PromptArrays
) -> Float[Array, "slots E"]:
    """The last row of each item that has run every depth becomes its request's hidden row."""
    last = (prompts.first_rows + prompts.num_rows - 1).clip(0)
    return hidden.at[prompts.finish_slots].set(rows[last], mode="drop")


def _store_prompt_rows(
    prompt_hidden: Float[Array, "places C E"],
    rows: Float[Array, "T E"],
    prompts: PromptArrays,
    row_map: RowMap,
) -> Float[Array, "places C E"]:
    places = jnp.where(row_map.is_prompt, prompts.places[row_map.item], prompt_hidden.shape[0])
    return prompt_hidden.at[places, row_map.offset].set(rows, mode="drop")


def _pad_rows(values: Int[Array, " R"], *, num_rows: int, fill: Any = 0) -> Int[Array, " T"]:
    """Values of the decode rows, continued over all T rows."""
    return jnp.pad(values, (0, num_rows - values.shape[0]), constant_values=fill)
