"""A job that failed: how, who died first, and what was recorded of it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import from_rows
from hindmost_collector.page import document
from hindmost_collector.report import text
from hindmost_collector.report.compare import compare
from hindmost_collector.store.parquet.store import ParquetStore, read_run
from hindmost_collector.store.schema import arrow_schema
from hindmost_judge.judge import judge
from hindmost_judge.model import FINISHED, RUNNING, VANISHED, Job, Run
from hindmost_judge.verdict import endings

from tests.pages import inside
from tests.runs import only, with_job
from tests.scenarios import loads

SECOND = 1_000_000_000
#: What to look at, of a rank that was killed, and of ranks that ended otherwise.
OOM = "see whether rank 1 on node0 ran out of memory: `dmesg -T` there, or the scheduler's limit"
LAST = "read the last output of rank {}"


def ended(lives: Sequence[tuple[int, float]], exit_code: int | None = 137, **tables: Any) -> Run:
    """Three steps of as many ranks as there are ``(life, second of the last look)``."""
    run = loads.make(loads.Load(ranks=len(lives), steps=3))
    states = [(rank, int(second * SECOND), life, 8, 0, -1, -1, "") for rank, (life, second) in enumerate(lives)]
    return with_job(replace(run, rank_states=from_rows("rank_states", states), **tables), exit_code=exit_code)


def of_two_nodes(lives: Sequence[tuple[int, float]], exit_code: int, **job: Any) -> Run:
    """The same of two ranks on a node each, in a job of 19 s."""
    run = ended(lives, exit_code)
    nodes = {**run.ranks, "node": np.array(["node0", "node1"])}
    return with_job(replace(run, ranks=nodes), ended_ns=19 * SECOND, **job)


def entered(
    ranks: Sequence[int], seq: int = 3, since: float = 1.0, seen: float = 2.0
) -> dict[str, np.ndarray[Any, Any]]:
    """These ranks are in an all-reduce of the communicator of all."""
    comm = int(loads.make(loads.Load(ranks=4, steps=3)).collectives["comm"][0])
    found = [
        (rank, "collective", "all_reduce", comm, seq, -1, 0, int(since * SECOND), int(seen * SECOND)) for rank in ranks
    ]
    return from_rows("in_flight", found)


def test_who_was_missed_first_died_first() -> None:
    """One observation of an agent shows which ranks were gone before the launcher killed the rest."""
    run = ended([(VANISHED, 9), (VANISHED, 5), (VANISHED, 9), (VANISHED, 9)])
    assert endings.first_to_die(run) == ([1], ", 4.0 s before ranks 0, 2 and 3")


def test_a_job_that_logs_no_steps_has_the_last_that_all_took_part_in() -> None:
    """As an MPI program, whose collectives are its steps."""
    run = loads.make(loads.Load(ranks=4, steps=30))
    states = [(rank, 9 * SECOND, VANISHED, 8, 0, (9 + rank) * SECOND, 9, "") for rank in range(4)]
    report = judge(with_job(replace(run, rank_states=from_rows("rank_states", states)), exit_code=137))
    assert not len(run.steps["step"])
    assert f"rank 0 on node0 died first after step {(report.job.steps or 0) - 1} (SIGKILL)" in (report.job.ended or "")


def test_an_end_that_was_not_recorded_is_said_to_be_that() -> None:
    """hindmost was killed with the job, as at a time limit: nothing can be looked at, and no rank died first. While the
    job runs nothing is missing."""
    run = ended([(RUNNING, 9), (RUNNING, 8)], exit_code=None)
    lost = with_job(run, abandoned=True)
    assert (run.at_work, lost.at_work) == (True, False)
    assert endings.of(lost)[0] == "not recorded: hindmost was killed first, or its host was lost"
    assert endings.undelivered(run) == []
    after = "what ranks 0 and 1 did after that is missing"
    assert endings.undelivered(lost) == [f"node0: its last data is of 00:00:09 UTC: {after}"]


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_node_that_fell_silent_before_the_end_is_named(exit_code: int) -> None:
    """Whatever the launcher's exit code is: some have 0 when a node is lost."""
    words, to_do = endings.of(of_two_nodes([(RUNNING, 20), (RUNNING, 9)], exit_code))
    assert words == f"exit code {exit_code}; node1 was last heard 10.0 s before the job ended, with its ranks at work"
    assert to_do is not None
    assert to_do.startswith("see whether node1 was lost")


@pytest.mark.parametrize(("last", "seconds"), [(9, "10.0"), (17.7, "1.3"), (18.99, "0.1")])
def test_what_a_lost_node_did_not_send_is_bounded(last: float, seconds: str) -> None:
    """By its last data, however short before the end that is; of a node whose agent leaves with the job, nothing is
    missing."""
    run = of_two_nodes([(RUNNING, 18.8), (RUNNING, last)], 1, left=("node0",))
    (note,) = endings.undelivered(run)
    last_data = f"node1: its last data is of {seconds} s before the end of the job"
    assert note == f"{last_data}: what rank 1 did after that is missing"
    assert judge(run).notes[0] == note


@pytest.mark.parametrize(
    ("life", "left", "missing"),
    [(FINISHED, (), []), (VANISHED, (), []), (RUNNING, ("node1",), ["node1: its last data is of 10.0 s before"])],
)
def test_a_node_whose_ranks_ended_or_whose_agent_left_is_not_lost(
    life: int, left: tuple[str, ...], missing: list[str]
) -> None:
    """An agent leaves with its ranks; of one that left early data is missing."""
    run = of_two_nodes([(life, 20), (life, 9)], 0, left=left)
    assert endings.of(run) == (None, None)
    assert [note[:40] for note in endings.undelivered(run)] == missing


@pytest.mark.parametrize("life", [VANISHED, RUNNING])
def test_of_whom_alone_no_end_is_known_died_first_where_a_launcher_ended_the_others(life: int) -> None:
    """An agent that found its ring too late saw no end of it, or saw it gone; SIGTERM is never the first end."""
    run = ended([(VANISHED, 6.2), (life, 5), (FINISHED, 5)])
    run.rank_states["ended_ns"][0] = 6.2 * SECOND
    run.rank_states["exit_status"][0] = 15
    assert endings.first_to_die(run) == ([1], ", its launcher ended rank 0")


@pytest.mark.parametrize(("code", "to_do"), [(137, OOM), (139, LAST.format(1))])
def test_a_rank_of_unknown_end_is_advised_on_as_its_command_ended(code: int, to_do: str) -> None:
    """A launcher passes on by which signal its rank was killed."""
    run = ended([(VANISHED, 9), (VANISHED, 5), (VANISHED, 9)], exit_code=code)
    assert endings.of(run)[1] == to_do


def test_gone_in_one_observation_the_awaited_rank_died_first() -> None:
    """A launcher kills the rest within milliseconds: then the collective that one had not entered tells."""
    run = ended([(VANISHED, 9)] * 4, in_flight=entered([0, 2, 3]))
    assert endings.first_to_die(run) == ([1], ": ranks 0, 2 and 3 waited for it in all_reduce number 3")


def told_by_the_kernel(
    *ends: tuple[float, int],
    raised: int | None = None,
    words: str = "raised ValueError at job.py:14",
    in_full: str = "",
) -> Run:
    """Ranks gone in one check, of which the kernel reported when each ended, ms, and with which status."""
    run = ended([(VANISHED, 9)] * len(ends))
    states = run.rank_states
    states["ended_ns"] = np.array([int(ms * 1e6) + 8 * SECOND for ms, _ in ends])
    states["exit_status"] = np.array([status for _, status in ends])
    states["last_words"] = np.array([in_full if raised in (rank, -1) else "" for rank in range(len(ends))])
    said = [(rank, words, 8 * SECOND - 5, 0, 0.0) for rank in range(len(ends)) if raised in (rank, -1)]
    return replace(run, rank_states=states, intervals=from_rows("intervals", said))


@pytest.mark.parametrize(
    ("ends", "said", "to_do"),
    [
        ([(3, 15), (0, 9), (3, 15)], "rank 1 on node0 died first (SIGKILL), 3.0 ms before ranks 0 and 2", OOM),
        (
            [(3, 15), (0, 139), (3, 15)],
            "rank 1 on node0 died first (SIGSEGV), 3.0 ms before ranks 0 and 2",
            LAST.format(1),
        ),
        (
            [(3, 15), (3, 15), (2, 256)],
            "rank 2 on node0 died first (exit code 1), 1.0 ms before ranks 0 and 1",
            LAST.format(2),
        ),
        (
            [(2e-6, 15), (0, 11), (1e-6, 15)],
            "rank 1 on node0 died first (SIGSEGV), a moment before ranks 0 and 2",
            LAST.format(1),
        ),
        (
            [(0, 768), (0.01, 768)],
            "ranks 0 and 1 on node0 ended alike (exit code 3)",
            "read the last output of ranks 0 and 1",
        ),
        (
            [(3, 768), (0, 768), (4, 768)],
            "ranks 0 to 2 on node0 ended alike (exit code 3), rank 1 3.0 ms before ranks 0 and 2",
            "read the last output of ranks 0 to 2",
        ),
        ([(2000, 768), (0, 768)], "rank 1 on node0 died first (exit code 3), 2.0 s before rank 0", LAST.format(1)),
        ([(0, 15), (1, 15), (2, 9)], "ranks 0 to 2 on node0 were killed or crashed, order unknown", None),
    ],
)
def test_the_kernel_s_word_says_who_died_first(ends: list[tuple[float, int]], said: str, to_do: str | None) -> None:
    """A launcher ends the rest by SIGTERM, and in any order: which of those came first says nothing."""
    assert endings.of(told_by_the_kernel(*ends)) == (f"exit code 137 (SIGKILL); {said}", to_do)


INTERRUPTED = {"words": "raised KeyboardInterrupt at train.py:3"}


@pytest.mark.parametrize(
    ("ends", "raised", "first", "how"),
    [
        # A rank's exception comes before whatever it caused: its process may end after all others.
        ([(1, 15), (2, 15), (30, 256)], {"raised": 2}, [2], " (raised ValueError at job.py:14), 1.0 ms before ranks 0"),
        # One of a rank whose peer was killed comes after that: it saw the connection closed before the agent did.
        ([(300, 15), (20, 9)], {"raised": 0}, [1], " (SIGKILL)"),
        ([(300, 15), (20, 139)], {"raised": 0}, [1], " (SIGSEGV)"),
        ([(900, 256), (69, 9), (900, 256)], {"raised": 0}, [1], " (SIGKILL), a moment before ranks 0 and 2"),
        # MPI_Abort kills the others before it returns.
        ([(300, 15), (20, 9)], {"raised": 0, "words": "mpi_abort"}, [0], " (called MPI_Abort), 20.0 ms before rank 1"),
        # An interrupt of one rank is its own; a Ctrl-C reaches all, and which is first says nothing.
        ([(30, 2), (20, 15)], {"raised": 0, **INTERRUPTED}, [0], " (raised KeyboardInterrupt at train.py:3)"),
        ([(30, 2), (20, 2)], {"raised": -1, **INTERRUPTED}, [], ""),
    ],
)
def test_who_died_first_by_exceptions_and_signals(
    ends: list[tuple[float, int]], raised: dict[str, Any], first: list[int], how: str
) -> None:
    found = endings.first_to_die(told_by_the_kernel(*ends, **raised))
    assert (found[0], found[1][: len(how)]) == (first, how)


def test_who_called_mpi_abort_ended_the_job() -> None:
    said, _ = endings.of(told_by_the_kernel((300, 15), (20, 9), raised=0, words="mpi_abort"))
    assert said == "exit code 137 (SIGKILL); rank 0 on node0 ended it by MPI_Abort"


HOSTILE = "raised ValueError at job.py:14: \x1b[31mno room\n<script>alert(1)</script>\u202e"


def test_an_exception_is_reported_with_its_message() -> None:
    """In the job's own words, which are no markup and no escape sequence wherever they are shown."""
    run = told_by_the_kernel((1, 15), (2, 15), (30, 256), raised=2, in_full=HOSTILE)
    said, to_do = endings.of(run)
    assert said is not None
    assert said.endswith('; rank 2 said: "[31mno room <script>alert(1)</script>"')
    assert "(raised ValueError at job.py:14), 1.0 ms before ranks 0 and 1" in said
    assert to_do == "read the traceback of rank 2"
    page = document.of_report(judge(run).to_dict())
    assert "<script>alert(1)" not in page
    assert said.rpartition("; ")[2] in inside(page)["state"]["why"]


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        # What it says of another rank stays within the quotes of who said it.
        ('raised ValueError at job.py:14: no "room"; rank 5 was killed', "\"no 'room'; rank 5 was killed\""),
        # The end of a process that had this rank before says nothing of this one.
        ("raised KeyError at old.py:3: gone", ""),
    ],
)
def test_a_message_cannot_pass_for_a_finding_nor_for_another_s(words: str, quoted: str) -> None:
    said, _ = endings.of(told_by_the_kernel((30, 256), raised=0, in_full=words))
    assert said is not None
    assert said.partition("; rank 0 said: ")[2] == quoted


def test_a_rank_that_died_alone_is_reported() -> None:
    """No other rank's end is known."""
    run = told_by_the_kernel((0, 139), (0, 0))
    run.rank_states["ended_ns"][1] = -1
    run.rank_states["exit_status"][1] = -1
    run.rank_states["life"][1] = FINISHED
    assert endings.first_to_die(run) == ([0], " (SIGSEGV)")


@pytest.mark.parametrize("seconds", [(9, 5, 9, 9), (9, 9, 9, 9)])
def test_a_job_that_was_asked_to_end_has_no_first_to_die(seconds: tuple[int, ...]) -> None:
    """After Ctrl-C a launcher kills its ranks in any order, which says nothing about them."""
    run = ended([(VANISHED, when) for when in seconds], exit_code=1, in_flight=entered([0, 2, 3]))
    assert endings.of(with_job(run, interrupted_by="SIGINT")) == ("interrupted by SIGINT; exit code 1", None)


@pytest.mark.parametrize(
    ("code", "lives", "said"),
    [
        (0, [(FINISHED, 9), (FINISHED, 9)], (None, None)),
        (0, [(VANISHED, 9), (FINISHED, 9)], (None, None)),
        (None, [(RUNNING, 9), (RUNNING, 9)], (None, None)),
        (3, [(FINISHED, 9), (FINISHED, 9)], ("exit code 3", None)),
        (3, [(VANISHED, 9)] * 2, ("exit code 3; ranks 0 and 1 on node0 were killed or crashed, order unknown", None)),
        (-9, [(FINISHED, 9), (FINISHED, 9)], ("killed by signal 9 (SIGKILL)", None)),
        (
            139,
            [(FINISHED, 9), (VANISHED, 9)],
            ("exit code 139 (SIGSEGV); rank 1 on node0 died first", LAST.format(1)),
        ),
        (None, [(FINISHED, 9), (VANISHED, 9)], ("rank 1 on node0 died first", LAST.format(1))),
    ],
)
def test_how_a_job_ended(code: int | None, lives: list[tuple[int, int]], said: tuple[str | None, str | None]) -> None:
    """Only a failure is reported, with what to look at; without an exit code a process that vanished is one."""
    assert endings.of(ended(lives, code)) == said


@pytest.mark.parametrize("code", [131, 132, 134, 135, 139])
def test_a_launchers_own_exit_code_is_no_signal(code: int) -> None:
    """Open MPI 4 exits with 131 to 135 where it cannot start a job: no rank was seen, or all finished in order."""
    assert endings.of(ended([(FINISHED, 9), (FINISHED, 9)], code)) == (f"exit code {code}", None)
    unseen = Run(job=Job("j", exit_code=code))
    assert (*endings.of(unseen), unseen.killed_by) == (f"exit code {code}", None, None)


@pytest.mark.parametrize(("code", "signal"), [(132, 4), (-9, 9), (128, None), (1, None), (None, None)])
def test_the_signal_is_that_of_the_exit_code_where_a_rank_is_gone(code: int | None, signal: int | None) -> None:
    """A rank whose process is gone without a word was killed: 128 and the number of the signal."""
    assert ended([(FINISHED, 9), (VANISHED, 9)], code).killed_by == signal


def test_a_job_that_its_user_ended_did_not_fail() -> None:
    """After Ctrl-C neither the page, the text nor a comparison speaks of a failure."""
    run = with_job(ended([(VANISHED, 9)] * 4, exit_code=130), interrupted_by="SIGINT")
    report = judge(run).to_dict()
    assert report["job"]["ended"] == "interrupted by SIGINT; exit code 130"
    assert inside(document.of_report(report))["state"]["why"] == "interrupted by SIGINT; exit code 130"
    changed = compare(run, run)
    assert changed["notes"] == []
    for said in (str(inside(document.of_report(report))), text.render(report), str(changed)):
        assert "failed" not in said


def test_the_kernel_that_killed_for_want_of_memory_is_quoted() -> None:
    """The most frequent reason for a SIGKILL without a sender."""
    metrics = from_rows("metrics", [("node0", "hindmost_node_oom_kills_total", "{}", at, 3.0 + at) for at in range(3)])
    said, to_do = endings.of(ended([(VANISHED, 5), (VANISHED, 9)], metrics=metrics))
    assert said is not None
    assert to_do is None, "the kernel's word says it all"
    assert said.endswith("node0 ran out of memory: its kernel killed 2 processes")


@pytest.mark.parametrize(("rose_s", "theirs"), [(9, True), (4, False), (14, False)])
def test_a_process_killed_for_memory_at_another_time_is_no_reason(rose_s: int, theirs: bool) -> None:
    """The kernel counts all kills of its node, also those of other jobs: only one as a rank ended was of this job."""
    count = [("node0", "hindmost_node_oom_kills_total", "{}", at * 10**9, float(at > rose_s)) for at in range(18)]
    run = ended([(VANISHED, 10), (VANISHED, 10)], metrics=from_rows("metrics", count))
    states = run.rank_states | {"ended_ns": np.array([10, 11]) * 10**9, "exit_status": np.array([9, 15])}
    said, to_do = endings.of(replace(run, rank_states=states))
    assert said is not None
    assert ("node0 ran out of memory" in said, to_do is None) == (theirs, theirs)
    assert said.endswith("node0's kernel killed 1 process because memory ran out, but not as a rank ended") != theirs


def test_a_job_killed_at_its_third_step_is_reported_as_that() -> None:
    """How it ended comes first, then what was recorded; advice to mark steps is left out for a job that died."""
    report = judge(ended([(VANISHED, 5)] + [(VANISHED, 9)] * 3))
    (verdict,) = report.verdicts
    assert verdict.kind == "insufficient_data"
    assert verdict.evidence == (
        "3 steps and 12 collective calls of 4 ranks were recorded before the job failed: too few to judge",
    )
    lines = text.render(report.to_dict()).splitlines()
    assert lines[1].startswith("ENDED  exit code 137 (SIGKILL); rank 0 on node0 died first")
    advice = OOM.replace("rank 1", "rank 0")
    assert f"DO     {advice}" in lines
    assert not any(line.startswith("UNSURE") for line in lines), "how the job ended is the news"
    assert inside(document.of_report(report.to_dict()))["report"]["job"]["to_do"] == advice


@pytest.mark.parametrize(
    ("ranks", "calls", "reported"),
    [
        (1, 3, "3 collective calls of 1 rank were recorded before the job failed: no other rank to compare"),
        (1, 1, "1 collective call of 1 rank was recorded before the job failed: no other rank to compare"),
        (2, 1, "1 collective call of 2 ranks was recorded before the job failed: too few to judge"),
    ],
)
def test_one_is_counted_as_one(ranks: int, calls: int, reported: str) -> None:
    """However much one rank did, it is not too little: there is none to compare it with."""
    run = loads.make(loads.Load(ranks=2, steps=3))
    first = np.flatnonzero(run.collectives["rank"] == 0)[:calls]
    run = with_job(only(run, ranks=slice(ranks), collectives=first), exit_code=1)
    assert judge(run).verdicts[0].evidence[0].startswith(reported)


def recorded(folder: Path, lives: Sequence[tuple[int, int, int]]) -> Run:
    """A run directory with these looks ``(rank, second, life)``; all but rank 1 sat in a collective at second 2."""
    store = ParquetStore(folder, single=True)
    looks = from_rows("rank_states", [(rank, at * SECOND, life, 8, 0, -1, -1, "") for rank, at, life in lives])
    tables = {"rank_states": looks, "in_flight": entered([0, 2, 3])}
    store.write({("j", name): [arrow(name, part)] for name, part in tables.items()}, {})
    store.close()
    return read_run(folder)


def arrow(name: str, part: dict[str, np.ndarray[Any, Any]]) -> Any:
    import pyarrow as pa

    wanted = arrow_schema(name)
    return pa.table({field.name: pa.array(part[field.name]).cast(field.type) for field in wanted}, schema=wanted)


def test_what_killed_ranks_were_in_is_kept(tmp_path: Path) -> None:
    """A hang mostly ends with all ranks killed: the waits count until then."""
    run = recorded(tmp_path, [(rank, at, life) for rank in range(4) for at, life in ((2, RUNNING), (60, VANISHED))])
    assert run.in_flight["rank"].tolist() == [0, 2, 3]
    assert (run.in_flight["observed_ns"] == 60 * SECOND).all()


def test_what_ranks_have_left_is_not_kept(tmp_path: Path) -> None:
    """A later look without it, or the end of the script, ends a wait."""
    looks = [(0, 2, RUNNING), (0, 3, RUNNING), (0, 60, VANISHED), (2, 2, RUNNING), (2, 60, FINISHED), (3, 2, RUNNING)]
    assert recorded(tmp_path, looks).in_flight["rank"].tolist() == [3]


@pytest.mark.parametrize(
    ("end", "kept"),
    [({"exit_code": 0}, []), ({"interrupted_by": "SIGINT", "exit_code": 1}, [0, 2, 3]), ({"exit_code": 1}, [0, 2, 3])],
)
def test_who_ends_by_ctrl_c_had_not_left_its_operation(tmp_path: Path, end: dict[str, Any], kept: list[int]) -> None:
    """Python closes its ring in order after a Ctrl-C or a time-out's exception: it counts until last seen."""
    looks = [(rank, at, life) for rank in range(4) for at, life in ((2, RUNNING), (60, FINISHED))]
    recorded(tmp_path, looks)
    (tmp_path / "meta.json").write_text(json.dumps({"schema": "hindmost.run/1", "job_id": "j", **end}))
    run = read_run(tmp_path)
    assert run.in_flight["rank"].tolist() == kept
    assert (run.in_flight["observed_ns"] == 2 * SECOND).all()


def test_a_long_wait_that_was_ended_is_a_hang_and_no_death() -> None:
    """The awaited rank did not die first: all were killed by a user or a time-out."""
    run = ended([(VANISHED, 60)] * 4, in_flight=entered([0, 2, 3], seen=60))
    said, _ = endings.of(run)
    assert said is not None
    assert said.endswith("were killed or crashed while ranks 0, 2 and 3 waited for rank 1")
    assert judge(run).verdicts[0].kind == "hang"


def test_of_a_job_that_failed_no_rank_is_suspected() -> None:
    """How it ended is the news, and a rank that may be slow no part of it."""
    report = judge(Run(Job("j", command="python no.py", exit_code=2))).to_dict()
    unsure = report["verdicts"][0] | {"kind": "balanced", "confidence": 0.3, "evidence": ["rank 1 is suspected"]}
    shown = text.render(report | {"verdicts": [unsure], "job": report["job"] | {"to_do": "read the output of rank 0"}})
    assert shown.splitlines()[2:4] == ["DO     read the output of rank 0", "NOTE   no rank was clearly slow until then"]


def test_a_command_that_failed_is_not_unsure() -> None:
    """A script that is not there has no slow rank to be unsure about; one that Ctrl-C ended early has."""
    failed = text.render(judge(Run(Job("j", command="python no.py", exit_code=2))).to_dict())
    assert failed.splitlines()[1:] == ["ENDED  exit code 2", "NOTE   no rank was seen before the job failed"]
    ended = judge(Run(Job("j", command="./a", exit_code=130, interrupted_by="SIGINT"))).to_dict()
    assert "\nUNSURE " in text.render(ended)
