"""Text and stop strings of whole requests, on outputs of an engine that may run elsewhere."""

from dataclasses import replace

import pytest
from byte_tokenizers import byte_fallback, cut

from looped import SamplingParams, UsageError
from looped.engine.outputs import Completion, LoopScores, StepOutput, TokenEvent
from looped.sched import FinishReason
from looped.text.text_outputs import TextOutputs


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
