"""Where examples come from, and the tokenizer that goes with them."""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from looped.config import ModelConfig, read_json
from looped.errors import LoopedError
from looped.tokenizer import Tokenizer

from .batches import DrawExample, Example
from .digests import text_digest
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


def check_fits(source: Source, folder: Path, config: ModelConfig) -> None:
    """LoopedError unless examples are written in the tokenizer of a model's folder, and ids fit."""
    file = folder / "tokenizer.json"
    if not file.exists() or read_json(file) != json.loads(source.tokenizer_json):
        raise LoopedError(
            f"the examples ({source.name}) are encoded by another tokenizer than {file}; train on "
            "--data instead, or take a model that was trained on this task"
        )
    if source.vocab_size > config.vocab_size:
        raise LoopedError(
            f"{file} has ids up to {source.vocab_size - 1}, and the model has {config.vocab_size} "
            "of them; its tokenizer belongs to another model"
        )


def file_source(file: Path, folder: Path) -> Source:
    """Lines of a JSONL file of {"prompt", "completion"}, each as likely as the others.

    Args:
        file: one object a line; an empty prompt makes all of a text but its first token count.
        folder: whose tokenizer encodes both texts as they are; each completion is followed by the
            lowest id that the folder calls an end of sequence.

    Raises:
        LoopedError: the file or the tokenizer cannot be read, or a line is not such an object.
    """
    tokenizer = Tokenizer.from_folder(folder)
    if not tokenizer.stop_token_ids:
        raise LoopedError(
            f"{folder} names no end of sequence; add eos_token_id to its generation_config.json"
        )
    content = _read(file)
    examples = list(
        _parse_examples(file, content.splitlines(), tokenizer, min(tokenizer.stop_token_ids))
    )
    if not examples:
        raise LoopedError(f"{file} is empty; expected one JSON object a line")

    def draw(rng: random.Random) -> Example:
        return rng.choice(examples)

    return Source(
        name=str(file),
        draw=draw,
        vocab_size=tokenizer.vocab_size,
        tokenizer_json=(folder / "tokenizer.json").read_text(encoding="utf-8"),
        data_sha256=text_digest(content),
        write_companions=companions_of(folder),
    )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoopedError(f"{file} cannot be read: {error}") from None


def _parse_examples(
    file: Path, lines: Sequence[str], tokenizer: Tokenizer, end_token_id: int
) -> Iterator[Example]:
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise LoopedError(f"{file}, line {number} is not JSON: {error}") from None
        match values:
            case {"prompt": str(prompt), "completion": str(completion)} if completion:
                ids = tokenizer.encode(completion)
                if not ids:
                    raise LoopedError(f"{file}, line {number}: the completion has no tokens")
                yield Example(tokenizer.encode(prompt), [*ids, end_token_id])
            case _:
                raise LoopedError(
                    f'{file}, line {number}: expected {{"prompt": text, "completion": text}}, the '
                    f"completion not empty; got {line[:80]}"
                )
