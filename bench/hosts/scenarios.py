"""Jobs on two hosts: each launcher, each kind of network, each fault; what each ended in."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hindmost.credentials import write_private
from hindmost_collector.live.sealing import PRELIMINARY
from hindmost_collector.recordings.load import UNLOCKED_S
from hindmost_collector.store.parquet import segments

from bench.checkout import packages
from bench.hosts.network import FAKETIME, HOSTS, Network, missing, sh

ROOT = Path(__file__).resolve().parents[2]
RANK = str(Path(__file__).with_name("rank.py"))
HINDMOST = [sys.executable, "-m", "hindmost"]
#: The last rank is late in each step by half of this pause, ms.
PAUSE_MS, SLOW_RANK, RANKS = 20, 3, 4
PATIENCE_S = 150.0
#: For all processes of a job to leave after its launcher.
LEAVE_S = 20.0
DEBIAN_MPI, DEBIAN_LIBMPI = "/usr/bin/mpirun.openmpi", "/usr/lib/x86_64-linux-gnu/libmpi.so.40"


@dataclass
class Settings:
    """Programs that are not of this environment."""

    mpich: Path
    #: A Python with PyTorch and Horovod.
    torch: Path


@dataclass
class Scene:
    """One network, and a job in it."""

    folder: Path
    settings: Settings
    kind: str = "v4"
    shared: bool = False
    daemons: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.marks, self.run = self.folder / "marks", self.folder / "disk" / "run"
        self.marks.mkdir()
        self.net = Network(self.folder, self.kind, shared=self.shared)

    def rank(self, how: str, steps: int) -> list[str]:
        """The command line of a rank."""
        return [RANK, str(self.marks), how, str(steps), str(PAUSE_MS), str(SLOW_RANK)]

    def start(self, *command: str, **more: str) -> subprocess.Popen[str]:
        """``hindmost run -- COMMAND`` on host a."""
        argv = [self.net.on("a"), *HINDMOST, "run", "--out", str(self.run), "--job-id", "hosts", "--", *command]
        return self.popen(argv, **more)

    def popen(self, argv: Sequence[str], **more: str) -> subprocess.Popen[str]:
        """A process with an environment in which all launchers work."""
        path = f"{self.folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        settings = {
            "PATH": path, "PYTHONPATH": packages(), "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_rmaps_base_oversubscribe": "1",
        }  # fmt: skip
        found = subprocess.Popen(
            argv, env={**os.environ, **settings, **more}, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.daemons.append(found)
        return found

    def until_step(self, step: int) -> None:
        """Wait until every rank has marked so many steps. Raises ``AssertionError``."""
        deadline = time.monotonic() + PATIENCE_S
        while len(at := self.marked()) < RANKS or min(at.values()) < step:
            assert time.monotonic() < deadline, f"step {step} was not reached: {at}"
            time.sleep(0.1)

    def marked(self) -> dict[int, int]:
        """How many steps each rank has marked."""
        return {int(path.name): int(path.read_text().strip() or 0) for path in self.marks.iterdir()}

    def ended(self, process: subprocess.Popen[str], patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """What became of a job. Raises ``AssertionError`` where it does not end."""
        try:
            said, _ = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            raise AssertionError("it did not end") from None
        (self.folder / "said.log").write_text(said)
        first = [line for line in said.splitlines() if line.startswith("ENDED")]
        return {"exit": process.returncode, **self.stored(), "ended": " ".join(first)}

    def stored(self) -> dict[str, Any]:
        """The report in a few words, and the ledger of steps."""
        report = json.loads((self.run / "report.json").read_text()) if (self.run / "report.json").exists() else {}
        found = _in_words(report)
        steps = segments.read_table(self.run / "segments" / "steps", "steps")[0]
        ours = Counter(zip(steps["rank"].to_pylist(), steps["step"].to_pylist(), strict=True))
        marked = sum(self.marked().values())
        left = self.left()
        return {
            **found,
            "steps": {"marked": marked, "stored": len(ours), "twice": sum(ours.values()) - len(ours)},
            "dropped": self.dropped(),
            "left": left,
            "credentials": (self.run / "credentials").exists(),
        }

    def report(self) -> dict[str, Any]:
        """As ``hindmost report`` has it, once it is sure that no collector writes any more."""
        time.sleep(UNLOCKED_S + 1)
        words = f"report {self.run} --format json -o {self.run}/report.json"
        sh(f"cd {ROOT} && PYTHONPATH=agent:collector:proto {sys.executable} -m hindmost {words}")
        found: dict[str, Any] = json.loads((self.run / "report.json").read_text())
        return found

    def dropped(self) -> int:
        """Samples and ring events that agents themselves counted as lost."""
        table = segments.read_table(self.run / "segments" / "metrics", "metrics")[0]
        last: dict[tuple[str, str, str], float] = {}
        columns = (table[name].to_pylist() for name in ("node", "name", "labels", "value"))
        for node, name, labels, value in zip(*columns, strict=True):
            if name in ("hindmost_agent_dropped_samples_total", "hindmost_agent_ring_lost_events_total"):
                last[node, name, str(labels)] = max(value, last.get((node, name, str(labels)), 0.0))
        return int(sum(last.values()))

    def left(self) -> int:
        """Processes of hindmost that stay on the hosts."""
        deadline = time.monotonic() + LEAVE_S
        while (found := sum(map(self._ours, HOSTS))) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def _ours(self, host: str) -> int:
        found = 0
        for pid in self.net.processes(host):
            with contextlib.suppress(OSError):
                found += b"hindmost" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return found

    def close(self) -> None:
        self.net.close()
        for daemon in self.daemons:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
            if daemon.stdout and not daemon.stdout.closed:
                daemon.communicate()


def _in_words(report: dict[str, Any]) -> dict[str, Any]:
    job, verdicts = report.get("job", {}), report.get("verdicts", [])
    first = verdicts[0] if verdicts else {}
    return {
        "verdict": f"{first.get('kind', 'none')} {','.join(map(str, first.get('ranks', [])))}".strip(),
        "nodes": job.get("nodes"),
        "ranks": len(report.get("ranks", [])),
        "state": job.get("state"),
        "notes": report.get("notes", []) or job.get("notes", []),
    }


def _sees_all(found: dict[str, Any]) -> dict[str, Any]:
    """Of a job that ended well: all hosts and ranks, every step once, nothing dropped, nothing left."""
    steps = found["steps"]
    assert found["exit"] == 0, found
    assert (found["nodes"], found["ranks"]) == (2, RANKS), found
    assert steps["marked"] == steps["stored"], found
    assert (steps["twice"], found["dropped"], found["left"], found["credentials"]) == (0, 0, 0, False), found
    return found


def _names_the_slow(found: dict[str, Any]) -> dict[str, Any]:
    assert str(SLOW_RANK) in found["verdict"].split(" ")[-1].split(","), found
    return _sees_all(found)


# Launchers


def open_mpi(scene: Scene, steps: int) -> list[str]:
    words = ["mpirun", "--bind-to", "none", "--prtemca", "plm_ssh_agent", scene.net.agent]
    words += ["--mca", "btl", "tcp,self,sm", "--host", "node-a:2,node-b:2", "-np", str(RANKS)]
    return [*words, sys.executable, *scene.rank("mpi", steps)]


def run_open_mpi_5(scene: Scene) -> dict[str, Any]:
    """Its ranks come through PRRTE's daemons."""
    return _names_the_slow(scene.ended(scene.start(*open_mpi(scene, 300))))


def run_open_mpi_4(scene: Scene) -> dict[str, Any]:
    words = [DEBIAN_MPI, "--bind-to", "none", "--oversubscribe", "--mca", "plm_rsh_agent", scene.net.agent]
    words += ["--mca", "btl", "tcp,self,vader", "-x", "MPI4PY_LIBMPI"]
    command = [*words, "--host", "node-a:2,node-b:2", "-np", str(RANKS), sys.executable, *scene.rank("mpi", 300)]
    return _names_the_slow(scene.ended(scene.start(*command, MPI4PY_LIBMPI=DEBIAN_LIBMPI)))


def run_mpich(scene: Scene) -> dict[str, Any]:
    """Its ranks come through Hydra's proxies."""
    mpich = scene.settings.mpich
    command = [str(mpich / "bin/mpirun"), "-launcher", "ssh", "-launcher-exec", scene.net.agent]
    command += ["-hosts", "node-a:2,node-b:2", "-np", str(RANKS), sys.executable, *scene.rank("mpi", 300)]
    more = {"MPI4PY_LIBMPI": str(mpich / "lib/libmpich.so.12"), "MPI4PY_MPIABI": "mpich"}
    return _names_the_slow(scene.ended(scene.start(*command, **more)))


def script(scene: Scene, one: str) -> list[str]:
    """A script that starts ``one`` on each host; HOST in it is 0 and 1. A batch system has given it these hosts."""
    (scene.folder / "nodes").write_text("node-a\nnode-b\n")
    (scene.folder / "job.sh").write_text(
        f"#!/bin/sh\n{scene.net.agent} node-b 'HOST=1; {one}' &\nHOST=0; {one}\nours=$?\nwait $! && exit $ours\n"
    )
    return ["sh", str(scene.folder / "job.sh")]


#: What gloo needs here.
GLOO = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}


def torchrun(scene: Scene) -> list[str]:
    """That of one host; they meet by a rendezvous."""
    words = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-id", "7"]
    python = [str(scene.settings.torch), "-m", "torch.distributed.run"]
    return [*python, *words, "--rdzv-endpoint", "node-a:29500", *scene.rank("gloo", 300)]


def run_torchrun(scene: Scene) -> dict[str, Any]:
    """One on each host, which a script starts."""
    more = {"PBS_NODEFILE": str(scene.folder / "nodes"), **GLOO}
    return _names_the_slow(scene.ended(scene.start(*script(scene, " ".join(torchrun(scene))), **more)))


def run_torchrun_under_mpirun(scene: Scene) -> dict[str, Any]:
    """One on each host, which mpirun starts."""
    words = ["mpirun", "--bind-to", "none", "--prtemca", "plm_ssh_agent", scene.net.agent, "--host", "node-a,node-b"]
    return _names_the_slow(scene.ended(scene.start(*words, "--map-by", "ppr:1:node", *torchrun(scene), **GLOO)))


def run_each(scene: Scene) -> dict[str, Any]:
    """A ``hindmost run`` on each host, and one report of both: each recording has the ranks of its host."""
    runs = [scene.folder / f"run-{host}" for host in HOSTS]
    options = ["run", "--job-id", "hosts", "--out"]
    started = [
        scene.popen([scene.net.on(host), *HINDMOST, *options, str(run), "--", *torchrun(scene)], **GLOO)
        for host, run in zip(HOSTS, runs, strict=True)
    ]
    for one in started:
        one.communicate(timeout=PATIENCE_S)
    exits = [one.returncode for one in started]
    alone = [_in_words(json.loads((run / "report.json").read_text())) for run in runs]
    assert [(one["nodes"], one["ranks"]) for one in alone] == [(1, 2), (1, 2)], alone
    both = scene.popen([*HINDMOST, "report", *map(str, runs), "--format", "json"]).communicate()[0]
    found = {"exit": max(exits), **_in_words(json.loads(both)), "steps": {"marked": sum(scene.marked().values())}}
    assert (found["exit"], found["nodes"], found["ranks"]) == (0, 2, RANKS), found
    assert str(SLOW_RANK) in found["verdict"].split(" ")[-1].split(","), found
    return found


def run_horovodrun(scene: Scene) -> dict[str, Any]:
    """It starts its ranks through ssh, and agents read the token from the run directory."""
    (scene.folder / "ssh").symlink_to(scene.net.agent)
    python = scene.settings.torch
    command = [str(python.with_name("horovodrun")), "--gloo", "-np", str(RANKS), "-H", "node-a:2,node-b:2"]
    command += ["--network-interfaces", "eth0", str(python), *scene.rank("horovod", 300)]
    return _names_the_slow(scene.ended(scene.start(*command, OMP_NUM_THREADS="1")))


def run_script(scene: Scene) -> dict[str, Any]:
    """Ranks that do not meet, so that the network of the agents is what is tested."""
    one = "for i in 0 1; do RANK=$((HOST * 2 + i)) LOCAL_RANK=$i WORLD_SIZE=4 "
    one += f"{sys.executable} {' '.join(scene.rank('none', 300))} & done; wait"
    return _sees_all(scene.ended(scene.start(*script(scene, one), PBS_NODEFILE=str(scene.folder / "nodes"))))


# Faults of a job


def cut(scene: Scene, seconds: float = 60.0) -> dict[str, Any]:
    """Neither the job nor hindmost reaches host b."""
    job = scene.start(*open_mpi(scene, 500))
    scene.until_step(150)
    scene.net.cut()
    time.sleep(seconds)
    scene.net.cut(False)
    return _sees_all(scene.ended(job))


def slow_link(scene: Scene) -> dict[str, Any]:
    """The job and hindmost share what host b can send."""
    scene.net.slow("2mbit")
    return _sees_all(scene.ended(scene.start(*open_mpi(scene, 300))))


def node_lost(scene: Scene) -> dict[str, Any]:
    """All of host b is gone at once, and silent."""
    job = scene.start(*open_mpi(scene, 3000))
    scene.until_step(200)
    scene.net.kill("b")
    found = scene.ended(job)
    assert "node-b was last heard" in found["ended"], found
    assert found["nodes"] == len(HOSTS), found
    return _says_what_is_missing(found)


def time_limit(scene: Scene, grace_s: float) -> dict[str, Any]:
    """As Slurm: SIGTERM to all processes of the job on each host, after a grace SIGKILL."""
    job = scene.start(*open_mpi(scene, 3000))
    scene.until_step(200)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for host in HOSTS:
            for pid in scene.net.processes(host):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        deadline = time.monotonic() + (grace_s if number == signal.SIGTERM else 0)
        while time.monotonic() < deadline and any(map(scene.net.processes, HOSTS)):
            time.sleep(0.05)
    found = scene.ended(job)
    assert found["ranks"] == RANKS or found["steps"]["stored"] == 0 or not (scene.run / "report.json").exists(), found
    if not found["ranks"] or any(PRELIMINARY in note for note in found["notes"]):  # all were killed before
        found = {**found, **_in_words(scene.report())}
    return _says_what_is_missing(found)


def _says_what_is_missing(found: dict[str, Any]) -> dict[str, Any]:
    """All ranks are in the report, nothing is stored twice, and a note is there where not every step is stored."""
    steps = found["steps"]
    assert (found["ranks"], found["left"], steps["twice"]) == (RANKS, 0, 0), found
    assert 0 < steps["stored"] <= steps["marked"], found
    assert steps["stored"] == steps["marked"] or any("missing" in note for note in found["notes"]), found
    return found


# Faults on the way of a service's agent


def collector(scene: Scene, where: str, *options: str) -> subprocess.Popen[str]:
    """A collector, or with ``--relay-to`` a relay, on host a. Raises ``AssertionError`` where it does not start."""
    token = scene.folder / "token"
    if not token.exists():
        write_private(token, "0123456789abcdef0123\n")
    words = ["collector", "--listen", where, "--token-file", str(token), "--http", "127.0.0.1:0", *options]
    process = scene.popen([scene.net.on("a"), "sh", "-c", 'exec "$@"', "sh", *HINDMOST, *words])
    assert process.stdout is not None
    said = ""
    while '"grpc"' not in (line := process.stdout.readline()):
        said += line
        assert line, f"the collector did not start: {said}"
    return process


def _served(scene: Scene, address: str, break_it: Callable[[], subprocess.Popen[str]]) -> dict[str, Any]:
    """Four ranks on host b and a service's agent; ``break_it`` returns the collector that is there in the end."""
    rings = scene.folder / "rings"
    rings.mkdir(mode=0o700)
    words = ["--collector", address, "--token-file", str(scene.folder / "token"), "--job-id", "hosts"]
    words += ["--ring-dir", str(rings), "--spool", str(scene.folder / "spool")]
    agent = scene.popen([scene.net.on("b"), *HINDMOST, "agent", *words])
    environ = {"HINDMOST_JOB_ID": "hosts", "HINDMOST_RING_DIR": str(rings), "WORLD_SIZE": str(RANKS)}
    environ["PYTHONPATH"] = packages(probe=True)
    ranks = []
    for rank in range(RANKS):
        own = {**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(scene.popen([scene.net.on("b"), sys.executable, *scene.rank("none", 2500)], **own))
    scene.until_step(200)
    last = break_it()
    for one in ranks:
        one.communicate(timeout=PATIENCE_S)
    said, _ = agent.communicate(timeout=PATIENCE_S)
    last.send_signal(signal.SIGTERM)
    last.communicate(timeout=PATIENCE_S)
    for one in scene.daemons:  # a relay serves until it is stopped
        one.terminate()
        one.wait(PATIENCE_S)
    account = json.loads(said.splitlines()[-1])["samples"]
    found = {"exit": agent.returncode, **scene.stored(), "account": account}
    steps = found["steps"]
    assert steps["marked"] == steps["stored"], found
    assert (steps["twice"], found["dropped"], found["left"], account["kept"]) == (0, 0, 0, 0), found
    assert account["produced"] == account["delivered"], found
    return found


def collector_moved(scene: Scene) -> dict[str, Any]:
    """It is killed, and starts with its store at another address; the name that agents have leads there."""
    first = collector(scene, "10.213.11.1:9460", "--out", str(scene.run), "--job-id", "hosts")
    hosts = scene.folder / "hosts-b"
    usual = hosts.read_text()
    hosts.write_text(usual + "10.213.11.1 collector\n")

    def move() -> subprocess.Popen[str]:
        first.kill()
        first.communicate()
        sh(f"{scene.net.on('a')} ip addr add 10.213.11.9/24 dev eth0")
        time.sleep(10)
        hosts.write_text(usual + "10.213.11.9 collector\n")  # the same file: it is mounted
        return collector(scene, "10.213.11.9:9460", "--out", str(scene.run), "--job-id", "hosts")

    return _served(scene, "collector:9460", move)


def relay_killed(scene: Scene) -> dict[str, Any]:
    """It is killed while agents send, and started again."""
    last = collector(scene, "127.0.0.1:9460", "--out", str(scene.run), "--job-id", "hosts")
    relay = ("10.213.11.1:9461", "--relay-to", "127.0.0.1:9460")
    first = collector(scene, *relay)

    def kill() -> subprocess.Popen[str]:
        first.kill()
        first.communicate()
        time.sleep(5)
        collector(scene, *relay)
        return last

    return _served(scene, "10.213.11.1:9461", kill)


@dataclass(frozen=True)
class Case:
    """A scenario, its network, and what it needs of the machine."""

    what: str
    play: Callable[[Scene], dict[str, Any]]
    kind: str = "v4"
    shared: bool = False
    needs: tuple[str, ...] = ()


def cases(settings: Settings) -> dict[str, Case]:
    """Every scenario by its name."""
    torch, horovodrun = (str(settings.torch),), str(settings.torch.with_name("horovodrun"))
    return {
        "openmpi5": Case("mpirun of Open MPI 5", run_open_mpi_5, needs=("mpirun",)),
        "openmpi4": Case("mpirun of Open MPI 4", run_open_mpi_4, needs=(DEBIAN_MPI, DEBIAN_LIBMPI)),
        "mpich": Case("mpirun of MPICH", run_mpich, needs=(str(settings.mpich / "bin/mpirun"),)),
        "torchrun": Case("torchrun, rendezvous c10d", run_torchrun, needs=torch),
        "torchrun2": Case("torchrun on each host by mpirun", run_torchrun_under_mpirun, needs=("mpirun", *torch)),
        "each": Case("hindmost run on each host, one report", run_each, needs=torch),
        "horovodrun": Case("horovodrun over gloo, one disk", run_horovodrun, shared=True, needs=(horovodrun,)),
        "ipv6": Case("IPv6 alone", run_script, kind="v6"),
        "two": Case("hosts meet on the second interface", run_script, kind="two"),
        "nat": Case("a host behind a router that masquerades", run_script, kind="nat", needs=("nft",)),
        "fast": Case("a clock one hour fast", run_open_mpi_5, kind="fast", needs=("mpirun", FAKETIME)),
        "late": Case("a clock one hour late", run_open_mpi_5, kind="late", needs=("mpirun", FAKETIME)),
        "cut": Case("network cut for 60 s", cut, needs=("mpirun",)),
        "slow": Case("link of 2 Mbit/s", slow_link, needs=("mpirun", "tc")),
        "lost": Case("host lost", node_lost, needs=("mpirun",)),
        "limit": Case("SIGTERM, after 30 s SIGKILL", partial(time_limit, grace_s=30.0), needs=("mpirun",)),
        "limit2": Case("SIGTERM, after 2 s SIGKILL", partial(time_limit, grace_s=2.0), needs=("mpirun",)),
        "moved": Case("collector killed, moved to another address", collector_moved),
        "relay": Case("relay killed, started again", relay_killed),
    }


def play(case: Case, folder: Path, settings: Settings) -> dict[str, Any]:
    """What a scenario ended in; ``why`` says what is wrong with it, or what it lacks."""
    if lacks := missing(case.needs):
        return {"passed": None, "why": f"needs {', '.join(lacks)}"}
    scene = Scene(folder, settings, case.kind, case.shared)
    try:
        return {"passed": True, **case.play(scene)}
    except AssertionError as error:
        said = folder / "said.log"
        return {"passed": False, "why": str(error), "said": said.read_text()[-2000:] if said.exists() else ""}
    finally:
        scene.close()
