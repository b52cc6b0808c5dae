"""The demo's problems as training examples: prompts of the two forms that the model answers.

A prompt is the question as it is, and the answer follows: "What is 3 + 4?", " So 3 + 4 = 7; answer
7". Every fourth example is a chat in the tokenizer's template instead, whose answer has no space
before it and ends with the turn.
"""

import random

from looped.errors import UsageError
from looped.training.batches import Example
from looped.training.sources import Source

from .problems import draw_problem
from .tokenizer import CHAT_END_ID, END_ID, chat_prompt, demo_tokenizer, write_tokenizer

CHAT_SHARE = 0.25
LONGEST_EXAMPLE = 100
"""Tokens of an example at most: a chat of four comparisons, each "… times as many …"."""


def demo_source(sequence_length: int | None = None) -> Source:
    """Problems of the training side, of all kinds, difficulties and forms.

    Args:
        sequence_length: of the rows that the examples have to fit; None leaves that to batches.

    Raises:
        UsageError: a row may be too short for what will be drawn.
    """
    if sequence_length is not None and sequence_length < LONGEST_EXAMPLE - 1:
        raise UsageError(
            f"an example of the demo's task has up to {LONGEST_EXAMPLE} tokens, and a row holds "
            f"{sequence_length + 1}; raise --sequence-length to {LONGEST_EXAMPLE - 1}"
        )
    tokenizer = demo_tokenizer()

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    def draw(rng: random.Random) -> Example:
        problem = draw_problem(rng, "train")
        if rng.random() < CHAT_SHARE:
            prompt = chat_prompt(problem.question)
            return Example(encode(prompt), [*encode(problem.solution.lstrip()), CHAT_END_ID])
        return Example(encode(problem.question), [*encode(problem.solution), END_ID])

    return Source(
        name="demo",
        draw=draw,
        vocab_size=tokenizer.get_vocab_size(),
        tokenizer_json=tokenizer.to_str(),
        write_companions=write_tokenizer,
    )
