"""From the fields of a request to the engine's options."""

from dataclasses import fields
from typing import Any

from looped.errors import UsageError
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions

from .errors import ApiError, bad_field
from .fields import is_one_of
from .schema import GenerationFields

OPTIONS = frozenset(field.name for field in fields(SamplingParams)) & frozenset(
    GenerationFields.model_fields
)
"""Fields that mean the same to the engine, under the same name."""
ALL_ROOM = -1
"""A `max_tokens` that other servers, and clients written for them, have for no limit."""
OFF: dict[str, tuple[Any, ...]] = {"top_k": (-1, 0), "seed": (-1,), "max_tokens": (ALL_ROOM,)}
"""Values that other servers take for leaving an option out: no limit, a fresh seed."""
UNUSED_FOR_SCORES = ("logprobs", "stop", "include_stop_str_in_output")
"""Options that are checked and then left out where only a prompt is scored."""
EXIT_OPTIONS = {
    "exit_mode": "mode",
    "exit_threshold": "threshold",
    "min_loops": "min_loops",
    "max_loops": "max_loops",
}


def to_params(
    body: GenerationFields,
    *,
    has_priorities: bool,
    has_exit_modes: bool,
    **chosen: Any,
) -> SamplingParams:
    """The options of a request's samples; what the body leaves out is as OpenAI has it.

    Args:
        body: the request.
        has_priorities: whether the engine schedules by priority.
        has_exit_modes: whether requests may choose an exit mode.
        chosen: options that the endpoint works out itself.

    Raises:
        ApiError: an option is out of range or not allowed here, by its name.
    """
    check_tools(body)
    if body.priority and not has_priorities:
        raise ApiError(
            400,
            "priority must be 0 on a server that does not schedule by it "
            f"(--scheduling-policy priority), got {body.priority}",
            param="priority",
        )
    if body.exit_mode is not None and not has_exit_modes:
        raise ApiError(
            400,
            "exit_mode must be left out on a server that does not let requests choose it "
            f"(--allow-exit-mode), got {body.exit_mode}",
            param="exit_mode",
        )
    if body.stream_options is not None and not body.stream and body.stream_options.has_any:
        raise ApiError(400, "stream_options needs stream, which is off", param="stream_options")
    given = {name: getattr(body, name) for name in OPTIONS - {"priority"}}
    options: dict[str, Any] = {"temperature": 1.0, "priority": body.priority or 0}
    options |= {
        name: value for name, value in given.items() if not is_one_of(value, OFF.get(name, ()))
    }
    options |= chosen
    exits = {
        option: getattr(body, name)
        for name, option in EXIT_OPTIONS.items()
        if getattr(body, name) is not None
    }
    if "mode" in exits:
        exits["mode"] = ExitMode(exits["mode"])
    try:
        if options.get("max_tokens") == 0:
            # Only the prompt is looked at, and clients send these with every request.
            unused = {name: options.pop(name) for name in UNUSED_FOR_SCORES if name in options}
            SamplingParams(**unused)
        return SamplingParams(**options, exit=ExitOptions(**exits))
    except UsageError as error:
        raise bad_field(str(error), field_names(body)) from None


def check_tools(body: GenerationFields) -> None:
    """ApiError for tools that a model may choose to call, as it may by default."""
    for field, choice in (("tools", "tool_choice"), ("functions", "function_call")):
        if getattr(body, field) and getattr(body, choice) != "none":
            raise ApiError(
                400,
                f"{field}: this server calls none, and without {choice} the model may choose to: "
                f'leave them out, or give {choice} "none", with which they are not used',
                param=field,
            )


def field_names(body: GenerationFields) -> dict[str, str]:
    """The body's fields by the engine's names for what they say."""
    names = {name: name for name in type(body).model_fields}
    if getattr(body, "max_completion_tokens", None) is not None:
        names["max_tokens"] = "max_completion_tokens"
    if "prompt" in names:  # a completion's `logprobs` are its prompt's, too
        names["prompt_logprobs"] = "logprobs"
    return names
