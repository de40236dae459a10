"""The collector's settings: one table from which flags, environment and TOML file are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hindmost.errors import UsageError
from hindmost_proto.address import parse

GRPC_PORT, HTTP_PORT = 9460, 9461


def _setting(default: Any, meaning: str, form: str = "", choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"meaning": meaning, "form": form, "choices": choices})


@dataclass(frozen=True)
class Options:
    """Everything that can be set: a field is a key of the TOML file, in capitals after ``HINDMOST_COLLECTOR_`` a
    variable of the environment, and with dashes a flag.
    """

    listen: str = _setting(f"127.0.0.1:{GRPC_PORT}", "agents connect here", "HOST:PORT")
    # empty: none for a run that is held, the default port for a service
    http: str = _setting(
        "", f"serve the page and /metrics here, or `none` (default: 127.0.0.1:{HTTP_PORT})", "HOST:PORT"
    )
    out: str = _setting("", "record one job in this run directory", "RUN_DIR")
    store: str = _setting("", "record all jobs in this directory or database URL", "URL")
    job_id: str = _setting("", "the job of --out and --command", "ID")
    command: str = _setting("", "command line of the job, for reports", "TEXT")
    launcher: str = _setting("", "launcher of the job, for reports", "NAME")
    exit_when_stdin_closes: bool = _setting(default=False, meaning="exit when stdin closes")
    flush_seconds: float = _setting(0.0, "time between writes to the store (default: 1 with --out, else 10)", "SECONDS")
    memory_mib: int = _setting(256, "memory for rows; above it, node samples are dropped", "MIB")
    judge_seconds: float = _setting(1.5, "time between evaluations of a running job", "SECONDS")
    retention_days: float = _setting(0.0, "delete recordings older than this (default: never)", "DAYS")
    retention_gib: float = _setting(0.0, "delete the oldest recordings above this size (default: never)", "GIB")
    remote_write: str = _setting("", "also send metrics to this Prometheus remote-write URL", "URL")
    relay_to: str = _setting("", "be a relay: forward all agents to this collector", "HOST:PORT")
    log_format: str = _setting("text", "format of the log on stderr", choices=("text", "json"))

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Where to serve the page and metrics; None for nowhere."""
        if self.http == "none" or (self.exit_when_stdin_closes and not self.http):
            return None
        return address(self.http or f"127.0.0.1:{HTTP_PORT}", "--http")

    @property
    def flush_period(self) -> float:
        """Seconds between flushes: one where a run is watched by the person who started it, ten in a service."""
        return self.flush_seconds or (1.0 if self.out else 10.0)

    @property
    def ack_ns(self) -> int:
        """How long an acknowledgement may wait for another message to an agent to go with."""
        return int(min(10 * self.flush_period, 15.0) * 1e9)


def address(text: str, what: str) -> tuple[str, int]:
    """``HOST:PORT``, ``:PORT`` or ``[V6]:PORT`` as ``(host, port)``. Raises UsageError."""
    found = parse(text)
    if found is None:
        raise UsageError(f"{what} {text!r} is not HOST:PORT, for example 127.0.0.1:{GRPC_PORT}")
    return found.host or "0.0.0.0", found.port  # noqa: S104 - asked for by leaving the host out
