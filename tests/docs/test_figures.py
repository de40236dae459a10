"""The figures of the pages are those that were measured, and what follows from these."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench import figures


@pytest.mark.parametrize("page", [figures.README, figures.PERFORMANCE], ids=lambda page: page.name)
def test_the_table_is_that_of_its_results(page: figures.Path) -> None:
    """``python -m bench.figures --table`` changes nothing."""
    assert len(figures.TABLE.findall(page.read_text(encoding="utf-8"))) == 1
    assert figures.pages()[page] == page.read_text(encoding="utf-8")


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


def refuse(constant: str) -> None:
    """``NaN`` and its like are Python's own."""
    raise ValueError(f"{constant} is not JSON")


def test_results_are_json() -> None:
    """As every reader of JSON takes it, not only Python's."""
    for path in (ROOT / "bench/results").glob("*.json"):
        assert json.loads(path.read_text(), parse_constant=refuse), path


PAGE = (ROOT / "docs/explanation/scale.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([\d,]+ \| [\d,]+ \| [\d.]+ [kM]B \| .*) \|$", PAGE, re.MULTILINE)
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "": 1.0}
DAY_S, RANKS, SAMPLES, COLLECTIVES = 86400, 8, 340, 10


def result(name: str) -> Any:
    """What a bench wrote."""
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def a_day(bytes_a_sample: float, store: str) -> float:
    sizes = result("storage")["bytes_a_row"]
    steps, calls = sizes["steps"][store], sizes["collectives"][store]
    return DAY_S * (SAMPLES * bytes_a_sample + RANKS * steps + RANKS * COLLECTIVES * calls)


def a_node() -> list[float]:
    """Bytes and rows a second, cores directly and through relays, bytes a day in Parquet and in ClickHouse."""
    rounds = result("relay_load")["rounds"]
    cores = []
    for direct in (True, False):
        found = [one["collector_cpu_of_a_core"] / one["agents"] for one in rounds if (one["relays"] == 0) == direct]
        cores.append(sum(found) / len(found))
    sizes = result("storage")["bytes_a_row"]
    recorded, simulated = sizes["metrics_recorded"]["hindmost_parquet"], sizes["metrics"]
    in_clickhouse = recorded * simulated["clickhouse"] / simulated["hindmost_parquet"]
    days = [a_day(recorded, "hindmost_parquet"), a_day(in_clickhouse, "clickhouse")]
    return [result("wire_size")["bytes_a_second"], SAMPLES + RANKS * (1 + COLLECTIVES), *cores, *days]


def number(cell: str) -> float:
    """A cell's number, its unit taken in."""
    digits, _, unit = cell.replace(",", "").partition(" ")
    return float(digits) * UNITS[unit]


def test_there_is_a_table() -> None:
    """The page has a row for each size of cluster."""
    assert len(ROWS) == 6


@pytest.mark.parametrize("row", ROWS)
def test_every_figure_follows_from_a_measurement(row: str) -> None:
    """Each figure is the number of nodes times what was measured of one, to the digits that are shown."""
    gpus, nodes, size, rows, direct, relayed, *_, parquet, clickhouse = row.split(" | ")
    assert number(nodes) == number(gpus) / RANKS
    for cell, of_one in zip((size, rows, direct, relayed, parquet, clickhouse), a_node(), strict=True):
        assert number(cell) == pytest.approx(of_one * number(nodes), rel=0.06)
