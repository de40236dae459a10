"""A store that is away when the collector starts: waited for in the open, and given up only where that helps."""

import asyncio

import pytest
from hindmost.errors import HindmostError
from hindmost_collector import main
from hindmost_collector.main import open_store
from hindmost_collector.options import Options
from hindmost_collector.store.clickhouse.client import Unreachable

from tests.pages import fetched
from tests.waiting import until


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Tries follow each other at once."""
    monkeypatch.setattr(main, "FIRST_S", 0.01)
    monkeypatch.setattr(main, "LAST_S", 0.01)


@pytest.fixture
def pages(monkeypatch):
    """Addresses of the pages that are served."""
    found = []

    class Page(main.Page):
        def __init__(self, *args):
            super().__init__(*args)
            found.append(self.address)

    monkeypatch.setattr(main, "Page", Page)
    return found


async def test_readiness_says_what_it_waits_for(tmp_path, pages, caplog):
    """Until the store answers the collector is alive and not ready, says why, once, and then has it and the page."""
    away = [True]

    def opened(options):
        if away[0]:
            raise Unreachable("ClickHouse at db:8123 does not answer: Connection refused")
        return open_store(options)

    options = Options(http="127.0.0.1:0", store=str(tmp_path))
    waiting = asyncio.create_task(main.store_and_page(options, asyncio.Event(), opened))
    await until(lambda: pages)
    seen = [
        await asyncio.to_thread(fetched, f"http://{pages[0]}{path}") for path in ("/healthz", "/readyz", "/metrics")
    ]
    away[0] = False
    store, page = await waiting
    page.close()
    store.close()
    (alive, ready, metrics), address = seen, page.address
    assert (alive, address) == ((200, "ok\n"), pages[0])
    said = "waiting for the store: ClickHouse at db:8123 does not answer: Connection refused\n"
    assert ready == (503, said)
    assert "hindmost_collector_store_failing 1" in metrics[1]
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "the store does not answer, retrying",
        "the store answered after 0 s",
    ]


async def test_the_same_page_then_shows_the_collector(tmp_path, pages, monkeypatch, capsys):
    """A health check that began while the store was away finds the collector ready at the same address."""
    tries = iter([Unreachable("away"), Unreachable("away"), None])

    def opened(options):
        trouble = next(tries)
        if trouble:
            raise trouble
        return open_store(options)

    stopped = asyncio.Event()
    real = main.store_and_page
    monkeypatch.setattr(main, "store_and_page", lambda *args: real(*args, opened))
    options = Options(listen="127.0.0.1:0", http="127.0.0.1:0", store=str(tmp_path))
    served = asyncio.create_task(main.serve(options, stopped))
    await until(lambda: pages)
    ready = (503, "")
    while ready[0] != 200:
        ready = await asyncio.to_thread(fetched, f"http://{pages[0]}/readyz")
    stopped.set()
    assert (ready, await served) == ((200, "ready\n"), 0)
    assert pages[0] in capsys.readouterr().out


async def test_stopped_while_it_waits_it_leaves(pages, monkeypatch):
    """SIGTERM ends the waiting at once, without an error: nothing is held."""

    def opened(_):
        raise Unreachable("away")

    stopped = asyncio.Event()
    real = main.store_and_page
    monkeypatch.setattr(main, "store_and_page", lambda *args: real(*args, opened))
    served = asyncio.create_task(main.serve(Options(http="127.0.0.1:0"), stopped))
    await until(lambda: pages)
    stopped.set()
    assert (await served) == 0
    with pytest.raises(OSError, match="refused"):
        fetched(f"http://{pages[0]}/healthz")


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (HindmostError("ClickHouse at db said: wrong password"), Options(http="none")),
        (Unreachable("away"), Options(exit_when_stdin_closes=True)),
    ],
)
def test_what_waiting_does_not_fix_ends_it(error, options):
    """What is wrong for good, and anything where a job waits for its collector, ends the start at once."""

    def opened(_):
        raise error

    with pytest.raises(type(error)) as caught:
        asyncio.run(main.store_and_page(options, asyncio.Event(), opened))
    assert caught.value is error
