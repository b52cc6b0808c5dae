"""Program `score`: the LM head at the rows of one prompt item, for what the model says about the
tokens of a prompt.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from looped.device.pytree import register_pytree
from looped.device.state import DeviceState, StateShape
from looped.sched import Batch, ScoreResult

from .packed_layout import PackedLayout
from .parameters import Parameters
from .program import Program, pack_head_slots
from .prompt_arrays import place_of
from .recurrent import with_head_slots
from .sampling.forms import Form
from .sampling.head_output import HeadOutput
from .sampling.request_sampling import sampling_of


@register_pytree
class ScoreArrays:
    """LM head at the rows of one prompt item, which wait in the prompt pool."""

    place: Any
    """[] the item's place in the prompt pool."""
    targets: Any
    """[C] the prompt token after each row; what stands behind the last one is not looked at."""
    needs_top_logprobs: Any
    """[] whether the log-probabilities of the most likely tokens are wanted."""
    head_slots: Any
    """[1] the item's slot if its request's first token is drawn next, else max_num_seqs."""


def score_layout(shape: StateShape, num_rows: int) -> PackedLayout[ScoreArrays]:
    """Layout of a score launch of C = num_rows."""
    return PackedLayout(
        ScoreArrays,
        {
            "place": ((), "int32"),
            "targets": ((num_rows,), "int32"),
            "needs_top_logprobs": ((), "int32"),
            "head_slots": ((1,), "int32"),
        },
    )


def pack_score(shape: StateShape, batch: Batch, arrays: ScoreArrays, call_index: int) -> None:
    """The rows of one prompt item that have a next token in the prompt."""
    (item,) = batch.items
    request, first_target = item.request, item.first_position + 1
    arrays.place[...] = place_of(item).index
    arrays.targets[: item.count] = request.prompt_token_ids[
        first_target : first_target + item.count
    ]
    arrays.needs_top_logprobs[...] = bool(sampling_of(request).num_prompt_logprobs)
    pack_head_slots(shape, batch, arrays.head_slots)


def score(
    shape: StateShape, form: Form, parameters: Parameters, state: DeviceState, arrays: ScoreArrays
) -> tuple[DeviceState, Int[Array, "outputs C"]]:
    """LM head at the rows of one prompt item, after the depth that it has reached.

    Returns:
        The state, and one array for the host's one read, as `HeadOutput` cuts it up.
    """
    num_padded = arrays.targets.shape[0] - shape.chunk_size
    rows = jnp.pad(state.prompt_hidden[arrays.place], ((0, num_padded), (0, 0)))
    logits = parameters.model.logits(rows)
    best = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    output = HeadOutput.of(form, logits, best, arrays.targets, arrays.needs_top_logprobs > 0)
    state = replace(state, head_slots=with_head_slots(state, arrays.head_slots))
    return state, output.pack()


def collect_score(batch: Batch, values: np.ndarray[Any, Any]) -> ScoreResult:
    """The scores of the item's tokens, with what its request asks for beside them."""
    (item,) = batch.items
    num_logprobs = sampling_of(item.request).num_prompt_logprobs
    return HeadOutput.unpack(values).to_score_result(item.count, num_logprobs)


SCORE = Program(
    layout=score_layout,
    pack=pack_score,
    step=lambda shape, backend, form: partial(score, shape, form),
)
