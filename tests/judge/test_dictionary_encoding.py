"""Values as numbers, by what is dear to import."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow  # noqa: F401 - few rows are hashed too where it is loaded
import pytest
from hindmost_judge.encoding import factorize, unique

HEAVY = "import sys, hindmost_collector.main, hindmost_collector.recording_api; print('pandas' in sys.modules)"


def test_distinct_values_are_in_the_order_in_which_they_come() -> None:
    """Whatever is larger."""
    assert unique(np.array(["b", "a", "b"], object)).tolist() == ["b", "a"]


def test_a_collector_and_a_query_start_without_pandas() -> None:
    """It is half of what they would import, and who starts a job waits for its collector."""
    assert subprocess.check_output([sys.executable, "-c", HEAVY], text=True) == "False\n"


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("kind", [np.int64, np.uint64, bool, object])
def test_rows_are_numbered_as_pandas_numbers_them(kind: type, hashed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values in the order in which they first come, whether Arrow hashes them or numpy sorts them."""
    values = np.array([7, 0, 7, 3, 0, 1, 9, 3]).astype(kind)
    codes, distinct = pd.factorize(values)
    if not hashed:
        monkeypatch.delitem(sys.modules, "pyarrow")
    numbers, order = factorize(values)
    assert (numbers.tolist(), order.tolist(), order.dtype) == (codes.tolist(), distinct.tolist(), values.dtype)
    assert ("pyarrow" in sys.modules) is hashed
