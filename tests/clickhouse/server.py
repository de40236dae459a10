"""A stand-in for a ClickHouse server: the real engine (chDB) behind as much of its HTTP interface as the client needs.

    python -m tests.clickhouse.server FOLDER [PORT]

Prints its port when it is ready. Two things differ from a server: an insert's body reaches the engine through a file,
and one request runs at a time.
"""

import gzip
import json
import re
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import lz4.frame
from chdb import session

INSERT = re.compile(r"INSERT INTO (\S+) \((.*?)\)\s+(?:SETTINGS .*?)?\s*FORMAT (\w+)", re.DOTALL | re.IGNORECASE)
#: Query parameters that are no settings of the engine.
TRANSPORT = {
    "query", "database", "default_format", "compress", "decompress", "session_id", "query_id", "wait_end_of_query",
    "client_protocol_version", "enable_http_compression", "send_progress_in_http_headers", "buffer_size",
    "http_headers_progress_interval_ms", "cancel_http_readonly_queries_on_client_close",
}  # fmt: skip
DECODERS = {"": bytes, "gzip": gzip.decompress, "lz4": lz4.frame.decompress}


class Engine:
    """One chDB session, one query at a time."""

    def __init__(self, folder: str) -> None:
        self._session = session.Session(folder)
        self._one_at_a_time = threading.Lock()

    def answer(self, parameters: dict[str, str], body: bytes) -> bytes:
        """What a query returns, in its format. Raises RuntimeError in the engine's words."""
        chosen = [key for key in parameters if key not in TRANSPORT and not key.startswith("param_")]
        settings = ", ".join(f"{key} = {_literal(parameters[key])}" for key in chosen)
        with self._one_at_a_time, tempfile.NamedTemporaryFile() as file:
            if parameters.get("database"):
                self._session.query(f"USE `{parameters['database']}`")
            for key, value in parameters.items():
                if key.startswith("param_"):
                    self._session.query(f"SET {key} = {_literal(value)}")
            query = parameters.get("query", "") or body.decode()
            insert = INSERT.match(query.strip())
            if insert:
                file.write(body)
                file.flush()
                table, names, kind = insert.groups()
                query = (
                    f"INSERT INTO {table} ({names}) SELECT {names} FROM file('{file.name}', '{kind}')"
                    f" SETTINGS {settings}"
                )
            elif settings:
                self._session.query(f"SET {settings}")
            try:
                result: Any = self._session.query(query, parameters.get("default_format", "TabSeparated"))
                return bytes(result.bytes() or b"")
            finally:
                if chosen and not insert:  # they are a request's, not the session's
                    self._session.query("SET " + ", ".join(f"{key} = DEFAULT" for key in chosen))


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


class Handler(BaseHTTPRequestHandler):
    """Requests as clickhouse-connect makes them."""

    protocol_version = "HTTP/1.1"
    engine: Engine

    def do_GET(self) -> None:
        """Ping, and queries without a body."""
        if self.path == "/ping":
            self._send(200, b"Ok.\n")
        else:
            self._query(b"")

    def do_POST(self) -> None:
        """Queries and inserts."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(parts)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._query(DECODERS[self.headers.get("Content-Encoding", "")](body))

    def _query(self, body: bytes) -> None:
        parameters = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        if "X-ClickHouse-Format" in self.headers:
            parameters["default_format"] = self.headers["X-ClickHouse-Format"]
        try:
            self._send(200, self.engine.answer(parameters, body))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is to hear it
            found = re.search(r"Code: (\d+)", str(error))
            self._send(500, str(error).encode(), {"X-ClickHouse-Exception-Code": found.group(1) if found else "1"})

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"X-ClickHouse-Summary": json.dumps({}), **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing: requests are the tests' own."""


def main() -> None:
    """Serve until killed."""
    Handler.engine = Engine(str(Path(sys.argv[1]).resolve()))
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
