"""Text that arrives whole however its tokens split it, with any decoder."""

import pytest
from byte_tokenizers import BYTE_CHARACTERS, byte_fallback, cut
from checkpoints import FIXTURES
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from looped.text.detokenizer import MAX_WINDOW, Detokenizer
from looped.text.tokenizer import Tokenizer

VOCAB_SIZE = 512
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(FIXTURES / "ouro-tiny")


@pytest.fixture(scope="module")
def byte_tokenizer() -> Tokenizer:
    """Token id = byte, so that every character is split at every byte."""
    return cut([bytes([byte]) for byte in range(256)])[0]


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*map(detokenizer.add, ids), detokenizer.finish()]


@given(ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40))
def test_pieces_of_any_ids_add_up(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


@given(ids=st.lists(st.integers(0, 255), max_size=40))
def test_pieces_of_any_bytes_add_up(byte_tokenizer: Tokenizer, ids: list[int]) -> None:
    whole = bytes(ids).decode("utf-8", errors="replace")
    assert byte_tokenizer.decode(ids) == whole
    assert "".join(pieces(byte_tokenizer, ids)) == whole


@given(data=st.data())
def test_pieces_of_bytes_between_words_and_special_tokens_add_up(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    fast = FastTokenizer.from_file(str(FIXTURES / "ouro-tiny" / "tokenizer.json"))
    byte_ids = [fast.token_to_id(character) for character in BYTE_CHARACTERS.values()]
    assert None not in byte_ids
    token = st.one_of(st.sampled_from(byte_ids), st.integers(0, VOCAB_SIZE - 1), st.integers(0, 2))
    ids = data.draw(st.lists(token, max_size=30))
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


SPLIT_TEXT = st.text(
    st.one_of(
        st.sampled_from("aé漢😀👩\u200d\N{COMBINING ACUTE ACCENT}\N{REPLACEMENT CHARACTER}"),
        st.characters(codec="utf-8"),
    ),
    max_size=12,
)


@given(text=SPLIT_TEXT)
def test_no_piece_holds_a_part_of_a_character(byte_tokenizer: Tokenizer, text: str) -> None:
    given_out = pieces(byte_tokenizer, list(text.encode()))
    assert "".join(given_out) == text
    broken = "".join(given_out).count("\N{REPLACEMENT CHARACTER}")
    assert broken == text.count("\N{REPLACEMENT CHARACTER}")


@given(text=SPLIT_TEXT.filter(lambda text: "\N{REPLACEMENT CHARACTER}" not in text))
def test_a_character_is_given_out_with_its_last_byte(byte_tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(byte_tokenizer)
    for character in text:
        *first, last = character.encode()
        assert [detokenizer.add(byte) for byte in first] == [""] * len(first)
        assert detokenizer.add(last) == character
    assert detokenizer.finish() == ""


def test_an_emoji_split_over_tokens_comes_once_and_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a😀b")
    assert len(ids) > 3
    assert [piece for piece in pieces(tokenizer, ids) if piece] == ["a", "😀", "b"]


def test_a_character_that_stays_unfinished_is_shown_at_the_end(byte_tokenizer: Tokenizer) -> None:
    assert pieces(byte_tokenizer, [97, 0xF0, 0x9F, 0x98]) == ["a", "", "", "", "\ufffd"]
    assert pieces(byte_tokenizer, [0xF0, 0x9F, 97]) == ["", "", "\ufffda", ""]


def test_a_decoder_that_strips_the_first_space_keeps_the_others() -> None:
    words = {"\N{LOWER ONE EIGHTH BLOCK}ab": 0, "\N{LOWER ONE EIGHTH BLOCK}c": 1, "d": 2}
    fast = FastTokenizer(models.WordLevel(words, unk_token="d"))
    fast.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(fast, template=None, stop_token_ids=frozenset())
    assert pieces(tokenizer, [0, 1, 2, 1, 0]) == ["ab", " c", "d", " c", " ab", ""]


def test_special_tokens_inside_a_character_do_not_break_it(tokenizer: Tokenizer) -> None:
    first, *rest = tokenizer.encode("😀")
    assert "".join(pieces(tokenizer, [first, 0, 1, 2, *rest])) == "😀"


def test_a_finished_detokenizer_starts_afresh(byte_tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_tokenizer)
    assert detokenizer.add(0xF0) + detokenizer.finish() == "\ufffd"
    assert detokenizer.add(98) + detokenizer.finish() == "b"


# Other decoders than byte-level.

WORDS = [f"{SPACE}ab", SPACE, f"{SPACE}{SPACE}", "c", "", "é", "##d", ".", "e</w>", "\ufffd", "x"]
SPECIAL = ["<s>", "</s>"]
NUM_IDS = 256 + len(WORDS) + len(SPECIAL) + 1
"""The last id is one that no vocabulary has."""


def with_decoder(decoder: decoders.Decoder | None) -> tuple[FastTokenizer, Tokenizer]:
    """A vocabulary of bytes by name, of `WORDS` and special tokens, and a decoder."""
    names = [*(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    ids = {name: token_id for token_id, name in enumerate(names)}
    fast = FastTokenizer(models.WordLevel(ids, unk_token="c"))
    fast.add_special_tokens(SPECIAL)
    if decoder is not None:
        fast.decoder = decoder
    return fast, Tokenizer(fast, template=None, stop_token_ids=frozenset())


def llama(*more: decoders.Decoder) -> decoders.Decoder:
    space = decoders.Replace(SPACE, " ")
    return decoders.Sequence([space, decoders.ByteFallback(), decoders.Fuse(), *more])


DECODERS = {
    "none": None,
    "byte-level": decoders.ByteLevel(),
    "Metaspace": decoders.Metaspace(),
    "Metaspace never": decoders.Metaspace(prepend_scheme="never"),
    "WordPiece": decoders.WordPiece(),
    "BPE": decoders.BPEDecoder(),
    "CTC": decoders.CTC(pad_token="c", word_delimiter_token="x"),
    "Llama": llama(decoders.Strip(" ", 1, 0)),
    "Gemma": llama(),
    "two stripped": llama(decoders.Strip(" ", 2, 0)),
    "fallback and Metaspace": decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
}

# Bytes of characters whole and broken, between words, special tokens and unknown ids.
BYTES = st.one_of(
    st.sampled_from("aé漢😀\n\ufffd").map(lambda character: list(character.encode())),
    st.lists(st.sampled_from(b"a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\xff"), max_size=6),
)
OTHERS = st.lists(st.integers(256, NUM_IDS - 1), max_size=4)


@pytest.mark.parametrize(
    ("name", "num_examples"),
    [
        *((name, 100) for name in DECODERS),
        *(pytest.param(name, 300, marks=pytest.mark.long) for name in DECODERS),
    ],
)
def test_pieces_add_up_with_any_decoder(name: str, num_examples: int) -> None:
    @settings(max_examples=num_examples)
    @given(runs=st.lists(st.one_of(BYTES, OTHERS), max_size=16))
    def run(runs: list[list[int]]) -> None:
        check_decoder(DECODERS[name], runs)

    run()


def check_decoder(decoder: decoders.Decoder | None, runs: list[list[int]]) -> None:
    fast, tokenizer = with_decoder(decoder)
    ids = [token_id for run in runs for token_id in run]
    given_out = pieces(tokenizer, ids)
    assert "".join(given_out) == tokenizer.decode(ids)
    library = fast.decode(ids, skip_special_tokens=True)
    if "\ufffd" not in library:
        assert tokenizer.decode(ids) == library


@pytest.mark.parametrize("name", DECODERS)
def test_empty_tokens_count_where_the_window_is_cut(name: str) -> None:
    """They part bytes under byte fallback, and are a space apart under some decoders."""
    empty = 256 + WORDS.index("")
    for first in (0xE2, empty, 97):
        ids = [first, empty, 0xAC, 0x9F, 0xE2, empty, 0x82, 0xAC, *[empty] * 4, 0xF0, 97] * 6
        tokenizer = with_decoder(DECODERS[name])[1]
        for length in range(len(ids)):
            assert "".join(pieces(tokenizer, ids[:length])) == tokenizer.decode(ids[:length])


@given(
    raw=st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=6),
    picks=st.lists(st.integers(0, 5), max_size=60),
)
def test_pieces_add_up_however_bytes_share_tokens(raw: list[bytes], picks: list[int]) -> None:
    tokenizer, ids = cut(raw)
    ids = [ids[pick % len(ids)] for pick in picks]
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("broken", [[0x82], [0xE2], [0xF0, 0x9F], [0xFF, 97]])
@pytest.mark.parametrize("has_fallback", [False, True])
def test_time_is_linear_however_broken_the_text(
    byte_tokenizer: Tokenizer, broken: list[int], has_fallback: bool
) -> None:
    detokenizer = Detokenizer(byte_fallback([]) if has_fallback else byte_tokenizer)
    for token_id in broken * 40:
        detokenizer.add(token_id)
        assert len(detokenizer._window) < MAX_WINDOW


def test_a_special_token_is_not_taken_for_the_first_word() -> None:
    tokenizer = byte_fallback([f"{SPACE}wor", "ld"], special=["<s>"])
    word, rest, special = 256, 257, 258
    assert pieces(tokenizer, [97, special, word, rest]) == ["a", "", " wor", "ld", ""]
    assert pieces(tokenizer, [special, word, special, word]) == ["", "wor", "", " wor", ""]


def test_bytes_of_a_character_may_have_tokens_of_their_own() -> None:
    tokenizer = byte_fallback([], special=["<s>"])
    assert pieces(tokenizer, list("a€b".encode())) == ["a", "", "", "€", "b", ""]
    assert pieces(tokenizer, [97, 0xE2, 256, 0x82, 0xAC]) == ["a", "", "", "", "€", ""]
    assert pieces(tokenizer, [0xE2, 0x82, 97, 0xE2]) == ["", "", "\ufffda", "", "\ufffd"]
