"""Which rank everyone else is waiting for: the part that lives in training processes. Standard library only."""

from __future__ import annotations

__version__ = "0.1.0"
