"""The live page, in a real browser."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost_collector.page import data, document
from hindmost_collector.page.history import StepHistory
from hindmost_collector.report import section_rows, sections
from hindmost_collector.serve.live_page import Condition
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.store.parquet.store import ParquetStore
from hindmost_judge.judge import judge
from hindmost_judge.overview import Overview

pytestmark = [pytest.mark.browser, pytest.mark.needs("chromium", "chromedriver")]

ROWS = "document.querySelectorAll('tr.rank').length"
MS = 1e6


def test_the_verdict_is_what_a_reader_sees_first(browser: Any, show: Callable[..., Any]) -> None:
    """Who, what it costs, why, since when, and what to do with a command to copy stand in the page's first card."""
    show(report())
    browser.until("document.querySelector('.verdict h2').innerText.includes('rank 2')")
    card = browser.text(".verdict")
    assert " ".join(card.split()).startswith("SLOW rank 2 on n0: computing, since step 20 99 % sure")
    assert "last into 147 of 150 all-reduces" in card
    assert "costs 4.1 of 13.2 ms per step since step 20 (31 %)" in card
    assert "9.1 ms remain" in browser.run("return document.querySelector('.verdict').textContent")
    assert "Do compare its host" in card
    assert browser.run("return document.querySelector('.verdict .copy').ariaLabel") == "copy nvidia-smi -q"
    assert browser.run("return document.title").startswith("●")
    assert browser.complaints() == []


def test_the_culprits_row_stands_out_and_columns_sort(browser: Any, show: Callable[..., Any]) -> None:
    """The named rank, and only it, is marked, and comes first; a click on a heading sorts, and says so."""
    show(report(), overview())
    browser.until(f"{ROWS} == 4")
    rows = "return [...document.querySelectorAll('tr.rank')].map(row => row.className.includes('bad'))"
    assert browser.run(rows) == [True, False, False, False]
    first = "return document.querySelector('tr.rank td').innerText"
    assert browser.run(first) == "2"
    seen = []
    for _ in range(2):
        browser.run("document.querySelector('thead th button').click()")
        seen.append((browser.run(first), browser.run("return document.querySelector('th[aria-sort]').ariaSort")))
    assert seen == [("0", "ascending"), ("3", "descending")]


def test_what_to_do_about_a_second_verdict_comes_after_the_first(browser: Any, show: Callable[..., Any]) -> None:
    """As in the text."""
    show(report(verdicts=[STRAGGLER, {**STRAGGLER, "ranks": [3], "advice": ["look at rank 3"]}]))
    browser.until("document.querySelectorAll('.verdict').length == 2")
    labels = "return [...document.querySelectorAll('.verdict p b')].map(one => one.textContent.trim())"
    assert [label for label in browser.run(labels) if label in ("Do", "Then")] == ["Do", "Then"]


def test_the_map_shows_the_slow_rank_where_it_is_slow(browser: Any, show: Callable[..., Any]) -> None:
    """Pixels of its late steps differ from those of its early steps, and of other ranks."""
    show(report(), overview())
    browser.until(f"{ROWS} == 4")
    colour = """
      const at = (rank, step) => {
        const ratio = heat.canvas.width / heat.box.clientWidth;
        const y = heat.top + (rank + 0.5) * heat.high / 4;
        return heat.canvas.getContext('2d').getImageData(heat.x(step + 0.5) * ratio, y * ratio, 1, 1).data.join();
      };
    """
    late, early, other = browser.run(f"{colour} return [at(2, 90), at(2, 8), at(1, 90)]")
    assert early == other
    assert late != early


def test_a_brushed_range_recomputes_the_table(browser: Any, show: Callable[..., Any]) -> None:
    """Dragging over the steps before the onset shows no delay; the address keeps them, and what all steps had."""
    show(report(), overview())
    browser.until(f"{ROWS} == 4")
    delay = "document.querySelector('tr.rank.bad').children[3]"
    browser.until(f"{delay}.firstChild.innerText == '4.00 ms'")
    browser.run("""
      const box = heat.canvas.getBoundingClientRect();
      const at = (type, step) => heat.canvas.dispatchEvent(new PointerEvent(type, {
        clientX: box.left + heat.x(step), clientY: box.top + 20, pointerId: 1, bubbles: true }));
      heat.canvas.setPointerCapture = () => {};
      at('pointerdown', 4.5); at('pointermove', 12.5); at('pointerup', 15.5);
    """)
    browser.until(f"{delay}.firstChild.innerText == '0 ms'")
    assert browser.run(f"return {delay}.lastChild.innerText") == "3.20 ms"
    assert "steps=4-15" in browser.run("return location.search")
    assert browser.text("#which").startswith("means of steps 4 to 15")


def test_the_address_brings_back_what_was_shown(browser: Any, show: Callable[..., Any]) -> None:
    """Job, steps and rank: a link that is passed on shows the same."""
    shown = show(report(), overview(), "?job=demo&rank=1&steps=4-15")
    shown.stack = "train.py:7 in <module>"
    browser.until("document.querySelector('#drawer h2') && !document.querySelector('#drawer').hidden")
    assert browser.text("#drawer h2") == "rank 1"
    assert browser.text("#which").startswith("means of steps 4 to 15")
    browser.until("document.querySelector('#state').innerText == 'running'")
    assert browser.run("return location.search") == "?job=demo&rank=1&steps=4-15"


def test_news_arrives_without_taking_the_focus(browser: Any, show: Callable[..., Any]) -> None:
    """A row is the same element with other figures, and keeps the focus; only a new verdict is spoken."""
    shown = show(report(), overview(), "?steps=all")
    browser.until(f"{ROWS} == 4")
    browser.run("window.row = rowOf.get(3); row.querySelector('button').focus()")
    before = browser.run("return row.children[4].innerText")
    shown.job.history.add(overview(slow_ms=40.0, steps=(100, 180)))
    browser.until(f"row.children[4].innerText != {json.dumps(before)}")
    assert browser.run("return document.activeElement == row.querySelector('button') && row == rowOf.get(3)")
    assert browser.run("return document.querySelector('#spoken').innerText") == ""
    shown.job.report = report(verdicts=[STRAGGLER | {"ranks": [1]}])
    shown.job.reported += 1
    browser.until("document.querySelector('#spoken').innerText.includes('rank 1')")


def test_a_hang_beyond_the_last_step_shows_all_steps(browser: Any, show: Callable[..., Any]) -> None:
    """The step that never ended is not in the map."""
    hang = {
        "kind": "hang",
        "ranks": [1],
        "victims": [0],
        "since_step": 100,
        "cause": None,
        "evidence": [],
        "advice": [],
    }
    show(report(verdicts=[hang]), overview())
    browser.until(f"{ROWS} == 4")
    assert browser.text("#which") == "means of steps 0 to 99; text reports have medians"


def test_the_seconds_of_a_hang_count_on(browser: Any, show: Callable[..., Any]) -> None:
    """Though its report is not made again."""
    hang = {"kind": "hang", "ranks": [1], "victims": [0, 2, 3], "since_step": 9, "evidence": [], "advice": []}
    shown = show(report(verdicts=[{**hang, "waited_s": 15.0}]))
    shown.condition = Condition("hung", "", 10**9)
    browser.until("document.querySelector('.bad .cost')?.innerText === '3 ranks waited 5.0 s on average'")
    shown.job.report_until_now = lambda: report(verdicts=[{**hang, "waited_s": 27.0}])
    browser.until("document.querySelector('.bad .cost')?.innerText === '3 ranks waited 9.0 s on average'")


def test_keys_lead_through_the_table(browser: Any, show: Callable[..., Any]) -> None:
    """j and k go from rank to rank, / to the filter, s sorts, ? explains, Escape closes."""
    show(report(), overview())
    browser.until(f"{ROWS} == 4")
    press = (
        "const press = key => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));"
    )
    focused = "document.activeElement.getAttribute('aria-label')"
    assert browser.run(f"{press} press('j'); press('j'); press('k'); return {focused}") == "rank 2"
    assert (
        browser.run(f"{press} press('s'); return document.querySelector('th[aria-sort]').innerText") == "last to arrive"
    )
    assert browser.run(f"{press} press('?'); return document.querySelector('#keys').open")
    browser.run("document.querySelector('#keys').close()")
    assert browser.run(f"{press} press('/'); return document.activeElement.id") == "filter"
    browser.run("const box = document.querySelector('#filter'); box.value = '0-1'; box.oninput()")
    assert browser.run(f"return {ROWS}") == 2


@pytest.mark.parametrize(("share", "first"), [(0.03, "LIMITED BY"), (0.4, "SLOW")])
def test_too_few_cpus_stand_before_a_verdict_that_costs_less(
    browser: Any, show: Callable[..., Any], share: float, first: str
) -> None:
    """In the order of the text, and once."""
    found = report()
    found["verdicts"][0]["cost_ratio"] = share
    found["job"]["bound"] = {"by": "cpu", "evidence": "the typical rank waits for a CPU 85 % of the time"}
    show(found)
    browser.until("document.querySelector('.verdict h2').innerText.includes('rank 2')")
    said = " ".join(browser.text("body").upper().split())
    words = {word: said.index(word) for word in ("LIMITED BY", "SLOW RANK 2")}
    assert min(words, key=lambda word: words[word]).startswith(first)
    assert said.count("LIMITED BY") == 1


def test_it_says_that_there_is_no_verdict_and_how_old_the_last_one_is(browser: Any, show: Callable[..., Any]) -> None:
    """Where all cores are busy verdicts come late."""
    shown = show(report())
    shown.job.report = None
    browser.open(browser.run("return location.href"))
    browser.until("document.querySelector('.verdict h2 b').innerText === 'NO VERDICT YET'")
    shown.job.judged_s = lambda _: 30.0  # it is there, and on its way
    browser.until("document.querySelector('.verdict').innerText.includes('reading the verdict')")
    shown.job.report, shown.job.judged_s = report(), lambda _: 90.0
    shown.job.reported += 1
    browser.until("document.querySelector('.verdict').innerText.includes('rank 2')")
    browser.until("document.querySelector('#facts').innerText.includes('verdict 2 min old')")
    unsure = {"kind": "insufficient_data", "ranks": [], "evidence": ["4 ranks, no step yet"], "advice": []}
    shown.job.report = report(verdicts=[unsure])
    shown.job.report["job"]["steps"] = 0
    shown.job.reported += 1
    browser.until("document.querySelector('.verdict').innerText.includes('no step yet')")
    shown.job.window.last_step = 212
    browser.until("document.querySelector('.verdict h2 b').innerText === 'NO VERDICT YET'")


def test_what_was_not_measured_is_a_dash(browser: Any, show: Callable[..., Any]) -> None:
    """A report full of nulls shows dashes: no zero, no NaN, no word of the language the page is written in."""
    empty = dict.fromkeys(("step_ms", "wait_ms", "caused_wait_ms", "share_last", "node", "gpu"))
    show(report(ranks=[{"rank": rank, "phases_ms": {}, **empty} for rank in range(2)]))
    browser.until(f"{ROWS} == 2")
    cells = browser.run("return [...document.querySelectorAll('tr.rank:nth-child(2) td')].map(cell => cell.innerText)")
    assert {cell.strip() for cell in cells[3:]} == {"\u2013"}
    everything = browser.text("body")
    assert not [word for word in ("NaN", "undefined", "null", "[object") if word in everything]


def test_names_from_the_job_are_text(browser: Any, show: Callable[..., Any]) -> None:
    """A command, a node, a stack or an evidence line that looks like markup is shown, not obeyed."""
    hostile = "<img src=x onerror='document.title=1'></script><script>document.title=2</script>"
    hostile_ranks = [{**row, "node": hostile} for row in report()["ranks"]]
    shown = show(report(command=hostile, evidence=[hostile], ranks=hostile_ranks), overview(), "?rank=1")
    shown.stack = hostile
    browser.until(f"{ROWS} == 4")
    assert browser.run("return document.querySelectorAll('img, main script, aside script').length") == 0
    assert hostile in browser.text("#command")
    page = document.render({"state": {"state": "ended", "command": hostile}, "report": None, "ranks": None}, hostile)
    assert hostile not in page


STATES = {
    ("running", ""): "running",
    ("hung", ""): "hung",
    ("ended", "exit code 1"): "ended",
    ("lost", "no agent has sent anything for 20 s"): "contact lost",
    ("starting", ""): "starting",
}


def test_each_state_is_shown_as_what_it_is(browser: Any, show: Callable[..., Any]) -> None:
    """A job whose agents died does not stay green, and its verdict is said to be of before."""
    shown = show(report(), overview())
    colours = {}
    for (state, why), words in STATES.items():
        shown.condition = Condition(state, why, 0)
        browser.until(f"document.querySelector('#state').innerText == {json.dumps(words)}")
        colours[state] = browser.run("return getComputedStyle(document.querySelector('#state')).color")
        assert why in browser.text("body")
        assert browser.run("return document.body.classList.contains('stale')") == (state == "lost")
    assert list(colours.values()).count(colours["running"]) == 1


def test_the_end_of_a_job_comes_before_its_speed(browser: Any, tmp_path: Path) -> None:
    """How it ended and what to do stand at the top; OK is not green, no steps are chosen, nothing limits it."""
    found = judge(simulate(Scenario(4, 60, faults=(Fault("hang", (1,), 0.0, 30),))).run)
    report = found.to_dict()
    report["job"] |= {"ended": "exit code 1", "to_do": "read the traceback", "bound": {"by": "cpu", "evidence": "so"}}
    page = tmp_path / "report.html"
    page.write_text(document.of_report(report, simulate(Scenario(4, 60)).run, found.overview), encoding="utf-8")
    browser.open(page.as_uri())
    browser.until(f"{ROWS} == 4")
    assert browser.text("#alarm") == "The job has ended: exit code 1. Do: read the traceback."
    assert "LIMITED BY" not in browser.text("body")
    assert browser.run("return view.range") is None
    report["job"]["ended"] = "rank 1 said: no <i>room</i>. " + "x" * 400 + "…"
    page.write_text(document.of_report(report), encoding="utf-8")
    browser.open(page.as_uri())
    browser.until(f"{ROWS} == 4")
    assert browser.text("#alarm").endswith("x… Do: read the traceback.")
    assert "no <i>room</i>." in browser.text("#alarm")
    browser.until("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    browser.run("openRank(1)")
    browser.until("!find('drawer').hidden && find('drawer').getBoundingClientRect().left >= 0")
    report["verdicts"] = [{**report["verdicts"][0], "kind": "balanced", "ranks": [], "confidence": 0.9}]
    page.write_text(document.of_report(report), encoding="utf-8")
    browser.open(page.as_uri())
    browser.until("document.querySelector('.verdict h2').innerText.startsWith('OK')")
    assert "unsure" in browser.run("return document.querySelector('.verdict').className")
    assert "LIMITED BY too few free CPUs" in browser.text("#verdicts")


def test_a_job_without_gpus_has_no_tab_and_no_lane_of_them(browser: Any, show: Callable[..., Any]) -> None:
    """What a job cannot have is not said to be missing; the commands of a running job can be typed as they are."""
    stuck = {"kind": "insufficient_data", "ranks": [], "victims": [], "cause": None, "evidence": ["x"]}
    show(report(verdicts=[stuck | {"advice": ["run `hindmost attach --stacks --job demo`"]}]), overview())
    browser.until(f"{ROWS} == 4")
    gpus = browser.run("return onGpus()")
    assert browser.run("return document.getElementById('tab-gpus').hidden") == (not gpus)
    browser.run("now.ranks.gpu = []; delete shown().lanes; lanesOf(shown()).gpu = []; showTable()")
    assert browser.run("return document.getElementById('tab-gpus').hidden")
    assert "GPU" not in browser.text("#ranks")
    assert browser.text(".verdict code") == "hindmost attach --stacks --job demo"
    assert browser.text("#notes code").startswith("hindmost top 127.0.0.1:")


@pytest.mark.parametrize(
    ("verdict", "head", "calm"),
    [
        ({"kind": "balanced", "confidence": 0.99}, "OK no rank is slow 99 % sure", "ok"),
        ({"kind": "balanced", "confidence": 0.4}, "UNSURE cannot say whether a rank is slow", "unsure"),
        ({"kind": "insufficient_data"}, "UNSURE cannot say whether a rank is slow", "unsure"),
        ({"kind": "hang", "ranks": [1], "victims": [0]}, "HUNG rank 1 on n0 did not arrive", "bad"),
    ],
)
def test_each_verdict_looks_like_what_it_is(
    browser: Any, show: Callable[..., Any], verdict: dict[str, Any], head: str, calm: str
) -> None:
    """Health, doubt and a stop have looks of their own; a hang comes before costs."""
    nothing = {"ranks": [], "victims": [], "cause": None, "evidence": ["seen"], "advice": []}
    show(report(verdicts=[nothing | verdict]))
    browser.until("document.querySelector('.verdict h2') && document.title.includes('demo')")
    assert " ".join(browser.text(".verdict h2").split()) == head
    assert browser.run(f"return document.querySelector('.verdict').classList.contains('{calm}')")
    assert browser.run("return document.title").startswith("●") == (calm == "bad")


def test_a_collector_that_stopped_is_said_to_have(browser: Any, show: Callable[..., Any]) -> None:
    """After the end of its job the page keeps what it had; before it, what is shown is said to be old."""
    shown = show(report(), overview())
    browser.until("document.querySelector('#state').innerText == 'running'")
    shown.condition = Condition("ended", "", None)
    shown.close()
    browser.until("document.querySelector('#state').innerText == 'ended'")
    assert "The collector has stopped" in browser.text("#alarm")
    browser.run("told(null, false)")
    assert browser.text("#state") == "ended"
    browser.run("now.state.state = 'running'; told(null, false)")
    assert "does not answer" in browser.text("#state")


def test_a_telephone_needs_no_sideways_scrolling(browser: Any, show: Callable[..., Any]) -> None:
    """At 400 pixels the page itself is not wider than the window; only the table scrolls within its card."""
    show(report(), overview())
    browser.until(f"{ROWS} == 4")
    browser.width(400)
    assert browser.run("return window.innerWidth") <= 500
    browser.until("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_of_a_thousand_ranks_only_those_in_view_are_elements(browser: Any, show: Callable[..., Any]) -> None:
    """However far they are scrolled: that is what makes it fast."""
    show(report(world_size=1024), overview(ranks=1024, steps=(0, 500)))
    assert browser.until(ROWS) < 60
    browser.run("document.querySelector('#scroll').scrollTop = 1e9")
    browser.until("[...document.querySelectorAll('tr.rank')].some(row => row.innerText.includes('1023'))")
    assert browser.run(f"return {ROWS}") < 60
    assert browser.run("return document.documentElement.scrollHeight") < 2000


def test_ranks_that_are_named_next_to_each_other_share_a_label(browser: Any, show: Callable[..., Any]) -> None:
    """In a map of so many rows that each label would cover the next one's."""
    verdicts = [STRAGGLER | {"ranks": [rank]} for rank in (2, 4, 60)]
    show(report(world_size=64, verdicts=verdicts), overview(ranks=64))
    browser.until(f"{ROWS} > 0")
    written = (
        "const texts = []; heat.canvas.getContext('2d').fillText = text => texts.push(text); heat.draw(); return texts"
    )
    assert {"rank 2, 4", "rank 60"} <= set(browser.run(written))


def test_the_scale_has_the_colours_of_the_map(browser: Any, show: Callable[..., Any]) -> None:
    """Also when the system goes dark while the page is open."""
    show(report(), overview())
    browser.until(f"{ROWS} == 4")
    scale = "getComputedStyle(document.querySelector('#scale i')).backgroundImage"
    light = browser.run(f"return {scale}")
    browser.scheme("dark")
    browser.until(f"{scale} != {json.dumps(light)}")


def test_four_thousand_ranks_take_little_of_the_tab(browser: Any, show: Callable[..., Any]) -> None:
    """4,096 ranks of 500 steps: less than 50 MB of the browser's memory, and 200 kB to open."""
    show(report(world_size=4096), overview(ranks=4096, steps=(0, 500)))
    assert browser.until(ROWS) < 60
    assert browser.run("return performance.memory.usedJSHeapSize") < 50e6
    sizes = "performance.getEntriesByType('resource').map(one => one.transferSize)"
    assert 0 < browser.run(f"return {sizes}.reduce((sum, one) => sum + one, 0)") < 200e3


def test_a_report_is_the_same_page_with_its_data_inside(browser: Any, tmp_path: Path) -> None:
    """Without a server: the same map, the same rows, and means of chosen steps as the collector computes them."""
    seen, embedded = overview(), report()
    history = StepHistory()
    history.add(seen)
    steps = data.of_steps(history, {})
    inside = {**data.of_stored(embedded), "steps": steps, "cube": data.means_cube(history), "gauges": [], "stacks": {}}
    (tmp_path / "report.html").write_text(document.render(inside), encoding="utf-8")
    browser.open((tmp_path / "report.html").as_uri() + "#steps=40-99")
    browser.until(f"{ROWS} == 4")
    assert browser.run("return document.querySelector('tr.rank.bad').children[3].firstChild.innerText") == "4.00 ms"
    assert browser.text("#state") == "ended"
    assert browser.run("return heat.steps.heat.rows") == 4
    browser.run("choose([4, 15])")
    browser.until("document.querySelector('tr.rank.bad').children[3].firstChild.innerText == '0 ms'")
    assert browser.complaints() == []


def test_the_page_of_a_run_opens_with_its_first_verdict_which_had_an_end(browser: Any, tmp_path: Path) -> None:
    """All named ranks are marked, and the steps are those of the costliest: nothing holds any more."""
    history = StepHistory()
    history.add(overview())
    ended = {**STRAGGLER, "ranks": [1], "until_step": 60}
    embedded = data.of_stored(report(verdicts=[ended, STRAGGLER]))
    (tmp_path / "report.html").write_text(
        document.render({**embedded, "steps": data.of_steps(history, {}), "gauges": [], "stacks": {}}), encoding="utf-8"
    )
    browser.open((tmp_path / "report.html").as_uri())
    browser.until(f"{ROWS} == 4")
    bad = "return [...document.querySelectorAll('tr.rank.bad td:first-child')].map(one => one.innerText)"
    assert sorted(browser.run(bad)) == ["1", "2"]
    assert browser.run("return faulty()") == [20, 60]


def test_the_page_of_a_run_has_its_sections_in_a_tab(browser: Any, tmp_path: Path) -> None:
    """Each table of the report's sections, with its words; a screen of 400 pixels scrolls them, and not the page."""
    run = simulate(Scenario(4, 60)).run
    found = judge(run)
    report = sections.added(found.to_dict(), section_rows.of(run, found.to_dict(), found.overview))
    report["sections"]["advice"]["settings"] = [
        {"name": "threads", "found": "so it is", "threshold": "1", "set": "`export OMP_NUM_THREADS=1`", "share": 0.5}
    ]
    (tmp_path / "report.html").write_text(document.of_report(report, run, found.overview), encoding="utf-8")
    browser.open((tmp_path / "report.html").as_uri())
    browser.until("document.getElementById('tab-run')")
    assert "TRY export OMP_NUM_THREADS=1" in browser.text("#verdicts")
    browser.run("document.getElementById('tab-run').click()")
    browser.until("document.querySelectorAll('#other table').length > 5")
    titles = browser.run("return [...document.querySelectorAll('#other h2')].map(one => one.innerText)")
    assert [title.lower() for title in titles[:3]] == ["wall clock", "throughput", "what limits the job"]
    assert "all_reduce" in browser.text("#other")
    browser.width(400)
    assert browser.run("return document.documentElement.scrollWidth") <= 400
    assert browser.complaints() == []


def test_a_stored_job_of_the_list_opens_its_report(browser: Any, show: Callable[..., Any], tmp_path: Path) -> None:
    """While another runs: a click on it shows the page that was stored at its end."""
    store = ParquetStore(tmp_path, single=False)
    store.write_meta("of yesterday", {"job_id": "of yesterday", "world_size": 4, "started_ns": 1})
    yesterdays = report(command="mpirun of yesterday")
    store.write_file("of yesterday", "report.json", json.dumps(yesterdays).encode())
    store.write_file("of yesterday", "report.html", document.render(data.of_stored(yesterdays)).encode())
    show(report(), overview(), "?tab=jobs", store)
    browser.until("[...document.querySelectorAll('a')].some(one => one.innerText == 'of yesterday')")
    browser.run("[...document.querySelectorAll('a')].find(one => one.innerText == 'of yesterday').click()")
    browser.until("document.querySelector('#command').innerText == 'mpirun of yesterday'")
    assert browser.text("#state") == "ended"
    assert "rank 2" in browser.text(".verdict")
    store.close()


@pytest.mark.skipif(find_spec("axe_core_python") is None, reason="needs axe-core-python")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, show: Callable[..., Any], scheme: str) -> None:
    """Contrast, names and order of what is on the page, with a drawer open."""
    browser.scheme(scheme)
    show(report(), overview(), "?rank=1")
    assert browser.run("return isDark()") == (scheme == "dark")
    browser.until("!document.querySelector('#drawer').hidden")
    spec = find_spec("axe_core_python")
    assert spec is not None
    assert spec.origin is not None
    browser.run(Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8") + "; window.axe = axe")
    browser.run("axe.run({preload: false}).then(found => { window.found = found.violations; })")
    browser.until("window.found && true")
    serious = browser.run("""
      return found.filter(one => ['serious', 'critical'].includes(one.impact))
        .map(one => one.id + ': ' + one.nodes.map(node => node.html).join(' '))
    """)
    assert serious == []


STRAGGLER = {
    "kind": "straggler",
    "ranks": [2],
    "victims": [],
    "cause": "compute",
    "since_step": 20,
    "until_step": None,
    "cost_ms_per_step": 4.1,
    "cost_ratio": 0.31,
    "confidence": 0.99,
    "evidence": ["last into 147 of 150 all-reduces"],
    "advice": ["compare its host and GPU with its peers: `nvidia-smi -q`"],
}


def report(
    *,
    command: str = "mpirun -np 4 python train.py",
    world_size: int = 4,
    evidence: list[str] | None = None,
    ranks: list[dict[str, Any]] | None = None,
    verdicts: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A report of a job in which rank 2 is slow."""
    straggler = {**STRAGGLER, "evidence": evidence or STRAGGLER["evidence"]}
    return {
        "schema": "hindmost.report/1",
        "job": {"id": "demo", "command": command, "world_size": world_size, "nodes": 1, "steps": 150, "step_ms": {}},
        "verdicts": verdicts if verdicts is not None else [straggler],
        "ranks": ranks if ranks is not None else [row(rank) for rank in range(world_size)],
        "what_if": {},
        "notes": [],
    }


def row(rank: int) -> dict[str, Any]:
    slow = rank == 2
    return {
        "rank": rank,
        "node": "n0",
        "gpu": None,
        "step_ms": 13.2,
        "phases_ms": {"input": 1.0, "forward": 12.0 if slow else 8.0},
        "wait_ms": 0.1 if slow else 4.1,
        "caused_wait_ms": 12.3 if slow else 0.0,
        "share_last": 0.98 if slow else 0.01,
    }


def overview(ranks: int = 4, steps: tuple[int, int] = (0, 100), slow_ms: float = 4.0, since: int = 20) -> Overview:
    """Steps of 10 ms, in which rank 2 is slow from a step on and all others wait for it."""
    numbers = np.arange(*steps)
    late = np.zeros((ranks, len(numbers)))
    late[2, numbers >= since] = slow_ms * MS
    longest = late.max(axis=0)
    period = np.full(len(numbers), 10 * MS)
    forward = np.full(late.shape, 4 * MS) + late * 10 / (10 + slow_ms)
    planes = {
        "delay": late,
        "self": forward,
        "wait": (longest - late) / 2,
        "transfer": np.full(late.shape, 1 * MS),
        "caused": late * (ranks - 1),
        "last": (late > 0).astype(float),
        "forward": forward,
        "sync": np.full(late.shape, 1 * MS) + (longest - late) / 2,
    }
    return Overview(
        ranks=np.arange(ranks),
        steps=numbers,
        period=period,
        cohort=np.zeros(ranks, np.int64),
        planes=planes,
        on_gpu=False,
        gathers=False,
        checkpoint=numbers == 50,
    )
