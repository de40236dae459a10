"""From flags over environment over a TOML file over defaults to options, checked before anything starts."""

from __future__ import annotations

import contextlib
import importlib
import math
import re
import sys
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from hindmost.errors import UsageError

from hindmost_collector.options import Options, address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    #: A setting's name as the user wrote it.
    Named = Callable[[str], str]

PREFIX = "HINDMOST_COLLECTOR_"
#: The table of the TOML file that holds thresholds.
JUDGE = "judge"
#: Variables that Kubernetes sets in every container for a Service named hindmost-collector, after the prefix: not
#: settings.
_OF_A_SERVICE = re.compile(r"service_host|service_port(_\w+)?|port_\d+_(tcp|udp|sctp)(_(proto|port|addr))?")
#: The message for a value of the wrong type.
_WANTED = {
    bool: "neither true nor false",
    int: "not a whole number",
    float: "not a number",
    str: "not text: put it in quotes",
}


def flag(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


@dataclass(frozen=True)
class _Layer:
    """Settings from one place, and how their names are written there."""

    values: Mapping[str, Any]
    named: Named


def resolve(flags: Mapping[str, Any], environ: Mapping[str, str], config: Path | None = None) -> Options:
    """Merge the four layers. Raises UsageError for an unknown key or an impossible value, named as it was written.

    ``flags`` has None where a flag was not given.
    """
    known = {field.name: type(field.default) for field in fields(Options)}
    layers = [
        _Layer(_settings(config) if config else {}, lambda name: f"{config}: {name}"),
        _Layer(_from_environment(environ), variable),
        _Layer({name: value for name, value in flags.items() if value is not None}, flag),
    ]
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    for layer in layers:
        for name, value in layer.values.items():
            if name not in known:
                raise UsageError(f"{layer.named(name)} is not a setting; settings are {', '.join(sorted(known))}")
            written[name] = layer.named(name)
            values[name] = converted(written[name], value, known[name])
    options = Options(**values)
    _check(options, lambda name: written.get(name, flag(name)))
    return options


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    ours = {key.removeprefix(PREFIX).lower(): value for key, value in environ.items() if key.startswith(PREFIX)}
    if "://" in ours.get("port", ""):  # of a Service, too: tcp://ADDRESS:PORT
        del ours["port"]
    return {key: value for key, value in ours.items() if not _OF_A_SERVICE.fullmatch(key)}


def _settings(config: Path) -> Mapping[str, Any]:
    """What a TOML file sets of the collector itself: tables are others' (``thresholds``)."""
    return {name: value for name, value in read(config).items() if name != JUDGE}


def read(path: Path) -> Mapping[str, Any]:
    """What a TOML file holds. Raises UsageError."""
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        settings: Mapping[str, Any] = toml.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are
        raise UsageError(f"{path} is not TOML: {error}") from error
    return settings


def converted(written: str, value: Any, kind: type) -> Any:
    """A value as the kind that a setting has. Raises UsageError that names it as it was ``written``."""
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
    raise UsageError(f"{written} is {value!r}, which is {_WANTED[kind]}")


def _check(options: Options, named: Named) -> None:
    address(options.listen, named("listen"))
    if options.http not in {"", "none"}:
        address(options.http, named("http"))
    _check_store(options, named)
    if options.remote_write:
        from hindmost_collector.store.remote_write.http import Receiver  # noqa: PLC0415 - where used

        Receiver(options.remote_write, named("remote_write"))  # raises when it is none
    _check_relay(options, named)
    for field in fields(Options):
        choices = field.metadata["choices"]
        if choices and getattr(options, field.name) not in choices:
            raise UsageError(f"{named(field.name)} is {getattr(options, field.name)!r}: {' or '.join(choices)}")
    if not 16 <= options.memory_mib <= 1 << 20:
        raise UsageError(f"{named('memory_mib')} is {options.memory_mib}: between 16 and {1 << 20}")
    for name in ("retention_days", "retention_gib"):
        if getattr(options, name) < 0:
            raise UsageError(f"{named(name)} is {getattr(options, name)}: zero for no limit, or more")
    for name in ("flush_seconds", "judge_seconds"):
        if not 0 <= getattr(options, name) <= 3600:
            raise UsageError(f"{named(name)} is {getattr(options, name)}: between 0 and 3600")


def _check_store(options: Options, named: Named) -> None:
    if options.out and options.store:
        raise UsageError(f"{named('out')} and {named('store')} both say where to record: give one")
    if options.store.startswith("clickhouse://") and options.retention_gib:
        said = f"{named('retention_gib')} is for directories"
        raise UsageError(f"{said}: bound a ClickHouse store by {named('retention_days')}")
    if "://" in options.store and not options.store.startswith(("file://", "clickhouse://")):
        raise UsageError(f"{named('store')} {options.store!r}: give a directory, or clickhouse://HOST:PORT/DATABASE")
    if "://" in options.out:
        raise UsageError(f"{named('out')} {options.out!r}: give a directory; a URL goes with {named('store')}")


def _check_relay(options: Options, named: Named) -> None:
    if not options.relay_to:
        return
    for target in options.relay_to.split(","):
        if not address(target.strip(), named("relay_to"))[1]:
            raise UsageError(f"{named('relay_to')} {target!r}: port 0 is not valid")
    for name in ("out", "store", "job_id", "exit_when_stdin_closes", "remote_write"):
        if getattr(options, name):
            raise UsageError(f"{named(name)} is for the collector: a relay (--relay-to) stores and judges nothing")
