"""Text and stop strings of whole requests, through `LLM`."""

import shutil
from dataclasses import replace

import pytest
from engines import SMALL_SIZES, check_idle

from looped import LLM, SamplingParams, UsageError
from looped.llm import GenerationRequest
from looped.sched import ExitOptions, FinishReason

PROMPT = [5, 6, 7]
# Greedy; the penalty keeps the tiny model from saying one word over and over.
GREEDY = SamplingParams(max_tokens=16, ignore_eos=True, repetition_penalty=1.5)


@pytest.fixture(scope="module")
def llm(request):
    return LLM(str(request.getfixturevalue("tiny_folder")), **SMALL_SIZES)


@pytest.fixture(autouse=True)
def everything_is_free_afterwards(request):
    yield
    if "llm" in request.fixturenames:
        check_idle(request.getfixturevalue("llm").engine)


@pytest.fixture(scope="module")
def plain(llm):
    """What the model says when nothing stops it."""
    (done,) = llm.generate([PROMPT], GREEDY, show_progress=False)
    assert done.finish_reason is FinishReason.LENGTH
    # Whole words and letters, which the cases below take apart.
    assert all(text.isascii() for text in done.tokens[:11])
    assert [len(done.tokens[index]) > 1 for index in (2, 3, 5)] == [True] * 3
    return done


def cases(plain):
    """Stop strings by name, each with the number of tokens up to its end."""
    tokens = plain.tokens
    return {
        "first token": (tokens[0], 1),
        "inside a token": (tokens[2][1:-1], 3),
        "two tokens": (tokens[2][-2:] + tokens[3][:2], 4),
        "three tokens": (tokens[3][-1] + tokens[4] + tokens[5][0], 6),
        "ten tokens": ("".join(tokens[1:11]), 11),
    }


CASES = ("first token", "inside a token", "two tokens", "three tokens", "ten tokens")


def run(llm, requests):
    """Completions and events by request; checks that both tell the same."""
    todo = [GenerationRequest(prompt_token_ids=tuple(ids), params=p) for ids, p in requests]
    events, completions = {str(index): [] for index in range(len(todo))}, {}
    for output in llm.run(todo):
        for event in output.tokens:
            assert event.request_id not in completions
            events[event.request_id].append(event)
        completions |= {done.request_id: done for done in output.completions}
        # What has ended holds nothing any more.
        assert llm.engine.stats().num_active <= len(todo) - len(completions)
    for name, done in completions.items():
        assert tuple(event.token_id for event in events[name]) == done.token_ids
        assert done.text.startswith("".join(event.text for event in events[name]))
        assert done.tokens == tuple(map(llm.tokenizer.token_text, done.token_ids))
    return [completions[str(index)] for index in range(len(todo))]


def check_cut(done, plain, stop, num_tokens):
    assert (done.finish_reason, done.stop_reason) == (FinishReason.STOP, stop)
    assert done.text == plain.text[: plain.text.index(stop)]
    for name in ("token_ids", "tokens", "logprobs", "exit_depths"):
        assert len(getattr(done, name)) == num_tokens, name
    assert done.token_ids == plain.token_ids[:num_tokens]


@pytest.mark.parametrize("name", CASES)
def test_generation_ends_with_the_token_that_completes_a_stop_string(llm, plain, name):
    stop, num_tokens = cases(plain)[name]
    (done,) = run(llm, [(PROMPT, replace(GREEDY, stop=stop))])
    check_cut(done, plain, stop, num_tokens)
    limited = replace(GREEDY, stop=stop, max_tokens=num_tokens, include_stop_str_in_output=True)
    (at_limit,) = run(llm, [(PROMPT, limited)])
    assert (at_limit.finish_reason, at_limit.stop_reason) == (FinishReason.STOP, stop)
    assert at_limit.text == done.text + stop
    assert at_limit.token_ids == done.token_ids


def test_stop_strings_find_the_same_in_a_crowd(llm, plain):
    drawn = SamplingParams(max_tokens=12, temperature=1.0, seed=3, ignore_eos=True, logprobs=2)
    (free,) = run(llm, [([9, 10], drawn)])
    others = [
        ([9, 10], drawn),
        ([9, 10], replace(drawn, stop=free.tokens[3])),
        (list(range(30, 60)), SamplingParams(max_tokens=6, exit=ExitOptions(max_loops=1))),
    ]
    alone = [run(llm, [other])[0] for other in others]
    stops = [cases(plain)[name] for name in CASES]
    stopping = [(PROMPT, replace(GREEDY, stop=stop)) for stop, _ in stops]
    crowd = run(llm, [others[0], *stopping, *others[1:], (PROMPT, GREEDY)])
    for (stop, num_tokens), done in zip(stops, crowd[1:], strict=False):
        check_cut(done, plain, stop, num_tokens)
    for expected, done in zip(alone, [crowd[0], *crowd[6:8]], strict=True):
        assert (done.text, done.token_ids) == (expected.text, expected.token_ids)
        assert done.stop_reason == expected.stop_reason
    assert alone[1].finish_reason is FinishReason.STOP
    assert crowd[8].token_ids == plain.token_ids


def test_of_several_stop_strings_the_first_to_end_stops(llm, plain):
    late, early = plain.tokens[6], plain.tokens[2]
    (done,) = run(llm, [(PROMPT, replace(GREEDY, stop=[late, early, "not in it"]))])
    check_cut(done, plain, early, 3)
    (done,) = run(llm, [(PROMPT, replace(GREEDY, stop="not in it"))])
    assert (done.text, done.stop_reason) == (plain.text, None)
    assert done.finish_reason is FinishReason.LENGTH


def test_a_stop_string_of_characters_that_are_split_over_tokens(llm):
    # No other token comes than the two bytes of a character, in an order that the model chooses.
    first, second = llm.tokenizer.encode("é")
    params = SamplingParams(
        max_tokens=9, ignore_eos=True, logit_bias={first: 90, second: 90}, frequency_penalty=2.0
    )
    broken = "\N{REPLACEMENT CHARACTER}"

    def stopped(**options):
        (done,) = run(llm, [([1, 2], replace(params, **options))])
        return done.text, done.stop_reason, len(done.token_ids)

    assert stopped() == (f"é{broken}{broken}éé{broken}", None, 9)
    assert stopped(stop="é") == ("", "é", 2)
    assert stopped(stop="éé") == (f"é{broken}{broken}", "éé", 8)
    assert stopped(stop="é", min_tokens=6) == (f"é{broken}{broken}é", "é", 8)
    # That the last character stays unfinished shows only at the end.
    assert stopped(stop=f"éé{broken}") == (f"é{broken}{broken}", f"éé{broken}", 9)


def test_min_tokens_holds_stop_strings_back_like_stop_ids(llm, plain):
    stop = plain.tokens[0]
    again = plain.text.find(stop, len(stop))
    (done,) = run(llm, [(PROMPT, replace(GREEDY, stop=stop, min_tokens=1))])
    assert done.text == (plain.text if again < 0 else plain.text[:again])
    assert done.token_ids[:2] == plain.token_ids[:2]


def test_the_stop_reason_is_the_id_where_an_id_stopped_and_the_string_where_both_did(llm, plain):
    by_id = replace(GREEDY, stop_token_ids=[plain.token_ids[3]])
    (done,) = run(llm, [(PROMPT, by_id)])
    assert (done.finish_reason, done.stop_reason) == (FinishReason.STOP, plain.token_ids[3])
    assert done.text == "".join(plain.tokens[:4])
    (done,) = run(llm, [(PROMPT, replace(by_id, stop=plain.tokens[3]))])
    check_cut(done, plain, plain.tokens[3], 4)


ROLE_NAME = "<|im_start|>"
"""Id 1 of the fixture's model, which is no end of its own."""


@pytest.mark.parametrize(
    ("options", "num_tokens"),
    [
        ({}, 1),
        ({"min_tokens": 3}, 4),
        ({"min_tokens": 3, "ignore_eos": False}, 4),
        ({"min_tokens": 3, "include_stop_str_in_output": True}, 4),
        ({"min_tokens": 3, "stop": [ROLE_NAME, "not in it"], "stop_token_ids": [1]}, 4),
        ({"stop": [f"{ROLE_NAME}x", f" {ROLE_NAME}", ROLE_NAME[1:]]}, None),
    ],
)
def test_generation_ends_at_the_special_token_that_a_stop_names(llm, options, num_tokens):
    named = {"stop": ROLE_NAME, "logit_bias": {1: 100}, **options}
    (done,) = run(llm, [(PROMPT, replace(GREEDY, **named))])
    if num_tokens is None:
        assert (done.finish_reason, done.stop_reason) == (FinishReason.LENGTH, None)
        assert done.token_ids == (1,) * GREEDY.max_tokens
        return
    assert (done.finish_reason, done.stop_reason) == (FinishReason.STOP, ROLE_NAME)
    assert len(done.token_ids) == num_tokens
    assert done.token_ids[-1] == 1
    assert done.text == llm.tokenizer.decode(done.token_ids[:-1])


def test_an_end_that_is_ignored_ends_where_a_stop_names_it(llm):
    for stop, tokens in (((), GREEDY.max_tokens), (["<|endoftext|>"], 1)):
        (done,) = run(llm, [(PROMPT, replace(GREEDY, stop=stop, logit_bias={0: 100}))])
        assert len(done.token_ids) == tokens
        assert done.text == ""


def test_an_engine_by_itself_takes_no_stop_strings(llm):
    with pytest.raises(UsageError, match=r"stop strings need a tokenizer: use LLM; got .*'x'"):
        llm.engine.add_request("a", [1], SamplingParams(stop="x"))


def test_a_model_without_a_tokenizer_refuses_them_and_nothing_has_run(tiny_folder, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tiny_folder / name, tmp_path / name)
    bare = LLM(str(tmp_path), **SMALL_SIZES)
    with pytest.raises(UsageError, match=r"stop needs a tokenizer, .* no tokenizer\.json"):
        bare.generate([[1], [2]], [SamplingParams(), SamplingParams(stop="x")])
    check_idle(bare.engine)
