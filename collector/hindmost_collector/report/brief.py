"""A report in at most 8 kB of JSON, for programs and assistants: the verdicts, the job, what to try."""

import json
from collections.abc import Mapping
from typing import Any

from hindmost_collector.report import columns
from hindmost_collector.report.sections import in_one_line
from hindmost_collector.report.verdict_lines import RenderedVerdict, rendered

SCHEMA = "hindmost.brief/1"
#: Bytes at most, with the final newline.
MOST = 8000
#: Verdicts, settings and other things of a list at most; characters of a sentence; ranks that a list has.
_LISTED, _SENTENCE, _RANKS = 8, 300, 16


def render(report: Mapping[str, Any], path: str = "RUN") -> str:
    """The same whatever the job's size: where it would be longer, lists lose their last entries, and say so.

    ``path`` is that of the recording in commands, as a shell takes it.
    """
    for listed in range(_LISTED, 0, -1):
        found = json.dumps(of(report, listed, path), ensure_ascii=True, separators=(",", ":"), allow_nan=False) + "\n"
        if len(found) <= MOST:
            return found
    return json.dumps({"schema": SCHEMA, "title": _short(columns.title(report)), "cut": True}) + "\n"


def of(report: Mapping[str, Any], listed: int = _LISTED, path: str = "RUN") -> dict[str, Any]:
    """Its verdicts in words and figures, each list of so many at most."""
    job, parts = report["job"], report.get("sections") or {}
    stalled = sorted({rank for stall in job.get("stalls") or () for rank in stall["ranks"]})
    verdicts = [
        _verdict(one, said, stalled) for one, said in zip(report["verdicts"], rendered(report, path), strict=True)
    ]
    settings = [
        {name: _short(row[name]) for name in ("name", "found", "set")}
        for row in (parts.get("advice") or {}).get("settings", ())
        if not columns.says(report, row["set"])
    ]
    free = [
        {"without": row["without"], "step_ms": _digits(row["step_ms"]), "saved": _digits(row["saved"])}
        for row in (parts.get("limits") or {}).get("if_free", ())
        if row["step_ms"] is not None and row["saved"]
    ]
    lists: dict[str, list[Any]] = {
        "verdicts": verdicts,
        "settings": settings,
        "if_free": free,
        "notes": [*map(_short, report["notes"])],
    }
    return {
        "schema": SCHEMA,
        "title": _short(columns.title(report)),
        "job": {
            **{name: job.get(name) for name in ("world_size", "nodes", "steps", "exit_code")},
            "id": _short(job["id"]),
            "ended": _short(job["ended"]) if job.get("ended") else None,
            "step_ms": {name: _digits(value) for name, value in (job.get("step_ms") or {}).items()},
        },
        "pace": in_one_line(parts) or None,
        "bound": _short(columns.limit(report)) or None,
        **{name: found[:listed] for name, found in lists.items()},
        "left_out": {name: len(found) - listed for name, found in lists.items() if len(found) > listed},
    }


def _verdict(one: Mapping[str, Any], said: RenderedVerdict, stalled: list[int]) -> dict[str, Any]:
    """One verdict; of a job that only ``stalled`` with the ranks that were waited for then."""
    ranks = stalled if said.kind == "stalled" else one["ranks"]
    return {
        "head": said.head,
        "kind": "insufficient_data" if said.head == "UNSURE" else said.kind,
        "says": _short(said.sentence),
        "ranks": ranks[:_RANKS],
        "ranks_total": len(ranks),
        "cause": one.get("cause"),
        "causes": [*(one.get("causes") or ())],
        "since_step": one.get("since_step"),
        "until_step": one.get("until_step"),
        "cost_ms_per_step": _digits(one.get("cost_ms_per_step")),
        "cost_ratio": _digits(one.get("cost_ratio")),
        "cost": _short(said.cost) or None,
        "confidence": _digits(one.get("confidence")) if said.sure else None,
        "why": [_short(text) for text in said.why[:2]],
        "do": [_short(text) for text in said.do[:2]],
    }


def _short(text: str) -> str:
    return text if len(text) <= _SENTENCE else text[: _SENTENCE - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
