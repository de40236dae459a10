"""Whether a report says what is wrong with a job, and what to set: real jobs on this machine, one wrong thing each.

    python -m bench.advice [--python PYTHON_WITH_TORCH] [--only CASE] [--keep FOLDER] [--write FILE]

case        what is wrong                                              needs
reads       a file that gives 4 MB/s                                   root, cgroup v1 (blkio)
ranks       three ranks a CPU
threads     four threads of OpenMP a CPU
link        100 Mbit/s between two network namespaces, 8 MiB a step    root, ip, tc
one         one process that computes, and nothing is wrong

Prints a table: what was wrong, the first verdict, what bounds the job, the first setting to try. Exit code 1 where one
is not what it should be.
"""

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

JOB = Path(__file__).with_name("job.py")
CPUS = len(os.sched_getaffinity(0))
#: How long a job trains; threads of a rank are sampled every 15 s, so that two samples need twice that.
SECONDS, LONG = 12, 40


class Case(NamedTuple):
    """``verdicts``, ``bounds`` and ``settings`` that are right, any of them; none: nothing should be said."""

    wrong: str
    verdicts: tuple[str, ...]
    bounds: tuple[str | None, ...]
    settings: tuple[str | None, ...]


CASES = {
    "reads": Case("the file gives 4 MB/s", ("input_bound",), ("input",), ("storage",)),
    "ranks": Case("3 ranks a CPU", ("oversubscribed", "balanced"), ("cpu",), ("ranks per node",)),
    "threads": Case("4 threads a CPU", ("balanced", "oversubscribed"), ("cpu", "compute"), ("threads of each rank",)),
    "link": Case("100 Mbit/s", ("slow_link", "balanced"), ("communication",), ("collectives not overlapped",)),
    "one": Case("nothing", ("insufficient_data",), ("compute",), (None,)),
}


def ranks(python: str, count: int, *args: str, environ: dict[str, str] | None = None, each: str = "") -> str:
    """A shell's text that starts so many ranks; ``each`` stands in front of each command, ``{}`` in it for its rank."""
    known = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555", "WORLD_SIZE": str(count), **(environ or {})}
    command = shlex.join([python, str(JOB), *args])
    lines = []
    for rank in range(count):
        variables = " ".join(f"{name}={value}" for name, value in {**known, "RANK": str(rank)}.items())
        lines.append(f"{each.format(rank)} env LOCAL_RANK={rank} {variables} {command} &".strip())
    return "\n".join([*lines, "wait"])


@contextlib.contextmanager
def throttled(folder: Path) -> Iterator[tuple[Path, Path]]:
    """A file, and the control group whose reads of its disk get 4 MB/s."""
    file, group = folder / "data", Path("/sys/fs/cgroup/blkio/hindmost-advice")
    file.write_bytes(os.urandom(64 << 20))
    os.sync()
    group.mkdir(exist_ok=True)
    device = file.stat().st_dev
    whole = f"{os.major(device)}:{os.minor(device)}"
    (group / "blkio.throttle.read_bps_device").write_text(f"{whole} {4 << 20}\n")
    try:
        yield file, group
    finally:
        group.rmdir()


@contextlib.contextmanager
def linked() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a link of 100 Mbit/s between them."""
    names = f"hmadv{os.getpid()}a", f"hmadv{os.getpid()}b"
    sh = "set -e\n"
    for name in names:
        sh += f"ip netns add {name}\nip -n {name} link set lo up\n"
    sh += f"ip link add eth0 netns {names[0]} type veth peer name eth0 netns {names[1]}\n"
    for number, name in enumerate(names):
        sh += f"ip -n {name} addr add 10.77.0.{number + 1}/24 dev eth0\nip -n {name} link set eth0 up\n"
        sh += f"ip netns exec {name} tc qdisc add dev eth0 root tbf rate 100mbit burst 64kb latency 50ms\n"
    try:
        subprocess.run(["sh", "-c", sh], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


@contextlib.contextmanager
def commands(case: str, python: str, folder: Path) -> Iterator[str]:
    """The shell's text that runs the job."""
    seconds = ("--seconds", str(LONG if case == "threads" else SECONDS))
    one_thread = {"OMP_NUM_THREADS": "1"}
    if case == "reads":
        with throttled(folder) as (file, group):
            job = ranks(python, 2, *seconds, "--file", str(file), "--bytes", str(256 << 10), environ=one_thread)
            yield f"echo $$ > {group}/tasks\n{job}\necho $$ > {group.parent}/tasks"
    elif case == "ranks":
        yield ranks(python, 3 * CPUS, *seconds, "--rows", "512", environ=one_thread)
    elif case == "threads":
        environ = {"OMP_NUM_THREADS": str(4 * CPUS)}
        yield ranks(python, CPUS, *seconds, "--rows", "512", "--width", "512", environ=environ)
    elif case == "link":
        with linked() as names:
            each = f"ip netns exec $(echo {names[0]} {names[1]} | cut -d' ' -f$(({{}} + 1)))"
            environ = {"MASTER_ADDR": "10.77.0.1", "GLOO_SOCKET_IFNAME": "eth0", **one_thread}
            yield ranks(python, 2, *seconds, "--width", "725", environ=environ, each=each)
    else:
        yield ranks(python, 1, *seconds, "--rows", "512", "--width", "512", environ=one_thread)


def observed(case: str, python: str, folder: Path) -> dict[str, Any]:
    """The job under ``hindmost run``, and what its report says first."""
    run, hindmost = folder / case, [sys.executable, "-m", "hindmost"]
    with commands(case, python, folder) as text:
        line = [*hindmost, "run", "--out", str(run), "--", "sh", "-c", text]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    line = [*hindmost, "report", str(run), "--format", "json", "--sections", "limits,advice"]
    report = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    expected, verdict = CASES[case], report["verdicts"][0]
    bound = (report["job"].get("bound") or {}).get("by")
    settings = [setting["name"] for setting in report["sections"]["advice"]["settings"]]
    first = settings[0] if settings else None
    right = verdict["kind"] in expected.verdicts and bound in expected.bounds and first in expected.settings
    said = {"verdict": verdict["kind"], "bound": bound, "setting": first, "right": right}
    why = {"evidence": verdict["evidence"][:1], "do": verdict["advice"][:1], "settings": settings}
    return {"case": case, "wrong": expected.wrong, **said, **why}


def main() -> int:
    """Run the cases, print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python with torch, for the job (default: this one)")
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the recordings there")
    parser.add_argument("--write", type=Path, metavar="FILE")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="hindmost-advice-") as name:
        folder = args.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for case in args.only or CASES:
            rows.append(row := observed(case, args.python, folder))
            print(f"{case:8} {row['wrong']:24} {row['verdict']:18} {row['bound']!s:14} {row['setting']!s:28}"
                  f" {'right' if row['right'] else 'WRONG'}", flush=True)  # fmt: skip
    if args.write:
        args.write.write_text(json.dumps({"made_by": "bench/advice", "cpus": CPUS, "rows": rows}, indent=1) + "\n")
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
