"""Server-sent events out of bytes, wherever a network splits them."""

from collections.abc import Iterator


class EventStreamParser:
    """Takes pieces of a `text/event-stream` body and gives out the data of whole events.

    Lines end in LF or CRLF, an event ends with an empty line, and its `data` lines are joined by
    LF (WHATWG HTML, section 9.2.6). Comments and other fields are skipped.
    """

    def __init__(self) -> None:
        self._rest = b""
        """A line that has not ended yet: a character may be split, too."""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[str]:
        """The data of every event that this piece completes.

        Raises:
            UnicodeDecodeError: an event is not UTF-8.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line and self._data:
                event, self._data = b"\n".join(self._data), []
                yield event.decode()
            elif line.startswith(b"data:"):
                self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
