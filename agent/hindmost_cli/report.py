"""``hindmost report``: judge a recorded run, or a folder of a foreign format, and say what came out."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hindmost.errors import HindmostError, UsageError

from hindmost_cli import arguments, stdio

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from hindmost_judge.model import Run
    from hindmost_judge.overview import Overview
    from hindmost_judge.verdict.schema import Report

FORMATS = ("text", "json", "html", "markdown", "csv")
#: Sections of which a format has a line or a column in any case.
_ALWAYS = {
    "text": {"wall_clock", "throughput", "advice", "phases"},
    "brief": {"wall_clock", "throughput", "advice", "limits"},
}


EPILOG = """\
examples:
  hindmost report hindmost-runs/JOB
  hindmost report hindmost-runs/JOB --sections all
  hindmost report hindmost-runs/JOB --format html -o report.html
  hindmost report profiler-traces --ranks 0-7
  hindmost report --slurm 812345"""


def _format(name: str) -> str:
    """What files of a format end with is a name of it, too."""
    return {"md": "markdown", "txt": "text"}.get(name, name)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "path",
        metavar="PATH",
        type=place,
        nargs="?",
        help="a run directory, a folder of traces, or clickhouse://USER@HOST:PORT/DATABASE?job=ID",
    )
    parser.add_argument(
        "others",
        metavar="PATH",
        type=place,
        nargs="*",
        default=[],
        help="more run directories of the same job, from other collectors",
    )
    parser.add_argument(
        "--slurm", metavar="JOBID", help="instead of PATH: the summary of a Slurm job in sacct's AdminComment"
    )
    parser.add_argument("--format", choices=FORMATS, type=_format, help="output format (default: text)")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=arguments.path("--output"), help="write to FILE instead of stdout"
    )
    parser.add_argument("--explain", action="store_true", help="show all evidence and notes of the text report")
    parser.add_argument(
        "--sections",
        metavar="LIST",
        nargs="?",
        const=[],
        type=_sections,
        help="show these sections, or all: wall_clock, throughput, limits, advice, phases, efficiency, communication,"
        " io, hosts, gpus, not_measured; without LIST: say what they are",
    )
    parser.add_argument(
        "--flops-per-sample",
        metavar="N",
        type=float,
        help="floating-point operations of a sample or token, forward and backward: section limits has the MFU",
    )
    parser.add_argument("--brief", action="store_true", help="JSON of at most 8 kB, for programs")
    parser.add_argument("--ranks", metavar="LIST", help="show only these ranks in the tables, e.g. 0-3,17")
    arguments.add_thresholds(parser)


def run(args: argparse.Namespace) -> int:
    """Load, judge, write. Exit code 0 whatever the verdict: it is the input that can be wrong, not the job."""
    from hindmost_collector.report import section_rows, sections

    args.format = args.format or ("json" if args.brief else "text")
    _check(args)
    if args.slurm is not None:
        write(_of_slurm(args), args.output)
        return 0
    if args.sections == []:
        write(sections.listed(), args.output)
        return 0
    chosen = _ranks(arguments.filled("--ranks", args.ranks)) if args.ranks is not None else None
    wanted = args.sections or (["limits"] if args.flops_per_sample and args.format == "text" else [])
    kind = "brief" if args.brief else args.format
    color = args.output is None and stdio.colored(sys.stdout)
    thresholds = arguments.given_thresholds(args.set, args.config)
    others = tuple(map(Path, args.others))
    pages = []
    recordings_in = [args.path] if others else _recordings(args.path, args.format)
    for one in recordings_in:
        run, found = _judged(one, thresholds, others)
        report = found.to_dict()
        if chosen is not None:
            _refuse_unknown(args.ranks, chosen, report)
        if needed := _needed(kind, wanted):
            needed |= set() if report["ranks"] else set(sections.OF_PROCESS)
            needed |= {"limits", "not_measured"} if args.flops_per_sample else set()
            report = sections.added(report, section_rows.of(run, report, found.overview, needed, args.flops_per_sample))
            missing = report["sections"].get("not_measured", {"what": ()})["what"]
            why = [row["why"] for row in missing if row["what"] == "MFU"]
            report["notes"] = [*(f"no MFU: {one}" for one in why if args.flops_per_sample), *report["notes"]]
        shown = render(report, kind, chosen, color, args.explain, named(one, args), wanted, run, found.overview)
        pages.append(shown)
    write("\n".join(pages), args.output)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raise UsageError where options do not go together."""
    if (args.slurm is None) == (args.path is None):
        both = "" if args.path is None else ", not both"
        raise UsageError(f"give PATH or --slurm JOBID{both}; `hindmost report --help` lists the options")
    if args.slurm is not None and args.format not in ("text", "json"):
        raise UsageError(f"--slurm --format {args.format}: a summary is text or json")
    if args.brief and args.format != "json":
        raise UsageError(f"--brief --format {args.format}: only JSON can be brief; leave out --format")
    if args.flops_per_sample is not None and not 0 < args.flops_per_sample < float("inf"):
        raise UsageError(f"--flops-per-sample {args.flops_per_sample:g}: expected a number above 0")


#: What Slurm itself says of a job.
_OF_SLURM = ("name", "number", "state", "exit_code", "elapsed", "nodes")


def _of_slurm(args: argparse.Namespace) -> str:
    """The summary in a job's accounting, as text or JSON."""
    from hindmost_collector.report import admin_comment

    from hindmost_cli.slurm import accounting

    job = accounting.job(args.slurm)
    if not job.comment:
        raise HindmostError(f"Slurm job {job.name} has no summary: hindmost did not observe it, or it has not ended")
    try:
        found = admin_comment.unpacked(job.comment)
        text = admin_comment.rendered(found, stdio.width(least=80), args.output is None and stdio.colored(sys.stdout))
    except HindmostError as error:
        raise HindmostError(f"Slurm job {job.name}: {error}") from None
    if args.format == "json":
        return json.dumps({**found, "slurm": {name: getattr(job, name) for name in _OF_SLURM}}, indent=1) + "\n"
    return f"{text}SLURM  {job.name}: {job.state}, exit code {job.exit_code}, ran {job.elapsed} on {job.nodes}\n"


def _needed(kind: str, wanted: list[str]) -> set[str]:
    """The sections to make: those that are wanted; without any, all where the format has them."""
    from hindmost_collector.report.sections import SECTIONS

    every = set() if kind in ("text", "brief", "csv") else set(SECTIONS)
    return {*(wanted or every), *_ALWAYS.get(kind, ())}


def named(path: Path | str, args: argparse.Namespace) -> str:
    """What follows ``hindmost report`` in a command on ``path`` again, as it can be typed."""
    settings = [word for one in args.set or () for word in ("--set", one)]
    settings += ["--config", str(args.config)] if args.config else []
    return shlex.join([*map(str, (path, *args.others)), *settings])


def _recordings(path: Path | str, kind: str) -> list[Path | str]:
    """What to report on: all that a folder holds one after the other, where the format can hold several."""
    from hindmost_collector.recordings.load import recordings_in

    found = recordings_in(path)
    if len(found) > 1 and kind != "text":
        names = ", ".join(Path(one).name for one in found[:3])
        raise UsageError(f"{path}: {len(found)} recordings of different jobs ({names}); name one for --format {kind}")
    return found


def place(text: str) -> Path | str:
    """A recording as the command line names it: a path, or the URL of a store."""
    if not text:
        raise UsageError("PATH is empty: is a variable not set?")
    scheme, colon, _ = text.partition("://")
    if colon and scheme != "clickhouse":
        raise UsageError(
            f"{text}: only clickhouse://USER@HOST:PORT/DATABASE can be read by URL; copy the recording here instead"
        )
    return text if colon else Path(text)


def judged(
    path: Path | str, thresholds: Mapping[str, float] | None = None, others: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """The report of a recording as ``hindmost.report/1``, by the thresholds that it was recorded with unless others are
    given. ``others`` are run directories of the same job that other collectors wrote.
    """
    return _judged(path, thresholds, others)[1].to_dict()


def _judged(path: Path | str, thresholds: Mapping[str, float] | None, others: tuple[Path, ...]) -> tuple[Run, Report]:
    from hindmost_collector.options import with_thresholds
    from hindmost_collector.recordings import load
    from hindmost_collector.runtime import put_off_pandas
    from hindmost_judge.judge import judge

    put_off_pandas()
    if others and not isinstance(path, Path):
        raise UsageError(f"{path}: only run directories can be read together")
    run = load.load_run_directories([Path(path), *others]) if others else load.load(path)
    return run, judge(run, with_thresholds(dict(run.job.thresholds), thresholds or {}))


def _sections(text: str) -> list[str]:
    """As LIST names them. Raises UsageError; what follows the option is LIST, even if it was meant as PATH."""
    from hindmost_collector.report import sections

    try:
        return sections.chosen(text)
    except UsageError:
        if text.strip() and Path(text).exists():
            raise UsageError(f"--sections {text}: this is a path; put PATH before --sections") from None
        raise


def _ranks(text: str) -> list[int]:
    try:
        return arguments.ranks(text)
    except ValueError as error:
        raise UsageError(f"--ranks {text}: expected numbers and ranges, like 0-3,17") from error


def _refuse_unknown(text: str, chosen: list[int], report: Mapping[str, Any]) -> None:
    """Raise where the report has a table, and none of these ranks in it."""
    known = [row["rank"] for row in report["ranks"]]
    if known and not set(chosen) & set(known):
        raise UsageError(f"--ranks {text}: no such rank; the report has ranks {min(known)} to {max(known)}")


def render(
    report: dict[str, Any],
    kind: str,
    ranks: list[int] | None,
    color: bool,
    explain: bool = False,
    path: str = "PATH",
    wanted: Sequence[str] = (),
    run: Run | None = None,
    seen: Overview | None = None,
) -> str:
    """The report in one of the formats, or brief; ``path`` is the recording's in commands."""
    from hindmost_collector.page import document
    from hindmost_collector.report import brief, csv, markdown, text, verdict_lines

    if kind == "json":
        return verdict_lines.render_json(report)
    if kind == "brief":
        return brief.render(report, path)
    if kind == "html":
        return document.of_report(report, run, seen, path)
    if kind == "markdown":
        return markdown.render(report, ranks, path)
    if kind == "csv":
        return csv.render_sections(report, wanted) if wanted else csv.render(report, ranks)
    width = stdio.width(least=80)
    program = stdio.program()
    return text.render(report, width, color, ranks, explain=explain, path=path, wanted=wanted, program=program)


def write(content: str, output: Path | None, flag: str = "") -> None:
    """To a file, which a ``flag`` named, or to standard output."""
    if output is None:
        sys.stdout.write(content)
        return
    try:
        output.write_text(content, encoding="utf-8")
    except OSError as error:
        make = f"make its folder first: mkdir -p {shlex.quote(str(output.parent))}"
        remedy = "name another file" if output.parent.is_dir() else make
        raise UsageError(f"{flag} {output}: cannot be written: {error.strerror}; {remedy}".lstrip()) from error
