"""What a scrape costs the collector: CPU time and bytes of 1,000 to 200,000 series, next to prometheus_client.

    python bench/exposition.py --write bench/results/exposition.json

Nodes have 100 series each, of 50 metrics, as their agents send them. prometheus_client shows the same names, labels and
values from a custom collector, its fastest way. Each figure is the median of several scrapes; the values change between
them.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hindmost_collector.ingest.definitions import Definitions, Schema, Series
from hindmost_collector.ingest.row_builder import MetricRows
from hindmost_collector.serve.node_metrics import NodeMetrics
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

SIZES = (1_000, 10_000, 50_000, 200_000)
METRICS, DEVICES = 50, 2
SCRAPES = 5


def names() -> list[tuple[str, str]]:
    """Name and device of each series of a node."""
    return [(f"hindmost_node_made_{metric}_bytes", f"d{one}") for metric in range(METRICS) for one in range(DEVICES)]


class Ours:
    """The collector's page of so many nodes."""

    def __init__(self, nodes: int) -> None:
        definitions = Definitions()
        series = [Series(name, False, "A made metric.", json.dumps({"device": device})) for name, device in names()]
        definitions.schemas = {1: Schema(series)}
        self._nodes, self._metrics, self._tick = nodes, NodeMetrics(definitions), 0

    def change(self, values: np.ndarray[Any, Any]) -> None:
        """The newest values (N, S) of all nodes."""
        self._tick += 1
        times = np.array([self._tick])
        self._metrics.add(
            [MetricRows.of(f"node{node}", 1, times, values[node : node + 1]) for node in range(self._nodes)]
        )

    def scrape(self) -> bytes:
        """The page."""
        return self._metrics.text().encode()


class Theirs:
    """The same by prometheus_client."""

    def __init__(self) -> None:
        self._values = np.zeros((0, 0))
        self._registry = CollectorRegistry()
        self._registry.register(self)  # type: ignore[arg-type]

    def change(self, values: np.ndarray[Any, Any]) -> None:
        """The newest values (N, S) of all nodes."""
        self._values = values

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Each metric with its series of all nodes."""
        columns = self._values.T.tolist()
        for metric in range(METRICS if columns else 0):
            family = GaugeMetricFamily(
                f"hindmost_node_made_{metric}_bytes", "A made metric.", labels=["node", "device"]
            )
            for one in range(DEVICES):
                for node, value in enumerate(columns[metric * DEVICES + one]):
                    family.add_metric([f"node{node}", f"d{one}"], value)
            yield family

    def scrape(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)


def measured(change: Callable[[Any], None], scrape: Callable[[], bytes], nodes: int) -> tuple[float, int]:
    """CPU milliseconds of a scrape, median, and its bytes."""
    random, took, page = np.random.default_rng(0), [], b""
    for _ in range(SCRAPES):
        change(random.integers(0, 1 << 40, (nodes, METRICS * DEVICES)).astype(float))
        began = time.process_time()
        page = scrape()
        took.append((time.process_time() - began) * 1e3)
    return round(statistics.median(took), 1), len(page)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", help="write the result to this file")
    args = parser.parse_args()
    rows = []
    for size in SIZES:
        nodes = size // (METRICS * DEVICES)
        ours, theirs = Ours(nodes), Theirs()
        ours_ms, ours_bytes = measured(ours.change, ours.scrape, nodes)
        theirs_ms, theirs_bytes = measured(theirs.change, theirs.scrape, nodes)
        rows.append(
            {
                "series": size,
                "ms": ours_ms,
                "bytes": ours_bytes,
                "prometheus_client_ms": theirs_ms,
                "prometheus_client_bytes": theirs_bytes,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    if args.write:
        machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        Path(args.write).write_text(f"{json.dumps({'machine': machine, 'sizes': rows}, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
