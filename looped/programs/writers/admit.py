"""Writer `admit`: the whole row of a request that has got a slot."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from looped.device.pytree import register_pytree
from looped.device.request_table import (
    NO_TOKEN,
    NUM_STOP_IDS,
    RowOptions,
    RowProgress,
    host_row,
    num_columns,
)
from looped.device.state import TRACE_WORD, DeviceState, StateShape
from looped.sched import Request

from ..exit_decisions import EXIT_MODES
from ..packed_layout import PackedLayout
from ..sampling.request_sampling import sampling_of
from .writer import Writer


@register_pytree
class AdmitArrays:
    """A row of the request table."""

    slot: Any
    """[]"""
    progress: Any
    """[C] columns of `RowProgress`."""
    options: Any
    """[C] columns of `RowOptions`."""
    blocks: Any
    """[P B] its block tables, as far as they are claimed."""
    trace: Any
    """[T / 4] recorded depths, a byte each."""


def admit_layout(shape: StateShape) -> PackedLayout[AdmitArrays]:
    """Layout of the upload."""
    return PackedLayout(
        AdmitArrays,
        {
            "slot": ((), "int32"),
            "progress": ((num_columns(RowProgress),), "int32"),
            "options": ((num_columns(RowOptions),), "int32"),
            "blocks": ((shape.config.num_loops, shape.blocks_per_seq), "int32"),
            "trace": ((shape.trace_width // TRACE_WORD,), "int32"),
        },
    )


def pack_admit(request: Request, arrays: AdmitArrays) -> None:
    """What a request asks for, before its first launch."""
    rule, trace = request.exit_rule, request.exit_rule.trace
    stops = sorted(request.stop_token_ids)[:NUM_STOP_IDS]
    arrays.slot[...] = request.slot
    arrays.progress[:] = host_row(
        RowProgress,
        position=request.num_prompt_tokens - 1,
        depth=0,
        last_token=0,
        num_outputs=0,
        survival=1.0,
        is_pending=0,
        is_leaving=0,
        is_done=0,
    )
    depths = arrays.trace.view(np.uint8)
    kept = trace[: depths.size]
    depths[: len(kept)] = kept
    arrays.options[:] = host_row(
        RowOptions,
        exit_mode=EXIT_MODES.index(rule.mode),
        threshold=rule.threshold,
        min_loops=rule.min_loops,
        max_loops=rule.max_loops,
        trace_length=len(kept),
        max_tokens=request.max_tokens,
        stop_ids=stops + [NO_TOKEN] * (NUM_STOP_IDS - len(stops)),
        sample_index=request.sample_index,
        **sampling_of(request).row,
    )
    for plane, table in enumerate(request.block_tables):
        arrays.blocks[plane, : len(table)] = table


def write_row(state: DeviceState, arrays: AdmitArrays) -> DeviceState:
    """Gives a slot to a request."""
    slot = arrays.slot
    trace = lax.bitcast_convert_type(arrays.trace, jnp.uint8).reshape(-1)
    return replace(
        state,
        progress=state.progress.at[slot].set(arrays.progress),
        options=state.options.at[slot].set(arrays.options),
        block_tables=state.block_tables.at[slot].set(arrays.blocks),
        traces=state.traces.at[slot].set(trace),
    )


ADMIT = Writer(layout=admit_layout, write=write_row)
