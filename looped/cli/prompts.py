"""The prompts of a command: arguments, token ids or standard input."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from looped.errors import UsageError

if TYPE_CHECKING:
    from looped.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """What one request starts from."""

    token_ids: tuple[int, ...]


def collect_prompts(
    texts: Sequence[str],
    id_lists: Sequence[str],
    *,
    tokenizer: "Tokenizer | None",
    is_chat: bool,
) -> list[Prompt]:
    """Prompts in the order given: texts first, then id lists; standard input if there are none.

    Args:
        texts: prompts as text.
        id_lists: prompts as comma-separated token ids.
        tokenizer: needed for texts only.
        is_chat: wrap each text as a user's message in the checkpoint's chat template.

    Raises:
        UsageError: for a malformed id list, or when there is no prompt at all.
    """
    if is_chat and id_lists:
        raise UsageError("--chat wraps text in a template and cannot be used with --prompt-ids")
    if not texts and not id_lists:
        if sys.stdin.isatty():
            raise UsageError("no prompt: give PROMPT, --prompt-ids or text on standard input")
        texts = [sys.stdin.read().removesuffix("\n")]
    prompts = []
    for text in texts:
        if tokenizer is None:
            raise UsageError("this model has no tokenizer.json: give --prompt-ids, not text")
        ids = (
            tokenizer.encode_chat([{"role": "user", "content": text}])
            if is_chat
            else tokenizer.encode(text)
        )
        prompts.append(Prompt(tuple(ids)))
    return prompts + [Prompt(parse_token_ids(ids)) for ids in id_lists]


def parse_token_ids(text: str) -> tuple[int, ...]:
    """Token ids from "1,2,3"."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--prompt-ids takes whole numbers such as 1,2,3; got {text!r}") from None
