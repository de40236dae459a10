"""What a collector is told: flags over environment over a TOML file over defaults, checked before anything starts."""

from __future__ import annotations

import contextlib
import importlib
import math
import re
import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from hindmost.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GRPC_PORT, HTTP_PORT = 9460, 9461
#: What Kubernetes puts into every container beside a Service named hindmost-collector, after the prefix: no settings.
_OF_A_SERVICE = re.compile(r"service_host|service_port(_\w+)?|port_\d+_(tcp|udp|sctp)(_(proto|port|addr))?")


@dataclass(frozen=True)
class Options:
    """Everything that can be set; field names are the keys of the TOML file and, in capitals after
    ``HINDMOST_COLLECTOR_``, of the environment.
    """

    listen: str = f"127.0.0.1:{GRPC_PORT}"
    http: str = ""  # empty: none for a run that is held, the default port for a service
    out: str = ""
    store: str = ""
    job_id: str = ""
    command: str = ""
    launcher: str = ""
    hold: bool = False
    flush_seconds: float = 0.0
    memory_mib: int = 256
    judge_seconds: float = 2.0
    retention_days: float = 0.0
    retention_gib: float = 0.0
    remote_write: str = ""
    relay_to: str = ""
    log_format: str = "text"

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Where to serve the page and metrics; None for nowhere."""
        if self.http == "none" or (self.hold and not self.http):
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
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{what} {text!r} is not HOST:PORT, for example 127.0.0.1:{GRPC_PORT}")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - asked for by leaving the host out


def resolve(flags: Mapping[str, Any], environ: Mapping[str, str], config: Path | None = None) -> Options:
    """Merge the four layers. Raises UsageError, naming the layer, for an unknown key or an impossible value."""
    values: dict[str, Any] = {}
    known = {field.name: field for field in fields(Options)}
    layers: list[tuple[str, Mapping[str, Any]]] = []
    if config is not None:
        layers.append((str(config), _read(config)))
    layers.append(("the environment", _from_environment(environ)))
    layers.append(("the command line", {k: v for k, v in flags.items() if v is not None}))
    for where, layer in layers:
        for key, value in layer.items():
            if key not in known:
                if where == "the command line":
                    continue
                raise UsageError(f"{where} sets {key!r}, which is no setting; settings are {', '.join(sorted(known))}")
            values[key] = _converted(key, value, type(known[key].default), where)
    options = Options(**values)
    _check(options)
    return options


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    prefix = "HINDMOST_COLLECTOR_"
    ours = {key.removeprefix(prefix).lower(): value for key, value in environ.items() if key.startswith(prefix)}
    if "://" in ours.get("port", ""):  # of a Service, too: tcp://ADDRESS:PORT
        del ours["port"]
    return {key: value for key, value in ours.items() if not _OF_A_SERVICE.fullmatch(key)}


def _read(path: Path) -> Mapping[str, Any]:
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        settings: Mapping[str, Any] = toml.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are
        raise UsageError(f"{path} is not TOML: {error}") from error
    return settings


def _converted(key: str, value: Any, kind: type, where: str) -> Any:
    if kind is bool and isinstance(value, str):
        if value.lower() in {"1", "true", "yes", "0", "false", "no", ""}:
            return value.lower() in {"1", "true", "yes"}
    elif (kind is bool and isinstance(value, bool)) or (kind is str and isinstance(value, str)):
        return value
    elif kind in {int, float} and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            number = kind(value)
            if math.isfinite(number) and (not isinstance(value, float) or number == value):
                return number
    raise UsageError(f"{where} sets {key} to {value!r}, which is {_WANTED[kind]}")


#: What a value of the wrong kind is told.
_WANTED = {
    bool: "neither true nor false",
    int: "no whole number",
    float: "no number",
    str: "no text: put it in quotes",
}


def _check(options: Options) -> None:
    address(options.listen, "--listen")
    _ = options.http_address  # raises when it is none
    if options.out and options.store:
        raise UsageError("--out and --store both say where to record: give one")
    if options.store.startswith("clickhouse://") and options.retention_gib:
        raise UsageError("retention_gib is for directories: bound a ClickHouse store by retention_days")
    if "://" in options.store and not options.store.startswith(("file://", "clickhouse://")):
        raise UsageError(f"--store {options.store!r}: give a directory, or clickhouse://HOST:PORT/DATABASE")
    if "://" in options.out:
        raise UsageError(f"--out {options.out!r}: give a directory; a URL goes with --store")
    if options.remote_write:
        from hindmost_collector.remote_write_http import Receiver  # noqa: PLC0415 - where used

        Receiver(options.remote_write)  # raises when it is none
    _check_relay(options)
    if not 16 <= options.memory_mib <= 1 << 20:
        raise UsageError(f"memory_mib is {options.memory_mib}: between 16 and {1 << 20}")
    if options.log_format not in {"text", "json"}:
        raise UsageError(f"log_format is {options.log_format!r}: text or json")
    for name in ("retention_days", "retention_gib"):
        if getattr(options, name) < 0:
            raise UsageError(f"{name} is {getattr(options, name)}: zero for no limit, or more")
    for name in ("flush_seconds", "judge_seconds"):
        if not 0 <= getattr(options, name) <= 3600:
            raise UsageError(f"{name} is {getattr(options, name)}: between 0 and 3600")


def _check_relay(options: Options) -> None:
    if not options.relay_to:
        return
    for target in options.relay_to.split(","):
        if not address(target.strip(), "--relay-to")[1]:
            raise UsageError(f"--relay-to {target!r}: port 0 is nobody's")
    for name in ("out", "store", "job_id", "hold", "remote_write"):
        if getattr(options, name):
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is for the collector: a relay (--relay-to) stores and judges nothing")
