"""`TextStream` and the search inside it, against looking at the whole text."""

import pytest
from byte_tokenizers import byte_fallback, cut
from hypothesis import given
from hypothesis import strategies as st

from looped.text.detokenizer import Detokenizer
from looped.text.stop_strings import StopStringSearch
from looped.text.text_stream import TextStream


def as_bytes(piece):
    return piece.encode() if isinstance(piece, str) else piece


def stream(pieces, stop=(), **options):
    """A finished stream over these tokens, its deltas, and what `finish` gave."""
    tokenizer, ids = cut([as_bytes(piece) for piece in pieces])
    text_stream = TextStream(tokenizer, stop, **options)
    deltas = [text_stream.add(token_id) for token_id in ids]
    rest = text_stream.finish()
    assert "".join(deltas) + rest == text_stream.text
    return text_stream, deltas, rest


E_ACUTE = "é".encode()
EMOJI = "😀".encode()


@pytest.mark.parametrize(
    ("pieces", "deltas"),
    [
        (["say ", "END", " more"], ["say ", "", ""]),
        (["say E", "ND", " more"], ["say ", "", ""]),
        (["say E", "N", "D more"], ["say ", "", ""]),
        (["say", " E", "N", "D"], ["say", " ", "", ""]),
        (["END", "x"], ["", ""]),
        (["so END is here", "x"], ["so ", ""]),
        (["E", "N", "x", "D"], ["", "", "ENx", "D"]),
        (["E", "N", "E", "N", "D"], ["", "", "EN", "", ""]),
    ],
)
def test_a_stop_string_is_found_across_any_tokens_and_no_part_of_it_is_given_out(pieces, deltas):
    text_stream, given_out, rest = stream(pieces, ["END"])
    assert (given_out, rest) == (deltas, "")
    whole = "".join(pieces)
    assert text_stream.stop_string == ("END" if "END" in whole else None)
    assert text_stream.text == whole.partition("END")[0]


def test_the_last_token_may_complete_it_and_counts():
    text_stream, deltas, _ = stream(["a", "E", "ND"], ["END"])
    assert (text_stream.text, deltas, text_stream.num_tokens) == ("a", ["a", "", ""], 3)
    text_stream, _, _ = stream(["a", "E", "NDx", "y", "z"], ["END"])
    assert text_stream.num_tokens == 3


def test_a_part_that_never_became_whole_is_text_in_the_end():
    text_stream, deltas, rest = stream(["a", "E", "N"], ["END"])
    assert (deltas, rest, text_stream.stop_string) == (["a", "", ""], "EN", None)


@pytest.mark.parametrize("pieces", [["aaab"], ["a", "a", "a", "b"], ["aa", "ab"], ["aaa", "b"]])
def test_beginnings_that_overlap_are_not_missed(pieces):
    text_stream, _, _ = stream(pieces, ["aab"])
    assert (text_stream.text, text_stream.stop_string) == ("a", "aab")


def test_only_the_longest_possible_beginning_is_held_back():
    _, deltas, rest = stream(["xab", "ab", "abx"], ["abac", "bb"])
    assert (deltas, rest) == (["x", "ab", "ababx"], "")


def test_the_first_to_end_wins_and_of_those_the_longest():
    assert stream(["xabcd"], ["abcd", "bc"])[0].stop_string == "bc"
    for stop in (["bc", "abc"], ["abc", "bc"]):
        text_stream, _, _ = stream(["x", "a", "b", "c", "d"], stop)
        assert (text_stream.stop_string, text_stream.text) == ("abc", "x")


def test_it_may_be_given_out_as_well_but_nothing_after_it():
    text_stream, deltas, rest = stream(
        ["say E", "NDless", "x"], ["END"], include_stop_str_in_output=True
    )
    assert (deltas, rest, text_stream.text) == (["say ", "END", ""], "", "say END")


@pytest.mark.parametrize(
    "pieces",
    [
        [b"ab", E_ACUTE[:1], E_ACUTE[1:], b"x"],
        [b"ab" + E_ACUTE[:1], E_ACUTE[1:] + b"x"],
        [b"a", b"b" + E_ACUTE[:1], E_ACUTE[1:] + EMOJI[:2], EMOJI[2:]],
    ],
)
@pytest.mark.parametrize("stop", ["é", "bé"])
def test_a_character_of_a_stop_string_may_be_split_over_tokens(pieces, stop):
    text_stream, _, _ = stream(pieces, [stop])
    assert text_stream.stop_string == stop
    assert text_stream.text == "abé".removesuffix(stop)
    assert b"\xa9" in pieces[text_stream.num_tokens - 1]


@pytest.mark.parametrize("include", [False, True])
def test_a_token_may_end_inside_a_character_right_after_it(include):
    pieces = [b"a", b"END" + EMOJI[:3], EMOJI[3:]]
    text_stream, deltas, _ = stream(pieces, ["END"], include_stop_str_in_output=include)
    assert text_stream.stop_string == "END"
    assert deltas == ["a", "END" if include else "", ""]
    assert text_stream.num_tokens == 2


@pytest.mark.parametrize("stop", ["€", "a€", "€\n"])
def test_it_may_be_split_over_byte_fallback_tokens(stop):
    tokenizer = byte_fallback([])
    text_stream = TextStream(tokenizer, [stop])
    deltas = [text_stream.add(byte) for byte in "xa€\nb".encode()]
    assert (text_stream.text, text_stream.stop_string) == ("xa€\nb".partition(stop)[0], stop)
    # It ends with its last byte, not with the token after it.
    assert text_stream.num_tokens == len(f"x{'' if stop[0] == 'a' else 'a'}{stop}".encode())
    assert "".join(deltas) == text_stream.text


def test_a_character_that_stays_unfinished_may_complete_one():
    text_stream, deltas, rest = stream([b"ab", EMOJI[:2]], ["b\N{REPLACEMENT CHARACTER}"])
    assert (deltas, rest, text_stream.text) == (["a", ""], "", "a")
    assert text_stream.stop_string == "b\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("min_tokens", "text", "num_tokens"),
    [(0, "", 1), (1, "s", 2), (2, "ss", 3), (3, "ssst", 5), (4, "ssst", 5), (5, "sssts", 6)],
)
def test_before_min_tokens_a_stop_string_is_text(min_tokens, text, num_tokens):
    text_stream, _, _ = stream(["s", "s", "s", "t", "s", "st"], ["s"], min_tokens=min_tokens)
    assert (text_stream.text, text_stream.num_tokens) == (text, num_tokens)


def test_one_that_overlaps_another_before_min_tokens_is_found():
    text_stream, deltas, _ = stream(["a", "a", "a"], ["aa"], min_tokens=2)
    assert (text_stream.stop_string, deltas) == ("aa", ["", "a", ""])
    assert stream(["a", "a", "a"], ["aa"], min_tokens=3)[0].text == "aaa"


def test_a_last_character_counts_with_the_token_that_makes_it_certain():
    pieces = [b"a", E_ACUTE[:1], E_ACUTE[1:], b"b", "é".encode()]
    assert stream(pieces, ["é"], min_tokens=2)[0].num_tokens == 3
    assert stream(pieces, ["é"], min_tokens=3)[0].num_tokens == 5


# Any text, cut anywhere.

ALPHABET = "ab\ncé漢😀\N{REPLACEMENT CHARACTER}"
# Few letters and many stop strings, so that they occur and overlap.
TEXTS = st.one_of(st.text("ab", max_size=14), st.text(ALPHABET, max_size=14))
STOPS = st.lists(
    st.one_of(st.text("ab", min_size=1, max_size=4), st.text(ALPHABET, min_size=1, max_size=3)),
    max_size=4,
)


@st.composite
def cuttings(draw, text):
    """The bytes of a text as tokens, also empty ones."""
    raw = text.encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=len(raw))))
    return [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]


def first_stop(text, stop):
    """Where the first stop string to end does end, and which that is; looks at the whole text."""
    for end in range(1, len(text) + 1):
        if found := [one for one in stop if text[:end].endswith(one)]:
            return end, max(found, key=len)
    return None


def expected_text(text, stop, include):
    found = first_stop(text, stop)
    if found is None:
        return text, None
    end, stop_string = found
    return text[: end if include else end - len(stop_string)], stop_string


@given(text=TEXTS, stop=STOPS, include=st.booleans(), data=st.data())
def test_how_a_text_is_cut_into_tokens_makes_no_difference(text, stop, include, data):
    expected = expected_text(text, stop, include)
    for _ in range(2):
        pieces = data.draw(cuttings(text))
        text_stream, _, _ = stream(pieces, stop, include_stop_str_in_output=include)
        assert (text_stream.text, text_stream.stop_string) == expected


@given(raw=st.lists(st.integers(0, 255), max_size=12), stop=STOPS, data=st.data())
def test_broken_bytes_are_text_like_any_other(raw, stop, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    pieces = [bytes(raw[a:b]) for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    text = bytes(raw).decode(errors="replace")
    text_stream, _, _ = stream(pieces, stop)
    assert (text_stream.text, text_stream.stop_string) == expected_text(text, stop, False)


@given(text=TEXTS, stop=STOPS, data=st.data())
def test_exactly_what_may_become_a_stop_string_is_held_back(text, stop, data):
    tokenizer, ids = cut(data.draw(cuttings(text)))
    text_stream, detokenizer = TextStream(tokenizer, stop), Detokenizer(tokenizer)
    expected, _ = expected_text(text, stop, False)
    certain = ""
    for token_id in ids:
        text_stream.add(token_id)
        certain += detokenizer.add(token_id)
        # Never a part of a stop string, whatever comes later.
        assert expected.startswith(text_stream.text)
        if text_stream.stop_string is not None:
            assert text_stream.text == expected
            break
        prefixes = {one[:length] for one in stop for length in range(1, len(one))}
        held = max((one for one in prefixes if certain.endswith(one)), key=len, default="")
        assert text_stream.text == certain.removesuffix(held)


@given(text=TEXTS, stop=STOPS, min_tokens=st.integers(0, 6), data=st.data())
def test_min_tokens_moves_the_search_and_nothing_else(text, stop, min_tokens, data):
    pieces = data.draw(cuttings(text))
    tokenizer, ids = cut(pieces)
    detokenizer = Detokenizer(tokenizer)
    certain = [*map(detokenizer.add, ids)]
    certain[-1] += detokenizer.finish()
    whole = "".join(certain)
    expected = (whole, None)
    start = len("".join(certain[:min_tokens]))
    for end in range(start + 1, len(whole) + 1):
        if found := [one for one in stop if whole[:end].endswith(one)]:
            longest = max(found, key=len)
            expected = (whole[: end - len(longest)], longest)
            break
    text_stream, _, _ = stream(pieces, stop, min_tokens=min_tokens)
    assert (text_stream.text, text_stream.stop_string) == expected


@given(text=st.text("ab", max_size=20), stop=st.lists(st.text("ab", min_size=1), max_size=4))
def test_the_search_says_what_a_look_at_all_text_so_far_says(text, stop):
    search = StopStringSearch(stop)
    for end in range(1, len(text) + 1):
        so_far = text[:end]
        found = search.add(so_far[-1])
        assert found == max(filter(so_far.endswith, stop), key=len, default=None)
        partial = [n for one in stop for n in range(len(one)) if so_far.endswith(one[:n])]
        assert search.num_partial == max(partial, default=0)
