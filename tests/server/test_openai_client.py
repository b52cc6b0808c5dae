"""The client that everybody has, against a live server."""

import re
from pathlib import Path

import openai
import pytest
from live_servers import MODEL

from looped.sampling_params import SamplingParams

PROMPT = "the quick brown fox"


def test_completions_come_back_with_usage_and_loops(client, reference):
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=6, temperature=0)
    (expected,) = reference.generate([PROMPT], SamplingParams(max_tokens=6), show_progress=False)
    assert answer.choices[0].text == expected.text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == 6
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 6
    assert answer.usage.completion_loops == sum(expected.exit_depths)
    assert answer.usage.prompt_loops == 4 * answer.usage.prompt_tokens


def test_prompts_may_be_lists_of_texts_of_ids_and_of_lists_of_ids(client, reference):
    ids = reference.tokenizer.encode(PROMPT)
    for prompt, num_choices in ((ids, 1), ([PROMPT, "hello"], 2), ([ids, [7, 8, 9]], 2)):
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=3, temperature=0)
        assert [choice.index for choice in answer.choices] == list(range(num_choices))
        single = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=3, temperature=0)
        assert answer.choices[0].text == single.choices[0].text


def test_n_samples_of_each_prompt_are_in_order(client, reference):
    answer = client.completions.create(
        model=MODEL, prompt=["hello", "world"], n=3, seed=5, max_tokens=8, temperature=0.9
    )
    expected = reference.generate(
        ["hello", "world"],
        SamplingParams(n=3, seed=5, max_tokens=8, temperature=0.9),
        show_progress=False,
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3, 4, 5]
    assert [choice.text for choice in answer.choices] == [done.text for done in expected]
    # Each prompt once, however many samples it has.
    assert answer.usage.prompt_tokens == sum(len(done.prompt_token_ids) for done in expected[::3])


def test_streams_end_with_usage_when_it_is_asked_for(client):
    chunks = list(
        client.completions.create(
            model=MODEL,
            prompt=PROMPT,
            max_tokens=5,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 5 + ["length"]


def test_usage_can_come_with_every_chunk(client):
    chunks = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        extra_body={"ignore_eos": True},
    )
    assert [chunk.usage.completion_tokens for chunk in chunks] == [1, 2, 3, 3, 3]


def test_chat_goes_through_the_template_and_completions_do_not(client, live):
    messages = [{"role": "user", "content": "hello"}]
    chat = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=5, temperature=0
    )
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    raw = client.completions.create(model=MODEL, prompt=text, max_tokens=5, temperature=0)
    assert chat.choices[0].message.content == raw.choices[0].text
    assert chat.choices[0].message.role == "assistant"
    assert chat.usage.prompt_tokens == raw.usage.prompt_tokens
    ids = live.post("/tokenize", {"messages": messages}).json()["tokens"]
    assert ids == live.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert ids != live.post("/tokenize", {"prompt": "hello"}).json()["tokens"]


def test_chat_takes_parts_of_text(client):
    def ask(content):
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": content},
            ],
            max_completion_tokens=4,
            temperature=0,
        )
        return answer.choices[0].message.content, answer.usage.prompt_tokens

    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert ask(parts) == ask("hello")


def test_chat_streams_a_role_then_content_then_a_reason(client):
    options = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 6,
        "seed": 3,
        "n": 2,
    }
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True))
    for choice in whole.choices:
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert [part.delta.role for part in mine] == ["assistant"] + [None] * (len(mine) - 1)
        assert "".join(part.delta.content for part in mine) == choice.message.content
        assert [part.finish_reason for part in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason == choice.finish_reason


def test_chat_without_a_limit_takes_what_fits(client):
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage.total_tokens == 256


def test_chat_logprobs_have_bytes_and_alternatives(client, live):
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=4,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
        extra_body={"ignore_eos": True},
    )
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 4
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob
        assert entry.bytes == entry.top_logprobs[0].bytes
    spelled = bytes(byte for entry in entries for byte in entry.bytes)
    assert spelled.decode("utf-8", "replace") == answer.choices[0].message.content


def test_loops_come_with_every_token(client):
    options = {"exit_threshold": 0.3, "min_loops": 1, "return_loops": True, "ignore_eos": True}
    answer = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0, extra_body=options
    )
    loops = answer.choices[0].loops
    assert len(loops) == 12
    assert loops[0] == 4  # from the prompt, which runs every loop
    assert min(loops) < 4
    assert answer.usage.completion_loops == sum(loops)
    chunks = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0, stream=True, extra_body=options
    )
    assert [loop for chunk in chunks for loop in chunk.choices[0].loops] == loops


def test_models_are_listed_and_found(client):
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL).max_model_len == 256
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("another/model")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="another", prompt="x")


def test_errors_have_the_clients_own_types_also_before_a_stream(client):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model=MODEL, prompt="x", temperature=-1, stream=stream)
        assert caught.value.param == "temperature"
        assert caught.value.type == "invalid_request_error"


def test_the_sample_in_the_documentation_runs(live, capsys):
    text = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    (sample,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    sample = sample.replace("http://127.0.0.1:8000", live.url).replace("DIR_OR_ID", MODEL)
    names = {}
    exec(sample, names)
    names["client"].close()
    assert capsys.readouterr().out
