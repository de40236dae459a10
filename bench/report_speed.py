"""How long ``hindmost report`` takes on a large recording and how much memory, each in a process of its own.

    python bench/report_speed.py run --rows 10000000                   # a run directory of so many rows
    python bench/report_speed.py traces inspector kineto --gib 5       # folders of foreign files of so many GiB
    python bench/report_speed.py job                                   # 512 ranks x 10,000 steps: report, compare

Recordings are simulated: a data-parallel job of 64 ranks with one rank 5 % slow, its steps repeated further on in time
until the recording is large enough. They are deleted afterwards. Prints wall time, the highest resident memory of the
process (``ru_maxrss`` of the child) and what the report says first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_collector.store import schema
from hindmost_collector.store.parquet.store import ParquetStore
from hindmost_judge.model import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hindmost_judge.model import Run, Table

    Move = Callable[[str, int, int], str]

SLOW = 5
RANKS = 64
GIB = 1 << 30


def simulated(ranks: int = RANKS, steps: int = 200) -> Run:
    """A clean job but for rank 5."""
    return simulate(Scenario(ranks, steps, faults=(Fault("compute", (SLOW,), 0.05),))).run


def repeated(run: Run, times: int) -> Iterator[dict[str, Table]]:
    """The run's tables, each time further on in steps, sequence numbers and time."""
    first, ends = int(run.steps["start_ns"].min()), run.steps["start_ns"] + run.steps["duration_ns"]
    span, steps = int(ends.max()) - first, int(run.steps["step"].max()) + 1
    calls = int(run.collectives["seq"].max()) + 1
    further = {"start_ns": span, "time_ns": span, "step": steps, "seq": calls}
    for number in range(times):
        yield {
            name: {column: values + further.get(column, 0) * number if column in further else values
                   for column, values in table.items()}
            for name, table in run.tables().items()
            if rows(table) and (number == 0 or name in ("steps", "collectives", "metrics", "intervals"))
        }  # fmt: skip


def make_run(folder: Path, wanted: int, ranks: int = RANKS) -> int:
    """A run directory; how many rows it has."""
    base = simulated(ranks)
    each = rows(base.steps) + rows(base.collectives) + rows(base.metrics)
    store, count = ParquetStore(folder, single=True), 0
    for tables in repeated(base, max(1, round(wanted / each))):
        arrow = {}
        for name, table in tables.items():
            form = schema.arrow_schema(name)
            columns = {field.name: pa.array(table[field.name]).cast(field.type) for field in form}
            arrow["bench", name] = [pa.table(columns, schema=form)]
        count += store.write(arrow, {})[0]
    store.write_meta("bench", {"job_id": "bench", "command": "simulated", "world_size": ranks})
    store.close()
    return count


def fill(path: Path, lines: Callable[[int], str], times: int) -> None:
    """A file of ``lines(0)``, ``lines(1)`` and so on, about a MiB each."""
    with path.open("a") as file:
        for number in range(times):
            file.write(lines(number))


def moved_step(line: str, steps: int, ns: int) -> str:
    """A line of a step, so many steps and ns further on."""
    step = json.loads(line)
    return json.dumps(step | {"step": step["step"] + steps} | {key: step[key] + ns for key in step if key[:2] == "t_"})


def moved_call(line: str, calls: int, ns: int) -> str:
    """A line of an operation, so many calls and ns further on."""
    words = line.split(",")
    times = [str(int(time) + ns) for time in words[8:]]
    return ",".join([*words[:2], str(int(words[2]) + calls), *words[3:8], *times])


def make_traces(folder: Path, size: int) -> int:
    """A folder as a sampling profiler leaves it: operations and steps of each rank, as text."""
    base, job = folder / "base", simulated(8, 200)
    write(job, base, "traces")
    for path in base.iterdir():
        if not path.name.startswith(("prof.", "steps.")):
            path.unlink()
    ends = job.steps["start_ns"] + job.steps["duration_ns"]
    span, calls = int(ends.max() - job.steps["start_ns"].min()), int(job.collectives["seq"].max()) + 1
    times = max(1, size // sum(path.stat().st_size for path in base.iterdir()))
    for path in base.iterdir():
        lines = path.read_text().splitlines()
        move, ahead = (moved_step, 200) if path.suffix == ".jsonl" else (moved_call, calls)

        def further(n: int, lines: list[str] = lines, move: Move = move, ahead: int = ahead) -> str:
            return "".join(move(line, n * ahead, n * span) + "\n" for line in lines)

        fill(folder / path.name, further, times)
        path.unlink()
    base.rmdir()
    return sum(path.stat().st_size for path in folder.iterdir())


INSPECTED = (
    '{"header":{"id":"0x43dd8b5b86d5ae","rank":%d,"n_ranks":8,"nnodes":1},"metadata":{"inspector_output_format_version":'
    '"v4.0","git_rev":"v2.28.9-1","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":%d,"hostname":"n0",'
    '"pid":%d},"coll_perf":{"coll":"AllReduce","coll_sn":%d,"coll_msg_size_bytes":16777216,"coll_exec_time_us":%d,'
    '"coll_timing_source":"kernel_gpu","coll_algobw_gbs":41.5,"coll_busbw_gbs":72.6}}\n'
)


def make_inspector(folder: Path, size: int) -> int:
    """JSON lines of NCCL Inspector, one file a rank."""
    draw = np.random.default_rng(1)
    for rank in range(8):

        def calls(n: int, rank: int = rank) -> str:
            took = draw.normal(4400 if rank != SLOW else 400, 20, 2000).astype(int).tolist()
            first = 1795225931702209 + 100_000_000 * n
            return "".join(
                INSPECTED % (rank, first + 50_000 * i, 100 + rank, 2000 * n + i, us) for i, us in enumerate(took)
            )

        fill(folder / f"nccl_trace_rank_{rank}", calls, max(1, size // 8 // len(calls(0))))
    return sum(path.stat().st_size for path in folder.iterdir())


def traced(kind: str, name: str, at: float, took: float, **args: Any) -> str:
    """One event of a Chrome trace, as a line."""
    event = {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 7, "ts": at, "dur": took, "args": args}
    return json.dumps(event) + ",\n"


def traced_step(step: int, late: float) -> str:
    """A profiled step of 500 operators and kernels and one all-reduce, which waits so long; times in us."""
    at, key = step * 100_000.0, step * 1000
    found = [traced("user_annotation", f"ProfilerStep#{step}", at, 99_000.0)]
    for i in range(500):
        found.append(traced("cpu_op", "aten::addmm", at + 100 * i, 80.0, **{"External id": key + i}))
        found.append(traced("kernel", "void cutlass::Kernel2<gemm>", at + 150 * i, 140.0, stream=7))
    kernel = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    found.append(traced("cuda_driver", "cuLaunchKernelEx", at + 60_000, 4.0, correlation=key))
    found.append(traced("kernel", kernel, at + 95_000 - late, 400.0 + late, correlation=key))
    return "".join(found)


def make_kineto(folder: Path, size: int) -> int:
    """The PyTorch profiler's Chrome traces, one a rank, not compressed."""
    for rank in range(8):
        about = {"rank": rank, "world_size": 8, "pg_config": [{"pg_name": "0", "ranks": list(range(8))}]}
        head = {"schemaVersion": 1, "distributedInfo": about, "baseTimeNanoseconds": 1_790_857_026_000_000_000}
        path, late = folder / f"trace.{rank}.json", 4000.0 * (rank != SLOW)
        path.write_text(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        jitter = np.random.default_rng(rank).normal(0, 20, 1 << 20)

        def steps(n: int, late: float = late, jitter: np.ndarray[Any, Any] = jitter) -> str:
            return "".join(traced_step(step, late + float(jitter[step])) for step in range(5 * n, 5 * n + 5))

        fill(path, steps, max(1, size // 8 // len(steps(0))))
        with path.open("a") as file:
            file.write("{}]}\n")
    return sum(path.stat().st_size for path in folder.iterdir())


def measured(*words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run hindmost, whose answer is JSON: seconds and memory, and that answer; none where it failed."""
    line = [sys.executable, "-m", "hindmost", *words, "--format", "json"]
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(line, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        took = time.perf_counter() - began
        out.seek(0), err.seek(0)
        said, complaint = out.read(), err.read().decode().strip()[-300:]
    found: dict[str, Any] = {"seconds": round(took, 2), "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2)}
    found |= {"max_rss_mib": usage.ru_maxrss >> 10, "exit_code": os.waitstatus_to_exitcode(status)}
    return (found | {"said": complaint}, {}) if status else (found, json.loads(said))


def report(folder: Path) -> dict[str, Any]:
    """Run ``hindmost report`` on it: seconds, memory, and what it says."""
    found, said = measured("report", str(folder), "--sections", "wall_clock,throughput,advice,phases")
    if said:
        found |= {key: said["verdicts"][0][key] for key in ("kind", "ranks", "cause")} | {"notes": said["notes"]}
    return found


def job(folder: Path) -> Iterator[dict[str, Any]]:
    """Of two recordings of 512 ranks and 10,000 steps the report, and their comparison, each five times."""
    both = [folder / name for name in "ab"]
    for one in both:
        count = make_run(one, JOB_ROWS, 512)
    for _ in range(5):
        yield {"rows": count, **report(both[0])}
    for _ in range(5):
        found, said = measured("compare", *map(str, both))
        yield {"what": "compare", "rows": 2 * count, **found, "measures": len(said.get("measures", ()))}


#: What 512 ranks record in 10,000 steps of :func:`simulated`.
JOB_ROWS = 40_487_424
MADE = {"traces": make_traces, "inspector": make_inspector, "kineto": make_kineto}


def main() -> None:
    """Make, report, print, delete; one recording at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=("run", "job", *MADE))
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the run directory")
    parser.add_argument("--gib", type=float, default=5.0, help="size of a folder of foreign files")
    parser.add_argument("--write", type=Path, metavar="FILE")
    args = parser.parse_args()
    results = []
    for what in args.what:
        with tempfile.TemporaryDirectory(prefix="hindmost-bench-", dir=os.environ.get("TMPDIR")) as name:
            folder = Path(name)
            if what == "job":
                for found in job(folder):
                    results.append({"what": what, **found})
                    print(json.dumps(results[-1]), flush=True)
                continue
            made = make_run(folder, args.rows) if what == "run" else MADE[what](folder, int(args.gib * GIB))
            size = {"rows": made} if what == "run" else {"gib": round(made / GIB, 2)}
            results.append({"what": what, **size, **report(folder)})
        print(json.dumps(results[-1]), flush=True)
    if args.write:
        machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()}
        args.write.write_text(
            json.dumps({"made_by": "bench/report_speed.py", "machine": machine, "results": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
