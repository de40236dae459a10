"""How often agents are asked to make a batch: a message costs a collector about as much as all that is in it."""

from __future__ import annotations

#: Nanoseconds of a second, the unit of requested periods.
NS = 1_000_000_000
#: The agents' default period, and the longest one requested of them, s: a verdict must come within seconds.
USUAL_S, MOST_S = 2, 4
#: Above this many batches a second, agents are asked for a longer period; for a shorter one below this share of it.
BATCHES_A_SECOND, FEWER = 350, 0.8


def batch_ns(agents: int, asked_ns: int) -> int:
    """The period to request of ``agents``, of whom ``asked_ns`` is requested now; 0 for their default."""
    wanted = _period_s(agents)
    if wanted * NS < asked_ns:
        wanted = min(_period_s(agents / FEWER), asked_ns // NS)  # some come, some go: that is no reason to tell all
    return wanted * NS if wanted > USUAL_S else 0


def _period_s(agents: float) -> int:
    return min(max(-int(-agents // BATCHES_A_SECOND), USUAL_S), MOST_S)
