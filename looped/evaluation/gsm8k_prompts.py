"""Prompts of grade-school problems: worked examples, then the question.

The examples are this project's own. All of them end in the words that strict extraction looks for.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkedExample:
    """A question with its steps and the number that they arrive at."""

    question: str
    answer: str


WORKED_EXAMPLES = (
    WorkedExample(
        "A ferry crosses the bay 6 times a day. On every crossing it carries 45 passengers, but "
        "the last crossing of the day is 17 passengers short. How many passengers does it carry "
        "in a day?",
        "Six full crossings carry 6 * 45 = 270 passengers. The last one is 17 short, so the ferry "
        "carries 270 - 17 = 253 passengers. The answer is 253.",
    ),
    WorkedExample(
        "Noor saves $35 a week for a bicycle that costs $420. Her aunt adds $70 at the start. "
        "After how many weeks can she buy it?",
        "After her aunt's gift Noor still needs 420 - 70 = 350 dollars. At 35 dollars a week that "
        "takes 350 / 35 = 10 weeks. The answer is 10.",
    ),
    WorkedExample(
        "A baker fills 8 trays with 24 rolls each. A quarter of the rolls go to a school, and 30 "
        "more to a cafe. The others are sold at $2 each. How many dollars does the baker take for "
        "them?",
        "There are 8 * 24 = 192 rolls. The school gets 192 / 4 = 48 of them, which leaves "
        "192 - 48 = 144. Without the cafe's 30 there are 144 - 30 = 114 rolls. At 2 dollars each "
        "they bring 114 * 2 = 228 dollars. The answer is 228.",
    ),
)
STOP = ("\nQuestion:",)
"""Where a model goes on to a question of its own."""


def few_shot_prompt(question: str, num_shots: int) -> str:
    """Worked examples and the question as plain text, ready for the answer."""
    shots = [
        f"Question: {example.question}\nAnswer: {example.answer}\n\n"
        for example in WORKED_EXAMPLES[:num_shots]
    ]
    return f"{''.join(shots)}Question: {question}\nAnswer:"


def few_shot_messages(question: str, num_shots: int) -> list[dict[str, str]]:
    """The same as a chat: a turn for every question, and for the answer of every example."""
    messages = []
    for example in WORKED_EXAMPLES[:num_shots]:
        messages.append({"role": "user", "content": example.question})
        messages.append({"role": "assistant", "content": example.answer})
    return [*messages, {"role": "user", "content": question}]
