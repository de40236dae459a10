"""The collector's settings and the judge's thresholds: flags over environment over a TOML file over defaults.

One table makes flags, environment and TOML file; all is checked before anything starts.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import sys
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from hindmost.credentials import PAGE as SECURE
from hindmost.credentials import file_content, is_loopback
from hindmost.errors import UsageError
from hindmost_judge.settings import RENAMED, Settings
from hindmost_proto.address import parse
from hindmost_proto.exposition import JOB_LABEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from hindmost_proto.address import Address

    #: A setting's name as the user wrote it.
    Named = Callable[[str], str]

GRPC_PORT, HTTP_PORT = 9460, 9461
#: Series of `/metrics`, each level with those before it.
LEVELS = ("job", "node", "rank", "core")


def _setting(default: Any, meaning: str, form: str = "", choices: tuple[str, ...] = (), formerly: str = "") -> Any:
    """``formerly`` is the setting's name in 0.1: still accepted, and in no help."""
    return field(default=default, metadata={"meaning": meaning, "form": form, "choices": choices, "formerly": formerly})


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
    exit_when_stdin_closes: bool = _setting(default=False, meaning="exit when stdin closes", formerly="hold")
    flush_seconds: float = _setting(0.0, "time between writes to the store (default: 1 with --out, else 10)", "SECONDS")
    memory_mib: int = _setting(256, "memory for rows; above it, node samples are dropped", "MIB")
    judge_seconds: float = _setting(1.5, "time between evaluations of a running job", "SECONDS")
    retention_days: float = _setting(0.0, "delete recordings older than this (default: never)", "DAYS")
    retention_gib: float = _setting(0.0, "delete the oldest recordings above this size (default: never)", "GIB")
    remote_write: str = _setting("", "also send metrics to this Prometheus remote-write URL", "URL")
    relay_to: str = _setting("", "be a relay: forward all agents to this collector", "HOST:PORT")
    on_verdict: str = _setting("", "run this, or post JSON there, when a verdict opens, changes or closes", "CMD|URL")
    kubernetes: str = _setting(
        "none", "write verdicts as Events of pods, or also as annotations", choices=("none", "events", "annotations")
    )
    print_verdicts: bool = _setting(default=False, meaning="print these events on stdout too, a JSON line each")
    metrics_level: str = _setting("core", "finest series on /metrics; each level has those before it", choices=LEVELS)
    metrics_series: int = _setting(
        500_000, "series on /metrics at most; beyond, the finest levels are left out", "COUNT"
    )
    job_label: str = _setting(
        JOB_LABEL, "label of a job on /metrics; `job`, as in 0.1, needs honor_labels", choices=(JOB_LABEL, "job")
    )
    tls_cert: str = _setting("", "certificate of the agents' port, and of a relay at its collector", "FILE")
    tls_key: str = _setting("", "private key of --tls-cert", "FILE")
    tls_ca: str = _setting("", "authority whose certificates agents and relays need to connect", "FILE")
    relays: str = _setting("", "names of the certificates that may relay other nodes' agents", "NAME,NAME")
    token_file: str = _setting("", "secret whose tokens agents need to connect; a file of mode 0600", "FILE")
    web_config: str = _setting("", "TLS and passwords of the page and /metrics, as Prometheus has them", "FILE")
    user_header: str = _setting("", "header in which a proxy names the user, who then sees no other's jobs", "NAME")
    insecure: bool = _setting(default=False, meaning="permit ports on a network without TLS or a token")
    log_format: str = _setting("text", "format of the log on stderr", choices=("text", "json"))

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Where to serve the page and metrics; None for nowhere."""
        if self.http == "none" or (self.exit_when_stdin_closes and not self.http):
            return None
        return address(self.http or f"127.0.0.1:{HTTP_PORT}", "--http")

    @property
    def http_is_open(self) -> bool:
        """Whether the network reaches the page."""
        return self.http_address is not None and not is_loopback(self.http_address[0])

    @property
    def page_needs_proof(self) -> bool:
        """Whether the page asks who reads it: on a network, and of a service that has a secret also on loopback.

        The user of ``hindmost run``, whose collector ends with it, opens the page of one job without; with
        ``user_header`` the proxy has asked.
        """
        is_service = not (self.exit_when_stdin_closes or self.user_header)
        return self.http_is_open or (bool(self.token_file) and is_service)

    @property
    def open_ports(self) -> dict[str, str]:
        """The ports that the network reaches and nothing protects, and their addresses: refused unless ``insecure``.

        Raises ``UsageError`` where the web-config file cannot be used.
        """
        found = {}
        if not (self.tls_cert or self.token_file or is_loopback(address(self.listen, "--listen").host)):
            found["listen"] = self.listen
        if self.http_is_open and not (self.token_file or self.web_protects):
            found["http"] = self.http
        return found

    @property
    def web_protects(self) -> bool:
        """Whether there is a web-config file that asks for passwords or client certificates. Raises ``UsageError``."""
        from hindmost.web_config import WebConfig  # noqa: PLC0415 - where used

        return bool(self.web_config) and WebConfig(self.web_config, "--web-config").protects

    @property
    def agents_are_anonymous(self) -> bool:
        """Whether the network reaches a port for agents that encrypts and takes any sender."""
        encrypts_only = self.tls_cert and not (self.tls_ca or self.token_file)
        return bool(encrypts_only) and not is_loopback(address(self.listen, "--listen").host)

    @property
    def flush_period(self) -> float:
        """Seconds between flushes: one where a run is watched by the person who started it, ten in a service."""
        return self.flush_seconds or (1.0 if self.out else 10.0)

    @property
    def ack_ns(self) -> int:
        """How long an acknowledgement may wait for another message to an agent to go with."""
        return int(min(10 * self.flush_period, 15.0) * 1e9)


def address(text: str, what: str) -> Address:
    """What ``HOST:PORT``, ``:PORT`` or ``[V6]:PORT`` says. Raises UsageError."""
    found = parse(text)
    if found is None:
        raise UsageError(f"{what} {text!r} is not HOST:PORT, for example 127.0.0.1:{GRPC_PORT}")
    return found._replace(host=found.host or "0.0.0.0")  # noqa: S104 - asked for by leaving the host out


#: Former name of a setting to its name.
_FORMERLY = {one.metadata["formerly"]: one.name for one in fields(Options) if one.metadata["formerly"]}

PREFIX = "HINDMOST_COLLECTOR_"
#: The table of the TOML file that holds thresholds.
JUDGE = "judge"
#: … and the one that may hold ``cert``, ``key`` and ``ca`` of ``tls_cert`` ….
TLS = "tls"
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
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    return PREFIX + name.upper()


def resolve(flags: Mapping[str, Any], environ: Mapping[str, str], config: Path | None = None) -> Options:
    """Merge the four layers. Raises UsageError for an unknown key or an impossible value, named as it was written.

    ``flags`` has None where a flag was not given.
    """
    known = {field.name: type(field.default) for field in fields(Options)}
    layers: list[tuple[Mapping[str, Any], Named]] = [
        (_settings(config) if config else {}, lambda name: f"{config}: {name}"),
        (_from_environment(environ), variable),
        ({name: value for name, value in flags.items() if value is not None}, flag),
    ]
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    for settings, named in layers:
        for written_name, value in settings.items():
            name = _FORMERLY.get(written_name, written_name)
            if name not in known:
                raise UsageError(f"{named(name)} is not a setting; settings are {', '.join(sorted(known))}")
            written[name] = named(written_name)
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
    found = {name: value for name, value in read(config).items() if name != JUDGE}
    tls = found.pop(TLS, None)
    if tls is None:
        return found
    if not isinstance(tls, dict):
        raise UsageError(f"{config}: {TLS} is {tls!r}: write cert, key and ca under [{TLS}]")
    return {**found, **{f"{TLS}_{name}": value for name, value in tls.items()}}


def read(path: Path) -> Mapping[str, Any]:
    """What a TOML file holds. Raises UsageError."""
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    content = file_content(str(path), "--config")
    try:
        settings: Mapping[str, Any] = toml.loads(content.decode())
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
        from hindmost_collector.http_client import Receiver  # noqa: PLC0415 - where used

        Receiver(options.remote_write, named("remote_write"))  # raises when it is none
    if options.on_verdict:
        from hindmost_collector.live.notification import destination  # noqa: PLC0415 - where used

        destination(options.on_verdict, named("on_verdict"))  # raises when it is none
    _check_relay(options, named)
    _check_access(options, named)
    for one in fields(Options):
        choices = one.metadata["choices"]
        if choices and getattr(options, one.name) not in choices:
            raise UsageError(f"{named(one.name)} is {getattr(options, one.name)!r}: {' or '.join(choices)}")
    if not 16 <= options.memory_mib <= 1 << 20:
        raise UsageError(f"{named('memory_mib')} is {options.memory_mib}: between 16 and {1 << 20}")
    for name in ("retention_days", "retention_gib"):
        if getattr(options, name) < 0:
            raise UsageError(f"{named(name)} is {getattr(options, name)}: zero for no limit, or more")
    if options.metrics_series < 1:
        raise UsageError(f"{named('metrics_series')} is {options.metrics_series}: at least 1")
    for name in ("flush_seconds", "judge_seconds"):
        if not 0 <= getattr(options, name) <= 3600:
            raise UsageError(f"{named(name)} is {getattr(options, name)}: between 0 and 3600")


def _check_access(options: Options, named: Named) -> None:
    for name in ("tls_cert", "tls_ca"):  # what there is not yet, a relay waits for
        if os.path.exists(path := getattr(options, name)):  # noqa: PTH110 - of an empty one too
            file_content(path, named(name))
    if bool(options.tls_cert) != bool(options.tls_key):
        raise UsageError(f"{named('tls_cert')} and {named('tls_key')} belong together: give both")
    if options.relays and not options.tls_ca:
        raise UsageError(f"{named('relays')} names certificates: give {named('tls_ca')} too")
    if options.tls_ca and not options.tls_cert and not options.relay_to:
        raise UsageError(f"{named('tls_ca')} needs {named('tls_cert')} and {named('tls_key')}")
    web = f"basic_auth_users or client_ca_file in {named('web_config')}" if options.web_config else "--web-config"
    if options.user_header and options.http_is_open and not options.web_protects:
        raise UsageError(f"{named('user_header')}: anyone could send it: give {web}, or --http on 127.0.0.1")
    remedies = {"listen": "--tls-cert and --tls-key, or --token-file", "http": f"{web}, or --token-file"}
    for what, where in options.open_ports.items():
        if not options.insecure:
            raise UsageError(
                f"{named(what)} {where}: the network reaches it: give {remedies[what]} ({SECURE}), listen on 127.0.0.1,"
                " or permit it with --insecure"
            )


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
    for name in ("out", "store", "job_id", "exit_when_stdin_closes", "remote_write", "on_verdict", "print_verdicts"):
        if getattr(options, name):
            raise UsageError(f"{named(name)} is for the collector: a relay (--relay-to) stores and judges nothing")
    if options.kubernetes != "none":
        raise UsageError(f"{named('kubernetes')} is for the collector: a relay (--relay-to) judges nothing")


JUDGE_PREFIX = "HINDMOST_JUDGE_"
#: The page that lists each threshold with its unit, range and reason.
PAGE = "docs/reference/thresholds.md"


def resolve_thresholds(sets: Iterable[str], environ: Mapping[str, str], config: Path | None = None) -> Settings:
    """Merge the layers over the defaults: see :func:`given_thresholds`."""
    return with_thresholds({}, given_thresholds(sets, environ, config))


def with_thresholds(recorded: Mapping[str, Any], values: Mapping[str, float]) -> Settings:
    """The thresholds that a run was ``recorded`` with and those ``values`` that are given now, which count more.

    What was recorded and is no threshold of this version, or out of its range, is left out.
    """
    known = {one.name: one for one in fields(Settings)}
    recorded = {RENAMED.get(name, name): value for name, value in recorded.items()}
    valid = {name: value for name, value in recorded.items() if name in known and _fits(value, known[name])}
    settings = Settings(**{**valid, **values})
    if settings.hang_way_seconds >= settings.hang_seconds:
        way, least = settings.hang_way_seconds, settings.hang_seconds
        raise UsageError(f"hang_way_seconds is {way:g}: less than hang_seconds, which is {least:g}")
    return settings


def _fits(value: object, one: Field[Any]) -> bool:
    """Whether a threshold may have this value."""
    kind = (int, float) if isinstance(one.default, float) else int
    return isinstance(value, kind) and one.metadata["low"] <= value <= one.metadata["high"]


def given_thresholds(sets: Iterable[str], environ: Mapping[str, str], config: Path | None = None) -> dict[str, float]:
    """The values of flags, environment and file.

    ``sets`` are ``NAME=VALUE`` each. Raises UsageError for an unknown name or an impossible value, named as the user
    wrote it.
    """
    known = {one.name: one for one in fields(Settings)}
    values: dict[str, Any] = {}
    for written, written_name, value in _written(sets, environ, config):
        name = RENAMED.get(written_name, written_name)
        if name not in known:
            like = get_close_matches(name, known, n=1)
            meant = f"did you mean {like[0]}? " if like else ""
            raise UsageError(f"{written} is not a threshold: {meant}{PAGE} lists them")
        one = known[name]
        found = converted(written, value, type(one.default))
        low, high = one.metadata["low"], one.metadata["high"]
        if not low <= found <= high:
            raise UsageError(f"{written} is {found:g}: between {low:g} and {high:g} ({one.metadata['unit']})")
        values[name] = found
    with_thresholds({}, values)
    return values


def _written(sets: Iterable[str], environ: Mapping[str, str], config: Path | None) -> Iterator[tuple[str, str, Any]]:
    """Where each value was written, its name and itself; what counts more comes later."""
    yield from ((f"{config}: {JUDGE}.{name}", name, value) for name, value in _table(config).items())
    for key, value in environ.items():
        if key.startswith(JUDGE_PREFIX):
            yield key, key.removeprefix(JUDGE_PREFIX).lower(), value
    for one in sets:
        name, sign, value = one.partition("=")
        if not sign:
            raise UsageError(f"--set {one}: write NAME=VALUE, like --set min_effect=0.02")
        yield f"--set {name}", name.strip(), value.strip()


def _table(config: Path | None) -> Mapping[str, Any]:
    """What a TOML file has under ``[judge]``; the rest must be settings of the collector, for which it serves, too."""
    if config is None:
        return {}
    found = read(config)
    for name in found.keys() - {one.name for one in fields(Options)} - _FORMERLY.keys() - {JUDGE, TLS}:
        raise UsageError(f"{config}: {name} is neither [{JUDGE}] nor a setting of the collector")
    table = found.get(JUDGE, {})
    if not isinstance(table, dict):
        raise UsageError(f"{config}: {JUDGE} is {table!r}: write thresholds under [{JUDGE}]")
    return table
