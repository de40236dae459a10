"""A headless Chromium, driven by the WebDriver protocol, and the collector's own page server with a report to show."""

import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hindmost_collector.page.history import StepHistory
from hindmost_collector.serve import http
from hindmost_collector.serve.http import Page
from hindmost_collector.serve.live_page import Condition, LivePage
from hindmost_collector.store.parquet.store import ParquetStore
from hindmost_judge.overview import Overview

#: Without the background-networking flags Chromium calls home at every start.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1000",
)
WAIT_S = 300.0


class Browser:
    """One window of a real browser."""

    def __init__(self, driver: str, profile: str) -> None:
        self._driver = driver
        arguments = [*FLAGS, f"--user-data-dir={profile}"]
        options = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._ask("POST", f"{driver}/session", {"capabilities": {"alwaysMatch": options}})
        self._session = f"{driver}/session/{session['sessionId']}"

    def open(self, address: str) -> None:
        """Load a page."""
        self._ask("POST", f"{self._session}/url", {"url": address})

    def run(self, script: str) -> Any:
        """The value that a piece of JavaScript returns."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def until(self, script: str) -> Any:
        """The value of ``script`` once it is true; the page hears of news each second."""
        deadline = time.monotonic() + WAIT_S
        while not (value := self.run(f"return {script}")):
            assert time.monotonic() < deadline, f"never true in the page: {script}"
            time.sleep(0.05)
        return value

    def text(self, selector: str) -> str:
        """What a reader sees of the first element that matches."""
        return str(self.run(f"return document.querySelector({json.dumps(selector)}).innerText"))

    def width(self, pixels: int) -> None:
        """Make the window as narrow as a telephone, or as wide as a desk."""
        self._ask("POST", f"{self._session}/window/rect", {"width": pixels, "height": 900})

    def scheme(self, name: str) -> None:
        """Prefer ``dark`` or ``light`` colours, as the system's setting would."""
        media = {"features": [{"name": "prefers-color-scheme", "value": name}]}
        self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": media})

    def complaints(self) -> list[str]:
        """Errors on the browser's console since last asked."""
        entries = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        return [
            entry["message"] for entry in entries if entry["level"] == "SEVERE" and "favicon" not in entry["message"]
        ]

    def close(self) -> None:
        """End the browser."""
        self._ask("DELETE", self._session)

    def _ask(self, method: str, url: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)  # noqa: S310
        with urllib.request.urlopen(request, timeout=200) as answer:  # noqa: S310 - loopback
            return json.load(answer)["value"]


class Shown:
    """Stands where the collector's state stands: one running job with one report, or none."""

    def __init__(
        self, report: dict[str, Any] | None, seen: Overview | None = None, store: ParquetStore | None = None
    ) -> None:
        self.condition = Condition("running", "", 10**9)
        self.stack: str | None = None
        history = StepHistory()
        if seen is not None:
            history.add(seen)
        ranks = [row["rank"] for row in (report or {}).get("ranks", ())]
        self.job = SimpleNamespace(
            id=(report or {"job": {"id": None}})["job"]["id"],
            judged_s=lambda _: None,
            command=(report or {"job": {}})["job"].get("command"),
            report=report,
            report_until_now=lambda: self.job.report,
            reported=1,
            history=history,
            events=[],
            world_size=len(ranks) or None,
            started_ns=0,
            verdicts=lambda: (report or {}).get("verdicts", []),
            window=SimpleNamespace(
                last_step=-1,
                nodes=1,
                ranks=lambda: {"rank": ranks},
                nodes_of=lambda: {row["rank"]: row["node"] or "" for row in (report or {}).get("ranks", ())},
                stack=lambda _: self.stack,
            ),
        )
        parts: Any = SimpleNamespace(
            jobs={self.job.id: self.job} if report else {},
            recorder=SimpleNamespace(store=store, trouble=None),
            clock=SimpleNamespace(now=lambda: 0),
        )
        self.live = LivePage(parts, lambda _: self.condition)

    def report(self, _: str | None) -> dict[str, Any] | None:
        """The report, whichever job is asked for."""
        found: dict[str, Any] | None = self.job.report
        return found

    def jobs(self) -> list[dict[str, Any]]:
        return self.live.jobs()

    def metrics(self) -> bytes:
        return b""

    def ready(self) -> str | None:
        return None

    def damage(self) -> list[str]:
        return []


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A browser for all tests; starting one takes a second."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        try:
            made = Browser(f"http://127.0.0.1:{_port(process)}", profile)
            yield made
            made.close()
        finally:
            process.terminate()
            process.wait(300)


@pytest.fixture
def show(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Shown]]:
    """Serve a report on the collector's page and open it."""
    pages: list[Page] = []
    monkeypatch.setattr(http, "STATE_S", 0.1)

    def serve(
        report: dict[str, Any] | None,
        seen: Overview | None = None,
        query: str = "",
        store: ParquetStore | None = None,
    ) -> Shown:
        shown = Shown(report, seen, store)
        pages.append(Page(("127.0.0.1", 0), shown))
        shown.close = pages[-1].close  # type: ignore[attr-defined]
        browser.width(1280)
        browser.open(f"http://{pages[-1].address}/{query}")
        return shown

    yield serve
    browser.open("about:blank")
    browser.scheme("light")
    for page in pages:
        page.close()


def _port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if "started successfully on port" in line:
            return int(line.rstrip(".\n").rpartition(" ")[2])
    raise AssertionError("chromedriver did not start")
