"""Where tokens begin in a text, however characters are cut."""

from byte_tokenizers import cut
from hypothesis import given
from hypothesis import strategies as st

from looped.server.api.logprobs import TextOffsets

PIECES = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=1),
        st.binary(min_size=1, max_size=5),
        st.text(min_size=1, max_size=3).map(str.encode),
        st.sampled_from([b"\xf0\x9f", b"\x98\x80", b"\xed\xa1", b"\xe0\x80", b"\xc3"]),
    ),
    min_size=1,
    max_size=20,
)


@given(PIECES)
def test_a_token_begins_at_the_character_of_its_first_byte(pieces):
    tokenizer, ids = cut(pieces)
    offsets = TextOffsets(tokenizer, 7, has_special=False)
    text = b"".join(pieces)
    begins = 0
    for piece, token_id in zip(pieces, ids, strict=True):
        # The first byte is part of the last character of the text that ends with it.
        expected = len(text[: begins + 1].decode("utf-8", "replace")) - 1
        assert tokenizer.token_bytes(token_id) == piece
        assert offsets.add(token_id) == 7 + expected
        begins += len(piece)
