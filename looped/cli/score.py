"""`looped score`: perplexity and log-probabilities of given texts."""

import json
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from looped.engine.options import EngineConfig
from looped.errors import UsageError

from .checkpoints import Dtype
from .interrupts import interruptible
from .options import refuse_whole_prompts, with_config_options

if TYPE_CHECKING:
    from looped.engine.generation_request import GenerationRequest
    from looped.engine.outputs import Completion
    from looped.llm import LLM

logger = logging.getLogger(__name__)

MAX_TOP = 20


@with_config_options(engine_config=EngineConfig)
def score(
    *,
    model: Annotated[str, typer.Option(help="Converted or Hugging Face folder, or a hub id.")],
    requests: Annotated[
        Path, typer.Option(help="JSONL file of texts: prompt or prompt_token_ids, one a line.")
    ],
    every_loop: Annotated[
        bool, typer.Option("--every-loop", help="Score after every loop, not just the last.")
    ] = False,
    top: Annotated[
        int,
        typer.Option(help="Most likely tokens to list with every token, up to 20; with --json."),
    ] = 0,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Type to run in; by default the checkpoint's.")
    ] = None,
    num_loops: Annotated[
        int | None, typer.Option(min=1, help="Load the model with this P.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per text, with every token's score.")
    ] = False,
    engine_config: EngineConfig,
) -> None:
    """Score given texts: perplexity, and with --json the log-probability of every token."""
    from looped.engine.generation_request import GenerationRequest
    from looped.llm import LLM, score_params
    from looped.text.request_file import read_texts

    if not requests.is_file():
        raise UsageError(f"{requests} cannot be read: there is no such file")
    if not 0 <= top <= MAX_TOP:
        raise UsageError(f"--top must be in 0 to {MAX_TOP}, got {top}")
    if top and not as_json:
        raise UsageError("--top is for machines to read; add --json")
    if every_loop:
        refuse_whole_prompts(engine_config, "--every-loop")
    for option in ("exit_mode", "exit_threshold", "min_loops", "max_loops"):
        if getattr(engine_config, option) is not None:
            raise UsageError(
                f"--{option.replace('_', '-')} changes no score, since prompts run every loop; "
                "leave it out (--num-loops loads the model with fewer)"
            )
    llm = LLM(model, dtype=dtype, num_loops=num_loops, config=engine_config)
    params = score_params(every_loop=every_loop, num_top=top)
    texts = [
        GenerationRequest(prompt_token_ids=token_ids, params=params)
        for token_ids in read_texts(requests, llm.encode)
    ]
    run(llm, texts, as_json=as_json)


def run(llm: "LLM", texts: "list[GenerationRequest]", *, as_json: bool) -> None:
    """Scores the texts, prints them in order, and says at the end what all of them come to."""
    from looped.progress import progress_bars
    from looped.text.perplexity import perplexities, score_to_json

    completions: dict[str, Completion] = {}
    num_printed = 0
    with progress_bars() as progress:
        task = progress.add_task("scoring", total=len(texts))
        for output in interruptible(partial(llm.run, texts)):
            progress.advance(task, len(output.completions))
            completions |= {done.request_id: done for done in output.completions}
            while as_json and str(num_printed) in completions:
                values = score_to_json(completions[str(num_printed)], llm.tokenizer)
                print(json.dumps(values), flush=True)
                num_printed += 1
    ordered = [completions[str(index)] for index in range(len(texts))]
    if not as_json:
        print_table(ordered)
    sound = [completion for completion in ordered if completion.error is None]
    said = ", ".join(
        f"{value:.5g} after loop {loop}" for loop, value in perplexities(sound).items()
    )
    num_tokens = sum(len(completion.prompt_token_ids) - 1 for completion in sound)
    logger.info("%d texts, %d tokens scored; perplexity %s", len(sound), num_tokens, said or "-")
    for completion in ordered:
        if completion.error is not None:
            logger.error("text %s: %s", completion.request_id, completion.error)
    if len(sound) < len(ordered):
        raise typer.Exit(1)


def print_table(completions: "list[Completion]") -> None:
    """Tokens and perplexity of each text, and of all that have no error together."""
    from rich.console import Console
    from rich.table import Table

    from looped.text.perplexity import perplexities

    sound = [completion for completion in completions if completion.error is None]
    loops = list(perplexities(sound))
    columns = (f"loop {loop}" for loop in loops)
    table = Table("text", "tokens scored", *columns, title="perplexity after a loop")

    def add(name: str, texts: "list[Completion]") -> None:
        num_tokens = sum(len(text.prompt_token_ids) - 1 for text in texts)
        values = (f"{value:.5g}" for value in perplexities(texts).values())
        table.add_row(name, str(num_tokens), *values)

    for completion in completions:
        if completion.error is None:
            add(completion.request_id, [completion])
        else:
            table.add_row(completion.request_id, "error")
    table.add_section()
    add("all", sound)
    Console().print(table)
