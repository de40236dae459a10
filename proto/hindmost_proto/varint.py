"""Numbers as protobuf writes them, for messages that are put together from finished parts."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """A number of 0 and more, seven bits a byte, the lowest first."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
