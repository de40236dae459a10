"""What a run starts with: its id, folders and addresses, and the environment in which its processes find the probe.

Nothing in the user's environment is overwritten: ours goes in front.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import hindmost
from hindmost import credentials
from hindmost.errors import HindmostError, UsageError
from hindmost.native import build
from hindmost.ring import layout
from hindmost_judge.job_command import isolating_option, isolation_remedy, script
from hindmost_proto.address import parse

from hindmost_cli.pki import CERTIFICATE, KEY, ephemeral

#: A job id is a label, a file name and 63 bytes in a ring's header.
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

#: What a run directory must have room for before it is worth starting to write there, bytes.
ROOM = 1 << 20
#: What a rank's ring takes of shared memory, bytes.
RING_BYTES = layout.RECORDS_OFFSET + layout.DEFAULT_CAPACITY * layout.RECORD_BYTES

#: What the names of scripts and programs end in.
_ENDING = re.compile(r"\.(py|sh|out|exe|bin|x)$")

_PROOF = re.compile(r"HINDMOST_(TLS_|TOKEN|FINGERPRINT)")

LOOPBACK = "127.0.0.1"


def job_id(asked: str | None, argv: Sequence[str], environ: Mapping[str, str], now: float | None = None) -> str:
    """The id asked for, or one that names the batch job or the script, and the time.

    Raises ``UsageError`` where the one asked for cannot be a label and a file name.
    """
    if asked is not None:
        if not JOB_ID.fullmatch(asked):
            raise UsageError(
                f"--job-id {asked!r}: use 1 to 63 letters, digits, '.', '_' or '-'; start with a letter or digit"
            )
        return asked
    batch = next((environ[name] for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID") if environ.get(name)), None)
    called = batch or _ENDING.sub("", Path(script(argv) or argv[0]).name)
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", called).strip("-_")[:32] or "job"
    when = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stem}-{when}-{secrets.token_hex(2)}"


def without_credentials(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what agents prove to another collector: a cluster's task prolog sets it for all jobs."""
    return {name: value for name, value in environ.items() if not _PROOF.match(name)}


def run_directory(asked: Path | None, job: str) -> tuple[Path, str | None]:
    """The directory of this run, made, absolute and writable; and a sentence where it is not the one asked for.

    A directory that holds something else gets a new one inside. One that cannot be written, is full, or contains
    another run must not lose this one: it goes to the temporary directory instead. ``HindmostError`` where that fails
    too.
    """
    wanted, moved = asked or Path("hindmost-runs") / job, None
    try:
        if asked is not None and _holds_others(asked):
            wanted = asked / job
            moved = f"{asked}: contains other files; recording into {wanted}"
        return _claimed(wanted.absolute()), moved
    except OSError as error:
        why = f"{wanted}: {error.strerror or error}"
    try:
        instead = Path(tempfile.gettempdir(), f"hindmost-{job}-{secrets.token_hex(4)}")
        return _claimed(instead), f"{why}; recording into {instead}"
    except OSError as error:
        raise HindmostError(f"{why}; {tempfile.tempdir or 'TMPDIR'}: {error.strerror or error}") from None


def ring_directory(job: str, shared_memory: Path = Path("/dev/shm")) -> Path:  # noqa: S108 - it is made for us alone
    """``/dev/shm/hindmost-UID/JOB``, made and ours alone: alike on all nodes.

    Raises ``HindmostError`` where another user made it, or it cannot be made.
    """
    parent = shared_memory / f"hindmost-{os.getuid()}"
    directory = parent / job
    try:
        for path in (parent, directory):
            path.mkdir(mode=0o700, exist_ok=True)
            owner = path.lstat().st_uid
            if owner != os.getuid():
                raise HindmostError(
                    f"{path} belongs to user {owner}; agents read rings only from directories of their own user"
                )
    except OSError as error:
        raise HindmostError(f"cannot make {directory} for the rings: {error.strerror}") from error
    return directory


def no_room_for_a_ring(directory: Path) -> str | None:
    """A sentence that says why no rank on this node can make its ring; ``None`` where there is room for one."""
    try:
        _try_room(directory / ".room", RING_BYTES)
    except OSError as error:
        return f"no ring can be made in {directory} ({error.strerror or error})"
    return None


def remove_rings(directory: Path) -> None:
    """Remove what the agent of this node left, and the user's directory once it is empty."""
    with contextlib.suppress(OSError):  # another job's rings may be in it
        for left in directory.iterdir():
            left.unlink()
        directory.rmdir()
        directory.parent.rmdir()


def address(remote_hosts: Sequence[str]) -> str:
    """The address agents reach us at: loopback, or, for remote hosts, ours on the way to the first that resolves."""
    for host in remote_hosts:
        for family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((host, 9))  # a datagram socket: chooses the route and sends nothing
                found = ipaddress.ip_address(probe.getsockname()[0])
                if not (found.is_loopback or found.is_link_local):
                    return str(found)
    return LOOPBACK


def must_be_free(listen: str) -> None:
    """``HindmostError`` where ``HOST:PORT`` cannot be bound: it is in use, or not an address of this machine."""
    where = parse(listen)
    if where is None:
        raise HindmostError(f"--listen {listen}: write HOST:PORT")
    try:
        socket.create_server(where).close()
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else "no such host"
        raise HindmostError(f"--listen {listen}: {why}; name another port, or leave it out for a free one") from error


def _holds_others(directory: Path) -> bool:
    """Whether it has files that are of no run, which a run's could replace."""
    if not directory.is_dir() or (directory / "meta.json").exists() or (directory / "segments").exists():
        return False
    return any(path.name != "logs" for path in directory.iterdir())


def _claimed(directory: Path) -> Path:
    """``directory``, made, with a ``logs`` folder in it. ``OSError`` where it is of no use; where it is full, what was
    made is removed."""
    logs = directory / "logs"
    new = [path for path in (logs, *logs.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    owner = directory.stat().st_uid
    if os.geteuid() not in (owner, 0):
        raise OSError(f"belongs to user {owner}")
    if (directory / "meta.json").exists() or (directory / "segments").exists():
        raise OSError("contains a run")
    try:
        logs.mkdir(exist_ok=True)
        _try_room(logs / ".room", ROOM)
    except OSError:
        with contextlib.suppress(OSError):
            for path in new:
                path.rmdir()
        raise
    return directory


def _try_room(trial: Path, size: int) -> None:
    """Make a file of ``size`` bytes and remove it. ``OSError`` where that cannot be."""
    try:
        with trial.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()


@dataclass(frozen=True)
class Proof:
    """What the agents of a run and its collector prove to each other. ``folder`` holds the secret, and the certificate
    where there is one; ``token`` is the job's, ``reads`` opens its page, ``fingerprint`` is the certificate's.
    """

    folder: Path
    token: str
    reads: str
    fingerprint: str = ""

    @property
    def collector_options(self) -> list[str]:
        """Options of the collector; no secret is in them."""
        found = ["--token-file", str(self.folder / "secret")]
        if self.fingerprint:
            found += ["--tls-cert", str(self.folder / CERTIFICATE), "--tls-key", str(self.folder / KEY)]
        return found

    def variables(self, *, elsewhere: bool) -> dict[str, str]:
        """What agents find it by. Those ``elsewhere`` get the token itself: the run directory may not be there."""
        found = {"HINDMOST_TOKEN_FILE": str(self.folder / "token")}
        if self.fingerprint:
            found["HINDMOST_FINGERPRINT"] = self.fingerprint
        return found | ({"HINDMOST_TOKEN": self.token} if elsewhere else {})


def proof(directory: Path, job: str, *, encrypted: bool) -> tuple[Proof, str | None]:
    """A new secret in files of the run directory that the user alone may read; and a sentence where agents on other
    hosts cannot be ``encrypted``. Raises ``HindmostError``.
    """
    folder, secret = directory / "credentials", credentials.new_secret()
    token = credentials.job_token(secret, job)
    try:
        credentials.private_directory(folder)
        for name, text in (("secret", secret), ("token", token)):
            (folder / name).unlink(missing_ok=True)
            credentials.write_private(folder / name, text + "\n")
        fingerprint, note = "", None
        if encrypted:
            fingerprint, note = ephemeral(folder)
    except OSError as error:
        raise HindmostError(f"{folder}: {error.strerror or error}") from error
    return Proof(folder, token, credentials.job_token(secret, job, writes=False), fingerprint), note


#: What is lost without each of the C parts.
MISSING = {
    "pmpi": "MPI calls are timed from Python only",
    "nccl": "NCCL operations are not measured",
    "ring": "the probe's hooks run in Python, which slows steps more",
}

#: The value of NCCL_PROFILER_PLUGIN by which a user asks for none.
NO_PLUGIN = "none"

INJECT = Path(hindmost.__file__).parent / "inject"


def variables(
    environ: Mapping[str, str], *, job: str, rings: Path, collector: str, launcher: str, native: Mapping[str, Path]
) -> dict[str, str]:
    """The variables to set for the command, as docs/reference/environment.md lists them.

    ``native`` maps ``pmpi``, ``nccl`` and ``ring`` to built libraries; a missing one is not injected.
    """
    found = {
        "HINDMOST_JOB_ID": job,
        "HINDMOST_RING_DIR": str(rings),
        "HINDMOST_COLLECTOR": collector,
        "HINDMOST_PYTHON": sys.executable,
        "HINDMOST_LAUNCHER": launcher,
        "HINDMOST_INJECT": str(INJECT),
        "PYTHONPATH": in_front(str(INJECT), environ.get("PYTHONPATH", ""), ":"),
    }
    if "pmpi" in native:
        found["LD_PRELOAD"] = in_front(str(native["pmpi"]), environ.get("LD_PRELOAD", ""), ":")
    else:
        found["HINDMOST_MPI"] = "python"
    theirs = environ.get("NCCL_PROFILER_PLUGIN", "")
    if "nccl" in native and theirs.lower() != NO_PLUGIN:
        found["NCCL_PROFILER_PLUGIN"] = found["HINDMOST_NCCL_PLUGIN"] = str(native["nccl"])
        nested = theirs == environ.get("HINDMOST_NCCL_PLUGIN", str(native["nccl"]))
        if theirs and not nested:  # NCCL has one slot: ours passes every call on to theirs
            found["HINDMOST_NCCL_NEXT"] = theirs
    if "ring" in native:
        found["HINDMOST_RING_MODULE"] = str(native["ring"])
    # Of the pod of each rank only what all pods of the job have in common.
    shared = ("HINDMOST_POD_NAMESPACE", "HINDMOST_WORKLOAD", "HINDMOST_QUEUE")
    carried = ("HINDMOST_RING_CAPACITY", "HINDMOST_PROBE", "HINDMOST_NCCL_NEXT", *shared)
    return {name: environ[name] for name in carried if name in environ} | found


def in_front(ours: str, theirs: str, separator: str) -> str:
    """``ours``, then what the user had; nothing twice when ``hindmost run`` is nested."""
    rest = [part for part in theirs.split(separator) if part != ours] if theirs else []
    return separator.join([ours, *rest])


def native_libraries(
    kinds: Iterable[str], environ: Mapping[str, str], program: Path
) -> tuple[dict[str, Path], list[str]]:
    """The C parts that this job can use, built at first use; and a sentence for each reason why some are missing.

    ``program`` is the launcher: which MPI it belongs to decides what the shim wraps.
    """
    found: dict[str, Path] = {}
    lost: dict[str, list[str]] = {}
    for kind in kinds:
        try:
            found[kind] = build.library(kind, environ, program)
        except build.BuildError as error:  # noqa: PERF203 - three rounds
            lost.setdefault(str(error), []).append(MISSING[kind])
    notes = [f"{'; '.join(missing)}: {why}" for why, missing in lost.items()]
    theirs = environ.get("NCCL_PROFILER_PLUGIN", "")
    if "nccl" in found and theirs.lower() == NO_PLUGIN:
        notes.append(f"{MISSING['nccl']}: NCCL_PROFILER_PLUGIN={theirs}; unset it to have them measured")
    return found, notes


#: Runs in the job's own interpreter: whether the .pth file of an installed hindmost, or the shim, is at work in it.
ASK = """import sys
shim = 'sitecustomize' in sys.modules and 'sitecustomize' in sys.builtin_module_names
sys.exit(not shim and 'hindmost.bootstrap' not in sys.modules)"""


def kept_out(argv: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """A sentence where the command's own options keep the probe out; ``None`` where it comes in all the same.

    Runs that interpreter once, in the job's environment, and only where it is given such an option.
    """
    found = isolating_option(argv)
    if found is None:
        return None
    asked = {**environ, "HINDMOST_JOB_ID": "asked", "HINDMOST_PROBE": "0"}
    try:
        done = subprocess.run(
            [*found, "-c", ASK], env=asked, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):  # it is on another machine: unknown
        return isolation_remedy(*found)
    return isolation_remedy(*found) if done.returncode else None
