"""A checkpoint with a template of no use and a token too many serves all that needs neither."""

import pytest
from checkpoints import change_json, copy_fixture
from command_line import looped
from fastapi.testclient import TestClient
from live_servers import live_server, tiny_llm

from looped.errors import UsageError
from looped.server.api.backend import Backend
from looped.server.app import create_app
from looped.server.config import ServerConfig
from looped.server.errors import ApiError
from looped.server.metrics import Metrics
from looped.server.service import Service
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
def llm(folder):
    return tiny_llm(folder, **SIZES)


@pytest.fixture(scope="module")
def odd(llm):
    """A server that has not started: what it refuses needs no engine."""
    return TestClient(create_app(llm, ServerConfig()), raise_server_exceptions=False)


CHATS_REFUSED = "the chat template cannot be parsed: "
NAMED = (
    "prompt must hold token ids in 0 to 511, got 512, which only the tokenizer knows ('<|tool|>')"
)


@pytest.mark.long
def test_completions_are_those_of_the_sound_checkpoint_and_the_rest_is_refused(llm, tiny_folder):
    ids = Tokenizer.from_folder(tiny_folder).encode("Hi!")
    with live_server(llm) as live:
        (choice,) = live.complete(**PROMPT)["choices"]
        (expected,) = live.complete(**PROMPT | {"prompt": ids})["choices"]
        assert choice == expected
        assert choice["text"]
        for path, body, message in (
            ("/v1/chat/completions", CHAT, CHATS_REFUSED),
            ("/v1/completions", PROMPT | {"prompt": "x<|tool|>y"}, NAMED),
        ):
            response = live.post(path, body)
            assert response.status_code == 400
            assert response.json()["error"]["message"].startswith(message)


def test_texts_are_those_of_the_sound_checkpoint(odd, tiny_folder):
    ids = Tokenizer.from_folder(tiny_folder).encode("Hi!")
    assert odd.post("/tokenize", json={"prompt": "Hi!"}).json()["tokens"] == ids
    assert odd.post("/detokenize", json={"tokens": ids}).json() == {"prompt": "Hi!"}


def test_chats_are_refused_with_what_the_parser_says(odd):
    response = odd.post("/tokenize", json={"messages": CHAT["messages"]})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message.startswith(CHATS_REFUSED)
    assert "endfor" in message


@pytest.mark.parametrize(
    ("token_id", "message"),
    [(512, NAMED), (2**40, f"prompt must hold token ids in 0 to 511, got {2**40}")],
)
def test_a_token_beyond_the_model_is_refused_by_name(llm, token_id, message):
    backend = Backend(llm, ServerConfig(), Service(llm, ServerConfig(), Metrics(4)))
    with pytest.raises(ApiError) as caught:
        backend.check_ids([5, token_id], "prompt")
    assert (caught.value.status, caught.value.message) == (400, message)


def test_python_refuses_it_by_name_as_well(llm):
    with pytest.raises(UsageError, match=r"the text holds '<\|tool\|>' \(token 512\), which only"):
        llm.encode("x<|tool|>y")


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
