"""The alphabet of byte-level vocabularies: one printable character for each of the 256 bytes.

Fixed by GPT-2 and used by every byte-level BPE since: bytes that print stand for themselves, the
others are numbered upwards from U+0100.
"""

_PRINTED = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN = tuple(byte for byte in range(256) if byte not in _PRINTED)
_BYTES = {chr(byte): byte for byte in _PRINTED} | {
    chr(0x100 + number): byte for number, byte in enumerate(_HIDDEN)
}

ALPHABET = frozenset(_BYTES)
"""All 256."""


def spelled_bytes(token: str) -> bytes | None:
    """The bytes that a token of the vocabulary spells; None for a character of another alphabet."""
    if not all(character in _BYTES for character in token):
        return None
    return bytes(_BYTES[character] for character in token)
