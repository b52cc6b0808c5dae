"""Writer `edit`: the token marks and the logit bias of a request that edits its logits."""

from dataclasses import replace
from typing import Any

from looped.device.pytree import register_pytree
from looped.device.state import DeviceState, StateShape
from looped.sched import Request

from ..packed_layout import PackedLayout
from ..sampling.logit_edits import ENDS_REQUEST, IN_PROMPT
from ..sampling.request_sampling import sampling_of
from .writer import Writer


@register_pytree
class EditArrays:
    """The edits of one admitted request."""

    slot: Any
    """[] its slot."""
    token_marks: Any
    """[V] IN_PROMPT and ENDS_REQUEST of each token."""
    logit_bias: Any
    """[V] float32."""


def edit_layout(shape: StateShape) -> PackedLayout[EditArrays]:
    """Layout of the upload."""
    width = (shape.config.vocab_size,)
    return PackedLayout(
        EditArrays,
        {"slot": ((), "int32"), "token_marks": (width, "int32"), "logit_bias": (width, "float32")},
    )


def pack_edit(request: Request, arrays: EditArrays) -> None:
    """Marks and bias of a request that has drawn nothing yet."""
    vocab_size, bias = arrays.token_marks.size, sampling_of(request).logit_bias
    arrays.slot[...] = request.slot
    arrays.token_marks[list(request.prompt_token_ids)] = IN_PROMPT
    stops = [stop for stop in request.stop_token_ids if 0 <= stop < vocab_size]
    arrays.token_marks[stops] |= ENDS_REQUEST
    arrays.logit_bias[list(bias)] = list(bias.values())


def write_edits(state: DeviceState, arrays: EditArrays) -> DeviceState:
    """Gives a slot's marks and bias to a request: its own, no outputs."""
    return replace(
        state,
        token_marks=state.token_marks.at[arrays.slot].set(arrays.token_marks, mode="drop"),
        logit_bias=state.logit_bias.at[arrays.slot].set(arrays.logit_bias, mode="drop"),
    )


EDIT = Writer(layout=edit_layout, write=write_edits)
