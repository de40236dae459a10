"""Values and texts as numbers, in the order in which they first come; joins by them need no sorting.

pandas does that by hashing. Its import takes as long as all other imports of a collector, so it is imported where it
is used: a collector that starts with a job, a query and a job without ranks do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hindmost_judge import constant

if TYPE_CHECKING:
    from hindmost_judge.types import Array, Ints


def factorize(
    values: np.ndarray[Any, np.dtype[Any]],
) -> tuple[np.ndarray[Any, np.dtype[np.intp]], np.ndarray[Any, np.dtype[Any]]]:
    """``(numbers, values)``: the number of each of the values, and the different ones in order."""
    import pandas as pd  # noqa: PLC0415 - where used

    return pd.factorize(values)


def unique(values: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """The different values, in the order in which they first come."""
    return factorize(values)[1]


def codes(text: Array) -> tuple[Ints, list[str]]:
    """Integer codes of a text column and the text of each; hashes whole rows, so that millions stay cheap."""
    if len(text) == 0:
        return np.empty(0, np.int64), []
    if constant.is_constant(text):
        return np.zeros(len(text), np.int64), [str(text[0])]
    if text.dtype == object:  # rows that share their texts, or long ones
        return _shared_codes(np.ascontiguousarray(text))
    fixed = np.ascontiguousarray(text)
    width = fixed.dtype.itemsize // 4
    if width == 0:
        return np.zeros(len(text), np.int64), [""]
    letters = fixed.view(np.uint32).reshape(len(fixed), width)
    hashed = np.zeros(len(fixed), np.uint64)
    for column, factor in enumerate(np.random.default_rng(7).integers(1, 2**63, width, dtype=np.uint64)):
        hashed += letters[:, column] * factor  # a column at a time: no block of 64-bit words as large as the text
    found, _ = factorize(hashed)
    return found.astype(np.int64), [str(fixed[i]) for i in first(np.arange(len(found)), found, found.max() + 1)]


def _shared_codes(text: Array) -> tuple[Ints, list[str]]:
    """Codes of texts that many rows share: which rows have the same object, then which objects are the same text.

    Comparing object identities takes a tenth of the time of comparing texts.
    """
    same, places = factorize(np.frombuffer(text, np.intp))
    found, words = factorize(text[first(np.arange(len(text)), same, len(places))])
    return found.astype(np.int64)[same], [str(word) for word in words]


def first(values: Array, code: Ints, count: int, missing: int = 0) -> Ints:
    """[C] the first of the values [N] of each code; ``missing`` where there is none."""
    found = np.full(count, missing, np.int64)
    found[code[::-1]] = values[::-1]
    return found
