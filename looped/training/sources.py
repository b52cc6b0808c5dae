"""Where examples come from, and the tokenizer that goes with them."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from looped.errors import LoopedError
from looped.tokenizer import Tokenizer

from .batches import DrawExample, Example
from .export import WriteCompanions, companions_of


@dataclass(frozen=True, kw_only=True)
class Source:
    """Examples of one tokenizer."""

    name: str
    """What a run remembers it by."""
    draw: DrawExample
    vocab_size: int
    """Ids that a model of the tokenizer needs."""
    write_companions: WriteCompanions
    """Puts the tokenizer's files into a model's folder."""


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
    examples = list(_read_examples(file, tokenizer, min(tokenizer.stop_token_ids)))
    if not examples:
        raise LoopedError(f"{file} is empty; expected one JSON object a line")

    def draw(rng: random.Random) -> Example:
        return rng.choice(examples)

    return Source(
        name=str(file),
        draw=draw,
        vocab_size=tokenizer.vocab_size,
        write_companions=companions_of(folder),
    )


def _read_examples(file: Path, tokenizer: Tokenizer, end_token_id: int) -> Iterator[Example]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LoopedError(f"{file} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise LoopedError(f"{file}, line {number} is not JSON: {error}") from None
        match values:
            case {"prompt": str(prompt), "completion": str(completion)} if completion:
                ids = tokenizer.encode(completion)
                yield Example(tokenizer.encode(prompt), [*ids, end_token_id])
            case _:
                raise LoopedError(
                    f'{file}, line {number}: expected {{"prompt": text, "completion": text}}, the '
                    f"completion not empty; got {line[:80]}"
                )
