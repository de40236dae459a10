"""Which whole numbers a column holds, close together or far apart."""

import numpy as np
import pytest
from hindmost_judge.encoding import distinct_integers, numbered


@pytest.mark.parametrize(
    "column",
    [[3, 1, 3, 2], [-1, 5, -1, 0], [7], [0, 2**30, 3], []],
    ids=["close", "below zero", "one", "far apart", "none"],
)
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_every_row_has_its_number(column: list[int], kind: type[np.signedinteger]) -> None:
    """Numbers come once and in order, as numpy's own, in the column's kind."""
    rows = np.array(column, kind)
    found, which = numbered(rows)
    assert found.dtype == kind
    assert found.tolist() == distinct_integers(rows).tolist() == sorted(set(column))
    assert found[which].tolist() == column
