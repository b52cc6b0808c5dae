"""Events come out the same wherever their bytes are split."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped.bench.serve.event_stream import EventStreamParser

STREAM = (
    'data: {"text": "süß 🌀"}\n\n'
    ": a comment\n\n"
    "event: chunk\r\nid: 3\r\ndata:first\r\ndata: second\r\n\r\n"
    "data: [DONE]\n\n"
).encode()
EVENTS = ['{"text": "süß 🌀"}', "first\nsecond", "[DONE]"]


@given(st.sets(st.integers(1, len(STREAM) - 1)))
def test_events_do_not_depend_on_where_their_bytes_are_split(cuts):
    places = [0, *sorted(cuts), len(STREAM)]
    parser = EventStreamParser()
    pieces = [STREAM[a:b] for a, b in pairwise(places)]
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS


def test_byte_by_byte():
    parser = EventStreamParser()
    pieces = [STREAM[i : i + 1] for i in range(len(STREAM))]
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS


def test_an_event_that_has_not_ended_is_not_given_out():
    parser = EventStreamParser()
    assert list(parser.feed(b"data: x\n")) == []
    assert list(parser.feed(b"\ndata: y")) == ["x"]


def test_what_is_not_utf8_is_an_error():
    with pytest.raises(UnicodeDecodeError):
        list(EventStreamParser().feed(b"data: \xff\n\n"))
