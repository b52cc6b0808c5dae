"""ShareGPT files: what is used, what is dropped and counted, and which entry is malformed."""

import json

import pytest

from looped.bench.serve.sharegpt import Exchange, Lengths, draw_prompts, read_exchanges
from looped.errors import LoopedError, UsageError


def entry(*turns, name="x"):
    return {
        "id": name,
        "conversations": [{"from": role, "value": value} for role, value in turns],
    }


@pytest.fixture
def write(tmp_path):
    def write(values):
        path = tmp_path / "dataset.json"
        path.write_text(values if isinstance(values, str) else json.dumps(values))
        return path

    return write


def encode(text):
    return [ord(character) for character in text]


def test_the_first_question_and_its_answer_are_taken(write):
    path = write(
        [
            entry(("system", "be kind"), ("human", "why?"), ("gpt", "because"), ("human", "oh")),
            entry(("user", "who?"), ("assistant", "me")),
            entry(("gpt", "hello"), ("human", "what?"), ("tool", "3"), ("gpt", "that")),
            entry(("human", "nobody answers")),
            entry(),
        ]
    )
    assert read_exchanges(path) == [
        Exchange("why?", "because"),
        Exchange("who?", "me"),
        Exchange("what?", "that"),
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("[{]", "is not valid JSON"),
        ({"id": 1}, "must hold a JSON list of conversations, got dict"),
        ([], "got an empty one"),
        ([entry(), "text"], r"entry 1: expected .*, got \"text\""),
        ([{"id": "abc", "items": []}], r"entry 0 \(id 'abc'\): expected"),
        (
            [entry(), {"id": 7, "conversations": [{"from": "human", "text": "x"}]}],
            r"entry 1 \(id 7\), turn 0: expected .*\"text\": \"x\"",
        ),
        ([entry(("human", 3))], r"entry 0 \(id 'x'\), turn 0"),
    ],
)
def test_a_malformed_file_is_refused_and_the_entry_named(write, values, said):
    with pytest.raises(LoopedError, match=said):
        read_exchanges(write(values))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(LoopedError, match=r"nowhere\.json cannot be read"):
        read_exchanges(tmp_path / "nowhere.json")


LENGTHS = Lengths(min_tokens=4, max_prompt_tokens=10, max_total_tokens=15)
MANY = [
    Exchange("a" * 4, "b" * 11),
    Exchange("a" * 10, "b" * 5),
    Exchange("a" * 3, "b" * 9),  # too short a question
    Exchange("a" * 9, "b" * 3),  # too short an answer
    Exchange("a" * 11, "b" * 4),  # too long a question
    Exchange("a" * 10, "b" * 6),  # too long together
    None,
]


def draw(count=9, *, seed=0, name="run0", exchanges=MANY):
    return draw_prompts(exchanges, encode, count, lengths=LENGTHS, seed=seed, name=name)


def test_what_cannot_be_used_is_counted_by_its_reason():
    sample = draw()
    assert sorted((len(one.token_ids), one.output_tokens) for one in sample.prompts) == [
        (4, 11),
        (10, 5),
    ]
    assert sample.dropped == {
        "too short": 2,
        "too long": 2,
        "without a question and an answer": 1,
    }


def test_a_draw_follows_from_seed_and_run_and_ends_when_there_are_enough():
    exchanges = [Exchange(f"question {i:04}"[-9:], "answer") for i in range(500)]
    first = draw(20, exchanges=exchanges)
    assert draw(20, exchanges=exchanges) == first
    assert len(first.prompts) == len({one.token_ids for one in first.prompts}) == 20
    assert draw(20, exchanges=exchanges, seed=1) != first
    assert draw(20, exchanges=exchanges, name="run1") != first


def test_a_file_without_anything_to_use_is_refused_with_the_reasons():
    with pytest.raises(UsageError, match="dropped: 2 too short"):
        draw(exchanges=MANY[2:4])
