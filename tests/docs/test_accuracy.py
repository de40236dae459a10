"""docs/explanation/accuracy.md shows what was measured."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_is_that_of_its_files() -> None:
    """The table of live faults is what their results hold; ``bench/gpu/fault_table.py --docs`` writes it."""
    spec = importlib.util.spec_from_file_location("fault_table", ROOT / "bench/gpu/fault_table.py")
    assert spec is not None
    assert spec.loader is not None
    fault_table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fault_table)
    page = (ROOT / "docs/explanation/accuracy.md").read_text()
    assert page.count("| fault | expected |") == len(fault_table.TABLE.findall(page)) == 1
    assert fault_table.in_place(page) == page
