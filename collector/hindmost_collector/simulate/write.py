"""A simulated run as files: a run directory, or the trace folder that an NCCL profiler plugin and a step log leave."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from hindmost.errors import HindmostError, UsageError
from hindmost_judge.model import Run, Table, rows

from hindmost_collector.formats.columns import table
from hindmost_collector.simulate import engine
from hindmost_collector.simulate.draws import draw
from hindmost_collector.simulate.record import pieces
from hindmost_collector.simulate.traces import trace_folder
from hindmost_collector.store import schema
from hindmost_collector.store.parquet.store import ParquetStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from hindmost_collector.simulate.scenario import Scenario

FORMATS = ("run", "traces")
#: Collectives that are made and written at a time.
ROWS_AT_ONCE = 1_000_000


def write(run: Run, folder: Path, kind: str) -> None:
    """Write the recording into a folder that is new or empty. Raises :class:`HindmostError` where that cannot be."""
    with _into(folder):
        run_directory([run], folder) if kind == "run" else trace_folder(run, folder)


def simulated(scenario: Scenario, folder: Path) -> None:
    """Simulate into a run directory, some steps at a time: of a large job, memory does not hold every row at once."""
    with _into(folder):
        draws = draw(scenario, engine.stretches(scenario))
        timing = engine.run(scenario, draws, scenario.faults)
        run_directory(pieces(scenario, draws, timing, ROWS_AT_ONCE), folder)


@contextmanager
def _into(folder: Path) -> Iterator[None]:
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder}: not empty; name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise HindmostError(f"cannot write {folder}: {error.strerror or error}") from error


def run_directory(parts: Iterable[Run], folder: Path) -> None:
    """As a collector would have kept it: segments and ``meta.json``; a run whole, or in ``parts`` that follow."""
    store = ParquetStore(folder, single=True)
    for run in parts:
        job = run.job.id
        tables = {name: part for name, part in run.tables().items() if rows(part)}
        tables |= {"rank_states": _states(run)} if rows(run.in_flight) else {}
        store.write({(job, name): [_arrow(name, part)] for name, part in tables.items()}, {})
    store.write_meta(job, {"job_id": job, "command": "hindmost simulate", "world_size": run.job.world_size})


def _arrow(name: str, part: Table) -> pa.Table:
    wanted = schema.arrow_schema(name)
    return pa.table({field.name: pa.array(part[field.name]).cast(field.type) for field in wanted}, schema=wanted)


def _states(run: Run) -> Table:
    """The ranks still ran when their operations in flight were last looked at."""
    rank, first = np.unique(run.in_flight["rank"], return_index=True)
    return table("rank_states", rank=rank, time_ns=run.in_flight["observed_ns"][first], life=0)
