"""PyTorch's process groups: an identity alike on all members, from a name and who is in it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

#: Bytes of an element, by the names PyTorch gives its types.
ITEM_BYTES = {
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2"), 1),
}


#: No group has more, and no list of them a longer text.
_MOST_RANKS = 1 << 20


def _numbers(ranks: Any) -> tuple[int, ...]:
    """The ranks of a list or of its text; none of what is neither."""
    if isinstance(ranks, str) and len(ranks) < 10 * _MOST_RANKS:
        return tuple(int(number) for number in re.findall(r"\d{1,9}", ranks))
    if isinstance(ranks, list | tuple) and len(ranks) <= _MOST_RANKS:
        return tuple(one for one in ranks if isinstance(one, int) and 0 <= one < _MOST_RANKS)
    return ()


@dataclass(frozen=True)
class ProcessGroup:
    """A process group: its identity in a run, what it is called, and its ranks in order."""

    comm: int
    name: str
    ranks: tuple[int, ...] = ()

    @classmethod
    def named(cls, name: str, ranks: Any, description: str = "") -> ProcessGroup:
        """The group of that name; ``ranks`` is a list, or its text, as recordings have it."""
        listed = _numbers(ranks)
        digest = hashlib.blake2b(f"{name} {listed}".encode(), digest_size=8).digest()
        return cls(int.from_bytes(digest, "little"), description, listed)
