"""Prometheus' text format 0.0.4, as the agent and the collector write it on their ``/metrics`` pages."""

from collections.abc import Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: The label of a job on Prometheus' pages, which agents name ``job``: Prometheus calls what it scrapes so.
JOB_LABEL = "job_id"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def escaped(value: object) -> str:
    """A label's value as the format wants it."""
    return str(value).translate(_ESCAPES)


def labelled(name: str, labels: Mapping[str, object]) -> str:
    """A series' name with its labels, and the space before its value."""
    inside = ",".join(f'{key}="{escaped(value)}"' for key, value in labels.items())
    return f"{name}{{{inside}}} " if inside else f"{name} "


def head(name: str, kind: str, text: str) -> str:
    """The lines before a metric's samples: its help and its type."""
    one_line = text.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {one_line}\n# TYPE {name} {kind}\n"
