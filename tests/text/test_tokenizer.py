"""Stop ids, chat templates, and text that arrives whole however its tokens split it."""

import json
import logging
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizers import byte_fallback, cut
from checkpoints import FIXTURES, REMOVED, change_json, copy_fixture, write_json
from tokenizers import Tokenizer as FastTokenizer

from looped.errors import LoopedError
from looped.text.chat_template import ChatTemplate
from looped.text.tokenizer import Tokenizer

VOCAB_SIZE = 512
USER = [{"role": "user", "content": "Hi!"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_fixture(tmp_path / "model")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(FIXTURES / "ouro-tiny")


@pytest.fixture(scope="module")
def byte_tokenizer() -> Tokenizer:
    """Token id = byte, so that every character is split at every byte."""
    return cut([bytes([byte]) for byte in range(256)])[0]


# Text and ids.


@pytest.mark.parametrize(
    "text", ["", "Hello, world", "  two  spaces\n\ttab", "naïve 😀 漢字", "123"]
)
def test_text_comes_back_from_its_ids(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_raw_text_gets_no_template_and_no_extra_token(tokenizer: Tokenizer) -> None:
    fast = FastTokenizer.from_file(str(FIXTURES / "ouro-tiny" / "tokenizer.json"))
    assert tokenizer.encode("Hi!") == fast.encode("Hi!", add_special_tokens=False).ids
    assert not {0, 1, 2} & set(tokenizer.encode("Hi!"))


def test_special_tokens_are_left_out_of_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Hi!")
    assert tokenizer.decode([1, *ids, 2, 0]) == "Hi!"


def test_a_token_by_itself_has_its_text_or_its_name(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(" the 😀")
    assert "".join(map(tokenizer.token_text, ids)).startswith(" the \ufffd")
    assert tokenizer.token_text(2) == "<|im_end|>"
    assert tokenizer.token_text(VOCAB_SIZE + 1) == ""


def test_a_broken_byte_costs_no_other_character_under_byte_fallback() -> None:
    tokenizer = byte_fallback(["\N{LOWER ONE EIGHTH BLOCK}word"])
    word = 256
    assert tokenizer.decode([word, *b"\n\xe2\x82\xac", word]) == "word\n€ word"
    assert tokenizer.decode([word, *b"\n\xe2\x82", word, *b"\xff!"]) == "word\n\ufffd word\ufffd!"
    assert tokenizer.decode([*b"\xe2", word, *b"\x82\xac"]) == "\ufffd word\ufffd\ufffd"


@pytest.mark.parametrize(
    "text", ["x" * 300, " " * 300, "the " * 100, "é漢😀" * 50, "<|im_start|>" * 9]
)
@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
def test_no_text_is_longer_than_its_tokens_allow(
    folder: Path, text: str, normalizer: dict[str, str] | None
) -> None:
    change_json(folder / "tokenizer.json", normalizer=normalizer)
    tokenizer = Tokenizer.from_folder(folder)
    most = tokenizer.most_characters_per_token
    assert most is not None
    for form in ("NFC", "NFD"):
        written = unicodedata.normalize(form, text)
        assert len(written) <= most * len(tokenizer.encode(written))
    # One token of so many characters is the worst case.
    assert most == len("<|endoftext|>") * (4 if normalizer else 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"pre_tokenizer": None},
    ],
)
def test_a_vocabulary_that_may_drop_text_has_no_such_bound(
    folder: Path, changes: dict[str, Any]
) -> None:
    change_json(folder / "tokenizer.json", **changes)
    assert Tokenizer.from_folder(folder).most_characters_per_token is None


TRUNCATION = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
PADDING = {
    "strategy": {"Fixed": 8},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "<|endoftext|>",
}


def test_what_training_left_in_a_tokenizer_is_off(tokenizer: Tokenizer, folder: Path) -> None:
    file = folder / "tokenizer.json"
    model = json.loads(file.read_text())["model"] | {"dropout": 0.9}
    change_json(file, truncation=TRUNCATION, padding=PADDING, model=model)
    changed = Tokenizer.from_folder(folder)
    for text in ("", "x", "x y z w v u", "the the the the the"):
        assert changed.encode(text) == tokenizer.encode(text)
    assert changed.encode_chat(USER) == tokenizer.encode_chat(USER)
    assert changed.most_characters_per_token == tokenizer.most_characters_per_token


def test_special_tokens_may_be_split(folder: Path) -> None:
    change_json(folder / "tokenizer_config.json", split_special_tokens=True)
    ids = [90, 30, 94, 321, 65, 71, 263, 94, 32, 91]  # transformers'
    assert Tokenizer.from_folder(folder).encode("x<|im_end|>y") == ids


def test_a_missing_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(LoopedError, match=r"tokenizer\.json is missing; give token ids instead"):
        Tokenizer.from_folder(folder)


def test_a_damaged_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(LoopedError, match=r"tokenizer\.json cannot be parsed"):
        Tokenizer.from_folder(folder)


def test_a_tokenizer_needs_no_other_file(folder: Path) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert Tokenizer.from_folder(folder).stop_token_ids == frozenset()


# Stop ids.


def name_stops(folder: Path, config: Any, generation: Any, token: Any) -> Tokenizer:
    change_json(folder / "config.json", eos_token_id=config)
    change_json(folder / "generation_config.json", eos_token_id=generation)
    change_json(folder / "tokenizer_config.json", eos_token=token)
    return Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    ("config", "generation", "token", "expected"),
    [
        (0, 0, "<|endoftext|>", {0}),
        (0, 2, "<|endoftext|>", {0, 2}),
        (2, 0, REMOVED, {0, 2}),
        (0, [0, 2], "<|endoftext|>", {0, 2}),
        ([0, 5], REMOVED, "<|im_end|>", {0, 2, 5}),
        (REMOVED, REMOVED, {"content": "<|im_end|>"}, {2}),
        (None, None, None, set()),
        (7, REMOVED, "<not in the vocabulary>", {7}),
    ],
)
def test_any_id_that_any_file_names_stops(
    folder: Path, config: Any, generation: Any, token: Any, expected: set[int]
) -> None:
    assert name_stops(folder, config, generation, token).stop_token_ids == expected


def test_a_disagreement_is_logged_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="looped")
    tokenizer = name_stops(folder, 0, [2], "<|endoftext|>")
    tokenizer.encode_chat(USER)
    tokenizer.encode("again")
    assert caplog.messages == [
        "end of sequence: config.json [0], generation_config.json [2], "
        "tokenizer_config.json [0]; stopping at any of [0, 2]"
    ]


def test_an_agreement_is_not_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="looped")
    name_stops(folder, [0, 2], [2, 0], REMOVED)
    name_stops(folder, 0, [0], "<|endoftext|>")
    assert caplog.messages == []


def test_a_chat_also_stops_at_the_end_of_a_turn(folder: Path) -> None:
    tokenizer = name_stops(folder, 0, 0, "<|endoftext|>")
    assert tokenizer.stop_token_ids == {0}
    assert tokenizer.chat_end_token_ids == {2}


def test_a_vocabulary_without_an_end_of_turn_adds_none(byte_tokenizer: Tokenizer) -> None:
    assert byte_tokenizer.chat_end_token_ids == frozenset()


# Chat templates.


def test_the_chat_ids_are_those_of_the_template(tokenizer: Tokenizer) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *USER]
    text = (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.encode_chat(messages)
    assert ids == tokenizer.encode(text)
    assert [token for token in ids if token < 3] == [1, 2, 1, 2, 1]


def test_a_checkpoint_without_a_template_refuses_a_chat(folder: Path) -> None:
    change_json(folder / "tokenizer_config.json", chat_template=REMOVED)
    with pytest.raises(LoopedError, match="no chat template; leave out --chat"):
        Tokenizer.from_folder(folder).encode_chat(USER)


def test_a_template_file_of_its_own_wins(folder: Path) -> None:
    write_json(folder / "chat_template.json", {"chat_template": "from json"})
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decode(tokenizer.encode_chat(USER)) == "from json"
    (folder / "chat_template.jinja").write_text("from jinja: {{ messages[0].content }}")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decode(tokenizer.encode_chat(USER)) == "from jinja: Hi!"


def test_of_several_templates_the_default_is_taken(folder: Path) -> None:
    templates = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "plain"},
    ]
    change_json(folder / "tokenizer_config.json", chat_template=templates)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decode(tokenizer.encode_chat(USER)) == "plain"


@pytest.mark.parametrize("token", ["<|im_end|>", {"content": "<|im_end|>", "special": True}])
def test_a_template_may_name_special_tokens(folder: Path, token: Any) -> None:
    change_json(
        folder / "tokenizer_config.json", eos_token=token, chat_template="a{{ eos_token }}b"
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode_chat(USER) == [*tokenizer.encode("a"), 2, *tokenizer.encode("b")]


def render(source: str, messages: list[dict[str, Any]] = USER) -> str:
    return ChatTemplate(source, {}).render(messages)


def test_templates_have_what_hugging_face_gives_them() -> None:
    loop = "{% for m in messages %}\n  {% if loop.index > 1 %}{% break %}{% endif %}\nx{% endfor %}"
    assert render(loop, USER * 3) == "x"
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{{ add_generation_prompt }}") == "True"


def test_raise_exception_is_the_user_s_error() -> None:
    with pytest.raises(LoopedError) as caught:
        render("{{ raise_exception('Roles must alternate!') }}")
    assert str(caught.value) == "the chat template refused the messages: Roles must alternate!"


HTML = [{"role": "user", "content": "<b>é & 'q'\"</b>"}]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ tools is none }}, {{ documents is none }}", "True, True"),
        ("{% if tools %}tools{% else %}none{% endif %}", "none"),
        ("{{ messages[0]|tojson }}", '{"role": "user", "content": "<b>é & \'q\'\\"</b>"}'),
        (
            "{{ messages[0]|tojson(indent=1, sort_keys=true, ensure_ascii=true) }}",
            '{\n "content": "<b>\\u00e9 & \'q\'\\"</b>",\n "role": "user"\n}',
        ),
        ("{{ {'b': 1, 'a': [2, 3]}|tojson(separators=(',', ':')) }}", '{"b":1,"a":[2,3]}'),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}!", "user!"),
        ("{%- generation -%}  x  {%- endgeneration -%}  y", "xy"),
        ("{% generation %}\n  x\n{% endgeneration %}\n", "  x\n"),
        (
            "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}",
            "1False",
        ),
        (
            "{% for m in messages * 3 %}{% generation %}{{ loop.index }}{% if loop.index == 2 %}"
            "{% break %}{% endif %}{% endgeneration %}{% endfor %}",
            "12",
        ),
    ],
)
def test_templates_render_as_they_do_in_transformers(source: str, text: str) -> None:
    assert render(source, HTML) == text


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}",
        "{% generation %}x",
        "{{ messages | no_such_filter }}",
        "{% no_such_tag %}",
        "{{ messages[ }}",
        "{% break %}",
        "{{ " + "9" * 5000 + " }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    ],
)
def test_a_template_that_cannot_be_parsed_is_refused(source: str) -> None:
    with pytest.raises(LoopedError, match=r"^the chat template cannot be parsed: .") as caught:
        ChatTemplate(source, {})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300


NOT_TEXT: dict[str, tuple[dict[str, Any], str]] = {
    "not parsed": ({"chat_template": "{% if %}"}, "the chat template cannot be parsed: Expected"),
    "a number": ({"chat_template": 5}, "the chat template must be text, got 5"),
    "a list of texts": ({"chat_template": ["a"]}, "the chat template must be text, got {}"),
    "no default": (
        {"chat_template": [{"name": "tool_use", "template": "x"}]},
        "the chat template has no default, and only 'tool_use'",
    ),
    "a default that is no text": (
        {"chat_template": [{"name": "default", "template": {"a": 1}}]},
        "the chat template must be text, got {'a': 1}",
    ),
}


@pytest.mark.parametrize("fault", NOT_TEXT)
def test_a_template_of_no_use_stops_chats_and_nothing_else(
    folder: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings, reason = NOT_TEXT[fault]
    change_json(folder / "tokenizer_config.json", **settings)
    tokenizer = Tokenizer.from_folder(folder)
    assert caplog.messages[0].startswith(reason)
    assert caplog.messages[0].endswith("; chats are refused")
    assert tokenizer.decode(tokenizer.encode("Hi!")) == "Hi!"
    with pytest.raises(LoopedError) as caught:
        tokenizer.encode_chat(USER)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("chat_template.jinja", b"\xff{{ messages }}", "is not text in UTF-8"),
        ("chat_template.json", b"{", "is not valid JSON"),
        ("chat_template.json", b"[]", "must hold a JSON object, got list"),
    ],
)
def test_a_template_file_that_cannot_be_read_stops_chats_and_nothing_else(
    folder: Path, name: str, content: bytes, reason: str
) -> None:
    (folder / name).write_bytes(content)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("Hi!")
    with pytest.raises(LoopedError, match=reason):
        tokenizer.encode_chat(USER)


def test_of_several_templates_by_name_the_default_is_taken(folder: Path) -> None:
    change_json(folder / "tokenizer_config.json", chat_template={"default": "a", "tool_use": "b"})
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decode(tokenizer.encode_chat(USER)) == "a"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ strftime_now.__globals__.datetime }}",
        "{{ strftime_now.__code__.co_consts }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ messages.append({}) }}",
        "{{ messages[0].update({'content': 'changed'}) }}",
        "{{ messages.clear() }}",
        "{% for x in range(999999999) %}{% endfor %}",
    ],
)
def test_the_sandbox_refuses_to_reach_outside_or_to_change_messages(source: str) -> None:
    messages = json.loads(json.dumps(USER))
    with pytest.raises(LoopedError, match="the chat template refused the messages"):
        render(source, messages)
    assert messages == USER


@pytest.mark.parametrize(
    "hidden", ["''.__class__", "''|attr('__class__')", "messages|map(attribute='__class__')|first"]
)
def test_a_hidden_attribute_alone_shows_nothing(hidden: str) -> None:
    assert render("[{{ " + hidden + " }}]") == "[]"


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ("{{ 'a' + messages[0].content }}", None),
        ("{{ messages[0].content + 'a' }}", [{"type": "text"}]),
        ("{{ 1 // 0 }}", ""),
        ("{{ 'abc'.index('x') }}", ""),
        ("{{ {}['a']['b'] }}", ""),
        ("{{ 5|dictsort }}", ""),
        ("{{ nothing|tojson }}", ""),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", ""),
    ],
)
def test_a_failure_inside_a_template_is_the_user_s_error(source: str, content: Any) -> None:
    with pytest.raises(LoopedError, match="the chat template refused the messages"):
        render(source, [{"role": "user", "content": content}])
