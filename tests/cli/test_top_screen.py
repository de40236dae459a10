"""The screen of `hindmost top`, rendered as text: which rank stands where, and that nothing is cut."""

import asyncio
import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hindmost.errors import HindmostError
from hindmost_cli.top import rows as top_rows
from hindmost_cli.top.app import Table, Top
from hindmost_collector.report.machine_tables import added_up, cell
from hindmost_collector.serve.live_tables import picture
from hindmost_judge.judge import judge
from textual import events

from tests.scenarios import loads

#: A report with a verdict on rank 2.
REPORT = judge(loads.make(loads.Load(faults=[{"rank": 2, "compute": 3.0}]))).to_dict()
SMALL, LARGE = (80, 24), (160, 50)
MIB = 2.0**20


def verdict(rank: int, **more: Any) -> dict[str, Any]:
    return {**REPORT["verdicts"][0], "ranks": [rank], **more}


def job(
    ranks: int, *verdicts: Mapping[str, Any], gpus: bool = True, nodes: str = "node{:03}", **more: Any
) -> dict[str, Any]:
    """A picture of so many ranks, eight on a node; rank r waits for a CPU r % of the time, and its GPU has r °C."""
    series = []
    for rank in range(ranks):
        node = nodes.format(rank // 8)
        of_rank = json.dumps({"job": "j", "rank": str(rank)})
        uuid = json.dumps({"gpu_uuid": f"GPU-{rank:04}"})
        series += [
            (node, "hindmost_process_runqueue_seconds_total", of_rank, rank / 100),
            (node, "hindmost_process_read_bytes_total", of_rank, 2e6),
            (node, "hindmost_process_children_read_bytes_total", of_rank, 1234e6),
            (node, "hindmost_process_resident_memory_bytes", of_rank, 700 * MIB),
        ]
        if rank % 8 == 0:
            series += [
                (node, "hindmost_node_network_receive_bytes_total", '{"device":"eth0"}', 3e6),
                (node, "hindmost_node_network_receive_bytes_total", '{"device":"lo"}', 9e9),
                (node, "hindmost_node_cpu_seconds_total", '{"mode":"user"}', 4.0),
                (node, "hindmost_node_cpu_seconds_total", '{"mode":"idle"}', 4.0),
                (node, "hindmost_node_cpus", "{}", 8.0),
            ]
        if gpus:
            series += [
                (
                    node,
                    "hindmost_gpu_rank_info",
                    json.dumps({"gpu_uuid": f"GPU-{rank:04}", **json.loads(of_rank)}),
                    1.0,
                ),
                (node, "hindmost_gpu_utilization_ratio", uuid, 0.97),
                (node, "hindmost_gpu_temperature_celsius", uuid, float(rank % 90)),
                (node, "hindmost_gpu_sm_clock_hertz", uuid, 1.98e9),
            ]
    cells = added_up([(found, value) for *which, value in series if (found := cell(*which)) is not None])
    rows = [{**REPORT["ranks"][0], "rank": rank, "caused_wait_ms": rank / 1000} for rank in range(ranks)]
    report = {**REPORT, "ranks": rows, "verdicts": list(verdicts)}
    places = {
        "rank": range(ranks),
        "node": [nodes.format(rank // 8) for rank in range(ranks)],
        "gpu_uuid": [""] * ranks,
    }
    jobs = [{"job": "j", "size": ranks, "mean_step_ms": 250.0}]
    return picture(report, places, [120.0] * ranks, cells, job="j", jobs=jobs, **more)


class Held:
    """A source that always has the same picture."""

    name = "held"

    def __init__(self, shown: Mapping[str, Any]) -> None:
        self.shown = dict(shown)

    def picture(self, _: str | None) -> dict[str, Any]:
        return self.shown

    def report(self, _: str | None) -> None:
        """Not asked for."""


def screen(shown: Mapping[str, Any], size: tuple[int, int] = SMALL, *keys: str, then: Any = None) -> list[str]:
    """The lines of the screen after these keys."""

    async def seen() -> list[str]:
        app = Top(Held(shown), shown, None, 3600.0)
        async with app.run_test(size=size) as pilot:
            await pilot.press(*keys)
            if then is not None:
                app.take(*then)
                await pilot.pause()
            return text(app)

    return asyncio.run(seen())


def text(app: Top) -> list[str]:
    """The lines of the screen now."""
    strips = app.screen._compositor.render_strips()  # Textual has no other way to what it draws
    return ["".join(segment.text for segment in strip).rstrip() for strip in strips]


def table(lines: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """The titles of the table, of two lines each, and its rows."""
    at = next(at for at, line in enumerate(lines) if line.startswith("[1] ranks"))
    below = lines[at + 2]
    ends = [one.end() for one in re.finditer(r"\S+(?: \S+)*", below)]
    starts = [0, *ends[:-1]]
    titles = [
        f"{lines[at + 1][start:end].strip()} {below[start:end].strip()}".strip()
        for start, end in zip(starts, ends, strict=True)
    ]
    found = [line[:-1].split() if line.endswith(("▁", "█", "▇")) else line.split() for line in lines[at + 3 : -1]]
    return titles, [[word for word in row if not set(word) <= set("▁▂▃▄▅▆▇█ ")] for row in found if row]


@pytest.mark.parametrize(
    ("more", "command"), [({}, "hindmost-runs/j"), ({"path": "runs/mine", "over": True}, "runs/mine")]
)
def test_advice_names_the_recording(more: dict[str, Any], command: str) -> None:
    """A command can be copied from the screen: of a running job it has the path that `hindmost run` chooses."""
    alone = {"kind": "insufficient_data", "ranks": [], "evidence": ["x"], "advice": ["`hindmost report RUN --explain`"]}
    assert f"`hindmost report {command} --explain`" in " ".join(screen(job(1, alone, **more)))


def test_a_longer_title_takes_no_row_of_a_rank() -> None:
    """It ends in an ellipsis, after a whole word."""
    shown = job(4) | {"title": "hindmost · train.py · 4 ranks on 1 node · 1,234 steps, mean 96.3 ms, median 94.5 ms"}
    first, second, *_ = screen(shown)
    assert first == "hindmost · train.py · 4 ranks on 1 node · 1,234 steps, mean 96.3 ms, median…"
    assert second == "no rank is slow now"


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_one_rank_has_its_row_with_every_title_and_value_in_full(size: tuple[int, int]) -> None:
    """Loader workers' reads are the rank's; the network is that of its node, without the loopback device."""
    lines = screen(job(1, nodes="n"), size)
    titles, rows = table(lines)
    values = dict(zip(titles, rows[0], strict=True))
    assert max(map(len, lines)) <= size[0]
    assert titles[:2] == ["rank", "caused wait ms"]
    assert values["rank"] == "0"
    assert (values["GPU %"], values["clock MHz"], values["wait for CPU %"]) == ("97", "1,980", "0")
    if size == LARGE:
        assert (values["read MB/s"], values["node net MB/s"]) == ("1,236", "3.0")
        assert values["node"] == "n"


@pytest.mark.parametrize(("size", "least"), [(SMALL, 13), (LARGE, 30)])
def test_of_1024_ranks_the_culprits_stand_on_top(size: tuple[int, int], least: int) -> None:
    """Then those whom others wait for longest; many ranks are in sight below two verdicts and more."""
    verdicts = [verdict(777), verdict(5), *(verdict(rank) for rank in range(100, 130))]
    lines = screen(job(1024, *verdicts, nodes="a-node-with-a-long-name-{:05}.cluster"), size)
    _, rows = table(lines)
    assert [row[0] if row[0] != "*" else f"*{row[1]}" for row in rows[:2]] == ["*777", "*5"]
    assert len(rows) >= least
    assert max(map(len, lines)) <= size[0]
    assert any(re.search(r"\d+ more verdicts: press v", line) for line in lines)
    assert screen(job(1024, verdict(3)), size)[-1].lstrip().startswith("q quit")


def test_what_others_wait_for_orders_the_rest() -> None:
    """The largest caused wait first, below the named rank."""
    _, rows = table(screen(job(20, verdict(3)), LARGE))
    assert [row[-1] if row[0] == "*" else row[0] for row in [rows[0][:2], *rows[1:4]]] == ["3", "19", "18", "17"]


def test_a_job_without_gpus_has_no_columns_of_them() -> None:
    """Nor a row in the view of GPUs: that is not zero GPUs at 0 %."""
    shown = job(4, gpus=False)
    assert any("no GPUs were measured" in line for line in screen(shown, SMALL, "3"))
    titles, _ = table(screen(shown, LARGE))
    assert not [title for title in titles if "GPU" in title or "clock" in title]


def test_what_one_rank_lacks_is_a_dash_and_no_zero() -> None:
    """Its GPU was not measured; it sorts last either way round."""
    shown = job(3)
    shown["tables"]["ranks"]["gpu_busy"][1] = None
    for keys in (["s"] * 5, [*["s"] * 5, "r"]):
        titles, rows = table(screen(shown, LARGE, *keys))
        assert rows[-1][0] == "1"
        assert rows[-1][titles.index("GPU %")] == "–"  # noqa: RUF001


async def test_keys_sort_and_filter() -> None:
    """The first row says what became of each key."""
    steps = [
        ([], "*3"),
        (["s"], "0"),  # by rank
        (["r"], "19"),
        (["s"], "19"),  # by caused wait
        (["S", "S"], "*3"),  # culprits first again
        (["slash", *"4-6", "enter"], "6"),
        (["escape"], "*3"),
        (["slash", *"NODE001", "enter"], "15"),
        (["escape"], "*3"),
    ]

    shown, found = job(20, verdict(3)), []
    app = Top(Held(shown), shown, None, 3600.0)
    async with app.run_test(size=LARGE) as pilot:
        for keys, _ in steps:
            await pilot.press(*keys)
            words = table(text(app))[1][0]
            found.append(words[0] if words[0] != "*" else f"*{words[1]}")
    assert found == [first for _, first in steps]


async def test_a_filter_may_be_typed_faster_than_the_screen_is_drawn() -> None:
    """What follows the slash at once is the filter, as in a pasted line."""
    shown = job(20, verdict(3))
    app = Top(Held(shown), shown, None, 3600.0)
    async with app.run_test(size=SMALL) as pilot:
        for key, character in (("slash", "/"), ("1", "1"), ("minus", "-"), ("2", "2")):
            app.post_message(events.Key(key, character))
        await pilot.pause(0.2)
        await pilot.press("enter")
        assert [row[0] for row in table(text(app))[1]] == ["2", "1"]


def test_more_columns_are_a_key_away() -> None:
    """The rank stays; at 80 columns no column is left that cannot be reached."""
    shown = top_rows.rows_of(job(8, verdict(3)), "ranks")
    columns = top_rows.measured("ranks", shown)
    seen = set()
    for skipped in range(len(columns)):
        fitting = top_rows.fitting(columns, 79, skipped)
        assert fitting[0].column.title == "rank"
        assert max(len(line) for line in (*top_rows.header(fitting), top_rows.line(fitting, 0, marked=True))) <= 79
        seen |= {one.column.title for one in fitting}
    assert seen == {column.column.title for column in columns}
    before, _ = table(screen(job(8, verdict(3)), SMALL))
    after, _ = table(screen(job(8, verdict(3)), SMALL, "right"))
    assert (after[0], after[1]) == ("rank", before[2])


def test_nodes_gpus_and_jobs_are_views_of_their_own() -> None:
    """Each with the culprit's on top."""
    shown = job(24, verdict(17))
    _, nodes = table(screen(shown, LARGE, "2"))
    _, gpus = table(screen(shown, LARGE, "tab", "tab"))
    _, jobs = table(screen(shown, LARGE, "4"))
    assert nodes[0][0] == "*node002"
    assert nodes[0][1] == "50"
    assert gpus[0][0] == "*GPU-0017"
    assert jobs[0][:3] == ["j", "24", "250"]


def test_help_fits_the_smallest_screen_and_all_evidence_is_a_key_away() -> None:
    """Every key of the last line is explained."""
    lines = screen(job(4, verdict(2)), SMALL, "question_mark")
    assert any("leave" in line for line in lines)
    assert any("node net" in line for line in lines)
    evidence = REPORT["verdicts"][0]["evidence"][0]
    lines = screen(job(4, verdict(2), verdict(3, advice=["look at rank 3"])), LARGE, "v")
    assert any(evidence[:40] in line for line in lines)
    labels = [line.strip(" │").split()[:1] for line in lines]
    assert [label for label in labels if label in (["DO"], ["THEN"])] == [["DO"], ["THEN"]]


@pytest.mark.parametrize(
    ("more", "then", "said"),
    [
        ({"judged_s": 2.0}, None, " live"),
        ({"judged_s": 222.0}, None, "live, verdicts 4 min old"),
        ({"over": True}, None, "ended"),
        ({"age_s": 42.0}, None, "no data for 42 s"),
        ({"lost": ["n7"]}, None, "lost contact with n7"),
        ({"lost": ["n7", "n8"]}, None, "lost contact with 2 nodes"),
        ({}, (None, "no answer from http://h:1 (Connection refused): is the job still running?"), "NO CONTACT since"),
    ],
)
def test_the_state_of_the_data_is_in_sight(more: dict[str, Any], then: Any, said: str) -> None:
    """A collector that is gone leaves its last picture, marked as such."""
    lines = screen(job(4, verdict(2), **more), SMALL, then=then)
    (views,) = (line for line in lines if line.startswith("[1] ranks"))
    assert said in views if then else views.endswith(said)
    assert table(lines)[1][0][0] == "*"
    if then:
        assert any("no answer from http://h:1" in line for line in lines)


@pytest.mark.parametrize(("ranks", "first"), [(8, "LOST"), (16, "SLOW")])
def test_a_verdict_on_a_job_that_is_lost_was_so_before(ranks: int, first: str) -> None:
    """It stands below that. While one of its nodes is heard, the verdict is of now."""
    lines = screen(job(ranks, verdict(2), lost=["node000"], age_s=60.0), SMALL)
    assert lines[1].split()[0] == first
    said = "LOST   contact with node000, no data for 60 s: what follows was so before"
    assert (said in lines) == (first == "LOST")


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (
            [verdict(2), verdict(5, kind="hang", cause=None, victims=[0, 1])],
            "HUNG   in step 0: rank 5 on node0 did not arrive",
        ),
        ([{**verdict(2), "kind": "balanced", "ranks": [], "cost_ms_per_step": None}], "OK     no rank is slow"),
        ([{**verdict(2), "kind": "insufficient_data", "ranks": []}], "UNSURE cannot say whether a rank is slow"),
        ([verdict(2, until_step=90)], "no rank is slow now"),
    ],
)
def test_a_job_shows_as_what_it_is(verdicts: list[dict[str, Any]], said: str) -> None:
    """A hang before any cost; too little data is no health."""
    lines = screen(job(8, *verdicts))
    first = next(line for line in lines if not line.startswith("hindmost") and re.match("[A-Z]{2,}|no ", line))
    assert first.startswith(said)


def test_a_verdict_without_a_cost_says_why() -> None:
    """Of a hang who waits, and how long; of UNSURE what was missing."""
    why = "7 ranks wait in all_reduce"
    one = verdict(5, kind="hang", cause=None, victims=[0], evidence=[why], cost_ms_per_step=None, cost_ratio=None)
    lines = screen(job(16, one))
    assert lines[2] == f"WHY    {why}"


def test_the_first_seconds_have_no_verdict() -> None:
    """That is not a job without a slow rank."""
    assert screen({**job(8), "judged": False})[1] == "no verdict yet"


def test_a_hostile_name_cannot_write_to_the_terminal() -> None:
    """Escape sequences are spelled out."""
    lines = screen(job(8, verdict(2), nodes="a\x1b[2Jb"), (240, 24))
    assert "\x1b" not in "".join(lines)
    assert any(r"a\x1b[2Jb" in line for line in lines)


async def test_the_chosen_row_stays_chosen_when_the_order_changes() -> None:
    """A refresh takes nothing out of the user's hands."""
    before, after = job(40), job(40, verdict(7))

    app = Top(Held(before), before, None, 3600.0)
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press(*["down"] * 5)
        first = app.identities[app.query_one(Table).cursor]
        app.take(after)
        await pilot.pause()
        then = app.identities[app.query_one(Table).cursor]
    assert first == then


def test_trouble_while_reading_is_shown_and_reading_goes_on() -> None:
    """A collector that comes back is seen again."""
    come_back = threading.Event()

    class Gone(Held):
        calls = 0

        def picture(self, job: str | None) -> dict[str, Any]:
            self.calls += 1
            if self.calls == 1:
                raise HindmostError("no answer from http://h:1 (timed out): is the job still running?")
            come_back.wait(300)
            return super().picture(job)

    async def until(app: Top, pilot: Any, state: str) -> None:
        while not any(state in line for line in text(app)[:8]):
            await pilot.pause(0.01)

    async def seen() -> int:
        source = Gone(job(4, verdict(2)))
        app = Top(source, source.shown, None, 0.02)
        async with app.run_test(size=SMALL) as pilot:
            await until(app, pilot, "NO CONTACT")
            await pilot.pause(0.1)
            meanwhile = source.calls
            come_back.set()
            await until(app, pilot, "live")
        return meanwhile

    assert asyncio.run(asyncio.wait_for(seen(), 300)) <= 2  # a source that does not answer is asked once at a time


def test_what_two_digits_do_not_show_is_no_other_zero() -> None:
    """100 bytes a second read as none of them do."""
    (read,) = (one for one in top_rows.COLUMNS["ranks"] if one.title == "read\nMB/s")
    assert [top_rows.cell(read, {"read": value}) for value in (0.0, 100.0, 2e4)] == ["0", "0", "0.02"]
