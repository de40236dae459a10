"""A report as one HTML file: no script, no font and no picture from elsewhere, light and dark, fit to mail around."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any

from hindmost_judge.verdict.wording import UNMEASURED, duration

from hindmost_collector.report import columns
from hindmost_collector.report.rendered import overlap, rendered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hindmost_collector.report.rendered import RenderedVerdict

_STYLE = """
:root{--ink:#1c2430;--soft:#5b6675;--line:#e3e7ec;--page:#f6f7f9;--card:#fff;--bad:#c02f3b;--good:#1f8a4c;
--odd:#a86a00;--bar:#3f6fd8}@media(prefers-color-scheme:dark){:root{--ink:#e7ebf0;--soft:#9aa5b4;
--line:#2c343f;--page:#12161c;--card:#1a2028;--bad:#ff6b74;--good:#4cc683;--odd:#e0a53b;--bar:#6f98f0}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}main{max-width:1100px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:15px;font-weight:600;color:var(--soft);margin:0 0 20px}article,section{background:var(--card);
border:1px solid var(--line);border-radius:10px;padding:20px 24px;margin:0 0 16px}
article{border-left:5px solid var(--bad);overflow-wrap:anywhere}article.OK{border-left-color:var(--good)}
article.UNSURE{border-left-color:var(--odd)}h2{font-size:20px;line-height:1.3;margin:0 0 10px}
h2 b{color:var(--bad);margin-right:8px}.OK h2 b{color:var(--good)}.UNSURE h2 b{color:var(--odd)}
h2 small{color:var(--soft);font-size:14px;font-weight:400;white-space:nowrap;margin-left:8px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px;margin:0}dt{color:var(--soft)}dd{margin:0}
details{margin:10px 0 0}summary{color:var(--soft);cursor:pointer}details ul{margin-top:6px}
ul{margin:0;padding-left:18px}.figures{display:flex;flex-wrap:wrap;gap:12px 40px}.figures b{display:block;
font-size:22px}.figures span{color:var(--soft)}.scroll{overflow-x:auto}table{border-collapse:collapse;
width:100%;font-variant-numeric:tabular-nums}th,td{text-align:right;padding:5px 10px;
border-bottom:1px solid var(--line);white-space:nowrap}th{color:var(--soft);font-weight:500}
tr.named td{color:var(--bad);font-weight:600}.bar{width:200px;height:12px;display:flex;background:var(--line);
border-radius:3px;overflow:hidden}.self{background:var(--bar)}.wait{background:var(--odd);opacity:.55}
code{font:13px ui-monospace,monospace;background:var(--page);padding:1px 4px;border-radius:4px}
p.note{color:var(--soft);margin:6px 0}@media(max-width:600px){main{padding:12px 8px 32px}
article,section{padding:14px}h2{font-size:17px}.bar{width:90px}}
"""

_COMMAND = re.compile("`([^`]+)`")


def render(report: Mapping[str, Any]) -> str:
    """The report (``Report.to_dict()`` or a parsed report.json) as a whole HTML document."""
    title = escape(columns.title(report))
    verdicts = rendered(report)
    overlapping = f'<p class="note">{overlap(report)}</p>' if overlap(report) else ""
    body = _ended(report) + "".join(map(_verdict, verdicts)) + overlapping + _figures(report) + _lines(report)
    body += _ranks(report) + _notes(report)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body><main><h1>{title}</h1>{body}</main></body></html>\n"
    )


def _ended(report: Mapping[str, Any]) -> str:
    ended = report["job"].get("ended")
    how = "was interrupted" if report["job"].get("interrupted_by") else "failed"
    told = [one for one in (ended, report["job"].get("to_do")) if one]
    said = "".join(f"<p>{_text(one)}</p>" for one in told)
    return f"<article><h2>The job {how}</h2>{said}</article>" if ended else ""


def _lines(report: Mapping[str, Any]) -> str:
    """What limits the job, and behind a fold where ranks lose time."""
    bound, waste = columns.bound(report), columns.waste(report)
    rows = [("Bound by", bound), ("Do", columns.on_bound(report))]
    shown = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows if text)
    shown = f"<dl>{shown}</dl>" if shown else ""
    shown += _fold("Waste", waste) if waste else ""
    return f"<section>{shown}</section>" if shown else ""


def _verdict(one: RenderedVerdict) -> str:
    """The block of the text, with the rest of the evidence behind a fold."""
    sure = f" <small>{escape(one.sure)}</small>" if one.sure else ""
    rows = [("Cost", [one.cost] if one.cost else []), ("Why", one.why[:1]), ("Do", one.do)]
    listed = "".join(f"<dt>{name}</dt><dd>{_list(texts)}</dd>" for name, texts in rows if texts)
    more = [*one.why[1:], *([f"Where: {one.where}"] if one.where else [])]
    shown = f"<h2><b>{escape(one.head)}</b> {escape(one.what)}{sure}</h2><dl>{listed}</dl>"
    fold = _fold("More evidence", more) if more else ""
    return f'<article class="{escape(one.head)}">{shown}{fold}</article>'


def _fold(title: str, texts: Sequence[str]) -> str:
    items = "".join(f"<li>{_text(text)}</li>" for text in texts)
    return f"<details><summary>{title}</summary><ul>{items}</ul></details>"


def _list(texts: Sequence[str]) -> str:
    if len(texts) == 1:
        return _text(texts[0])
    return "<ul>" + "".join(f"<li>{_text(text)}</li>" for text in texts) + "</ul>"


def _text(text: str) -> str:
    """A sentence with its commands as code."""
    return _COMMAND.sub(r"<code>\1</code>", escape(text))


def _figures(report: Mapping[str, Any]) -> str:
    what_if, step = report["what_if"], report["job"]["step_ms"]
    shown = [
        ("typical step", duration(step.get("p50"))),
        ("slow step (p99)", duration(step.get("p99"))),
        ("lost to waiting, noise included", columns.ratio(what_if.get("wasted_ratio"))),
        ("step with all ranks equal", duration(what_if.get("ideal_step_ms"))),
    ]
    cells = "".join(
        f"<div><b>{escape(value)}</b><span>{name}</span></div>" for name, value in shown if value != UNMEASURED
    )
    return f'<section class="figures">{cells}</section>' if cells else ""


def _ranks(report: Mapping[str, Any]) -> str:
    if not report["ranks"]:
        return ""
    rows, left_out = columns.choose(report)
    titles, cells = columns.table(rows, deciding=columns.deciding(report))
    named = {rank for verdict in report["verdicts"] for rank in verdict["ranks"]}
    head = "".join(f"<th>{escape(title)}</th>" for title in titles) + "<th>self time and wait</th>"
    body = "".join(_row(row, line, row["rank"] in named) for row, line in zip(rows, cells, strict=True))
    more = f'<p class="note">{left_out:,} more ranks are not shown; report.json has them all.</p>' if left_out else ""
    caption = columns.caption(titles, report)
    more += f'<p class="note">{escape(caption)}</p>' if caption else ""
    return f'<section><div class="scroll"><table><tr>{head}</tr>{body}</table></div>{more}</section>'


def _row(row: Mapping[str, Any], line: Sequence[str], named: bool) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in line)
    return f"<tr{' class=named' if named else ''}>{cells}<td>{_bar(row)}</td></tr>"


def _bar(row: Mapping[str, Any]) -> str:
    """How much of the rank's step was self time and wait, as far as measured."""
    step = row.get("step_ms")
    if not step or row.get("wait_ms") is None:
        return ""
    parts = (("self", row.get("self_ms")), ("wait", row.get("wait_ms")))
    drawn = "".join(
        f'<div class="{name}" style="width:{min(max(value / step, 0.0), 1.0):.1%}"></div>'
        for name, value in parts
        if value is not None
    )
    return f'<div class="bar">{drawn}</div>'


def _notes(report: Mapping[str, Any]) -> str:
    notes = report.get("notes") or []
    return f"<section>{_fold(columns.count(len(notes), 'note'), notes)}</section>" if notes else ""
