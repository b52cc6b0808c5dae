"""Conversations of a ShareGPT file as prompts: real lengths instead of made-up ones.

The first human turn is the prompt, as text without a template, and the answer to it gives the
number of tokens to emit; what is emitted is the server's.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from looped.errors import LoopedError, UsageError
from looped.measure.arrivals import Prompt, Sample

logger = logging.getLogger(__name__)

HUMAN = frozenset({"human", "user"})
ASSISTANT = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard", "model"})
"""Other roles, such as system and tool, are skipped."""
NO_ANSWER, TOO_SHORT, TOO_LONG = "without a question and an answer", "too short", "too long"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and the answer to it."""

    question: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Which exchanges are used, in tokens; the others are dropped."""

    min_tokens: int = 4
    """Of the prompt and of the output, each."""
    max_prompt_tokens: int = 1024
    max_total_tokens: int = 2048
    """Of prompt and output together."""

    def within(self, max_model_len: int | None) -> "Lengths":
        """The same for a server that takes no longer requests; None is not known."""
        longest = min(self.max_total_tokens, max_model_len or self.max_total_tokens)
        return replace(self, max_total_tokens=longest)

    def judge(self, num_prompt: int, num_output: int) -> str | None:
        """Why an exchange is dropped; None if it is not."""
        if min(num_prompt, num_output) < self.min_tokens:
            return TOO_SHORT
        is_long = num_prompt > self.max_prompt_tokens
        is_long = is_long or num_prompt + num_output > self.max_total_tokens
        return TOO_LONG if is_long else None


def read_exchanges(path: Path) -> list[Exchange | None]:
    """The first question and answer of every entry; None for one that has none.

    Args:
        path: a JSON list of `{"id": …, "conversations": [{"from": …, "value": …}, …]}`.

    Raises:
        LoopedError: the file cannot be read or is malformed; the entry is named.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoopedError(f"{path} cannot be read: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise LoopedError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise LoopedError(
            f"{path} must hold a JSON list of conversations, got "
            f"{'an empty one' if entries == [] else type(entries).__name__}"
        )
    return [_exchange_of(entry, _place(path, i, entry)) for i, entry in enumerate(entries)]


def _place(path: Path, index: int, entry: Any) -> str:
    name = f" (id {entry['id']!r})" if isinstance(entry, dict) and "id" in entry else ""
    return f"{path}: entry {index}{name}"


def _exchange_of(entry: Any, place: str) -> Exchange | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("conversations"), list):
        raise LoopedError(f'{place}: expected {{"conversations": [turn, …]}}, got {_brief(entry)}')
    question: str | None = None
    for index, turn in enumerate(entry["conversations"]):
        if not isinstance(turn, dict) or not all(
            isinstance(turn.get(key), str) for key in ("from", "value")
        ):
            raise LoopedError(
                f'{place}, turn {index}: expected {{"from": role, "value": text}}, got '
                f"{_brief(turn)}"
            )
        if question is None:
            question = turn["value"] if turn["from"] in HUMAN else None
        elif turn["from"] in ASSISTANT:
            return Exchange(question, turn["value"])
    return None


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:80] + "…"


def draw_prompts(
    exchanges: Sequence[Exchange | None],
    encode: Callable[[str], list[int]],
    count: int,
    *,
    lengths: Lengths,
    seed: int,
    name: str,
) -> Sample:
    """Draws exchanges without replacement until there are enough that can be used.

    Args:
        exchanges: of a file.
        encode: the model's tokenizer.
        count: prompts wanted; fewer come where the file has no more.
        lengths: which ones are used.
        seed: of the draw.
        name: of the run; another run draws others, or the same in another order.

    Raises:
        UsageError: none can be used.
    """
    order = Random(f"{seed}/{name}/dataset").sample(range(len(exchanges)), len(exchanges))
    prompts: list[Prompt] = []
    dropped: Counter[str] = Counter()
    for index in order:
        if len(prompts) == count:
            break
        exchange = exchanges[index]
        if exchange is None:
            dropped[NO_ANSWER] += 1
            continue
        ids, num_output = encode(exchange.question), len(encode(exchange.answer))
        reason = lengths.judge(len(ids), num_output)
        if reason is None:
            prompts.append(Prompt(tuple(ids), num_output))
        else:
            dropped[reason] += 1
    told = ", ".join(f"{number} {reason}" for reason, number in dropped.items()) or "none"
    if not prompts:
        raise UsageError(f"no conversation can be used, dropped: {told}; widen the limits")
    logger.info("%s: %d conversations, dropped: %s", name, len(prompts), told)
    if len(prompts) < count:
        logger.warning("%s: the file has %d of the %d wanted", name, len(prompts), count)
    return Sample(prompts, dict(dropped))
