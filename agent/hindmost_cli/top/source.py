"""Where ``hindmost top`` reads from: the HTTP side of a collector, or a run directory."""

from __future__ import annotations

import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode

from hindmost.errors import HindmostError, UsageError
from hindmost_proto.address import parse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Seconds that a collector may take to answer.
TIMEOUT = 5.0
#: Seconds between two judgements of a run that is being recorded.
JUDGED_EVERY_S = 10.0
#: How an address is found.
GIVE = "give HOST:PORT from the first line of `hindmost run`"


class Source(Protocol):
    """Anything that has a picture of a job; each call reads anew. Raises HindmostError where it cannot."""

    #: As the user typed it.
    name: str

    def picture(self, job: str | None, /) -> dict[str, Any]:
        """The tables of ``/api/newest``."""

    def report(self, job: str | None, /) -> dict[str, Any] | None:
        """The whole report; None where there is none yet."""


def place(address: str) -> str:
    """``http://HOST:PORT`` of whatever the user pasted."""
    base = address if "://" in address else f"http://{address}"
    scheme, _, rest = base.partition("://")
    host = rest.partition("/")[0]
    if scheme not in ("http", "https") or not host or (":" in host and parse(host) is None):
        raise UsageError(f"ADDRESS {address!r}: {GIVE}, or a run directory")
    return f"{scheme}://{host}"


class Collector:
    """A running collector."""

    def __init__(self, address: str) -> None:
        self.name = place(address)

    def picture(self, job: str | None) -> dict[str, Any]:
        found = fetch(self.name, "/api/newest", {"job": job} if job else {})
        if found is None:
            self._refuse_unknown(job)
            raise HindmostError(
                f"{self.name} has no /api/newest: give a collector's address, no relay's, or upgrade it"
            )
        known: dict[str, Any] = found
        return known

    def report(self, job: str | None) -> dict[str, Any] | None:
        found = fetch(self.name, "/api/report", {"job": job} if job else {})
        if found is None:
            self._refuse_unknown(job)
        known: dict[str, Any] | None = found
        return known

    def jobs(self) -> list[str]:
        """The ids of the jobs that it knows."""
        return [str(one["id"]) for one in fetch(self.name, "/api/jobs", {}) or []]

    def _refuse_unknown(self, job: str | None) -> None:
        jobs = self.jobs()
        if job and job not in jobs:
            raise HindmostError(f"{self.name} has no job {job!r}; it has {', '.join(jobs) or 'none'}")


class RunDirectory:
    """A run that is being recorded, or was. ``clock`` is in seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self.name = str(path)
        self._report: dict[str, Any] | None = None
        self._due = float("-inf")

    def picture(self, _: str | None) -> dict[str, Any]:
        from hindmost_collector.serve.live_tables import recorded

        return recorded(self._path, self.report(None), time.time_ns())

    def report(self, _: str | None) -> dict[str, Any] | None:
        """The report that was written at the end; until then one that is made every ten seconds."""
        written = self._path / "report.json"
        if written.exists():
            report: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
            return report
        if self._clock() >= self._due:
            from hindmost_cli.report import judged

            self._report = judged(self._path)
            self._due = self._clock() + JUDGED_EVERY_S
        return self._report

    def jobs(self) -> list[str]:
        """The one that it holds."""
        return [self._path.name]


def fetch(base: str, path: str, query: dict[str, str]) -> Any:
    """A JSON answer; None for "there is none". Raises HindmostError where this is no collector."""
    url = f"{base}{quote(path)}" + (f"?{urlencode(query)}" if query else "")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310 - http or https, see place()
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == http.client.NOT_FOUND:
            return None
        raise HindmostError(f"{url} answers {error.code} {error.reason}: is this a hindmost collector?") from error
    except ValueError as error:
        raise HindmostError(f"{url} does not answer with JSON: is this a hindmost collector?") from error
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        if isinstance(why, socket.gaierror):
            raise UsageError(f"ADDRESS {base}: no such host; {GIVE}") from error
        why = getattr(why, "strerror", None) or why
        raise HindmostError(f"no answer from {base} ({why}): is the job still running?") from error
