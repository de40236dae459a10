"""The summary of a job in Slurm's accounting: the brief report, packed into the field AdminComment.

``HM1:`` and base32 of gzip of ``hindmost.brief/1``. Most clusters keep accounting for years, and recordings for weeks.
Not base64: sacctmgr of Slurm 22.05 turns all letters of a comment into small ones.
"""

import base64
import binascii
import gzip
import json
import zlib
from collections.abc import Mapping
from typing import Any

from hindmost.errors import HindmostError, printable
from hindmost_judge.verdict.wording import duration

from hindmost_collector.report import brief
from hindmost_collector.report.columns import ratio
from hindmost_collector.report.text import console, labelled, written

PREFIX = "HM1:"
#: Characters of a comment at most, which :data:`brief.MOST` bytes cannot exceed: base32 of what does not shrink.
MOST = 13_000


def packed(report: Mapping[str, Any]) -> str:
    """The comment on a report of any size; the same report gives the same comment."""
    data = gzip.compress(brief.render(report).encode(), 9, mtime=0)
    return PREFIX + base64.b32encode(data).decode()


def unpacked(comment: str) -> dict[str, Any]:
    """The brief report in a comment. Raises HindmostError where it is none of this version's, or torn."""
    version = comment.partition(":")[0].upper()
    if f"{version}:" != PREFIX:
        if version.startswith("HM") and version[2:].isdigit():
            raise HindmostError(f"its summary is {version}, and this hindmost reads {PREFIX[:-1]}: upgrade hindmost")
        raise HindmostError("its AdminComment is not hindmost's")
    try:
        data = base64.b32decode(comment[len(PREFIX) : MOST], casefold=True)
        found = json.loads(zlib.decompressobj(wbits=31).decompress(data, brief.MOST))
        if found["schema"] == brief.SCHEMA and {"title", "verdicts"} <= found.keys():
            return dict(found)
    except (binascii.Error, zlib.error, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise HindmostError("its summary is damaged: the AdminComment was cut off or changed")


def rendered(found: Mapping[str, Any], width: int, color: bool = False) -> str:
    """A brief report as text: what is first in the whole one. Raises HindmostError where parts are missing."""
    page, lines = console(width, color), []
    try:
        page.print(printable(str(found["title"])), style="bold")
        if ended := (found.get("job") or {}).get("ended"):
            lines.append(labelled("ENDED", str(ended), "bold red"))
        for verdict in found["verdicts"]:
            head, _, what = str(verdict["says"]).partition(" ")
            sure = f" ({ratio(verdict['confidence'])} sure)" if verdict.get("confidence") is not None else ""
            lines.append(labelled(head, f"{what}{sure}", "bold", "bold"))
            costs = [cost] if (cost := _cost(verdict)) else []
            for label, texts in (("COST", costs), ("WHY", verdict["why"]), ("DO", verdict["do"])):
                lines += [labelled(label, str(text)) for text in texts[:1]]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise HindmostError("its summary is damaged: parts are missing") from None
    if pace := found.get("pace"):
        lines.append(labelled("PACE", str(pace)))
    return written(page, lines)


def _cost(verdict: Mapping[str, Any]) -> str:
    """What it costs. Summaries of earlier versions have no sentence, but its two numbers."""
    cost, share = verdict.get("cost_ms_per_step"), verdict.get("cost_ratio")
    if "cost" in verdict or cost is None or share is None:
        return verdict.get("cost") or ""
    return f"{duration(cost)} per step ({ratio(share)})"
