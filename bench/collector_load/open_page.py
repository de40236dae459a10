"""What a browser with the page open asks of a collector: the job's state each second, and what changed."""

import contextlib
import json
import threading
import time
import urllib.request
from urllib.parse import quote

#: As the page has it: seconds between two answers, at least and for each rank.
LEAST_S, RANK_S = 0.9, 0.0025


class OpenPage:
    """Reads events, and fetches report and steps when they changed, until closed."""

    def __init__(self, address: str) -> None:
        self.bytes = self.answers = 0
        self._address, self._began = address, time.monotonic()
        self._closed = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> dict[str, float]:
        """What went over the wire, a second."""
        self._closed.set()
        seconds = time.monotonic() - self._began
        return {"page_bytes_s": round(self.bytes / seconds), "page_answers_s": round(self.answers / seconds, 2)}

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while not self._closed.is_set():
                self._follow()

    def _follow(self) -> None:
        known, after = None, 0.0
        with urllib.request.urlopen(f"http://{self._address}/api/events", timeout=60) as events:
            for line in events:
                self.bytes += len(line)
                if self._closed.is_set():
                    return
                if not line.startswith(b"data: "):
                    continue
                state = json.loads(line.removeprefix(b"data: "))
                changed = state.get("revisions")
                if changed is None or changed == known or time.monotonic() < after:
                    continue
                for of in ("report", "steps"):
                    self._get(of, state["job"])
                known, after = changed, time.monotonic() + max(LEAST_S, RANK_S * state["ranks"])

    def _get(self, of: str, job: str) -> None:
        request = urllib.request.Request(f"http://{self._address}/api/live?of={of}&job={quote(job)}")
        request.add_header("Accept-Encoding", "gzip")
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback
            self.bytes += len(answer.read())
            self.answers += 1
