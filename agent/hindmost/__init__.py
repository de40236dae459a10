"""Which rank everyone else is waiting for: the part that lives in training processes. Standard library only.

A training script needs none of it. Loops that hindmost does not recognise can mark their own steps and phases::

    for batch in loader:
        with hindmost.step():
            with hindmost.phase("forward"):
                loss = model(batch)
"""

from __future__ import annotations

from hindmost.stepping import phase, step, steps

__version__ = "0.1.0"
__all__ = ["__version__", "phase", "step", "steps"]
