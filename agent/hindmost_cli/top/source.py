"""Where ``hindmost top`` reads from: the HTTP side of a collector, or a run directory."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import socket
import ssl
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from hindmost.credentials import Client, reason
from hindmost.errors import HindmostError, UsageError
from hindmost_proto.address import parse

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Seconds that a collector may take to answer.
TIMEOUT = 5.0
#: Seconds between two judgements of a run that is being recorded.
JUDGED_EVERY_S = 10.0
#: Jobs that an error lists.
_LISTED = 8
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


def place(address: str, scheme: str = "http") -> str:
    """``http://HOST:PORT`` of whatever the user pasted; ``scheme`` where that names none."""
    base = address if "://" in address else f"{scheme}://{address}"
    scheme, _, rest = base.partition("://")
    host, slash, _ = rest.partition("?")[0].partition("/")
    if slash and ":" not in host and "://" not in address:
        raise UsageError(f"{address}: no such run directory; give one, or {GIVE.removeprefix('give ')}")
    if scheme not in ("http", "https") or not host or (":" in host and parse(host) is None):
        raise UsageError(f"ADDRESS {address!r}: {GIVE}, or a run directory")
    return f"{scheme}://{host}"


def token_in(address: str) -> str:
    """The token of an address as `hindmost run` prints it; empty without."""
    return parse_qs(urlsplit(address).query).get("token", [""])[0]


class Collector:
    def __init__(self, address: str, client: Client = Client()) -> None:  # noqa: B008 - immutable
        token = token_in(address)
        self._client = dataclasses.replace(client, token=token, token_file="") if token else client
        self.name = place(address, "https" if client.ca else "http")

    def _fetch(self, path: str, query: dict[str, str]) -> Any:
        return fetch(self.name, path, query, self._client)

    def picture(self, job: str | None) -> dict[str, Any]:
        found = self._fetch("/api/newest", {"job": job} if job else {})
        if found is None:
            self._refuse_unknown(job)
            raise HindmostError(
                f"{self.name} has no /api/newest: give a collector's address, no relay's, or upgrade it"
            )
        known: dict[str, Any] = found
        return known

    def report(self, job: str | None) -> dict[str, Any] | None:
        found = self.report_if_any(job)
        if found is None:
            self._refuse_unknown(job)
        return found

    def report_if_any(self, job: str | None) -> dict[str, Any] | None:
        """A report in one request; None where there is none, of an unknown job too."""
        found: dict[str, Any] | None = self._fetch("/api/report", {"job": job} if job else {})
        return found

    def jobs(self) -> list[str]:
        return [str(one["id"]) for one in self._fetch("/api/jobs", {}) or []]

    def _refuse_unknown(self, job: str | None) -> None:
        jobs = self.jobs()
        if job and job not in jobs:
            more = f" and {len(jobs) - _LISTED} more: its page lists them" if len(jobs) > _LISTED else ""
            raise HindmostError(f"{self.name} has no job {job!r}; it has {', '.join(jobs[:_LISTED]) or 'none'}{more}")


class RunDirectory:
    """A run that is being recorded, or was. ``clock`` is in seconds.

    While its collector answers, that one's figures are shown: judging is dear, and would be done twice."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self.name = str(path)
        self._report: dict[str, Any] | None = None
        self._due = float("-inf")

    def picture(self, _: str | None) -> dict[str, Any]:
        from hindmost_collector.serve.live_tables import recorded

        with contextlib.suppress(OSError, HindmostError):
            if live := self._collector():
                return live[0].picture(live[1])
        return recorded(self._path, self._written() or self._judged(), time.time_ns())

    def _collector(self) -> tuple[Collector, str | None] | None:
        """The collector of a run that has not ended, and its job, if that has a rank; None where there is none. Raises
        HindmostError where it does not answer.

        Of a recording that was copied here, or is another user's, the address is not believed: something else may
        answer there.
        """
        from hindmost_collector.store import meta

        known = meta.facts(self._path)
        page, job = known.get("page"), known.get("job_id")
        if not page or not job or known.get("ended_ns") or known.get("host") != os.uname().nodename:
            return None
        if (self._path / meta.NAME).stat().st_uid != os.geteuid():
            return None
        collector = Collector(page)
        known_jobs = collector.jobs()
        return (collector, job if known_jobs else None) if set(known_jobs) <= {job} else None

    def report(self, _: str | None) -> dict[str, Any] | None:
        """The report that was written at the end; until then its collector's, or one that is made every ten seconds."""
        if (written := self._written()) is not None:
            return written
        with contextlib.suppress(OSError, HindmostError):
            if live := self._collector():
                return live[0].report(live[1])
        return self._judged()

    def _written(self) -> dict[str, Any] | None:
        """The report that was written at the end; None where there is none, or it is damaged."""
        written = self._path / "report.json"
        with contextlib.suppress(OSError, ValueError, RecursionError):
            report = json.loads(written.read_bytes()) if written.is_file() else None
            if isinstance(report, dict) and str(report.get("schema")).startswith("hindmost.report/"):
                return report
        return None

    def _judged(self) -> dict[str, Any] | None:
        if self._clock() >= self._due:
            from hindmost_cli.report import judged

            self._report = judged(self._path)
            self._due = self._clock() + JUDGED_EVERY_S
        return self._report

    def jobs(self) -> list[str]:
        return [self._path.name]


def fetch(base: str, path: str, query: dict[str, str], client: Client) -> Any:
    """A JSON answer; None for "there is none". Raises HindmostError where this is no collector, or it refuses."""
    url = f"{base}{quote(path)}" + (f"?{urlencode(query)}" if query else "")
    request = urllib.request.Request(url, headers=client.bearer())  # noqa: S310 - http or https, see place()
    context = client.context(speaks="http/1.1") if base.startswith("https:") else None
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT, context=context) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == http.client.NOT_FOUND:
            return None
        if error.code in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            if client.bearer() and error.code == http.client.UNAUTHORIZED:
                proof = f"--token-file {client.token_file}" if client.token_file else "the token"
                raise HindmostError(f"{base} refuses {proof}: it is not one of this collector") from error
            said = error.read(200).decode("utf-8", "replace").strip().partition("\n")[0]
            raise HindmostError(f"{base} refuses: {said or error.reason}: give --token-file FILE") from error
        raise HindmostError(f"{url} answers {error.code} {error.reason}: is this a hindmost collector?") from error
    except ValueError as error:
        raise HindmostError(f"{url} does not answer with JSON: is this a hindmost collector?") from error
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        if isinstance(why, socket.gaierror):
            host = base.partition("://")[2]
            if ":" not in host:
                raise UsageError(f"{host}: no such host or run directory; {GIVE}, and --job for one job") from error
            raise UsageError(f"ADDRESS {base}: no such host; {GIVE}") from error
        if isinstance(why, ssl.SSLError):
            raise HindmostError(
                f"{base}: {reason(why)}: give --tls-ca FILE, the authority of its certificate"
            ) from error
        why = getattr(why, "strerror", None) or why
        raise HindmostError(
            f"no answer from {base} ({why}): is the job still running? {GIVE}, or its run directory"
        ) from error
