"""Writer `grow`: blocks that requests have claimed since their rows were written."""

from dataclasses import replace
from typing import Any

from looped.device.pytree import register_pytree
from looped.device.state import DeviceState, StateShape

from ..packed_layout import PackedLayout
from .writer import Writer


@register_pytree
class GrowArrays:
    """G new groups of blocks, of any requests."""

    slots: Any
    """[G] whose it is; max_num_seqs for none."""
    indices: Any
    """[G] its place in the block tables."""
    blocks: Any
    """[G P] its block in each plane."""


def num_groups(shape: StateShape) -> int:
    """G: one group a request, and those of a prompt item beside them; more take another call."""
    return shape.max_num_seqs + -(-shape.chunk_size // shape.block_size) + 1


def grow_layout(shape: StateShape) -> PackedLayout[GrowArrays]:
    """Layout of the upload."""
    count = num_groups(shape)
    return PackedLayout(
        GrowArrays,
        {
            "slots": ((count,), "int32"),
            "indices": ((count,), "int32"),
            "blocks": ((count, shape.config.num_loops), "int32"),
        },
    )


def write_groups(state: DeviceState, arrays: GrowArrays) -> DeviceState:
    """Adds blocks to tables; nothing that the device advances is touched."""
    tables = state.block_tables.at[arrays.slots, :, arrays.indices].set(arrays.blocks, mode="drop")
    return replace(state, block_tables=tables)


GROW = Writer(layout=grow_layout, write=write_groups)
