"""The exception that ends this process, as one line: Python keeps it, once its traceback has been printed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

#: Where libraries lie: an exception raised there is reported from where the job's own code called them.
_FOREIGN = ("site-packages", "dist-packages", "/lib/python", "<frozen", __file__.rpartition("/")[0])


def described() -> str | None:
    """``raised ValueError at train.py:88``; ``None`` where nothing did. All ranks together show whose a Ctrl-C was."""
    error = getattr(sys, "last_value", None)
    if not isinstance(error, (Exception, KeyboardInterrupt)):
        return None
    place = _place(getattr(sys, "last_traceback", None))
    return f"raised {type(error).__name__}" + (f" at {place}" if place else "")


def _place(trace: TracebackType | None) -> str:
    """File and line of the innermost frame of the job's own code; of any, where there is none."""
    inner = own = ""
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        inner = f"{path.rpartition('/')[2]}:{trace.tb_lineno}"
        own = own if any(part in path for part in _FOREIGN) else inner
        trace = trace.tb_next
    return own or inner
