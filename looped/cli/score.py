"""`looped score`: perplexity and log-probabilities of given texts."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from looped.engine_config import EngineConfig
from looped.errors import UsageError

from .checkpoints import Dtype
from .options import with_config_options

if TYPE_CHECKING:
    from looped.outputs import Completion

logger = logging.getLogger(__name__)


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
    from looped.llm import LLM
    from looped.request_file import read_texts
    from looped.scoring import perplexities, score_to_json

    if not requests.is_file():
        raise UsageError(f"{requests} cannot be read: there is no such file")
    if top and not as_json:
        raise UsageError("--top is for machines to read; add --json")
    llm = LLM(model, dtype=dtype, num_loops=num_loops, config=engine_config)
    texts = read_texts(requests, llm.encode)
    completions = llm.score(texts, every_loop=every_loop, num_top=top)
    if as_json:
        for completion in completions:
            print(json.dumps(score_to_json(completion, llm.tokenizer)))
    else:
        print_table(completions)
    sound = [completion for completion in completions if completion.error is None]
    said = ", ".join(
        f"{value:.5g} after loop {loop}" for loop, value in perplexities(sound).items()
    )
    num_tokens = sum(len(completion.prompt_token_ids) - 1 for completion in sound)
    logger.info("%d texts, %d tokens scored; perplexity %s", len(sound), num_tokens, said or "-")
    for completion in completions:
        if completion.error is not None:
            logger.error("text %s: %s", completion.request_id, completion.error)
    if len(sound) < len(completions):
        raise typer.Exit(1)


def print_table(completions: "list[Completion]") -> None:
    """Tokens and perplexity of each text, and of all together."""
    from rich.console import Console
    from rich.table import Table

    from looped.scoring import perplexities

    loops = list(perplexities(completions))
    columns = (f"loop {loop}" for loop in loops)
    table = Table("text", "tokens scored", *columns, title="perplexity after a loop")
    rows = [(completion.request_id, [completion]) for completion in completions]
    for name, texts in [*rows, ("all", completions)]:
        by_loop = perplexities(texts)
        num_tokens = sum(len(text.prompt_token_ids) - 1 for text in texts)
        values = (f"{by_loop[loop]:.5g}" if loop in by_loop else "-" for loop in loops)
        table.add_row(name, str(num_tokens), *values, end_section=name == rows[-1][0])
    Console().print(table)
