"""Prompt items in a pass: what the host says of them, and which rows of the batch are theirs."""

from dataclasses import fields
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from looped.device.prompt_pool import PromptPlace
from looped.device.state import StateShape, register_pytree
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
    is_embedded: Any
    """[I] 0: its rows come from token_ids; 1: from the prompt pool."""
    finish_slots: Any
    """[I] decode slot that takes its last row after this launch, or max_num_seqs for none."""


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
        request, work = item.request, item.prompt_item
        assert work is not None
        is_embedded = work.embedded or first_pass > 0
        is_last = item.depth + first_pass + num_passes == num_loops
        arrays.places[index] = place_of(item).index
        arrays.first_positions[index] = item.first_position
        arrays.first_rows[index] = first_row
        arrays.num_rows[index] = item.count
        arrays.is_embedded[index] = is_embedded
        arrays.finish_slots[index] = request.slot if is_last else no_slot
        if not is_embedded:
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


def finish_items(
    hidden: Float[Array, "slots E"], rows: Float[Array, "T E"], prompts: PromptArrays
) -> Float[Array, "slots E"]:
    """The last row of each item that has run every depth becomes its request's hidden row."""
    last = (prompts.first_rows + prompts.num_rows - 1).clip(0)
    return hidden.at[prompts.finish_slots].set(rows[last], mode="drop")


def store_prompt_rows(
    prompt_hidden: Float[Array, "places C E"],
    rows: Float[Array, "T E"],
    prompts: PromptArrays,
    row_map: RowMap,
) -> Float[Array, "places C E"]:
    """The pool with the rows of each item back in its place."""
    places = jnp.where(row_map.is_prompt, prompts.places[row_map.item], prompt_hidden.shape[0])
    return prompt_hidden.at[places, row_map.offset].set(rows, mode="drop")
