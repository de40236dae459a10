"""The live page, in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hindmost_collector.report import text
from hindmost_collector.report.rendered import rendered

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.needs("chromium", "chromedriver")


def test_the_verdict_is_what_a_reader_sees_first(browser: Any, show: Callable[..., Any]) -> None:
    """Who, what it costs, why, since when, and what to do stand in the page's first card."""
    show(report())
    browser.until("document.querySelector('.verdict h2').innerText.includes('rank 2')")
    card = browser.text(".verdict")
    assert "SLOW rank 2" in card
    assert ": computing, since step 20" in card
    assert "last into 147 of 150 all-reduces" in card
    assert "Cost 4.1 of 13.2 ms per step since then (31 %); without it a step takes 9.1 ms" in card
    assert "99 % sure" in card
    assert "Do compare its host" in card
    assert browser.run("return document.title").startswith("●")
    assert browser.complaints() == []


def test_the_page_says_the_words_of_the_report(browser: Any, show: Callable[..., Any]) -> None:
    """How much of the run a cost is a share of, whose repair it takes for granted, who did not come: all as written."""
    straggler = report()["verdicts"][0]
    common = {"victims": [0, 1], "confidence": 0.9, "evidence": ["seen"], "advice": ["look"], "cause": "unknown"}
    stop = common | dict.fromkeys(("cost_ms_per_step", "cost_ratio", "since_step"))
    told = report(
        verdicts=[
            straggler | {"ranks": [3], "since_step": None, "given": [2]},
            straggler | {"until_step": 90},
            stop | {"kind": "hang", "ranks": [2]},
            stop | {"kind": "desync", "ranks": []},
            straggler | {"kind": "uneven_workload", "ranks": []},
        ]
    ) | {"notes": ["4 ranks share the 2 CPUs of vm"]}
    show(told)
    browser.until("document.querySelectorAll('.verdict').length == 5")
    seen = " ".join(browser.text("main").split())
    written = [(line[:7].strip(), line[7:].strip()) for line in text.render(told, width=10_000).splitlines()]
    sentences = [words for label, words in written if label in ("WHY", "COST", "DO", "NOTE")]
    assert len(sentences) == 5 * len(("WHY", "DO")) + 3 + 1
    sentences += [one.what for one in rendered(told)]
    assert [one for one in sentences if one not in seen] == []


def test_the_culprits_row_stands_out(browser: Any, show: Callable[..., Any]) -> None:
    """The named rank, and only it, is marked in the table, and comes first."""
    show(report())
    browser.until("document.querySelectorAll('tbody tr').length == 4")
    marked = browser.run("return [...document.querySelectorAll('tbody tr')].map(row => row.className == 'bad')")
    assert marked == [True, False, False, False]
    assert browser.run("return document.querySelector('tbody td').innerText") == "2"


def test_a_column_sorts_when_it_is_clicked(browser: Any, show: Callable[..., Any]) -> None:
    """Clicking on rank lists the ranks by number, clicking again the other way round."""
    show(report())
    browser.until("document.querySelectorAll('tbody tr').length == 4")
    first = "return document.querySelector('tbody td').innerText"
    seen = set()
    for _ in range(2):
        browser.run("document.querySelector('thead th').click()")
        seen.add(browser.run(first))
    assert seen == {"0", "3"}


def test_what_was_not_measured_is_a_dash(browser: Any, show: Callable[..., Any]) -> None:
    """A report full of nulls shows dashes: no zero, no NaN, no word of the language the page is written in."""
    empty = dict.fromkeys(("step_ms", "wait_ms", "caused_wait_ms", "share_last", "node", "gpu"))
    show(report(ranks=[{"rank": rank, "phases_ms": {}, **empty} for rank in range(2)]))
    browser.until("document.querySelectorAll('tbody tr').length == 2")
    cells = browser.run("return [...document.querySelectorAll('tbody tr:first-child td')].map(cell => cell.innerText)")
    assert set(cells[1:]) == {"\u2013", ""}
    everything = browser.text("main")
    assert not [word for word in ("NaN", "undefined", "null", "[object") if word in everything]


def test_names_from_the_job_are_text(browser: Any, show: Callable[..., Any]) -> None:
    """A command, a node or an evidence line that looks like markup is shown, not obeyed."""
    hostile = "<img src=x onerror='document.title=1'><script>document.title=2</script>"
    hostile_ranks = [{**row, "node": hostile} for row in report()["ranks"]]
    show(report(command=hostile, evidence=[hostile], ranks=hostile_ranks))
    browser.until("document.querySelectorAll('tbody tr').length == 4")
    assert browser.run("return document.querySelectorAll('main img, main script').length") == 0
    assert hostile in browser.text("#job")


def test_a_thousand_ranks_stay_readable(browser: Any, show: Callable[..., Any]) -> None:
    """Of 1,024 ranks the page shows the worst ones, the culprit on top, and says that there are more."""
    show(report(world_size=1024))
    shown = browser.until("document.querySelectorAll('tbody tr').length")
    assert shown <= 256
    assert browser.run("return document.querySelector('tbody td').innerText") == "2"
    assert "1024 ranks" in browser.text("#table")


def test_nothing_wrong_looks_different_from_trouble(browser: Any, show: Callable[..., Any]) -> None:
    """A balanced job has a calm card, no marked row, and no bullet in the title of the tab."""
    balanced = {"kind": "balanced", "ranks": [], "cause": None, "evidence": ["no rank is late"], "confidence": 0.99}
    show(report(verdicts=[balanced]))
    browser.until("document.querySelector('.verdict.fine h2').innerText == 'OK no rank is slow 99 % sure'")
    assert browser.run("return document.querySelectorAll('tr.bad').length") == 0
    assert not browser.run("return document.title").startswith("●")


def test_a_telephone_needs_no_sideways_scrolling(browser: Any, show: Callable[..., Any]) -> None:
    """At 400 pixels the page itself is not wider than the window; only the table scrolls within its card."""
    show(report())
    browser.until("document.querySelectorAll('tbody tr').length == 4")
    browser.width(400)
    assert browser.run("return window.innerWidth") <= 500
    assert browser.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_a_collector_that_went_away_is_said_to_be(browser: Any, show: Callable[..., Any]) -> None:
    """When requests fail the page says so instead of showing old figures as live."""
    show(report())
    browser.until("document.querySelector('#live').innerText == 'live'")
    browser.run("window.fetch = () => Promise.reject(new Error('gone')); document.querySelector('#jobs').onchange()")
    browser.until("document.querySelector('#live').innerText.includes('does not answer')")
    assert "does not answer" in browser.run("return document.querySelector('#live').innerText")


def report(
    *,
    command: str = "mpirun -np 4 python train.py",
    world_size: int = 4,
    evidence: list[str] | None = None,
    ranks: list[dict[str, Any]] | None = None,
    verdicts: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A report of a job in which rank 2 is slow."""
    straggler = {
        "kind": "straggler",
        "ranks": [2],
        "cause": "compute",
        "since_step": 20,
        "cost_ms_per_step": 4.1,
        "cost_ratio": 0.31,
        "confidence": 0.99,
        "evidence": evidence or ["last into 147 of 150 all-reduces"],
        "advice": ["compare its host and GPU with its peers"],
    }
    return {
        "schema": "hindmost.report/1",
        "job": {"id": "demo", "command": command, "world_size": world_size, "nodes": 1, "steps": 150},
        "verdicts": verdicts if verdicts is not None else [straggler],
        "ranks": ranks if ranks is not None else [row(rank) for rank in range(world_size)],
        "what_if": {},
    }


def row(rank: int) -> dict[str, Any]:
    """What is said of one rank."""
    slow = rank == 2
    return {
        "rank": rank,
        "node": "n0",
        "step_ms": 13.2,
        "phases_ms": {"input": 1.0, "forward": 12.0 if slow else 8.0},
        "wait_ms": 0.1 if slow else 4.1,
        "caused_wait_ms": 12.3 if slow else 0.0,
        "share_last": 0.98 if slow else 0.01,
    }
