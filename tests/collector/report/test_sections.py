"""The sections of a report: one model, written alike in every format."""

import csv as csv_reader
import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hindmost.errors import UsageError
from hindmost_collector.page import data, document
from hindmost_collector.report import brief, columns, csv, markdown, section_rows, sections, text
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.settings import DEFAULT
from hindmost_judge.timeline import build_blocks
from hindmost_judge.verdict.schema import Report
from hindmost_judge.verdict.whole_job import of_job

from tests.pages import inside
from tests.runs import made
from tests.scenarios import loads

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests/golden/reports"
SCHEMA = json.loads((ROOT / "docs/reference/report.schema.json").read_text(encoding="utf-8"))


def single(**more: float) -> Run:
    """One process, whose steps were marked."""
    run = simulate(Scenario(2, 60, **more)).run
    alone = {name: column[run.steps["rank"] == 0] for name, column in run.steps.items()}
    return made(1, steps=[alone], command="train.py")


RUNS = {
    "clean": lambda: simulate(Scenario(4, 60)).run,
    "straggler": lambda: simulate(Scenario(8, 120, faults=(Fault("compute", (3,), 0.2, onset=60),))).run,
    "input-bound": lambda: simulate(Scenario(4, 60, input_share=0.6)).run,
    "communication-bound": lambda: loads.make(loads.Load(transfer=20.0)),
    "hang": lambda: simulate(Scenario(4, 60, faults=(Fault("hang", (2,), onset=40),))).run,
    "gpu-contention": lambda: simulate(Scenario(4, 60, faults=(Fault("gpu_contention", (1,), 0.3),))).run,
    "single": single,
    "several": lambda: (
        simulate(Scenario(8, 120, faults=(Fault("compute", (3,), 0.2), Fault("input", (5,), 0.3, onset=60)))).run
    ),
}


@cache
def judged(name: str) -> tuple[Run, Report, dict[str, Any]]:
    run = RUNS[name]()
    found = judge(run)
    report = found.to_dict()
    return run, found, sections.added(report, section_rows.of(run, report, found.overview))


def page_words(run: Run, found: Report, report: dict[str, Any]) -> str:
    """What the page says of a run: a line a verdict, and one a table."""
    held = inside(document.of_report(report, run, found.overview))
    lines = (*held["report"]["rendered"], *held["sections"])
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines)


FORMATS: dict[str, Callable[[Run, Report, dict[str, Any]], str]] = {
    "txt": lambda *made: text.render(made[2], 100, wanted=tuple(sections.SECTIONS)),
    "markdown": lambda *made: markdown.render(made[2]),
    "csv": lambda *made: csv.render(made[2]) + csv.render_sections(made[2], tuple(sections.SECTIONS)),
    "json": lambda *made: json.dumps(brief.of(made[2]), indent=1) + "\n",
    "page": page_words,
}


#: Markdown and the page have the cells of text, which a test compares: their own words take two runs.
WORDED = [(name, form) for name in RUNS for form in FORMATS if form not in ("markdown", "page")]
WORDED += [(name, form) for name in ("several", "hang") for form in ("markdown", "page")]


@pytest.mark.parametrize(("name", "form"), WORDED)
def test_a_report_is_what_it_was(name: str, form: str) -> None:
    """In each format; RENEW_GOLDEN=1 writes them anew."""
    shown, path = FORMATS[form](*judged(name)), GOLDEN / f"{name}.{form}"
    if os.environ.get("RENEW_GOLDEN"):
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


def test_a_table_of_words_alone_stands_row_by_row() -> None:
    """However short these are: cut into two tables, no reason stands next to what it is of."""
    lacks = [{"section": "gpus", "what": "busy, memory, power, clocks", "why": "no GPU was sampled"}]
    report = {**judged("clean")[2], "sections": {"not_measured": {"what": lacks}}}
    shown = text.render(report, 40, wanted=("not_measured",))
    assert "gpus: busy, memory, power, clocks: no GPU was sampled" in " ".join(shown.split())


@pytest.mark.parametrize("name", RUNS)
def test_the_report_as_json_is_by_its_schema(name: str) -> None:
    """All of it, sections included, as standard JSON without NaN."""
    report = json.loads(json.dumps(judged(name)[2], allow_nan=False))
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    assert report["schema"] in sections.READ


def test_the_schema_refuses_what_is_no_report() -> None:
    """A number where a sentence belongs, a column that there is not."""
    report = judged("clean")[2]
    for wrong in ({"notes": [1]}, {"sections": {"hosts": {"ranks": [{"rank": 0}], "nodes": []}}}, {"schema": "x"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(report | wrong, SCHEMA)


@pytest.mark.parametrize("name", RUNS)
def test_every_format_has_every_cell(name: str) -> None:
    """CSV has its numbers, Markdown and the page its words: those of text on one line."""
    run, found, report = judged(name)
    tables = sections.shown(report["sections"])
    assert tables
    rows = list(csv_reader.reader(io.StringIO(csv.render_sections(report, tuple(sections.SECTIONS)))))
    listed = sum(len(table) for section in report["sections"].values() for table in section.values())
    specified = sum(len(section.tables) for section in sections.SECTIONS.values())
    assert len(rows) == listed + 2 * specified
    page = data.of_run(run, report, found.overview)["sections"]
    cells = [row for one in page for row in ([column["name"] for column in one["columns"]], *one["rows"])]
    written = [line[2:-2].replace("\\", "") for line in markdown.render(report).splitlines() if line[:2] == "| "]
    assert [line.split(" | ") for line in written if line[:3] != "---"] == cells
    assert [len(one["rows"]) for one in page] == [len(one.rows) for one in tables]
    wide = [line.split() for line in text.render(report, 500, wanted=tuple(sections.SECTIONS)).splitlines()]
    numbers = [one["rows"] for one in page if not all(column["text"] for column in one["columns"])]  # no sentences
    assert [row for rows in numbers for row in rows if " ".join(row).split() not in wide] == []
    assert inside(document.of_report(report, run, found.overview))["sections"] == page


def test_what_is_missing_is_a_dash_and_has_its_reason() -> None:
    """Bare collectives have no samples, GPUs or files: no table shows a 0 for them."""
    report = judged("communication-bound")[2]
    assert report["sections"]["gpus"]["gpus"] == []
    assert report["sections"]["hosts"] == {"ranks": [], "nodes": []}
    reasons = {row["section"]: row["why"] for row in report["sections"]["not_measured"]["what"]}
    assert reasons["gpus"] == "no GPU was sampled"
    assert reasons["hosts"]
    (row,) = report["sections"]["communication"]["operations"]
    assert row["bytes"] is None


@pytest.mark.parametrize(
    ("times", "falls_w", "energy", "lacks"),
    [([0, 10], 20.0, 2000.0, 0), ([*range(11), *range(90, 101)], 0.0, None, 1)],
    ids=["all the time", "not for 80 of 100 s"],
)
def test_energy_is_power_over_time_where_a_gpu_has_no_counter(
    times: list[int], falls_w: float, energy: float | None, lacks: int
) -> None:
    """Of two, 300 W that fall to 100 W in 10 s are 2 kJ; the other one counts 5 kJ. Where power was not sampled for
    long, it is unknown, and it says so; a counter has all of it."""
    labels = [f'{{"gpu_uuid": "{gpu}"}}' for gpu in "ab"]
    samples = [("hindmost_gpu_power_watts", label, at, 300.0 - falls_w * at) for label in labels for at in times]
    samples += [("hindmost_gpu_energy_joules_total", labels[1], at, 500.0 * at) for at in times]
    run = replace(made(1), metrics=loads.metrics(samples))
    found = section_rows.of(run, judge(run).to_dict(), None, ("gpus", "not_measured"))
    assert {row["gpu"]: row["energy"] for row in found["gpus"]["gpus"]} == {"a": energy, "b": 500.0 * times[-1]}
    assert [row["what"] for row in found["not_measured"]["what"]].count("energy of 1 of 2 GPUs") == lacks


def test_ranks_of_which_no_gpu_was_recorded_have_no_mfu() -> None:
    """Those of their node may be known."""
    run = judged("clean")[0]
    run = replace(run, ranks=run.ranks | {"gpu_uuid": np.full(4, "")})
    found = judge(run)
    made_of = section_rows.of(run, found.to_dict(), found.overview, flops_per_sample=1e9)
    (why,) = [row["why"] for row in made_of["not_measured"]["what"] if row["what"] == "MFU"]
    assert why == "which GPU a rank uses was not recorded, or it uses none"


def test_a_kernel_that_reports_a_pressure_is_not_said_to_report_none() -> None:
    """Memory and I/O pressure were sampled here, and CPU pressure was not."""
    rows = judged("several")[2]["sections"]["not_measured"]["what"]
    (why,) = [row["why"] for row in rows if "pressure" in row["what"]]
    assert "the kernel has no" not in why


def test_a_fault_in_some_steps_has_these_beside_the_whole_run() -> None:
    """The table of ranks has columns for the steps since then: the culprit's are longer there, the others' alike."""
    report = judged("straggler")[2]
    when, measured = columns.of_fault(report)
    assert when == "since 60"
    (decided,) = [name for name in columns.deciding(report) if name != "caused wait"]
    titles, cells = columns.table(report["ranks"], 100, columns.deciding(report), columns.of_fault(report))
    assert f"{decided} since 60" in titles
    since, whole = titles.index(f"{decided} since 60"), titles.index(decided)
    more = [float(row[since].replace(",", "")) - float(row[whole].replace(",", "")) for row in cells]
    assert max(range(8), key=lambda rank: more[rank]) == 3
    assert measured["step"][0] == pytest.approx(
        report["verdicts"][0]["cost_ms_per_step"] / report["verdicts"][0]["cost_ratio"], rel=0.02
    )
    assert columns.of_fault(judged("clean")[2]) == ("", {})
    shown = text.render(report, 100, titled=False, path=text.PATH)
    assert shown.rstrip() in markdown.render(report)


def test_of_many_gpus_and_nodes_text_has_those_of_the_ranks_that_it_shows() -> None:
    """At 80 columns, each GPU by the part of its UUID that no other has; it says how many more there are."""
    report, ranks = judged("gpu-contention")[2], range(1024)
    rows = [{**report["ranks"][0], "rank": rank, "node": f"n{rank // 8}"} for rank in ranks]
    measured = {"busy": 0.5, "power": 310.0, "energy": 4e6, "temperature": 61.0, "clock": 1.98e9}
    gpus = [
        {**measured, "gpu": f"GPU-{rank:08x}-{'0' * 22}", "node": f"n{rank // 8}", "ranks": str(rank)} for rank in ranks
    ]
    nodes = [{**measured, "node": f"n{at}"} for at in range(128)]
    tables = {"gpus": {"gpus": gpus}, "hosts": {"ranks": [], "nodes": nodes}}
    shown = text.render({**report, "ranks": rows, "sections": tables}, 80, wanted=("gpus", "hosts")).splitlines()
    assert max(map(len, shown)) <= 80
    listed = [line.split() for line in shown if line.startswith("GPU-")]
    culprit = report["verdicts"][0]["ranks"][0]
    assert len({line[0] for line in listed}) == columns.SHOWN
    assert [f"GPU-{culprit:08x}…", f"n{culprit // 8}", str(culprit)] in [line[:3] for line in listed]
    assert f"{1024 - columns.SHOWN:,} more rows are not shown: --format csv has all" in shown
    assert sum(line.startswith("n") for line in shown) <= columns.SHOWN


@pytest.mark.parametrize("begin", [0, 11, 12, 62, 63, 64, 65, 200])
def test_long_ids_are_told_apart_in_64_characters(begin: int) -> None:
    """Wherever they begin to differ; names that are as long keep to their column too."""
    gpus = [{"gpu": f"{'G' * begin}-{which}{'0' * 20}{which}", "node": "n" * 200, "busy": 0.5} for which in "ab"]
    report = {**judged("gpu-contention")[2], "sections": {"gpus": {"gpus": gpus}}}
    shown = text.render(report, 200, wanted=("gpus",)).splitlines()
    ids, names = zip(*(line.split()[:2] for line in shown if "nnn" in line), strict=True)
    assert len({*ids}) == 2
    assert max(map(len, (*ids, *names))) <= 64


@pytest.mark.parametrize("name", ["clean", "several", "gpu-contention"])
def test_tables_fit_80_columns_with_long_names_and_high_ranks(name: str) -> None:
    """A wide table goes on below; no number is cut."""
    run, _, _ = judged(name)
    moved = {table: {**rows, "rank": rows["rank"] + 99_990} for table, rows in run.tables().items() if "rank" in rows}
    node = np.array([f"cn-0042-{rank:04}.cluster.example.org" for rank in range(len(run.ranks["rank"]))])
    moved["ranks"]["node"] = node
    far = replace(run, **{table: rows for table, rows in moved.items() if len(rows["rank"])})
    found = judge(far)
    content = found.to_dict()
    report = sections.added(content, section_rows.of(far, content, found.overview))
    shown = text.render(report, 80, wanted=tuple(sections.SECTIONS))
    assert max(map(len, shown.splitlines())) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown[shown.index("\nThroughput") :]


def test_tables_by_rank_of_a_large_job_show_the_ranks_that_matter() -> None:
    """As the table of ranks does; all of them are asked for with a list."""
    run = simulate(Scenario(64, 60, faults=(Fault("compute", (40,), 0.2),))).run
    found = judge(run)
    content = found.to_dict()
    report = sections.added(content, section_rows.of(run, content, found.overview, ("throughput",)))
    by_rank = sections.shown(report["sections"], sections.rows_of(report, None))[1]
    assert 40 in {row["rank"] for row in by_rank.rows}
    assert len(by_rank.rows) <= columns.SHOWN
    assert len(sections.shown(report["sections"], sections.rows_of(report, list(range(64))))[1].rows) == 64


@pytest.mark.parametrize("ranks", [8, 4096])
def test_a_brief_report_is_below_8_kb(ranks: int) -> None:
    """Whatever the job's size, and however long its sentences."""
    report = json.loads(json.dumps(judged("several")[2]))
    one = report["verdicts"][0] | {"ranks": list(range(ranks)), "evidence": ["ä" * 4000] * 50, "advice": ["do"] * 50}
    report |= {"verdicts": [one] * 20, "notes": ["ü" * 4000] * 40}
    shown = brief.render(report)
    assert len(shown.encode()) <= brief.MOST
    parsed = json.loads(shown)
    assert parsed["verdicts"][0]["kind"] == "straggler"
    assert parsed["verdicts"][0]["ranks_total"] == ranks
    assert parsed["left_out"]["verdicts"] > 0


SETTING = {"threshold": "10 %", "share": 0.5, "ranks": None}
LOADER = {"name": "storage", "set": "`cp -r data /dev/shm`", "found": "input costs 60 % of the step", **SETTING}


def test_a_setting_that_remedies_slow_input_is_its_advice() -> None:
    """Once, in text and brief: general advice on input is gone."""
    found = judged("input-bound")[1].to_dict()
    report = sections.added(found, {"advice": {"settings": [LOADER]}})
    assert report["verdicts"][0]["advice"] == [f"{LOADER['set']} ({LOADER['found']})"]
    assert text.render(report, width=200).count(LOADER["set"]) == 1
    assert brief.render(report).count(LOADER["set"]) == 1
    other = sections.added(found, {"advice": {"settings": [{**LOADER, "name": "GPU clocks"}]}})
    assert other["verdicts"] == found["verdicts"]


def test_a_setting_of_a_lone_rank_is_advised_once() -> None:
    """With what limits the job, which stands first, and not again with its pace."""
    found = {**judged("input-bound")[1].to_dict(), "sections": {"advice": {"settings": [LOADER]}}}
    found |= {"ranks": found["ranks"][:1], "verdicts": judged("single")[1].to_dict()["verdicts"]}
    assert columns.limits_more(found)
    assert text.render(found, width=200).count(LOADER["set"]) == 1


def test_an_option_that_a_late_ranks_advice_names_is_no_second_advice() -> None:
    """More workers for that rank are not tried once more on the typical one."""
    found = judged("straggler")[1].to_dict()
    found["sections"] = {
        "advice": {"settings": [{**LOADER, "set": "`num_workers=1, prefetch_factor=4` in its loader"}]}
    }
    assert "TRY" in text.render(found, width=200)
    found["verdicts"][0]["advice"] = ["More DataLoader workers (num_workers) hide it"]
    assert "TRY" not in text.render(found, width=200)


def test_a_setting_has_the_columns_of_its_table_with_the_ranks_that_it_is_about() -> None:
    """No more and no fewer: what the schema lists is what JSON has."""
    run, found, _ = judged("clean")
    name = "hindmost_process_major_page_faults_total"
    faults = loads.metrics([(name, '{"job": "made", "rank": "1"}', second, 50.0 * second) for second in (0, 10)])
    run = replace(run, metrics=faults)
    (row,) = section_rows.of(run, found.to_dict(), found.overview, ("advice",))["advice"]["settings"]
    assert (row["name"], row["ranks"]) == ("memory of the node", "1")
    assert [*row] == [column.key for column in sections.SECTIONS["advice"].tables["settings"].columns]


def test_a_brief_verdict_has_its_head_its_kind_and_both_causes() -> None:
    """A job that is balanced but for doubts is none; two causes at once leave ``cause`` unknown."""
    (unsure,) = brief.of(judged("single")[2])["verdicts"]
    assert (unsure["head"], unsure["kind"]) == ("UNSURE", "insufficient_data")
    report = judged("straggler")[2]
    (slow, *_) = report["verdicts"]
    both = {**slow, "cause": "unknown", "causes": ("compute", "input")}
    (shown,) = brief.of({**report, "verdicts": [both]})["verdicts"]
    assert (shown["head"], shown["kind"], shown["causes"]) == ("SLOW", "straggler", ["compute", "input"])


def test_a_brief_report_has_commands_that_can_be_typed() -> None:
    """With the path of the recording."""
    assert "`hindmost report runs/7 --sections limits" in brief.render(judged("single")[2], "runs/7")


def step_if(run: Run, free: str) -> tuple[float, float]:
    """The mean step of a run, and what its report says of it if one thing were free, ms."""
    found = judge(run)
    rows = section_rows.of(run, found.to_dict(), found.overview, ("limits",))["limits"]["if_free"]
    steps = {row["without"]: row["step_ms"] for row in rows}
    return steps["nothing changes"], steps[f"{free} were free"]


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_a_step_without_input_is_as_long_as_one_that_has_none(share: float) -> None:
    """The same job, simulated with hardly any input: within 3 %."""
    _, without = step_if(simulate(Scenario(4, 80, input_share=share)).run, "input")
    really, _ = step_if(simulate(Scenario(4, 80, input_share=0.0001)).run, "input")
    assert without == pytest.approx(really, rel=0.03)


def test_a_step_without_one_slow_loader_is_as_long_as_without_all() -> None:
    """A rank that loads for 40 ms more holds up all: without its input the others' counts, and is free too."""
    slow = Scenario(4, 80, faults=(Fault("input", (2,), 0.4),))
    was, without = step_if(simulate(slow).run, "input")
    really, _ = step_if(simulate(Scenario(4, 80, input_share=0.0001)).run, "input")
    assert was > 1.3 * really
    assert without == pytest.approx(really, rel=0.03)


@pytest.mark.parametrize("queued", [0.0, 0.5])
def test_a_step_without_input_is_shorter_by_the_cost_of_input(queued: float) -> None:
    """Also where half of the input is a wait for a CPU, which no loader shortens: one figure."""
    run, found, report = judged("input-bound")
    seen = replace(found.overview, queued=np.full(4, queued))
    blocks = build_blocks.build(run, DEFAULT)
    (verdict,) = of_job(blocks, replace(DEFAULT, input_bound=0.1), (), seen)
    was, free, *_ = section_rows.of(run, report, seen, ("limits",))["limits"]["if_free"]
    assert free["without"] == "input were free"
    assert was["step_ms"] - free["step_ms"] == pytest.approx(verdict.cost_ms_per_step)


def test_a_job_of_one_rank_is_not_said_to_have_several() -> None:
    """Its input is what that rank waits for."""
    (found,) = judge(single(input_share=0.6)).verdicts
    assert found.evidence[0].startswith("rank 0 waits ")


@pytest.mark.parametrize("transfer", [0.5, 4.0, 20.0])
def test_a_step_without_communication_is_as_long_as_one_without_transfers(transfer: float) -> None:
    """Of a job whose hosts wait in collectives; the waits for late ranks stay."""
    _, without = step_if(loads.make(loads.Load(transfer=transfer)), "communication")
    really, _ = step_if(loads.make(loads.Load(transfer=0.001)), "communication")
    assert without == pytest.approx(really, rel=0.01)


def test_no_more_processes_are_advised_where_cpus_are_too_few() -> None:
    """Workers would wait for a CPU like all others; the same job with free CPUs is advised to have some."""
    samples = [("hindmost_node_cpus", "{}", second, 8.0) for second in (0, 9)]
    labels = [f'{{"rank": "{rank}"}}' for rank in range(4)]
    samples += [("hindmost_process_children", label, second, 0.0) for label in labels for second in (0, 9)]
    run = simulate(Scenario(4, 60, input_share=0.6)).run
    metrics = loads.metrics(samples)
    metrics["node"] = np.full(len(metrics["name"]), run.ranks["node"][0])
    run = replace(run, metrics=metrics, ranks=run.ranks | {"framework": np.full(4, "torch")})
    found = judge(run)
    report = found.to_dict()
    names = []
    for by in ("input", "cpu"):
        report["job"]["bound"] = {"by": by, "evidence": ""}
        settings = section_rows.of(run, report, found.overview, ("advice",))["advice"]["settings"]
        names.append([row["name"] for row in settings])
    assert names == [["DataLoader workers"], []]


@pytest.mark.parametrize(("workers", "said"), [(0.0, 0), (4.0, 1)])
def test_what_loader_workers_call_is_said_to_be_unmeasured(workers: float, said: int) -> None:
    """Of ranks that have some: the table of calls by size is of their own processes."""
    labels = [f'{{"rank": "{rank}"}}' for rank in range(4)]
    samples = [("hindmost_process_children", label, second, workers) for label in labels for second in (0, 9)]
    run = replace(simulate(Scenario(4, 60)).run, metrics=loads.metrics(samples))
    found = judge(run)
    rows = section_rows.of(run, found.to_dict(), found.overview, ("io", "not_measured"))["not_measured"]["what"]
    assert sum("loader workers" in row["what"] for row in rows) == said


def test_a_disk_is_mounted_where_its_own_partitions_are() -> None:
    """At most two paths, the shortest; the 27th disk begins with the name of the first."""
    read = [("hindmost_node_disk_read_bytes_total", '{"device": "sda"}', second, 1e6 * second) for second in (0, 9)]
    sizes = [
        ("hindmost_node_filesystem_size_bytes", json.dumps({"device": device, "mountpoint": at}), 0, 1e9)
        for device, at in {"/dev/sda1": "/home", "/dev/sda": "/", "/dev/sda2": "/longest", "/dev/sdaa1": "/a"}.items()
    ]
    run = replace(simulate(Scenario(4, 60)).run, metrics=loads.metrics([*read, *sizes]))
    (row,) = section_rows.of(run, judge(run).to_dict(), None, ("io",))["io"]["devices"]
    assert (row["device"], row["mounted"]) == ("sda", "/, /home")


def test_a_section_that_there_is_not_is_an_error() -> None:
    """It names the sections."""
    assert sections.chosen("hosts, gpus") == ["hosts", "gpus"]
    assert sections.chosen("all") == list(sections.SECTIONS)
    with pytest.raises(UsageError, match="no section 'cpus'; sections are all, wall_clock"):
        sections.chosen("hosts,cpus")


def test_a_report_without_sections_is_read_as_before() -> None:
    """Each format writes what hindmost.report/1 has."""
    report = judged("straggler")[1].to_dict()
    assert report["schema"] == "hindmost.report/1"
    assert "PACE" not in text.render(report)
    assert markdown.render(report).startswith("# hindmost")
    assert json.loads(brief.render(report))["pace"] is None
    assert "<html" in document.of_report(report)


def test_a_row_that_has_only_its_name_is_not_shown() -> None:
    """What was not measured is listed once, with why."""
    run, found, report = judged("straggler")
    made = section_rows.of(run, report, found.overview)
    (table,) = (one for one in sections.shown(made) if one.name == "if_free")
    unknown = [row["without"] for row in made["limits"]["if_free"] if row["step_ms"] is None]
    assert unknown
    assert not {*unknown} & {row["without"] for row in table.rows}
    assert {*unknown} <= {row["what"].removeprefix("the step if ") for row in made["not_measured"]["what"]}


def test_the_run_time_says_what_start_up_took_of_it() -> None:
    """All that comes before the first step is one part, with its share: of a short job it is most."""
    names = {"launch": 10.8, "imports": 6.8, "set-up": 8.4, "training": 6.4, "tear-down": 7.6, "warm-up steps": 0.1}
    parts = [{"part": name, "seconds": seconds} for name, seconds in {**names, "all": 40.1}.items()]
    found: sections.Sections = {"wall_clock": {"parts": parts}}
    assert sections.in_one_line(found) == "run time 40.1 s: start-up 26.0 s (65 %), tear-down 7.6 s, training 6.4 s"


@pytest.mark.parametrize(
    ("below", "said"), [(2.0, "uses 2.1 CPUs with the processes that it started"), (0.0, "uses 0.1")]
)
def test_a_process_whose_children_do_the_work_is_not_said_to_be_all(below: float, said: str) -> None:
    """`make` and drivers use little, and wait."""
    row = dict.fromkeys(sections.OF_PROCESS["hosts"]) | {
        "rank": 0,
        "cpu": 0.1,
        "workers_cpu": below,
        "memory": 13 << 20,
    }
    line = sections.in_one_line({"hosts": {"ranks": [row]}})
    assert line.startswith(said)
    assert ("peak memory" in line) == (not below)
