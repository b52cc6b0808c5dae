"""Text and stop strings of whole requests: on made-up engine outputs, and through `LLM`."""

import shutil
from dataclasses import replace

import pytest
from byte_tokenizers import byte_fallback, cut
from engines import SMALL_SIZES, check_idle

from looped import LLM, SamplingParams, UsageError
from looped.engine.outputs import Completion, LoopScores, StepOutput, TokenEvent
from looped.llm import GenerationRequest
from looped.sched import ExitOptions, FinishReason
from looped.text.text_outputs import TextOutputs

# Made-up outputs of an engine that may run elsewhere.


def token(request_id, index, token_id):
    return TokenEvent(
        request_id=request_id,
        sample_index=0,
        output_index=index,
        token_id=token_id,
        logprob=-0.5,
        top_logprobs=((token_id, -0.5),),
        exit_depth=4,
    )


def ended(request_id, token_ids, reason, stop_reason=None, sample_index=0):
    count = len(token_ids)
    return Completion(
        request_id=request_id,
        sample_index=sample_index,
        prompt_token_ids=(1,),
        token_ids=tuple(token_ids),
        exit_depths=(4,) * count,
        logprobs=(-0.5,) * count,
        top_logprobs=tuple(((token_id, -0.5),) for token_id in token_ids),
        finish_reason=reason,
        stop_reason=stop_reason,
        error="it broke" if reason is FinishReason.ERROR else None,
        seed=1,
        prompt_scores=(),
        num_cached_tokens=0,
    )


PIECES = [b"say ", b"E", b"ND", b" more"]
SAY, E, ND, MORE = range(4)


def outputs_of(*answer):
    """`TextOutputs` over these pieces with request "a", which stops at END; aborts give `answer`
    and are listed."""
    tokenizer, ids = cut(PIECES)
    assert ids == [SAY, E, ND, MORE]
    aborted = []
    outputs = TextOutputs(tokenizer, lambda *name: (aborted.append(name), answer)[1])
    outputs.register("a", SamplingParams(stop="END"))
    return outputs, aborted


def feed(outputs, token_ids, start=0):
    events = []
    for index, token_id in enumerate(token_ids, start):
        output = outputs.add(StepOutput(tokens=[token("a", index, token_id)]))
        assert output.completions == []
        events += output.tokens
    return events


def check_stopped(done):
    assert (done.text, done.stop_reason) == ("say ", "END")
    assert (done.finish_reason, done.error) == (FinishReason.STOP, None)
    assert done.token_ids == (SAY, E, ND)
    assert done.tokens == ("say ", "E", "ND")
    lengths = {len(values) for values in (done.logprobs, done.exit_depths, done.top_logprobs)}
    assert lengths == {3}


def test_a_request_whose_text_reaches_a_stop_string_is_aborted_and_reported_as_stopped():
    outputs, aborted = outputs_of(ended("a", [SAY, E, ND], FinishReason.ABORT))
    assert [event.text for event in feed(outputs, [SAY, E])] == ["say ", ""]
    output = outputs.add(StepOutput(tokens=[token("a", 2, ND)]))
    assert aborted == [("a", 0)]
    assert [(event.token_id, event.text) for event in output.tokens] == [(ND, "")]
    (done,) = output.completions
    check_stopped(done)


@pytest.mark.parametrize("reason", FinishReason)
def test_tokens_that_were_in_flight_are_dropped_however_the_request_then_ends(reason):
    outputs, aborted = outputs_of()
    feed(outputs, [SAY, E, ND])
    assert aborted == [("a", 0)]
    with pytest.raises(UsageError, match="request id 'a' is in use"):
        outputs.register("a", SamplingParams())
    assert feed(outputs, [MORE], start=3) == []
    late = ended("a", [SAY, E, ND, MORE], reason, MORE if reason is FinishReason.STOP else None)
    (done,) = outputs.add(StepOutput(completions=[late])).completions
    check_stopped(done)
    assert aborted == [("a", 0)]
    outputs.register("a", SamplingParams())


def test_samples_of_a_request_stop_each_for_itself():
    tokenizer, _ = cut(PIECES)
    written = {0: [SAY, E, ND], 1: [E, SAY, E, ND]}
    aborted = []

    def abort(request_id, sample_index):
        aborted.append((request_id, sample_index))
        ids = written[sample_index]
        return [ended(request_id, ids, FinishReason.ABORT, sample_index=sample_index)]

    outputs = TextOutputs(tokenizer, abort)
    outputs.register("a", SamplingParams(stop="END", n=2, temperature=1.0))
    streamed, texts = {0: "", 1: ""}, {}
    for index in range(4):
        events = [
            replace(token("a", index, ids[index]), sample_index=sample_index)
            for sample_index, ids in written.items()
            if index < len(ids)
        ]
        output = outputs.add(StepOutput(tokens=events))
        for event in output.tokens:
            streamed[event.sample_index] += event.text
        texts |= {done.sample_index: done.text for done in output.completions}
    assert aborted == [("a", 0), ("a", 1)]
    assert streamed == texts == {0: "say ", 1: "Esay "}
    outputs.register("a", SamplingParams())  # both are over: the id is free


def test_several_tokens_of_a_request_in_one_output_end_at_the_stop_string():
    outputs, aborted = outputs_of()
    events = [token("a", index, token_id) for index, token_id in enumerate([SAY, E, ND, MORE])]
    late = ended("a", [SAY, E, ND, MORE], FinishReason.LENGTH)
    output = outputs.add(StepOutput(tokens=events, completions=[late]))
    assert [event.text for event in output.tokens] == ["say ", "", ""]
    check_stopped(*output.completions)
    assert aborted == []


@pytest.mark.parametrize(
    ("reason", "stop_reason"), [(FinishReason.LENGTH, None), (FinishReason.STOP, ND)]
)
def test_a_stop_string_goes_before_a_limit_or_a_stop_id_in_the_same_place(reason, stop_reason):
    outputs, aborted = outputs_of()
    feed(outputs, [SAY, E])
    last = StepOutput(
        tokens=[token("a", 2, ND)],
        completions=[ended("a", [SAY, E, ND], reason, stop_reason)],
    )
    check_stopped(*outputs.add(last).completions)
    assert aborted == []


@pytest.mark.parametrize("reason", FinishReason)
def test_a_part_of_a_stop_string_is_text_when_the_request_ends_otherwise(reason):
    outputs, _ = outputs_of()
    assert [event.text for event in feed(outputs, [SAY, E])] == ["say ", ""]
    done = ended("a", [SAY, E], reason, E if reason is FinishReason.STOP else None)
    (with_text,) = outputs.add(StepOutput(completions=[done])).completions
    assert with_text == replace(done, text="say E", tokens=("say ", "E"))


@pytest.mark.parametrize("reason", FinishReason)
def test_an_unfinished_character_may_complete_it_at_the_end_but_hides_no_error(reason):
    tokenizer, ids = cut([b"a", b"\xf0\x9f"])
    outputs = TextOutputs(tokenizer, lambda *name: pytest.fail(f"{name} has ended"))
    outputs.register("a", SamplingParams(stop="\N{REPLACEMENT CHARACTER}"))
    assert [event.text for event in feed(outputs, ids)] == ["a", ""]
    done = outputs.finish(ended("a", ids, reason))
    assert (done.text, done.token_ids) == ("a", tuple(ids))
    if reason in (FinishReason.LENGTH, FinishReason.STOP):
        assert (done.finish_reason, done.stop_reason) == (FinishReason.STOP, "\ufffd")
    else:
        assert (done.finish_reason, done.stop_reason) == (reason, None)
        assert (done.error is not None) == (reason is FinishReason.ERROR)


def test_the_engine_is_given_options_without_stop_strings():
    outputs, _ = outputs_of()
    params = SamplingParams(stop=["x"], include_stop_str_in_output=True, min_tokens=2, seed=4)
    assert outputs.register("b", params) == SamplingParams(min_tokens=2, seed=4)
    outputs.withdraw("b")  # the engine refused it
    outputs.register("b", params)


def test_without_a_tokenizer_outputs_pass_as_they_are():
    outputs = TextOutputs(None, lambda *name: pytest.fail(f"{name}"))
    params = SamplingParams(max_tokens=2)
    assert outputs.register("a", params) == params
    done = ended("a", [3, 4], FinishReason.LENGTH)
    output = StepOutput(tokens=[token("a", 1, 4)], completions=[done])
    assert outputs.add(output) == output
    assert outputs.add(output) == StepOutput()
    with pytest.raises(UsageError, match=r"stop needs a tokenizer.*got \('x',\)"):
        outputs.register("b", SamplingParams(stop="x"))


def test_what_nobody_registered_is_dropped():
    outputs, _ = outputs_of()
    outputs.withdraw("b")
    done = ended("b", [SAY], FinishReason.LENGTH)
    assert outputs.add(StepOutput([token("b", 0, SAY)], [done])) == StepOutput()
    assert outputs.finish(done) is None
    assert outputs.finish(ended("a", [SAY], FinishReason.LENGTH, sample_index=1)) is None
    assert feed(outputs, [SAY])[0].text == "say "


# Of 260 ids the first 256 are bytes; "<pad>" is an added token that is not special.
END, ROLE, PAD, FAR = range(256, 260)
FALLBACK = byte_fallback([], special=["<end>", "<role>"], plain=["<pad>"], more_special=["<far>"])


@pytest.mark.parametrize(
    ("stop", "stop_token_ids"),
    [
        ("<end>", {END}),
        (["x", "<end>"], {END}),
        (["<end>", "<role>", "<end>"], {END, ROLE}),
        (["<end>", *"abcdefghijklmno"], {END}),
        (["<end", "end>", " <end>", "<end>\n", "<END>", "<end><end>"], set()),
        ("<pad>", set()),
        (["<far>", "<end>"], {END}),  # the model has 259 ids and never draws it
    ],
)
@pytest.mark.parametrize("given", [(), (9, END)])
def test_the_whole_name_of_a_special_token_means_its_id(stop, stop_token_ids, given):
    outputs = TextOutputs(FALLBACK, lambda *_: (), vocab_size=FAR)
    options = outputs.register("a", SamplingParams(stop=stop, stop_token_ids=given, min_tokens=1))
    assert options == SamplingParams(stop_token_ids=stop_token_ids | set(given), min_tokens=1)


@pytest.mark.parametrize("is_included", [True, False])
@pytest.mark.parametrize(
    ("token_ids", "stop", "stop_reason", "text"),
    [
        (b"hi", ["<end>"], "<end>", "hi"),
        (b"hi", ["<role>"], END, "hi"),  # an end of the model's own
        (b"hi<", ["<end>"], "<end>", "hi<"),
        (b"hi", ["<end>", "<role>"], "<end>", "hi"),
    ],
)
def test_nothing_of_a_special_token_is_in_the_text_that_it_ends(
    token_ids, stop, stop_reason, text, is_included
):
    outputs = TextOutputs(FALLBACK, lambda *name: pytest.fail(f"{name} has ended"))
    outputs.register("a", SamplingParams(stop=stop, include_stop_str_in_output=is_included))
    token_ids = [*token_ids, END]
    events = feed(outputs, token_ids)
    assert [event.token_id for event in events] == token_ids
    done = outputs.finish(ended("a", token_ids, FinishReason.STOP, stop_reason=END))
    assert text.startswith("".join(event.text for event in events))
    assert (done.text, done.finish_reason, done.stop_reason) == (
        text,
        FinishReason.STOP,
        stop_reason,
    )
    assert done.tokens[-1] == "<end>"


@pytest.mark.parametrize(("is_included", "text"), [(True, "hi<end>"), (False, "hi")])
def test_other_tokens_that_spell_the_name_end_the_text_as_well(is_included, text):
    aborted = []
    outputs = TextOutputs(FALLBACK, lambda *name: (aborted.append(name), ())[1])
    outputs.register("a", SamplingParams(stop="<end>", include_stop_str_in_output=is_included))
    feed(outputs, b"hi<end>more")
    assert aborted == [("a", 0)]
    done = outputs.finish(ended("a", b"hi<end>more", FinishReason.ABORT))
    assert (done.text, done.finish_reason, done.stop_reason) == (text, FinishReason.STOP, "<end>")


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_equal_samples_are_one_for_the_engine_and_several_for_who_asked(has_tokenizer):
    aborted = []
    tokenizer = cut(PIECES)[0] if has_tokenizer else None
    outputs = TextOutputs(tokenizer, lambda *name: (aborted.append(name), ())[1])
    asked = SamplingParams(n=3, stop="END" if has_tokenizer else (), logprobs=1)
    assert outputs.register("a", asked) == SamplingParams(logprobs=1)
    scored = (LoopScores(loop=4, logprobs=(), best_token_ids=(), top_logprobs=()),)
    first = replace(token("a", 0, SAY), prompt_scores=scored)
    events = [*outputs.add(StepOutput(tokens=[first])).tokens, *feed(outputs, [E, ND], start=1)]
    assert [event.sample_index for event in events] == [0, 1, 2] * 3
    assert [event.prompt_scores for event in events] == [scored, *[()] * 8]
    assert {replace(event, sample_index=0, prompt_scores=()) for event in events[:3]} == {
        replace(first, text=events[0].text, prompt_scores=())
    }
    assert aborted == ([("a", 0)] if has_tokenizer else [])
    with pytest.raises(UsageError, match="in use"):
        outputs.register("a", asked)
    done = replace(ended("a", [SAY, E, ND], FinishReason.LENGTH), prompt_scores=scored)
    completions = outputs.add(StepOutput(completions=[done])).completions
    assert [one.sample_index for one in completions] == [0, 1, 2]
    assert [one.prompt_scores for one in completions] == [scored, (), ()]
    assert {one.text for one in completions} == {"say " if has_tokenizer else None}
    assert {one.stop_reason for one in completions} == {"END" if has_tokenizer else None}
    outputs.register("a", asked)
    outputs.withdraw("a")
    assert feed(outputs, [SAY]) == []
    assert outputs.add(StepOutput(completions=[done])) == StepOutput()
    outputs.register("a", asked)


# Through `LLM`.

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
