"""Program `head`: the LM head and what follows from it, for the rows that may finish in a launch.

It is called right behind a launch of another kind, which has left their slots in `head_slots`, and
uploads nothing. Rows that have left the loop get their logits edited and a token drawn, the planes
that they skipped are filled, and they stand at depth 0 of that token; the others are only told of.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from looped.device.request_table import RowOptions, RowProgress, read_rows, write_rows
from looped.device.state import DeviceState, StateShape
from looped.models.scopes import SAMPLER
from looped.pallas_kernels import NO_BLOCK, copy_positions
from looped.sched import HeadResult, ItemKind, RowStatus, ScheduledItem

from .parameters import Parameters
from .sampling.forms import Form
from .sampling.head_output import HeadOutput
from .sampling.logit_edits import count_outputs, edit_logits
from .sampling.request_sampling import sampling_of
from .sampling.sampler import SamplingRows, sample

NUM_SINGLE = 2
"""Rows of the record before the gates."""


def head(
    shape: StateShape, form: Form, num_rows: int, parameters: Parameters, state: DeviceState
) -> tuple[DeviceState, Int[Array, "outputs R"]]:
    """LM head and sampling for the first R slots of `head_slots`.

    Returns:
        The state, and one array for the host's one read: status and loops, the gates of each loop
        as bits, then what `HeadOutput` packs.
    """
    slots = state.head_slots[:num_rows]
    progress = read_rows(RowProgress, state.progress, slots)
    is_alive = (slots < shape.max_num_seqs) & (progress.is_done == 0)
    has_left = is_alive & (progress.is_leaving != 0)
    run = partial(_finish, shape, form, parameters, state, slots, has_left)
    if form.is_conditional:
        after, output = lax.cond(jnp.any(has_left), run, lambda: (state, _nothing(run)))
    else:
        after, output = run()
    gates = state.gates.at[slots].get(mode="clip")
    singles = jnp.stack([_statuses(is_alive, progress), progress.depth])
    bits = lax.bitcast_convert_type(gates, jnp.int32)
    return after, jnp.concatenate([singles, bits.T, output.pack()])


def collect_head(
    items: Sequence[ScheduledItem],
    values: np.ndarray[Any, Any],
    *,
    num_loops: int,
    records_gates: bool,
) -> HeadResult:
    """What became of each item's row, with what its request asks for beside it."""
    count = len(items)
    status, loops = values[:NUM_SINGLE, :count]
    gates = values[NUM_SINGLE : NUM_SINGLE + num_loops, :count].view(np.float32)
    output = HeadOutput.unpack(values[NUM_SINGLE + num_loops :])
    recorded = None
    if records_gates:
        recorded = [
            tuple(gates[:depth, row].tolist()) if item.kind is ItemKind.DECODE else ()
            for row, (item, depth) in enumerate(zip(items, loops.tolist(), strict=True))
        ]
    return HeadResult(
        statuses=[RowStatus(value) for value in status.tolist()],
        loops=loops.tolist(),
        token_ids=output.token_ids[:count].tolist(),
        logprobs=output.logprobs[:count].tolist(),
        is_finite=(output.is_finite[:count] != 0).tolist(),
        top_logprobs=output.alternatives(
            [sampling_of(item.request).num_logprobs for item in items]
        ),
        gates=recorded,
    )


def _finish(
    shape: StateShape,
    form: Form,
    parameters: Parameters,
    state: DeviceState,
    slots: Int[Array, " R"],
    has_left: Bool[Array, " R"],
) -> tuple[DeviceState, HeadOutput]:
    """All that happens to rows that have left; where conditions cost nothing, only if one has.

    It reads the request table itself: columns that were cut out for it before the condition would
    cost a CPU more than the rest of a head from which no row has left.
    """
    progress = read_rows(RowProgress, state.progress, slots)
    options = read_rows(RowOptions, state.options, slots)
    left_slots = jnp.where(has_left, slots, shape.max_num_seqs)
    sampling = _sampling_of(options, progress)
    logits = parameters.model.logits(state.hidden.at[slots].get(mode="clip"))
    with jax.named_scope(SAMPLER):
        token_ids = sample(form, _edited(form, logits, state, slots, sampling), sampling)
    needs_top = jnp.any(has_left & (options.wants_top != 0))
    output = HeadOutput.of(form, logits, token_ids, token_ids, needs_top)

    if form.copies:
        state = _fill_planes(shape, form, state, left_slots, progress)
    if form.filters:
        marks = _counted(form, state.token_marks, left_slots, token_ids, options.is_edited)
        state = replace(state, token_marks=marks)
    after = _restarted(progress, options, output)
    return replace(state, progress=write_rows(state.progress, left_slots, after)), output


def _nothing(run: Callable[[], tuple[DeviceState, HeadOutput]]) -> HeadOutput:
    """The output of a head from which no row has left."""
    _, output = jax.eval_shape(run)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), output)


def _edited(
    form: Form, logits: Array, state: DeviceState, slots: Int[Array, " R"], sampling: SamplingRows
) -> Array:
    """Logits to draw from; a head without edited rows reads no marks and no bias."""

    def edit() -> Array:
        marks = state.token_marks.at[slots].get(mode="clip")
        bias = state.logit_bias.at[slots].get(mode="clip")
        return edit_logits(logits, marks, bias, sampling)

    if not form.filters:
        return logits
    if not form.is_conditional:
        return edit()
    return lax.cond(jnp.any(sampling.is_edited != 0), edit, lambda: logits)


def _sampling_of(options: RowOptions, progress: RowProgress) -> SamplingRows:
    return SamplingRows(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        is_edited=options.is_edited,
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        min_tokens=options.min_tokens,
        seed=options.seed,
        sample_index=options.sample_index,
        output_index=progress.num_outputs,
        wants_top=options.wants_top,
    )


def _statuses(is_alive: Bool[Array, " R"], progress: RowProgress) -> Int[Array, " R"]:
    alive = jnp.where(progress.is_pending != 0, RowStatus.LEAVES_NEXT, RowStatus.STAYED)
    alive = jnp.where(progress.is_leaving != 0, RowStatus.LEFT, alive)
    return jnp.where(is_alive, alive, RowStatus.MASKED).astype(jnp.int32)


def _counted(
    form: Form,
    token_marks: Int[Array, "slots V"],
    slots: Int[Array, " R"],
    token_ids: Int[Array, " R"],
    is_edited: Int[Array, " R"],
) -> Int[Array, "slots V"]:
    """Marks with the drawn tokens; a head without edited rows touches none."""

    def count() -> Int[Array, "slots V"]:
        return count_outputs(token_marks, slots, token_ids, is_edited)

    if not form.is_conditional:
        return count()
    return lax.cond(jnp.any(is_edited != 0), count, lambda: token_marks)


def _fill_planes(
    shape: StateShape,
    form: Form,
    state: DeviceState,
    slots: Int[Array, " R"],
    progress: RowProgress,
) -> DeviceState:
    """Last-exited KV: planes that a row has not run take the entries of the last that it ran."""
    num_loops = shape.config.num_loops
    is_real = (slots < shape.max_num_seqs)[:, None]
    is_skipped = is_real & (jnp.arange(num_loops) >= progress.depth[:, None])

    def copy() -> tuple[Array, Array]:
        block_index = progress.position // shape.block_size
        blocks = state.block_tables.at[slots[:, None], jnp.arange(num_loops), block_index[:, None]]
        plane_blocks = blocks.get(mode="clip")
        last_plane = (progress.depth - 1).clip(0)
        return copy_positions(
            state.key_pool,
            state.value_pool,
            jnp.take_along_axis(plane_blocks, last_plane[:, None], axis=1)[:, 0],
            progress.position % shape.block_size,
            jnp.where(is_skipped, plane_blocks, NO_BLOCK),
            num_layers=shape.config.num_layers,
        )

    if form.is_conditional:
        pools = state.key_pool, state.value_pool
        key_pool, value_pool = lax.cond(jnp.any(is_skipped), copy, lambda: pools)
    else:
        key_pool, value_pool = copy()
    return replace(state, key_pool=key_pool, value_pool=value_pool)


def _restarted(progress: RowProgress, options: RowOptions, output: HeadOutput) -> RowProgress:
    """Rows that have left, at depth 0 of the token that was drawn; or done."""
    num_outputs = progress.num_outputs + 1
    is_stop = (output.token_ids[:, None] == options.stop_ids).any(axis=1)
    is_done = is_stop | (num_outputs >= options.max_tokens) | (output.is_finite == 0)
    zeros = jnp.zeros_like(progress.depth)
    return replace(
        progress,
        position=progress.position + 1,
        depth=zeros,
        last_token=output.token_ids,
        num_outputs=num_outputs,
        is_pending=zeros,
        is_leaving=zeros,
        is_done=is_done.astype(jnp.int32),
    )
