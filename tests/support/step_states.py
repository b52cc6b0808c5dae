"""Device state whose every array can be recognised, and rows of the request table in it."""

from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looped.device.request_table import (
    NO_TOKEN,
    NUM_STOP_IDS,
    RowOptions,
    RowProgress,
    host_row,
)
from looped.device.state import DeviceState, StateShape

PROGRESS = {
    "position": 5,
    "depth": 0,
    "last_token": 7,
    "num_outputs": 1,
    "survival": 1.0,
    "is_pending": 0,
    "is_leaving": 0,
    "is_done": 0,
}
OPTIONS = {
    "exit_mode": 0,
    "threshold": 1.0,
    "min_loops": 1,
    "max_loops": 4,
    "trace_length": 0,
    "max_tokens": 9,
    "stop_ids": [NO_TOKEN] * NUM_STOP_IDS,
    "temperature": 0.0,
    "top_k": 512,
    "top_p": 1.0,
    "min_p": 0.0,
    "is_edited": 0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "seed": (0, 3),
    "sample_index": 0,
    "wants_top": 0,
}


def random_state(shape: StateShape) -> DeviceState:
    """Every array holds noise, so that whatever is left alone can be recognised; blocks of slot s
    in plane p are numbered from 40 * p + 5 * s on, and nobody may finish."""
    rng = np.random.default_rng(5)
    zeros = jax.eval_shape(lambda: DeviceState.zeros(shape))
    values: dict[str, Any] = {}
    for field in fields(zeros):
        array = getattr(zeros, field.name)
        if array.dtype == jnp.float32:
            values[field.name] = rng.random(array.shape, np.float32)
        else:
            noise = np.arange(array.size).reshape(array.shape) % 100 + 20
            values[field.name] = noise.astype(array.dtype)
    slots, planes = shape.max_num_seqs, shape.config.num_loops
    tables = np.zeros((slots, planes, shape.blocks_per_seq), np.int32)
    for slot in range(slots):
        for plane in range(planes):
            tables[slot, plane, :5] = 40 * plane + 5 * slot + np.arange(5)
    values["block_tables"] = tables
    values["head_slots"] = np.full(slots, slots, np.int32)
    state = DeviceState(**values)
    return with_rows(state, {slot: {} for slot in range(slots)})


def with_rows(state: DeviceState, rows: dict[int, dict[str, Any]]) -> DeviceState:
    """The state with these rows of the table; what is not named is as in PROGRESS and OPTIONS."""
    progress, options = np.array(state.progress), np.array(state.options)
    for slot, values in rows.items():
        named = {name: values.get(name, default) for name, default in PROGRESS.items()}
        progress[slot] = host_row(RowProgress, **named)
        named = {name: values.get(name, default) for name, default in OPTIONS.items()}
        options[slot] = host_row(RowOptions, **named)
    return replace(state, progress=progress, options=options)


def field_of(state: DeviceState, name: str) -> np.ndarray[Any, Any]:
    """A column of the progress of all slots."""
    start = 0
    for column, (dtype, width) in RowProgress.COLUMNS.items():
        if column == name:
            return np.ascontiguousarray(np.asarray(state.progress)[:, start]).view(dtype)
        start += width
    raise KeyError(name)


def changed(before: Any, after: Any) -> set[int]:
    """Indices along the first axis at which two arrays differ."""
    different = (np.asarray(before) != np.asarray(after)).reshape(before.shape[0], -1).any(axis=1)
    return set(np.flatnonzero(different).tolist())
