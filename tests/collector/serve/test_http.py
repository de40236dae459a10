"""The HTTP side: requests as clients make them."""

import http.client
import json
import selectors
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hindmost_collector.serve import http as served
from hindmost_collector.serve.live_page import LivePage, range_of


class Nothing:
    """A collector without jobs."""

    def __init__(self) -> None:
        parts: Any = SimpleNamespace(jobs={}, recorder=SimpleNamespace(store=None, trouble=None))
        self.live = LivePage(parts)

    def ready(self) -> str | None:
        return None

    def damage(self) -> list[str]:
        return []

    def jobs(self) -> list[dict[str, Any]]:
        return self.live.jobs()

    def report(self, _: str | None) -> None:
        """None."""


@pytest.fixture
def page() -> Iterator[served.Page]:
    made = served.Page(("127.0.0.1", 0), cast("Any", Nothing()))
    yield made
    made.close()


def response_to(page: served.Page, method: str, path: str, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    """The response to a request, and its body."""
    connection = http.client.HTTPConnection(page.address, timeout=200)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    return response, response.read()


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/api/jobs", "/nowhere"])
def test_head_says_what_get_would(page: served.Page, path: str) -> None:
    """The status, kind and length, and no body."""
    (head, nothing), (answer, body) = response_to(page, "HEAD", path), response_to(page, "GET", path)
    assert (head.status, nothing) == (answer.status, b"")
    assert head.getheader("Content-Type") == answer.getheader("Content-Type")
    if path != "/":  # each page has a nonce of its own, and so another length once compressed
        assert head.getheader("Content-Length") == str(len(body))


def test_scripts_of_the_page_run_by_its_nonce_only(page: served.Page) -> None:
    """Whatever a job is called, nothing that it injects runs."""
    response, body = response_to(page, "GET", "/")
    policy = response.getheader("Content-Security-Policy") or ""
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    assert nonce
    assert body.decode().count(f'<script nonce="{nonce}">') == body.decode().count("<script")


def test_what_is_compressed_is_so_for_those_who_take_it(page: served.Page) -> None:
    """curl does not ask for it."""
    plain, packed = response_to(page, "GET", "/"), response_to(page, "GET", "/", **{"Accept-Encoding": "gzip"})
    assert (plain[0].getheader("Content-Encoding"), packed[0].getheader("Content-Encoding")) == (None, "gzip")
    assert plain[1].startswith(b"<!doctype html>")
    assert len(packed[1]) < len(plain[1]) / 2


def test_open_pages_are_sent_the_state_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each second; and once more, as a goodbye, when the collector stops."""
    monkeypatch.setattr(served, "STATE_S", 0.01)
    page = served.Page(("127.0.0.1", 0), cast("Any", Nothing()))
    connection = http.client.HTTPConnection(page.address, timeout=200)
    connection.request("GET", "/api/events")
    response = connection.getresponse()
    assert json.loads(response.readline().removeprefix(b"data: ")) == {"job": None, "state": "waiting"}
    page.close()
    rest = response.read().decode().split("\n\n")
    assert rest[-2].strip().startswith("event: bye\ndata: ")


def test_a_server_that_is_not_asked_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that it looked whether it is to end it would take a core from a rank, where cores are full."""
    waits: list[float | None] = []

    class Selector(selectors.SelectSelector):
        def select(self, timeout: float | None = None) -> Any:
            waits.append(timeout)
            return super().select(timeout)

    monkeypatch.setattr(selectors, "DefaultSelector", Selector)
    page = served.Page(("127.0.0.1", 0), cast("Any", Nothing()))
    page.close()
    assert set(waits) <= {None}


def test_pages_beyond_the_limit_are_refused_a_stream(page: served.Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """They ask for the state now and then instead."""
    monkeypatch.setattr(served, "STREAMS", 0)
    assert response_to(page, "GET", "/api/events")[0].status == 503
    assert json.loads(response_to(page, "GET", "/api/state")[1])["state"] == "waiting"


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("120-300", (120, 300)),
        ("120-", (120, None)),
        ("7", (7, 7)),
        (None, (None, None)),
        ("x-3", (None, 3)),
        ("-", (None, None)),
    ],
)
def test_a_range_of_steps_is_read_as_it_is_written(text: str | None, steps: tuple[int | None, int | None]) -> None:
    """What is not a number is no bound."""
    assert range_of(text) == steps
