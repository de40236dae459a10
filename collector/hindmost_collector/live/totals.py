"""Counters of each rank since the collector first heard of it: what ``hindmost_rank_*_total`` show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost_judge.causes.horovod_cycles import CYCLES
from hindmost_judge.model import OTHER, PHASES, Table
from hindmost_judge.timeline.phases import unnamed

from hindmost_collector.live.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hindmost_collector.ingest.chunk import Chunk
    from hindmost_collector.ingest.columns import Words

Array = np.ndarray[Any, Any]


class RankTotals:
    """Per-rank sums as arrays indexed by rank. NaN: this rank has reported no such thing."""

    def __init__(self) -> None:
        self._columns: dict[str, Array] = {}
        self._size = 0
        self._waits = Waits()

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        """``(name, values by rank)`` of each counter; phases are named ``phase:NAME``."""
        return iter(list(self._columns.items()))

    def column(self, name: str) -> Array:
        """One counter by rank, created if missing."""
        found = self._columns.get(name)
        if found is None or len(found) < self._size:
            grown = np.full(self._size, np.nan)
            if found is not None:
                grown[: len(found)] = found
            found = self._columns[name] = grown
        return found

    def add(self, chunk: Chunk, words: Words) -> None:
        """Count a tick."""
        highest = [int(table["rank"].max()) for table in chunk.coded.values()]
        highest += [int(chunk.plain[name]["rank"].max()) for name in ("rank_states",) if name in chunk.plain]
        self._size = max([self._size, *(one + 1 for one in highest)])
        if "steps" in chunk.coded:
            self._steps(chunk.coded["steps"])
        if "collectives" in chunk.coded:
            self._collectives(chunk.coded["collectives"], words)
        if "intervals" in chunk.coded:
            self._cycles(chunk.coded["intervals"], words)
        states = chunk.plain.get("rank_states")
        if states is not None:
            lost = self.column("events_lost_total")
            np.fmax.at(lost, states["rank"], states["events_lost_total"].astype(float))

    def _count(self, name: str, rank: Array, values: Array | None = None, rows: Array | None = None) -> None:
        """Add rows, or the values that they have, to their ranks; ``rows`` of each rank, where they are counted."""
        rows = self._rows(rank) if rows is None else rows
        column = self._begun(name, rows)
        column += rows if values is None else np.bincount(rank, weights=values, minlength=self._size)

    def _rows(self, rank: Array) -> Array:
        """How many rows each rank has."""
        return np.bincount(rank, minlength=self._size)

    def _begun(self, name: str, rows: Array) -> Array:
        """A counter; it is 0 for ranks with rows and no counter before."""
        column = self.column(name)
        column[np.isnan(column) & (rows > 0)] = 0.0
        return column

    def _steps(self, steps: Table) -> None:
        rank = steps["rank"]
        rows = self._rows(rank)
        self._count("steps_total", rank, rows=rows)
        for name, column in (("step_seconds_total", "duration_ns"), *((f"phase:{one}", f"{one}_ns") for one in PHASES)):
            known = steps[column] >= 0
            if known.all():
                self._count(name, rank, steps[column] / 1e9, rows)
            elif known.any():
                self._count(name, rank[known], steps[column][known] / 1e9)
        rest = unnamed({name: steps[f"{name}_ns"] for name in PHASES}, steps["duration_ns"])
        if rest is not None and (known := ~np.isnan(rest)).any():
            self._count(f"phase:{OTHER}", rank[known], rest[known] / 1e9)
        np.fmax.at(self.column("last_step"), rank, steps["step"].astype(float))
        for name in ("phase:self_cpu", "phase:self_runqueue", "phase:self_blocked", "covered_seconds"):
            self._columns.pop(name, None)  # steps are marked after all: their own phases say it better

    def _cycles(self, intervals: Table, words: Words) -> None:
        """Series of Horovod's cycles, about one a second: their length, and how many were in them."""
        cycles = (intervals["name"] == words.code(CYCLES)) & (intervals["duration_ns"] >= 0)
        if cycles.any():
            rank = intervals["rank"][cycles]
            self._count("horovod_cycles_total", rank, intervals["value"][cycles])
            self._count("horovod_cycle_seconds_total", rank, intervals["duration_ns"][cycles] / 1e9)

    def _unmarked(self, collectives: Table) -> None:
        """A job that marks no steps: its time is what its calls took and what lies between them."""
        rank, own, took = collectives["rank"], collectives["self_ns"], collectives["duration_ns"]
        known = own >= 0
        if known.any():
            self._count("covered_seconds", rank[known], (own + np.maximum(took, 0))[known] / 1e9)
        cpu, runqueue = collectives["cpu_ns"], collectives["runqueue_ns"]
        if (cpu >= 0).any():
            self._count("phase:self_cpu", rank[cpu >= 0], cpu[cpu >= 0] / 1e9)
        both = known & (cpu >= 0) & (runqueue >= 0)
        if both.any():
            blocked = np.maximum(own - cpu - runqueue, 0)
            self._count("phase:self_runqueue", rank[both], runqueue[both] / 1e9)
            self._count("phase:self_blocked", rank[both], blocked[both] / 1e9)

    def inferred(self, calls_per_step: int | None) -> dict[str, Array]:
        """Step counters of a job that marks no steps, from how many collective calls make one; empty for other jobs."""
        calls = self._columns.get("collectives_total")
        if not calls_per_step or calls is None or "steps_total" in self._columns:
            return {}
        steps = np.floor(calls / calls_per_step)
        found = {"steps_total": steps, "last_step": np.where(steps > 0, steps - 1, np.nan)}
        if "covered_seconds" in self._columns:
            found["step_seconds_total"] = self.column("covered_seconds")
        return found

    def _collectives(self, collectives: Table, words: Words) -> None:
        rank = collectives["rank"]
        rows = self._rows(rank)
        self._count("collectives_total", rank, rows=rows)
        for name in ("wait_seconds_total", "caused_wait_seconds_total", "last_arrivals_total"):
            self._begun(name, rows)  # with collectives, not having waited is a measurement
        if "steps_total" not in self._columns:
            self._unmarked(collectives)
        for name, (rank, values) in self._waits.add(collectives, words).items():
            if rank.size:
                self._size = max(self._size, int(rank.max()) + 1)
                self._count(name, rank, values)
