"""`looped generate`: text out of a checkpoint."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from looped.errors import UsageError

from .checkpoints import Dtype
from .prompts import collect_prompts


class ExitMode(StrEnum):
    """Rules by which a token stops looping."""

    ouro = "ouro"
    ouro_delayed = "ouro_delayed"


def generate(
    prompt: Annotated[
        list[str] | None, typer.Argument(help="Prompts; else standard input.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Converted or Hugging Face folder, or a hub id.")
    ] = ...,  # type: ignore[assignment]
    prompt_ids: Annotated[
        list[str] | None, typer.Option(help="A prompt as token ids, 1,2,3; repeatable.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens to emit per prompt.")] = 64,
    max_loops: Annotated[
        int | None, typer.Option(min=1, help="Loops per output token at most; by default P.")
    ] = None,
    min_loops: Annotated[
        int | None, typer.Option(min=1, help="Loops at least; by default min(2, max loops).")
    ] = None,
    exit_mode: Annotated[ExitMode, typer.Option(help="Early-exit rule.")] = ExitMode.ouro,
    exit_threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="1 never exits early; by default the checkpoint's."),
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Do not stop.")] = False,
    eos_token_id: Annotated[
        list[int] | None, typer.Option(help="Stop at these ids instead of the checkpoint's.")
    ] = None,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Type to run in; by default the checkpoint's.")
    ] = None,
    num_loops: Annotated[
        int | None, typer.Option(min=1, help="Load the model with this P, prompts included.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per prompt.")] = False,
) -> None:
    """Generate text; it streams to standard output as it is made."""
    from looped.convert import resolve_model_folder
    from looped.loading import load_folder
    from looped.reference import generate as reference_generate
    from looped.tokenizer import Detokenizer, Tokenizer

    folder = resolve_model_folder(model)
    has_tokenizer = (folder / "tokenizer.json").exists()
    tokenizer = Tokenizer.from_folder(folder) if has_tokenizer else None
    prompts = collect_prompts(prompt or [], prompt_ids or [], tokenizer=tokenizer, is_chat=chat)
    loaded = load_folder(folder, dtype=dtype, num_loops=num_loops)
    config = loaded.config
    for given in prompts:
        check_prompt(given.token_ids, max_tokens, config.vocab_size, config.max_position_embeddings)
    max_loops = max_loops or config.num_loops
    stop_ids: frozenset[int] = frozenset()
    if eos_token_id:
        stop_ids = frozenset(eos_token_id)
    elif tokenizer is not None and not ignore_eos:
        stop_ids = tokenizer.chat_stop_token_ids() if chat else tokenizer.stop_token_ids

    for given in prompts:
        token_ids: list[int] = []
        exit_depths: list[int] = []
        pieces: list[str] = []
        detokenizer = Detokenizer(tokenizer) if tokenizer is not None else None

        def emit(piece: str, pieces: list[str] = pieces) -> None:
            pieces.append(piece)
            if not as_json:
                print(piece, end="", flush=True)

        for token in reference_generate(
            loaded.model,
            given.token_ids,
            max_tokens=max_tokens,
            mode=exit_mode.value,
            threshold=config.exit_threshold if exit_threshold is None else exit_threshold,
            min_loops=min_loops or min(2, max_loops),
            max_loops=max_loops,
        ):
            token_ids.append(token.token_id)
            exit_depths.append(token.exit_depth)
            if detokenizer is None:
                emit(f"{token.token_id} ")
            else:
                emit(detokenizer.add(token.token_id))
            if token.token_id in stop_ids:
                break
        if detokenizer is not None:
            emit(detokenizer.finish())
        if as_json:
            result = {
                "prompt_token_ids": list(given.token_ids),
                "token_ids": token_ids,
                "text": "".join(pieces) if tokenizer is not None else None,
                "exit_depths": exit_depths,
                "finish_reason": "stop" if token_ids[-1] in stop_ids else "length",
            }
            print(json.dumps(result), flush=True)
        else:
            print(flush=True)


def check_prompt(
    token_ids: tuple[int, ...], max_tokens: int, vocab_size: int, max_length: int
) -> None:
    """Raises UsageError for a prompt that the model cannot take."""
    if not token_ids:
        raise UsageError("the prompt is empty: expected at least one token")
    if outside := [token for token in token_ids if not 0 <= token < vocab_size]:
        raise UsageError(f"token ids must be 0 to {vocab_size - 1}; got {outside[0]}")
    if len(token_ids) + max_tokens > max_length:
        raise UsageError(
            f"prompt and output must fit {max_length} positions: "
            f"{len(token_ids)} + {max_tokens}; shorten the prompt or lower --max-tokens"
        )
