"""A report as one HTML file: no script, no font and no picture from elsewhere, light and dark, fit to mail around."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from hindmost_collector.report import columns, headline
from hindmost_collector.report.told import told

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hindmost_collector.report.told import Told

_STYLE = """
:root{--ink:#1c2430;--soft:#5b6675;--line:#e3e7ec;--page:#f6f7f9;--card:#fff;--bad:#c02f3b;--good:#1f8a4c;
--odd:#a86a00;--bar:#3f6fd8}@media(prefers-color-scheme:dark){:root{--ink:#e7ebf0;--soft:#9aa5b4;
--line:#2c343f;--page:#12161c;--card:#1a2028;--bad:#ff6b74;--good:#4cc683;--odd:#e0a53b;--bar:#6f98f0}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}main{max-width:1100px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:15px;font-weight:600;color:var(--soft);margin:0 0 20px}article,section{background:var(--card);
border:1px solid var(--line);border-radius:10px;padding:20px 24px;margin:0 0 16px}
article{border-left:5px solid var(--bad)}article.balanced{border-left-color:var(--good)}
article.insufficient_data{border-left-color:var(--odd)}h2{font-size:20px;line-height:1.3;margin:0 0 10px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px;margin:0}dt{color:var(--soft)}dd{margin:0}
ul{margin:0;padding-left:18px}.figures{display:flex;flex-wrap:wrap;gap:12px 40px}.figures b{display:block;
font-size:22px}.figures span{color:var(--soft)}.scroll{overflow-x:auto}table{border-collapse:collapse;
width:100%;font-variant-numeric:tabular-nums}th,td{text-align:right;padding:5px 10px;
border-bottom:1px solid var(--line);white-space:nowrap}th{color:var(--soft);font-weight:500}
tr.named td{color:var(--bad);font-weight:600}.bar{width:220px;height:12px;display:flex;background:var(--line);
border-radius:3px;overflow:hidden}.own{background:var(--bar)}.wait{background:var(--odd);opacity:.55}
p.note{color:var(--soft);margin:6px 0}
"""


def render(report: Mapping[str, Any]) -> str:
    """The report (``Report.to_dict()`` or a parsed report.json) as a whole HTML document."""
    title = escape(headline.title(report))
    body = _ended(report) + "".join(map(_verdict, told(report))) + _figures(report) + _lines(report)
    body += _ranks(report) + _notes(report)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><main><h1>{title}</h1>{body}</main></body></html>\n"
    )


def _ended(report: Mapping[str, Any]) -> str:
    ended = report["job"].get("ended")
    how = "was interrupted" if report["job"].get("interrupted_by") else "failed"
    return f"<article><h2>The job {how}</h2><p>{escape(ended)}</p></article>" if ended else ""


def _lines(report: Mapping[str, Any]) -> str:
    """What the text says in a line of its own."""
    lines = [("Waste:", headline.waste(report)), ("The job is bound", headline.bound(report))]
    return "".join(f"<section>{name} {escape(said)}</section>" for name, said in lines if said)


def _verdict(one: Told) -> str:
    cost, where = ([text] if text else [] for text in (one.cost, one.where))
    rows = [("Why", one.why), ("Cost", cost), ("Where", where), ("Next", one.next)]
    listed = "".join(f"<dt>{name}</dt><dd>{_list(texts)}</dd>" for name, texts in rows if texts)
    return f'<article class="{escape(one.kind)}"><h2>{escape(one.verdict)}</h2><dl>{listed}</dl></article>'


def _list(texts: Sequence[str]) -> str:
    if len(texts) == 1:
        return escape(texts[0])
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def _figures(report: Mapping[str, Any]) -> str:
    what_if, step = report["what_if"], report["job"]["step_ms"]
    shown = [
        ("typical step", columns.duration(step.get("p50"))),
        ("slow step (p99)", columns.duration(step.get("p99"))),
        ("lost to whoever is last, noise included", columns.ratio(what_if.get("wasted_ratio"))),
        ("step if no rank were ever later than its peers", columns.duration(what_if.get("ideal_step_ms"))),
    ]
    cells = "".join(
        f"<div><b>{escape(value)}</b><span>{name}</span></div>" for name, value in shown if value != columns.UNMEASURED
    )
    return f'<section class="figures">{cells}</section>' if cells else ""


def _ranks(report: Mapping[str, Any]) -> str:
    if not report["ranks"]:
        return ""
    rows, left_out = columns.choose(report)
    titles, cells = columns.table(rows)
    named = {rank for verdict in report["verdicts"] for rank in verdict["ranks"]}
    head = "".join(f"<th>{escape(title)}</th>" for title in titles) + "<th>own time and wait</th>"
    body = "".join(_row(row, line, row["rank"] in named) for row, line in zip(rows, cells, strict=True))
    more = f'<p class="note">{left_out:,} more ranks are not shown; report.json has them all.</p>' if left_out else ""
    caption = columns.caption(titles)
    more += f'<p class="note">{escape(caption)}</p>' if caption else ""
    return f'<section><div class="scroll"><table><tr>{head}</tr>{body}</table></div>{more}</section>'


def _row(row: Mapping[str, Any], line: Sequence[str], named: bool) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in line)
    return f"<tr{' class=named' if named else ''}>{cells}<td>{_bar(row)}</td></tr>"


def _bar(row: Mapping[str, Any]) -> str:
    """How much of the rank's step was its own time, waiting for others and transfer, as far as measured."""
    step = row.get("step_ms")
    if not step or row.get("wait_ms") is None:
        return ""
    parts = (("own", row.get("self_ms")), ("wait", row.get("wait_ms")))
    drawn = "".join(
        f'<div class="{name}" style="width:{min(max(value / step, 0.0), 1.0):.1%}"></div>'
        for name, value in parts
        if value is not None
    )
    return f'<div class="bar">{drawn}</div>'


def _notes(report: Mapping[str, Any]) -> str:
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in report.get("notes") or [])
    return f"<section>{notes}</section>" if notes else ""
