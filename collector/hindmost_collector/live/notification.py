"""Tells a command, a webhook or the process that started the collector of each verdict, as it opens, changes, closes.

Each receiver has a thread and a bounded queue of its own: one that is slow, refuses or hangs holds up no judging.
Every event is delivered once; only a webhook that did not answer in time may get it twice, with the same
``Idempotency-Key``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from hindmost.errors import UsageError, one_line
from hindmost_judge.verdict.schema import STOPS, WhichOperation
from hindmost_proto import retry

from hindmost_collector.http_client import Answer, Receiver
from hindmost_collector.report.verdict_lines import RenderedVerdict, in_change, of_verdict

if TYPE_CHECKING:
    from hindmost_collector.ingest.definitions import Pod

log = logging.getLogger(__name__)

#: Notifications that wait for one receiver; beyond, the oldest goes.
QUEUE = 256
#: Seconds for one attempt, between the first two attempts and at most, and for all attempts at one notification.
ATTEMPT_S, PAUSE_S, LONGEST_PAUSE_S, GIVE_UP_S = 10.0, 1.0, 60.0, 300.0
#: Seconds that a receiver has for what still waits when the collector stops.
FAREWELL_S = 5.0
#: A stop is notified of after so many seconds, or once it is known where the rank is: mostly both are one notification.
SETTLES_S = 1.5
#: Where notifications are printed; not ``sys.stdout``, whose lock a reader that does not read would keep.
STDOUT = 1
_BEFORE = {"opened": "", "changed": "changed: ", "closed": "over: "}


@dataclass(frozen=True)
class Notification:
    """One event of one verdict: ``opened``, ``changed`` or ``closed``, the last also when the job ``ended``."""

    job: str
    event: str
    id: str
    time_ns: int
    verdict: Mapping[str, Any]
    text: str
    ended: bool = False
    pods: tuple[Pod, ...] = ()
    before: Mapping[str, Any] | None = None  # of a change, the verdict as it was
    opening: str = ""  # the text, if ``before`` was not sent

    @classmethod
    def of(
        cls, job: str, event: Mapping[str, Any], report: Mapping[str, Any], pods: Mapping[int, Pod] | None = None
    ) -> Notification:
        """An event of a job's ``VerdictLog``, in words; ``report`` knows the ranks' nodes, ``pods`` their pods."""
        verdict, ended = event["verdict"], bool(event.get("ended"))
        words = of_verdict(verdict, report["ranks"])
        before = "job over: " if ended else _BEFORE[event["event"]]
        if event["event"] == "closed" and not ended and words.kind in STOPS and _goes_on(verdict, report):
            before = "over: the job goes on; it was "
        detail = "" if event["event"] == "closed" else _detail(words, event["event"])
        text = f"{words.sentence}{detail}"
        if "before" in event:
            text = in_change(event["before"], verdict, report["ranks"], detail)
        text, opening = one_line(f"{before}{text}"), one_line(f"{words.sentence}{_detail(words, 'merged')}")
        named = tuple(pods[rank] for rank in verdict.get("ranks") or () if rank in pods) if pods else ()
        known = (job, event["event"], event["id"], event["time_ns"], verdict)
        return cls(*known, text, ended, named, event.get("before"), opening)

    @property
    def payload(self) -> bytes:
        """What a command reads from stdin and a webhook gets: Slack shows ``text``, and takes no other name for markup
        (``<!channel>``) from it.
        """
        text = escape(f"hindmost: job {one_line(self.job)}: {self.text}", quote=False)
        known = {name: getattr(self, name) for name in ("event", "job", "id", "time_ns", "ended", "verdict")}
        return json.dumps({"text": text, **known}).encode()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a command gets."""
        verdict = self.verdict
        values = {
            "HINDMOST_VERDICT_EVENT": self.event,
            "HINDMOST_VERDICT_JOB": self.job,
            "HINDMOST_VERDICT_TEXT": self.text,
            "HINDMOST_VERDICT_KIND": verdict["kind"],
            "HINDMOST_VERDICT_RANKS": ",".join(map(str, verdict.get("ranks") or ())),
            "HINDMOST_VERDICT_CAUSE": verdict.get("cause"),
            "HINDMOST_VERDICT_SINCE_STEP": verdict.get("since_step"),
            "HINDMOST_VERDICT_COST_MS_PER_STEP": verdict.get("cost_ms_per_step"),
        }
        return {name: "" if one is None else one_line(str(one)) for name, one in values.items()}


def _goes_on(stop: Mapping[str, Any], report: Mapping[str, Any]) -> bool:
    """Whether a job made a later step than that in which it stopped, and does not hang otherwise."""
    since, until = stop.get("since_step"), stop.get("until_step")
    later = since is not None and until is not None and until > since
    return later and not any(one["kind"] in STOPS for one in report.get("verdicts", ()))


def _detail(words: RenderedVerdict, event: str) -> str:
    """What a verdict costs; of a hang who waits and, once that is known, where the rank is that does not come.

    Then what to do, in a clause.
    """
    why = [one for one in words.why if not isinstance(one, WhichOperation)]
    if words.kind in STOPS and why:
        where = [one for one in why if " is at " in one]  # of a deadlock others come after it
        shown = {"opened": why[:2], "changed": where[:1] or why[-1:], "merged": why[:1] + why[1:][-1:]}
        do = [f"DO {text.partition(';')[0]}" for text in words.do[:1]]
        return f"; {'; '.join([*shown[event], *do])}"
    return f"; costs {words.short_cost}" if words.short_cost else ""


class Destination(Protocol):
    """Where notifications go. ``name`` is fit for a log: without a secret."""

    name: str

    def send(self, one: Notification, /) -> Answer:
        """Try once, for a bounded time; never raises for what is wrong over there."""


class Webhook:
    """Posts JSON to a URL, on a fresh connection each time. Raises UsageError for no URL."""

    def __init__(self, url: str, what: str = "--on-verdict", attempt_s: float = ATTEMPT_S) -> None:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        self._receiver = Receiver(url, what, attempt_s, headers, "http://HOST:PORT/PATH")
        parts = urlsplit(url)
        self.name = f"{parts.scheme}://{parts.hostname}"  # a webhook's path is its password

    def send(self, one: Notification) -> Answer:
        return self._receiver.post(one.payload, {"Idempotency-Key": f"{one.id}-{one.event}-{one.time_ns}"})


class Command:
    """Starts a program, without a shell: names of ranks, hosts and jobs reach it on stdin and as variables only.

    A failure is not tried again, as the command may have done its work. Raises UsageError where there is no program.
    """

    def __init__(self, text: str, what: str = "--on-verdict", attempt_s: float = ATTEMPT_S) -> None:
        try:
            self._argv = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"{what} {text!r} is no command ({error}): close its quotes") from error
        if not self._argv or shutil.which(self._argv[0]) is None:
            raise UsageError(f"{what} {text!r}: no such command; give its path, or an http:// or https:// URL")
        self.name, self._attempt_s = self._argv[0], attempt_s

    def send(self, one: Notification) -> Answer:
        environ = {**os.environ, **one.environment}
        try:
            process = subprocess.Popen(
                self._argv, stdin=subprocess.PIPE, stdout=2, env=environ, start_new_session=True
            )  # our stdout is read by the process that started us
        except OSError as error:
            return Answer(400, error.strerror or str(error))
        try:
            process.communicate(one.payload, timeout=self._attempt_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return Answer(400, f"stopped after {self._attempt_s:g} s")
        return Answer(400, f"exit code {process.returncode}") if process.returncode else Answer(200, "")


class Lines:
    """Prints each notification as one JSON line, for the process that started the collector."""

    name = "stdout"

    def __init__(self) -> None:
        self._fd = STDOUT

    def send(self, one: Notification) -> Answer:
        known = {name: getattr(one, name) for name in ("event", "job", "time_ns", "ended", "text")}
        event = {**known, "kind": one.verdict["kind"]}
        left = json.dumps({"verdict": event}).encode() + b"\n"
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            return Answer(400, error.strerror or str(error))
        return Answer(200, "")


def destination(text: str, what: str = "--on-verdict") -> Destination:
    """A webhook for a URL, else a command. Raises UsageError where it is neither."""
    return Webhook(text, what) if text.startswith(("http://", "https://")) else Command(text, what)


class Outlet:
    """Delivers to one destination, from a thread of its own that starts with the first notification.

    ``failures`` counts attempts, ``dropped`` notifications that were given up or found no room. ``clock``: seconds.
    """

    def __init__(self, to: Destination, pause_s: float = PAUSE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._to, self._pause_s, self._clock = to, pause_s, clock
        self._waiting: list[tuple[float, Notification]] = []  # and when each may go
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._until: float | None = None  # when it must have finished; none while it runs
        self._failed_in_a_row = 0
        self._last_sent: dict[tuple[str, str], Mapping[str, Any]] = {}  # each verdict as the receiver knows it
        self.sent = self.failures = self.dropped = 0

    def put(self, one: Notification) -> None:
        """Queue it, and return at once. A change replaces one of the same verdict that has not been sent."""
        with self._changed:
            if self._until is not None:
                self.dropped += 1
                return
            now, stops = self._clock(), one.event == "opened" and one.verdict["kind"] in STOPS
            self._waiting = [
                (at, other) for at, other in self._waiting if not (other.event == "changed" and _of_one(other, one))
            ]
            before = next((at for at, (_, other) in enumerate(self._waiting) if _of_one(other, one)), None)
            if one.event == "changed" and before is not None:  # its opening has not been sent yet
                self._waiting[before] = now, replace(one, event="opened", text=one.opening)
            else:
                self._waiting.append((now + SETTLES_S if stops else now, one))
            if len(self._waiting) > QUEUE:
                del self._waiting[0]
                self.dropped += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._deliver, daemon=True, name="notification")
                self._thread.start()
            self._changed.notify()

    def close(self, seconds: float = FAREWELL_S) -> None:
        """Deliver what waits for at most so long; the rest is dropped."""
        with self._changed:
            self._until = self._clock() + seconds
            self._changed.notify()
        if self._thread:
            self._thread.join(seconds)
        with self._changed:
            self.dropped += len(self._waiting)
            self._waiting.clear()

    def _deliver(self) -> None:
        while (one := self._next()) is not None:
            begun = self._clock()
            if one.event == "changed" and one.before != self._last_sent.get((one.job, one.id)):
                one = replace(one, text=f"{_BEFORE['changed']}{one.opening}")
            while not self._tried(one, begun):
                pass

    def _next(self) -> Notification | None:
        """Take the oldest, when there is one that may go; None where none will come."""
        with self._changed:
            while self._until is None:
                left = self._waiting[0][0] - self._clock() if self._waiting else None
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            return self._waiting.pop(0)[1] if self._waiting else None

    def _tried(self, one: Notification, begun: float) -> bool:
        """Try once, and pause where that was in vain; True where nothing is left to do for this notification."""
        answer = self._to.send(one)
        if answer.taken:
            self.sent += 1
            self._last_sent.pop((one.job, one.id), None)
            if one.event != "closed":
                self._last_sent[one.job, one.id] = one.verdict
            if len(self._last_sent) > QUEUE:
                del self._last_sent[next(iter(self._last_sent))]
            if self._failed_in_a_row:
                log.warning("%s takes notifications again", self._to.name)
            self._failed_in_a_row = 0
            return True
        self.failures += 1
        if not self._failed_in_a_row:
            log.warning("%s does not take notifications (%s)", self._to.name, one_line(answer.reason))
        pause = retry.pause_s(self._failed_in_a_row, LONGEST_PAUSE_S, random.random(), self._pause_s)  # noqa: S311
        self._failed_in_a_row += 1
        resume = self._clock() + min(max(pause, answer.retry_after_s), LONGEST_PAUSE_S)
        if not answer.temporary or resume - begun > GIVE_UP_S or not self._paused(resume):
            self.dropped += 1
            return True
        return False

    def _paused(self, resume: float) -> bool:
        """Wait; False where the outlet is closed before."""
        with self._changed:
            while (left := resume - self._clock()) > 0:
                if self._until is not None and self._until < resume:
                    return False
                self._changed.wait(left)
        return True


def _of_one(before: Notification, after: Notification) -> bool:
    return (before.job, before.id) == (after.job, after.id)
