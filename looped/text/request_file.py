"""Requests from files: one JSON object a line, and recorded exit depths."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from looped.engine.generation_request import GenerationRequest
from looped.errors import UsageError
from looped.record.exit_trace import read_exit_traces
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions

T = TypeVar("T")

SAMPLING_KEYS = frozenset(
    {
        "max_tokens",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "min_tokens",
        "n",
        "logprobs",
        "prompt_logprobs",
        "prompt_logprobs_every_loop",
        "seed",
        "ignore_eos",
        "stop",
        "include_stop_str_in_output",
        "priority",
    }
)
EXIT_KEYS = {
    "exit_mode": "mode",
    "exit_threshold": "threshold",
    "min_loops": "min_loops",
    "max_loops": "max_loops",
    "exit_trace": "trace",
}
PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids"})
COLLECTION_KEYS = frozenset({"stop_token_ids", "logit_bias"})


def read_requests(
    path: Path, defaults: SamplingParams, encode: Callable[[str], Sequence[int]]
) -> list[GenerationRequest]:
    """Reads a JSONL file: `prompt` or `prompt_token_ids`, and any options of its own.

    Args:
        path: the file; empty lines are skipped.
        defaults: options that a request does not name.
        encode: turns a text prompt into token ids.

    Raises:
        UsageError: with the line's number, for anything that is not a request.
    """
    return read_lines(path, lambda values: _parse(values, defaults, encode))


def read_texts(path: Path, encode: Callable[[str], Sequence[int]]) -> list[tuple[int, ...]]:
    """Reads a JSONL file of texts to score: `prompt` or `prompt_token_ids`, and nothing else.

    Raises:
        UsageError: with the line's number, for anything that is not such a text.
    """

    def parse(values: Any) -> tuple[int, ...]:
        token_ids = _prompt(values, PROMPT_KEYS, encode)
        if len(token_ids) < 2:
            raise UsageError(
                f"expected at least 2 tokens, since the first has no score; got {len(token_ids)}"
            )
        return token_ids

    return read_lines(path, parse)


def read_lines(path: Path, parse: Callable[[Any], T], limit: int | None = None) -> list[T]:
    """Reads a JSONL file: one parsed value for every line that is not empty, at least one.

    Args:
        path: the file.
        parse: makes a value of what a line holds; its UsageError gets the line's number.
        limit: values to read, at least one; what comes after them is not looked at. None reads all.

    Raises:
        UsageError: with the line's number, for a line that is not JSON or cannot be parsed.
    """
    parsed: list[T] = []
    # Not splitlines: JSON texts may hold line separators of Unicode as they are.
    for number, line in enumerate(_read(path).split("\n"), start=1):
        if len(parsed) == limit:
            break
        if not line.strip():
            continue
        try:
            parsed.append(parse(json.loads(line)))
        except (json.JSONDecodeError, TypeError, ValueError, UsageError) as error:
            raise UsageError(f"{path}, line {number}: {error}") from None
    if not parsed:
        raise UsageError(f"{path} is empty; expected one JSON object a line")
    return parsed


def read_exit_trace(path: Path, num_prompts: int) -> list[tuple[int, ...]]:
    """Reads recorded exit depths for so many prompts, in order."""
    traces = read_exit_traces(path)
    if len(traces) != num_prompts:
        raise UsageError(f"{path} holds {len(traces)} traces for {num_prompts} prompts")
    return traces


def with_trace(
    request: GenerationRequest, trace: tuple[int, ...], num_loops: int
) -> GenerationRequest:
    """The request with its exits replayed from a trace.

    An empty one is of a request that emitted nothing: as past any trace's end, all P loops run.
    """
    exit_options = replace(request.params.exit, trace=trace or (num_loops,))
    params = replace(request.params, exit=exit_options)
    return replace(request, params=params)


def _parse(
    values: Any, defaults: SamplingParams, encode: Callable[[str], Sequence[int]]
) -> GenerationRequest:
    known = PROMPT_KEYS | SAMPLING_KEYS | COLLECTION_KEYS | EXIT_KEYS.keys()
    token_ids = _prompt(values, known, encode)
    exit_values = {EXIT_KEYS[key]: values[key] for key in EXIT_KEYS if key in values}
    if "mode" in exit_values:
        exit_values["mode"] = _exit_mode(exit_values["mode"])
    if "trace" in exit_values:
        exit_values["trace"] = _integers(values, "exit_trace")
    options: dict[str, Any] = {key: values[key] for key in SAMPLING_KEYS if key in values}
    if "stop_token_ids" in values:
        options["stop_token_ids"] = frozenset(_integers(values, "stop_token_ids"))
    if "logit_bias" in values:
        options["logit_bias"] = _logit_bias(values["logit_bias"])
    if exit_values:
        # A trace takes no other exit option, so it does not inherit any either.
        inherited = ExitOptions() if "trace" in exit_values else defaults.exit
        options["exit"] = replace(inherited, **exit_values)
    return GenerationRequest(prompt_token_ids=token_ids, params=replace(defaults, **options))


def _prompt(
    values: Any, known: frozenset[str], encode: Callable[[str], Sequence[int]]
) -> tuple[int, ...]:
    """Token ids of an object's prompt; it may have no other keys than the known ones."""
    if not isinstance(values, dict):
        raise UsageError(f"expected a JSON object, got {type(values).__name__}")
    if unknown := sorted(values.keys() - known):
        raise UsageError(f"unknown keys {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    if ("prompt" in values) == ("prompt_token_ids" in values):
        raise UsageError("give either prompt or prompt_token_ids")
    if "prompt_token_ids" in values:
        return _integers(values, "prompt_token_ids")
    if not isinstance(values["prompt"], str):
        raise UsageError(f"prompt must be text, got {values['prompt']!r}")
    return tuple(encode(values["prompt"]))


def _exit_mode(value: Any) -> ExitMode:
    if value not in list(ExitMode):
        raise UsageError(f"exit_mode must be one of {', '.join(ExitMode)}; got {value!r}")
    return ExitMode(value)


def _integers(values: dict[str, Any], key: str) -> tuple[int, ...]:
    listed = values[key]
    if not isinstance(listed, list) or not all(type(value) is int for value in listed):
        raise UsageError(f"{key} must be a list of integers")
    return tuple(listed)


def _logit_bias(listed: Any) -> dict[int, Any]:
    """A bias by token id; JSON has only text for keys."""
    if not isinstance(listed, dict) or not all(key.isdecimal() for key in listed):
        raise UsageError(f'logit_bias must be an object such as {{"12": -3.5}}, got {listed!r}')
    biases = {int(key): value for key, value in listed.items()}
    if len(biases) < len(listed):
        raise UsageError(f"logit_bias takes one value a token, got {listed!r}")
    return biases


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
