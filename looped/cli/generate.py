"""`looped generate`: text out of a checkpoint."""

import json
import logging
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from looped.engine.options import EngineConfig
from looped.errors import UsageError
from looped.sched import ExitMode

from .checkpoints import Dtype
from .interrupts import interruptible
from .options import (
    LaunchLogFile,
    LaunchLogWaits,
    OptionalModel,
    ProfileFolder,
    RecordGatesFile,
    RecordTraceFile,
    check_launch_log,
    check_recordings,
    chosen_model,
    refuse_whole_prompts,
    with_config_options,
)
from .prompts import parse_logit_bias, parse_token_ids, read_standard_input

if TYPE_CHECKING:
    from looped.engine.generation_request import GenerationRequest
    from looped.engine.records import EngineStats
    from looped.llm import LLM
    from looped.sampling_params import SamplingParams

logger = logging.getLogger(__name__)


@with_config_options(engine_config=EngineConfig)
def generate(
    *,
    prompt: Annotated[
        list[str] | None, typer.Argument(help="Prompts; without any, standard input.")
    ] = None,
    model: OptionalModel = None,
    prompt_ids: Annotated[
        list[str] | None, typer.Option(help="A prompt as token ids, 1,2,3; repeatable.")
    ] = None,
    requests: Annotated[
        Path | None, typer.Option(help="JSONL file of requests with options of their own.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens to emit per prompt at most; by default 64, or what fits."),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Keep the k most likely tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Keep tokens up to this probability.")] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Keep tokens this many times as likely as the likeliest.")
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=VALUE", help="Add to a token's logit; repeatable."),
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1: against tokens of prompt and output; 0.1 to 10.")
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Taken off tokens of the output; -2 to 2.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="Taken off for every time that a token is in it; -2 to 2.")
    ] = 0.0,
    n: Annotated[int, typer.Option("--n", help="Samples per prompt, up to 128.")] = 1,
    min_tokens: Annotated[int, typer.Option(help="Do not stop before so many tokens.")] = 0,
    logprobs: Annotated[
        int | None,
        typer.Option(help="Most likely tokens to list with every token, up to 20; with --json."),
    ] = None,
    prompt_logprobs: Annotated[
        int | None,
        typer.Option(
            help="Log-probabilities of the prompt's tokens, and of so many most likely ones in the "
            "place of each, up to 20; with --json."
        ),
    ] = None,
    prompt_logprobs_every_loop: Annotated[
        bool,
        typer.Option(
            "--prompt-logprobs-every-loop", help="Those after every loop, not just the last."
        ),
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the draws; else a fresh one.")] = None,
    exit_trace: Annotated[
        Path | None, typer.Option(help="JSON: recorded exit depths, one list per prompt.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="End before this text; repeatable.")
    ] = None,
    include_stop_str_in_output: Annotated[
        bool,
        typer.Option("--include-stop-str-in-output", help="End after the --stop text instead."),
    ] = False,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Do not stop early.")] = False,
    eos_token_id: Annotated[
        list[int] | None, typer.Option(help="Stop at these ids instead of the checkpoint's.")
    ] = None,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Type to run in; by default the checkpoint's.")
    ] = None,
    num_loops: Annotated[
        int | None, typer.Option(min=1, help="Load the model with this P, prompts included.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per sample.")] = False,
    launch_log: LaunchLogFile = None,
    launch_log_waits: LaunchLogWaits = False,
    record_trace: RecordTraceFile = None,
    record_gates: RecordGatesFile = None,
    profile: ProfileFolder = None,
    engine_config: EngineConfig,
) -> None:
    """Generate text; it streams to standard output as it is made."""
    from looped.llm import LLM
    from looped.record.exit_trace import recording_exits
    from looped.record.gate_record import recording_gates
    from looped.record.launch_log import recording
    from looped.record.profiling import check_profile_folder, profiling
    from looped.sampling_params import SamplingParams
    from looped.text.request_file import read_exit_trace, with_trace

    check_launch_log(launch_log, waits=launch_log_waits, profile=profile)
    check_profile_folder(profile)
    check_recordings(launch_log, record_trace, record_gates)
    if chat and prompt_ids:
        raise UsageError("--chat wraps text in a template and cannot be used with --prompt-ids")
    for file in (requests, exit_trace):
        if file is not None and not file.is_file():
            raise UsageError(f"{file} cannot be read: there is no such file")
    for flag, value in (("--logprobs", logprobs), ("--prompt-logprobs", prompt_logprobs)):
        if value is not None and not as_json:
            raise UsageError(f"{flag} is for machines to read; add --json")
    if prompt_logprobs_every_loop:
        refuse_whole_prompts(engine_config, "--prompt-logprobs-every-loop")
    if exit_trace is not None:
        refuse_exit_options(engine_config, record_gates)
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        logit_bias=parse_logit_bias(logit_bias or []),
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        min_tokens=min_tokens,
        n=n,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        prompt_logprobs_every_loop=prompt_logprobs_every_loop,
        seed=seed,
        stop=stop or (),
        include_stop_str_in_output=include_stop_str_in_output,
        ignore_eos=ignore_eos,
    )
    given_ids = [parse_token_ids(text) for text in prompt_ids or []]
    texts = prompt or []
    if not texts and not given_ids and requests is None:
        texts = [read_standard_input()]

    name = chosen_model(model)
    with (
        recording(launch_log, waits_for_device=launch_log_waits) as log,
        recording_exits(record_trace, log) as exits,
        recording_gates(record_gates, exits, model=name) as gates,
        profiling(profile, gates) as observer,
    ):
        llm = LLM(
            name,
            dtype=dtype,
            num_loops=num_loops,
            eos_token_ids=eos_token_id or None,
            config=engine_config,
            observer=observer,
        )
        todo = gather(llm, texts, given_ids, requests, params, is_chat=chat)
        if not as_json:
            refuse_unprinted(todo)
        if exit_trace is not None:
            traces = read_exit_trace(exit_trace, len(todo))
            num_loops = llm.engine.model_config.num_loops
            todo = [with_trace(*pair, num_loops) for pair in zip(todo, traces, strict=True)]
        run(llm, todo, as_json=as_json, is_timed=profile is None)


def gather(
    llm: "LLM",
    texts: list[str],
    given_ids: list[tuple[int, ...]],
    file: Path | None,
    params: "SamplingParams",
    *,
    is_chat: bool,
) -> "list[GenerationRequest]":
    """The requests of a run, in order: texts, token ids, and those of a file."""
    from looped.engine.generation_request import GenerationRequest
    from looped.text.request_file import read_requests

    encode = llm.encode_chat if is_chat else llm.encode
    todo = [
        GenerationRequest(prompt_token_ids=ids, params=params)
        for ids in [*map(encode, texts), *given_ids]
    ]
    if file is not None:
        todo += read_requests(file, params, encode)
    return [llm.with_chat_stop(request) for request in todo] if is_chat else todo


def run(
    llm: "LLM", requests: "list[GenerationRequest]", *, as_json: bool, is_timed: bool = True
) -> None:
    """Serves the requests, prints them in order, and says at the end what it took.

    `is_timed` False leaves the rate out: that of a run that is profiled says nothing.
    """
    from looped.text.completion_json import completion_to_json

    from .streaming import OrderedTextPrinter

    names = [
        (str(index), sample_index)
        for index, request in enumerate(requests)
        for sample_index in range(request.params.n)
    ]
    printer = OrderedTextPrinter(names, has_text=llm.tokenizer is not None)
    completions = {}
    started = None
    num_printed = 0
    for output in interruptible(partial(llm.run, requests)):
        # The first step has waited for compilation; the rate counts from its end.
        started = started or time.perf_counter()
        if not as_json:
            for event in output.tokens:
                printer.add(event)
        for done in output.completions:
            completions[done.request_id, done.sample_index] = done
            if not as_json:
                printer.finish(done)
        while as_json and num_printed < len(names) and names[num_printed] in completions:
            values = completion_to_json(completions[names[num_printed]], llm.tokenizer)
            print(json.dumps(values), flush=True)
            num_printed += 1
    for name in names:
        if name in completions and completions[name].error is not None:
            logger.error("prompt %s, sample %d: %s", *name, completions[name].error)
    seconds = time.perf_counter() - (started or 0.0) if is_timed else None
    logger.info("%s", statistics(llm.engine.stats(), seconds))
    if any(completion.error is not None for completion in completions.values()):
        raise typer.Exit(1)


def statistics(stats: "EngineStats", seconds: float | None) -> str:
    """The line at the end of a run; without seconds it has no rate."""
    launches = ", ".join(
        f"{count} {kind.name.lower()}" for kind, count in stats.num_launches.items() if count
    )
    rate = f", {stats.num_output_tokens / seconds:.1f} tokens/s" if seconds else ""
    return (
        f"launches: {launches}; {stats.num_mixed_launches} mixed; {stats.num_heads} with a head; "
        f"rows: {stats.num_prompt_rows} prompt, {stats.num_decode_rows} decode, "
        f"{stats.num_head_rows} head, {stats.num_score_rows} score, all real, and "
        f"{stats.num_padded_rows} padded; "
        f"readbacks: {stats.num_readbacks}; compilations: {stats.num_compilations}; "
        f"{stats.num_output_tokens} tokens{rate}"
    )


def refuse_unprinted(requests: "list[GenerationRequest]") -> None:
    """UsageError for what a request asks for and only JSON shows."""
    for index, request in enumerate(requests):
        for option in ("logprobs", "prompt_logprobs"):
            if getattr(request.params, option) is not None:
                raise UsageError(
                    f"prompt {index}: {option} is for machines to read; add --json, or leave it out"
                )


def refuse_exit_options(config: EngineConfig, record_gates: Path | None) -> None:
    """A trace says where every token leaves: UsageError for any other exit option beside it."""
    if record_gates is not None:
        raise UsageError("--record-gates needs every loop of every token; leave --exit-trace out")
    for name in ("exit_threshold", "min_loops", "max_loops"):
        if getattr(config, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"--exit-trace takes no {flag}; leave out one of the two")
    if config.exit_mode not in (None, ExitMode.TRACE):
        raise UsageError(f"--exit-trace means exit mode trace, got --exit-mode {config.exit_mode}")
