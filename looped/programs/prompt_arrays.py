"""Prompt items in a pass: what the host says of them, and which rows of the batch are theirs."""

from dataclasses import fields, replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from looped.device.prompt_pool import PromptPlace
from looped.device.pytree import register_pytree
from looped.device.request_table import RowProgress, column
from looped.device.state import DeviceState, StateShape
from looped.sched import InterfaceError, ScheduledItem

from .packed_layout import Buffer, Shapes


@register_pytree
class PromptArrays:
    """Prompt items of a launch; an unused item has no rows. I items, B blocks a table."""

    places: Any
    """[I] place in the prompt pool."""
    first_positions: Any
    """[I] position of the item's first row."""
    first_rows: Any
    """[I] its first row in the batch; the others follow."""
    num_rows: Any
    """[I] how many rows it has."""
    slots: Any
    """[I] slot of its request."""
    depths: Any
    """[I] depth that the first pass runs; at 0 its rows come from token_ids, else from the pool."""
    finish_slots: Any
    """[I] slot whose row begins with its last row after this launch, or max_num_seqs for none."""


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


def prompt_shapes(num_items: int) -> Shapes:
    """Of the arrays of so many items, nested under the name `prompts`."""
    return {f"prompts.{field.name}": ((num_items,), "int32") for field in fields(PromptArrays)}


def pack_prompts(
    shape: StateShape,
    items: tuple[ScheduledItem, ...],
    arrays: PromptArrays,
    token_ids: Buffer,
    first_row: int,
    first_pass: int,
    num_passes: int,
) -> None:
    """Prompt items for `num_passes` of their passes, from the first_pass-th on."""
    num_loops, no_slot = shape.config.num_loops, shape.max_num_seqs
    arrays.finish_slots[:] = no_slot
    for index, item in enumerate(items):
        request, depth = item.request, item.known_depth + first_pass
        ends_prompt = item.first_position + item.count == request.num_prompt_tokens
        is_last = ends_prompt and depth + num_passes == num_loops
        arrays.places[index] = place_of(item).index
        arrays.first_positions[index] = item.first_position
        arrays.first_rows[index] = first_row
        arrays.num_rows[index] = item.count
        arrays.slots[index] = request.slot
        arrays.depths[index] = depth
        arrays.finish_slots[index] = request.slot if is_last else no_slot
        if depth == 0:
            token_ids[first_row : first_row + item.count] = request.prompt_token_ids[
                item.first_position : item.first_position + item.count
            ]
        first_row += item.count


def place_of(item: ScheduledItem) -> PromptPlace:
    """Where a prompt item's rows wait; InterfaceError if the place is another request's."""
    assert item.prompt_item is not None
    place = item.prompt_item.state
    if not isinstance(place, PromptPlace) or place.owner is not item.request:
        raise InterfaceError("expected prompt state of the item's own request")
    return place


def finish_prompts(
    state: DeviceState, rows: Float[Array, "T E"], prompts: PromptArrays, num_loops: int
) -> DeviceState:
    """The last row of each prompt that has run every depth begins its request's row: it has left
    the loop, and the head draws the first token."""
    last = (prompts.first_rows + prompts.num_rows - 1).clip(0)
    slots, progress = prompts.finish_slots, state.progress
    progress = progress.at[slots, column(RowProgress, "depth")].set(num_loops, mode="drop")
    progress = progress.at[slots, column(RowProgress, "is_leaving")].set(1, mode="drop")
    hidden = state.hidden.at[slots].set(rows[last], mode="drop")
    return replace(state, hidden=hidden, progress=progress)


def store_prompt_rows(
    prompt_hidden: Float[Array, "places C E"],
    rows: Float[Array, "T E"],
    prompts: PromptArrays,
    row_map: RowMap,
) -> Float[Array, "places C E"]:
    """The pool with the rows of each item back in its place."""
    places = jnp.where(row_map.is_prompt, prompts.places[row_map.item], prompt_hidden.shape[0])
    return prompt_hidden.at[places, row_map.offset].set(rows, mode="drop")
