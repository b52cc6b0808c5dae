"""Where examples come from, and the tokenizer that goes with them."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looped.config import ModelConfig
from looped.errors import LoopedError, UsageError
from looped.model_files import read_json
from looped.text.request_file import read_lines
from looped.text.tokenizer import Tokenizer

from .batches import DrawExample, Example, check_example
from .digests import file_digest
from .export import WriteCompanions, companions_of


@dataclass(frozen=True, kw_only=True)
class Source:
    """Examples of one tokenizer."""

    name: str
    """What a run remembers it by."""
    draw: DrawExample
    vocab_size: int
    """Ids that a model of the tokenizer needs."""
    tokenizer_json: str
    """The tokenizer itself, as its file has it."""
    data_sha256: str | None = None
    """Of the file that the examples are from; None where they are made."""
    write_companions: WriteCompanions
    """Puts the tokenizer's files into a model's folder."""


OpenSource = Callable[[], Source]
"""Reads the examples, which may take long: after all that is quick has been checked."""


def check_fits(
    source: Source,
    folder: Path,
    config: ModelConfig,
    *,
    advice: str = "train on --data instead, or take a model that was trained on this task",
) -> None:
    """LoopedError unless examples are written in the tokenizer of a model's folder, and ids fit."""
    file = folder / "tokenizer.json"
    if not file.exists() or read_json(file) != json.loads(source.tokenizer_json):
        raise LoopedError(
            f"the examples ({source.name}) are encoded by another tokenizer than {file}; {advice}"
        )
    if source.vocab_size > config.vocab_size:
        raise LoopedError(
            f"{file} has ids up to {source.vocab_size - 1}, and the model has {config.vocab_size} "
            "of them; its tokenizer belongs to another model"
        )


def file_source(file: Path, folder: Path, sequence_length: int | None = None) -> Source:
    """Lines of a JSONL file of {"prompt", "completion"}, each as likely as the others.

    Args:
        file: one object a line, empty lines skipped; an empty prompt makes all of a text but its
            first token count.
        folder: whose tokenizer encodes both texts as they are; each completion is followed by the
            lowest id that the folder calls an end of sequence.
        sequence_length: of the rows that the examples have to fit; None leaves that to batches.

    Raises:
        UsageError: with the line's number, for a line that is not such an object, or is too long.
        LoopedError: the file or the tokenizer cannot be read.
    """
    tokenizer = Tokenizer.from_folder(folder)
    if not tokenizer.stop_token_ids:
        raise LoopedError(
            f"{folder} names no end of sequence; add eos_token_id to its generation_config.json"
        )
    end_token_id = min(tokenizer.stop_token_ids)

    def parse(values: Any) -> Example:
        example = _parse(values, tokenizer, end_token_id)
        if sequence_length is not None:
            check_example(example, sequence_length)
        return example

    examples = read_lines(file, parse)

    def draw(rng: random.Random) -> Example:
        return rng.choice(examples)

    return Source(
        name=str(file),
        draw=draw,
        vocab_size=tokenizer.vocab_size,
        tokenizer_json=(folder / "tokenizer.json").read_text(encoding="utf-8"),
        data_sha256=file_digest(file),
        write_companions=companions_of(folder),
    )


def _parse(values: Any, tokenizer: Tokenizer, end_token_id: int) -> Example:
    match values:
        case {"prompt": str(prompt), "completion": str(completion)} if completion:
            ids = tokenizer.encode(completion)
            if not ids:
                raise UsageError("the completion has no tokens")
            return Example(tokenizer.encode(prompt), [*ids, end_token_id])
        case _:
            raise UsageError(
                'expected {"prompt": text, "completion": text}, the completion not empty; got '
                f"{json.dumps(values)[:80]}"
            )
