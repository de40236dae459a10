"""The settings of an agent, checked before anything else happens."""

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hindmost.credentials import PAGE, Client, is_loopback
from hindmost.errors import UsageError
from hindmost.web_config import WebConfig
from hindmost_proto.address import Address, parse

UNITS = {
    "": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
    "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0}
SMALLEST_SPOOL = 1 << 20
#: Of a folder, bytes.
LONGEST_NAME = 255
SHORTEST_S, LONGEST_S = 0.02, 60.0


@dataclass(frozen=True)
class Settings:
    """An agent's settings, valid by construction of :func:`settings`.

    With ``ring_dir`` the agent belongs to one job and leaves with it; without, it serves the node until it is stopped.
    """

    collector: Address | None
    listen: Address | None
    job_id: str
    ring_dir: Path | None
    spool: Path | None
    spool_bytes: int
    interval_ns: int
    exit_when_stdin_closes: bool
    node: str
    client: Client = field(default_factory=Client)
    web: WebConfig | None = None
    #: Whether ``listen`` is open to the network, to everyone, as ``--insecure`` permits.
    insecure: bool = False


def settings(
    collector: str | None = None,
    listen: str | None = None,
    job_id: str = "",
    ring_dir: str | None = None,
    spool: str | None = None,
    spool_size: str = "256MiB",
    interval: str = "1s",
    *,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_ca: str | None = None,
    token_file: str | None = None,
    web_config: str | None = None,
    insecure: bool = False,
    exit_when_stdin_closes: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Check what was given on the command line. Raises ``UsageError`` with one line that names what is wrong."""
    env = os.environ if environ is None else environ
    if collector is None and listen is None:
        raise UsageError("nothing to do: give --collector HOST:PORT, --listen [HOST]:PORT, or both")
    if spool and collector is None:
        raise UsageError(f"--spool {spool}: the spool needs a collector; give --collector HOST:PORT too")
    seconds = duration("--interval", interval)
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise UsageError(f"--interval {interval}: must be from {SHORTEST_S * 1e3:.0f}ms to {LONGEST_S:.0f}s")
    size = byte_size("--spool-size", spool_size)
    if size < SMALLEST_SPOOL:
        raise UsageError(f"--spool-size {spool_size}: must be at least 1MiB")
    node = os.uname().nodename
    proofs = {"cert": tls_cert, "key": tls_key, "ca": tls_ca, "token_file": token_file}
    where = address("--listen", listen) if listen is not None else None
    web = WebConfig(web_config, "--web-config") if web_config else None
    protects = web is not None and web.protects
    is_open = where is not None and not protects and not is_loopback(where.host)
    if is_open and not insecure:
        remedy = "basic_auth_users or client_ca_file in --web-config" if web else "--web-config FILE"
        raise UsageError(
            f"--listen {listen}: the network reaches it: give {remedy} ({PAGE}), listen on 127.0.0.1, or"
            " permit it with --insecure"
        )
    to = address("--collector", collector, needs_host=True) if collector is not None else None
    return Settings(
        collector=to,
        listen=where,
        job_id=job_id,
        ring_dir=_ring_dir(ring_dir, job_id),
        spool=Path(spool) if spool else default_spool(job_id, node, to.port, env) if to is not None else None,
        spool_bytes=size,
        interval_ns=int(seconds * 1e9),
        exit_when_stdin_closes=exit_when_stdin_closes,
        node=node,
        client=Client.of(proofs, env) if collector is not None else Client(),
        web=web,
        insecure=is_open,
    )


def address(option: str, text: str, *, needs_host: bool = False) -> Address:
    """``HOST:PORT``, ``[IPV6]:PORT`` or, unless a host is needed, ``:PORT``."""
    found = parse(text)
    if found is None or (needs_host and not found.host):
        form = "HOST:PORT" if needs_host else "[HOST]:PORT"
        raise UsageError(f"{option} {text}: not an address; write {form}, for example {'node1' * needs_host}:9400")
    return found


def duration(option: str, text: str) -> float:
    """Seconds in ``500ms``, ``1s``, ``1.5``, ``2min``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|min|)", text.strip())
    if not match:
        raise UsageError(f"{option} {text}: not a duration; write for example 1s or 100ms")
    return float(match[1]) * SECONDS[match[2]]


def byte_size(option: str, text: str) -> int:
    """Bytes in ``256MiB``, ``1GB``, ``1048576``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]iB|[kMGT]B|B|)", text.strip())
    if not match:
        raise UsageError(f"{option} {text}: not a size; write for example 256MiB")
    return int(float(match[1]) * UNITS[match[2]])


def default_spool(job_id: str, node: str, port: int, environ: Mapping[str, str]) -> Path:
    """Where a spool goes by default: with the system's state for a service, below the temporary folder for a job.

    A job that runs again with the same id, as one that Slurm requeues, has a collector with another ``port``: what its
    first run left is not of the second.
    """
    if job_id:
        base = Path(environ.get("TMPDIR") or tempfile.gettempdir()) / f"hindmost-{os.getuid()}"
        return base / "spool" / re.sub(r"[^\w.-]", "_", f"{job_id}.{node}.{port}")
    if os.getuid() == 0:
        return Path(environ.get("STATE_DIRECTORY") or "/var/lib/hindmost") / "spool"
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "hindmost" / "spool"


def _ring_dir(ring_dir: str | None, job_id: str) -> Path | None:
    if ring_dir is not None:
        path = Path(ring_dir)
        if path.exists() and not path.is_dir():
            raise UsageError(f"--ring-dir {ring_dir}: is not a folder")
        return path
    if "/" in job_id or job_id in (".", "..") or not job_id.isprintable() or len(job_id.encode()) > LONGEST_NAME:
        raise UsageError(f"--job-id {job_id[:LONGEST_NAME]!r}: cannot name a folder; give --ring-dir DIR too")
    return Path("/dev/shm") / f"hindmost-{os.getuid()}" / job_id if job_id else None  # noqa: S108 - where rings live
