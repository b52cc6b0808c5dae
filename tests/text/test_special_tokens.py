"""Special tokens that only the settings name have transformers' ids, or are refused by name.

The ids were computed with transformers 5.24.0 and 4.57.6, which agree wherever both take the files:
`PreTrainedTokenizerFast.from_pretrained(folder)(text, add_special_tokens=False)`.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import REMOVED, change_json, copy_fixture, write_json
from command_line import looped

from looped.errors import LoopedError
from looped.text.tokenizer import Tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_fixture(tmp_path / "model")


def token(content: str, **flags: Any) -> dict[str, Any]:
    """An added token as files spell it."""
    names = ("lstrip", "rstrip", "normalized", "single_word")
    return {"content": content, **dict.fromkeys(names, False), "special": True} | flags


FIRST = {
    "0": token("<|endoftext|>"),
    "1": token("<|im_start|>"),
    "2": token("<|im_end|>"),
}
NAMED = {
    "pad_token": "<pad>",
    "eos_token": "<eos>",
    "bos_token": "<bos>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "cls_token": "<cls>",
    "sep_token": "<sep>",
    "additional_special_tokens": ["<|a|>"],
}
TYPED = {"__type": "AddedToken"}

# Settings, older files beside them, a text, its ids, and the text that comes back.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, list[int], str]] = {
    "additional": (
        {"additional_special_tokens": ["<|a|>", "<|b|>"]},
        {},
        "x<|a|>y<|b|>",
        [90, 512, 91, 513],
        "xy",
    ),
    "extra": (
        {"extra_special_tokens": ["<|a|>", "<|b|>"]},
        {},
        "x<|a|>y<|b|>",
        [90, 512, 91, 513],
        "xy",
    ),
    "extra by name": (
        {"extra_special_tokens": {"image_token": "<|a|>"}},
        {},
        "x<|a|>y",
        [90, 512, 91],
        "xy",
    ),
    "other names": (
        {"image_token": "<|a|>", "audio_token": "<|b|>", "add_bos_token": True},
        {},
        "x<|a|>y<|b|>",
        [90, 512, 91, 513],
        "xy",
    ),
    "another name with an object": (
        {"image_token": token("<|a|>", lstrip=True, **TYPED), "audio_token": token("<|b|>")},
        {},
        "x <|a|>y<|b|>",
        [90, 512, 91, 30, 94, 68, 94, 32],
        "xy<|b|>",
    ),
    "all names": (
        NAMED,
        {},
        "<bos><eos><unk><sep><pad><cls><mask><|a|>",
        [512, 513, 514, 515, 516, 517, 518, 519],
        "",
    ),
    "an object": (
        {"eos_token": token("<eos>", special=False, normalized=True, **TYPED)},
        {},
        "x<eos>y",
        [90, 512, 91],
        "xy",
    ),
    "an object that strips": (
        {"additional_special_tokens": [token("<|a|>", rstrip=True, lstrip=True, **TYPED)]},
        {},
        "x <|a|> y",
        [90, 512, 91],
        "xy",
    ),
    "a piece of a word": (
        {"eos_token": "the"},
        {},
        "the other the",
        [512, 265, 512, 84, 223, 512],
        " or ",
    ),
    "numbered": (
        {
            "added_tokens_decoder": FIRST
            | {"512": token("<|a|>"), "513": token("<b>", special=False, normalized=True)}
        },
        {},
        "x<|a|>y<b>",
        [90, 512, 91, 513],
        "xy<b>",
    ),
    "numbered in another order": (
        {"added_tokens_decoder": FIRST | {"513": token("<|a|>"), "512": token("<|b|>")}},
        {},
        "x<|a|>y<|b|>",
        [90, 513, 91, 512],
        "xy",
    ),
    "numbered and named": (
        {
            "added_tokens_decoder": FIRST | {"512": token("<|a|>")},
            "additional_special_tokens": ["<|b|>", "<|a|>"],
            "pad_token": "<pad>",
        },
        {},
        "x<|a|>y<|b|><pad>",
        [90, 512, 91, 514, 513],
        "xy",
    ),
    "numbered with other flags": (
        {"added_tokens_decoder": FIRST | {"2": token("<|im_end|>", rstrip=True, lstrip=True)}},
        {},
        "x <|im_end|> y",
        [90, 2, 91],
        "xy",
    ),
    "a whole word": (
        {
            "added_tokens_decoder": FIRST
            | {"512": token("word", special=False, normalized=True, single_word=True)}
        },
        {},
        "a word swords",
        [67, 223, 512, 264, 89, 403, 85],
        "a word swords",
    ),
    "an older map": (
        {},
        {
            "special_tokens_map.json": {
                "pad_token": "<pad>",
                "additional_special_tokens": ["<|a|>"],
            }
        },
        "x<|a|>y<pad>",
        [90, 513, 91, 512],
        "xy",
    ),
    "an older map wins": (
        {"pad_token": "<pad1>"},
        {"special_tokens_map.json": {"pad_token": "<pad2>"}},
        "<pad2>",
        [512],
        "",
    ),
    "older numbers": (
        {},
        {"added_tokens.json": {"<|a|>": 512, "<|b|>": 513}},
        "x<|a|>y<|b|>",
        [90, 512, 91, 513],
        "x<|a|>y<|b|>",
    ),
    "older numbers, named": (
        {"pad_token": "<pad>"},
        {"added_tokens.json": {"<pad>": 513, "<x>": 512}},
        "<pad><x>",
        [513, 512],
        "<x>",
    ),
    "older files beside numbers": (
        {"added_tokens_decoder": FIRST},
        {
            "special_tokens_map.json": {"additional_special_tokens": ["<|a|>"]},
            "added_tokens.json": {"<|a|>": 512},
        },
        "x<|a|>",
        [90, 30, 94, 67, 94, 32],
        "x<|a|>",
    ),
    "an empty text": ({"additional_special_tokens": [""]}, {}, "xy", [90, 91], "xy"),
}


@pytest.mark.parametrize("case", CASES)
def test_ids_are_those_of_transformers(folder: Path, case: str) -> None:
    settings, files, text, ids, decoded = CASES[case]
    change_json(folder / "tokenizer_config.json", **settings)
    for name, values in files.items():
        write_json(folder / name, values)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == decoded


def test_a_word_of_the_vocabulary_becomes_special_by_its_name(folder: Path) -> None:
    file = folder / "tokenizer.json"
    added = json.loads(file.read_text())["added_tokens"]
    change_json(file, added_tokens=[one for one in added if one["content"] != "<|im_end|>"])
    text = "x<|im_end|>y"
    assert Tokenizer.from_folder(folder).encode(text) == [90, 30, 94, 321, 65, 71, 263, 94, 32, 91]
    change_json(folder / "tokenizer_config.json", eos_token="<|im_end|>")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode(text) == [90, 2, 91]
    assert tokenizer.stop_token_ids == {0, 2}
    assert tokenizer.is_special(2)


@pytest.mark.parametrize(
    ("settings", "older", "words"),
    [
        (
            {"added_tokens_decoder": FIRST | {"600": token("<|a|>")}},
            {},
            "'<|a|>' has id 600 in tokenizer_config.json and 512 in tokenizer.json",
        ),
        (
            {"added_tokens_decoder": FIRST | {"100": token("<|a|>")}},
            {},
            "'<|a|>' has id 100 in tokenizer_config.json and 512 in tokenizer.json",
        ),
        (
            {"added_tokens_decoder": {"1": token("<|im_end|>")}},
            {},
            "'<|im_end|>' has id 1 in tokenizer_config.json and 2 in tokenizer.json",
        ),
        ({}, {"<|a|>": 600}, "'<|a|>' has id 600 in added_tokens.json and 512 in tokenizer.json"),
        ({"eos_token": 5}, {}, "eos_token must be a text or an object with a content, got 5"),
        (
            {"additional_special_tokens": [{"text": "<|a|>"}]},
            {},
            "additional_special_tokens must be a text or an object with a content, got {'text'",
        ),
        (
            {"additional_special_tokens": "<|a|>"},
            {},
            "additional_special_tokens must be a list of tokens, got '<|a|>'",
        ),
        ({"additional_special_tokens": {"a": "<|a|>"}}, {}, "must be a list of tokens, got {'a'"),
        (
            {"extra_special_tokens": "<|a|>"},
            {},
            "extra_special_tokens must be a list or an object of tokens, got '<|a|>'",
        ),
        ({"added_tokens_decoder": ["<|a|>"]}, {}, "added_tokens_decoder must be an object, got ["),
        ({"added_tokens_decoder": {"x": token("<|a|>")}}, {}, "expected a token id, got 'x'"),
    ],
)
def test_what_contradicts_the_tokenizer_is_refused_by_name(
    folder: Path, settings: dict[str, Any], older: dict[str, int], words: str
) -> None:
    change_json(folder / "tokenizer_config.json", **settings)
    if older:
        write_json(folder / "added_tokens.json", older)
    with pytest.raises(LoopedError) as caught:
        Tokenizer.from_folder(folder)
    assert words in str(caught.value)
    done = looped("--quiet", "generate", "--model", folder, "x", check=False)
    assert (done.returncode, done.stderr) == (1, f"looped: error: {caught.value}\n")
    assert len(done.stderr) <= 300


def test_templates_may_call_all_of_them(folder: Path) -> None:
    template = "{{ pad_token }}{{ image_token }}{{ additional_special_tokens[0] }}{{ sep_token }}"
    change_json(
        folder / "tokenizer_config.json",
        chat_template=template,
        pad_token="<pad>",
        image_token="<|image|>",
        additional_special_tokens=["<|a|>"],
    )
    assert Tokenizer.from_folder(folder).render_chat([]) == "<pad><|image|><|a|>"


def test_an_end_that_the_model_does_not_have_is_warned_of(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change_json(folder / "tokenizer_config.json", eos_token="<eos>")
    assert Tokenizer.from_folder(folder).stop_token_ids == {0, 2}
    assert caplog.messages == [
        "tokenizer_config.json calls '<eos>' the end of a sequence, and the model has no token "
        "512: nothing ends with it"
    ]
    change_json(folder / "config.json", vocab_size=REMOVED)
    assert Tokenizer.from_folder(folder).stop_token_ids == {0, 2, 512}
