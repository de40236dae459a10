"""Reaching a ClickHouse server: what a store's URL says, and errors in words that name server and remedy."""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from hindmost.errors import HindmostError, MissingError, UsageError

from hindmost_collector.store.clickhouse.ddl import Place

if TYPE_CHECKING:
    import pyarrow as pa

SCHEME = "clickhouse://"
PASSWORD = "CLICKHOUSE_PASSWORD"  # noqa: S105 - the name of a variable
#: The server's numbers of errors that pass by themselves: it is busy or short of memory, its keeper or a shard is away.
PASSING = frozenset({159, 198, 202, 209, 210, 225, 236, 241, 242, 279, 319, 999})
_EXAMPLE = "clickhouse://USER@HOST:8123/DATABASE, with ?cluster=NAME, &secure=1 or &job=ID"


@dataclass(frozen=True)
class Target:
    """What ``clickhouse://user:password@host:port/database?cluster=…&secure=1&job=…`` says."""

    host: str
    port: int
    user: str
    password: str
    place: Place
    secure: bool = False
    job: str = ""

    def __str__(self) -> str:
        """For messages: without the password."""
        return f"{SCHEME}{self.user}@{self.host}:{self.port}/{self.place.database}"


def is_url(text: object) -> bool:
    return str(text).startswith(SCHEME)


def parse(url: str, environ: Mapping[str, str] = os.environ) -> Target:
    """Take a URL apart; the password may come from the environment instead. Raises UsageError."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    unknown = options.keys() - {"cluster", "secure", "job"}
    try:
        port = parts.port
    except ValueError:
        port = -1
    if unknown or not parts.hostname or port == -1 or parts.path.count("/") > 1:
        what = f"has the unknown option {min(unknown)!r}" if unknown else "is not understood"
        raise UsageError(f"{_without_password(url)} {what}: give {_EXAMPLE}")
    secure = options.get("secure", "0") in {"1", "true", "yes"}
    return Target(
        host=parts.hostname,
        port=port or (8443 if secure else 8123),
        user=unquote(parts.username or "default"),
        password=unquote(parts.password or "") or environ.get(PASSWORD, ""),
        place=Place(parts.path.strip("/") or "hindmost", options.get("cluster", "")),
        secure=secure,
        job=options.get("job", ""),
    )


def _without_password(url: str) -> str:
    before, separator, after = url.rpartition("@")
    return before.rpartition(":")[0] + separator + after if before.count(":") > 1 else url


class Server:
    """A connection. ``command``, ``rows`` and ``insert`` raise ``Unreachable``, or HindmostError in the server's words.

    Args:
        timeout_s: how long a query or an insert may take.
        use_database: let queries name tables without their database, which has to be there.
    """

    def __init__(self, target: Target, timeout_s: float = 60.0, *, use_database: bool = False) -> None:
        """Raises Unreachable without an answer, HindmostError when the client is not installed or not let in."""
        self.target = target
        try:
            self._driver: Any = importlib.import_module("clickhouse_connect")
        except ImportError as error:
            raise MissingError(error, "clickhouse") from error
        for name in ("clickhouse_connect", "urllib3"):  # what they would log is raised, and said once
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._errors: Any = importlib.import_module("clickhouse_connect.driver.exceptions")
        self._client: Any = self._translated(
            lambda: self._driver.get_client(
                interface="https" if target.secure else "http",
                host=target.host,
                port=target.port,
                username=target.user,
                password=target.password,
                database=target.place.database if use_database else "default",
                compress="lz4",
                connect_timeout=5,
                send_receive_timeout=timeout_s,
                autogenerate_session_id=False,  # sessions would allow one query at a time
            )
        )

    def command(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """Run a statement; its single value, if any."""
        return self._translated(lambda: self._client.command(statement, parameters=dict(parameters or {})))

    def rows(
        self, query: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, str] | None = None
    ) -> pa.Table:
        """The rows of a query, strings as strings."""
        # a Distributed table over shards of which one is away is an error, not a smaller answer
        always = {"skip_unavailable_shards": 0, "output_format_arrow_low_cardinality_as_dictionary": 1}
        chosen = {**always, **(settings or {})}
        table: pa.Table = self._translated(
            lambda: self._client.query_arrow(query, parameters=dict(parameters or {}), settings=chosen)
        )
        return table

    def insert(self, table: str, data: pa.Table, token: str) -> None:
        """Insert rows; with the same ``token`` once only, however often it is tried. Returns when they are durable."""
        settings: dict[str, Any] = {"async_insert": 0, "insert_deduplicate": 1, "insert_deduplication_token": token}
        if self.target.place.cluster:
            settings |= {"insert_quorum": "auto", "distributed_foreground_insert": 1}
        database = self.target.place.database
        self._translated(lambda: self._client.insert_arrow(f"`{database}`.{table}", data, settings=settings))

    def close(self) -> None:
        self._client.close()

    def _translated(self, work: Any) -> Any:
        try:
            return work()
        except self._errors.ClickHouseError as error:
            said = str(error).strip().splitlines()[0]
            if getattr(error, "code", None) is None:
                raise Unreachable(f"ClickHouse at {self.target} does not answer: {_reason(said)}") from error
            kind = Unreachable if error.code in PASSING else HindmostError
            raise kind(f"ClickHouse at {self.target} said: {_short(_words(said))}") from error
        except OSError as error:
            raise Unreachable(f"ClickHouse at {self.target} does not answer: {error}") from error


class Unreachable(HindmostError):  # noqa: N818 - a state of the server, said as an adjective
    """No answer, or not now: to be tried again."""


def _short(text: str) -> str:
    return text if len(text) <= 300 else text[:299] + "…"


def _words(text: str) -> str:
    """The server's own words, without what the client put around them."""
    return re.sub(r"^.*?DB::Exception: |\s*\(for url [^)]*\)$", "", text)


def _reason(text: str) -> str:
    """What the system said, out of what the layers of an HTTP client wrapped around it."""
    found = re.search(r"\[Errno -?\d+\] ([^'\")]+)|(timed out)", text)
    return (found.group(1) or found.group(2)) if found else _short(text)
