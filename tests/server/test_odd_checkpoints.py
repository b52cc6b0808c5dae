"""A checkpoint with a template of no use and a token too many serves all that needs neither."""

import pytest
from checkpoints import change_json, copy_fixture
from command_line import looped
from live_servers import live_server, tiny_llm

from looped.errors import UsageError
from looped.text.tokenizer import Tokenizer

PROMPT = {"prompt": "Hi!", "max_tokens": 4, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 4}
# Few steps to compile, and the command line's are the server's.
SIZES = {
    "max_num_seqs": 2,
    "max_num_batched_tokens": 8,
    "prefill_chunk_size": 7,
    "max_model_len": 64,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = copy_fixture(tmp_path_factory.mktemp("odd") / "model")
    return change_json(
        folder / "tokenizer_config.json",
        chat_template="{% for m in messages %}",
        additional_special_tokens=["<|tool|>"],
    )


@pytest.fixture(scope="module")
def odd(folder):
    with live_server(tiny_llm(folder, **SIZES)) as live:
        yield live


def test_completions_are_those_of_the_sound_checkpoint(odd, tiny_folder):
    ids = Tokenizer.from_folder(tiny_folder).encode("Hi!")
    (choice,) = odd.complete(**PROMPT)["choices"]
    (expected,) = odd.complete(**PROMPT | {"prompt": ids})["choices"]
    assert choice == expected
    assert choice["text"]


def test_chats_are_refused_with_what_the_parser_says(odd):
    response = odd.post("/v1/chat/completions", CHAT)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message.startswith("the chat template cannot be parsed: ")
    assert "endfor" in message


def test_a_token_beyond_the_model_is_refused_by_name(odd):
    response = odd.post("/v1/completions", PROMPT | {"prompt": "x<|tool|>y"})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        "prompt must hold token ids in 0 to 511, got 512, which only the tokenizer knows "
        "('<|tool|>')"
    )
    message = odd.post("/v1/completions", PROMPT | {"prompt": [2**40]}).json()["error"]["message"]
    assert message == f"prompt must hold token ids in 0 to 511, got {2**40}"


def test_python_refuses_it_by_name_as_well(odd):
    with pytest.raises(UsageError, match=r"the text holds '<\|tool\|>' \(token 512\), which only"):
        odd.llm.encode("x<|tool|>y")


@pytest.mark.long
def test_the_command_line_generates_and_refuses_chats_alone(folder):
    options = ["--quiet", "generate", "--model", folder, "Hi!", "--max-tokens", 4]
    for name, value in SIZES.items():
        options += [f"--{name.replace('_', '-')}", value]
    done = looped(*options)
    assert done.stdout
    (warning,) = done.stderr.splitlines()
    assert warning.endswith("; chats are refused")
    done = looped(*options, "--chat", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    *_, error = done.stderr.splitlines()
    assert error.startswith("looped: error: the chat template cannot be parsed: ")
