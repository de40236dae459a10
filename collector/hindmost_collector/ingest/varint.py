"""Lengths and numbers as protobuf writes them, for messages that are put together from finished parts."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """A protobuf varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
