"""How often agents are asked to make a batch: a message costs a collector about as much as all that is in it."""

from __future__ import annotations

#: Nanoseconds of a second: periods are asked for in them.
NS = 1_000_000_000
#: What agents do of themselves, s, and the most that is asked of them: a verdict is to come within seconds.
USUAL_S, MOST_S = 2, 4
#: So many batches a second, and agents are asked for fewer; for more again when there are this much fewer agents.
BATCHES_A_SECOND, FEWER = 350, 0.8


def batch_ns(agents: int, asked_ns: int) -> int:
    """What to ask of ``agents``, of whom ``asked_ns`` is asked now; 0 for what they do of themselves."""
    wanted = _period_s(agents)
    if wanted * NS < asked_ns:
        wanted = min(_period_s(agents / FEWER), asked_ns // NS)  # some come, some go: that is no reason to tell all
    return wanted * NS if wanted > USUAL_S else 0


def _period_s(agents: float) -> int:
    return min(max(-int(-agents // BATCHES_A_SECOND), USUAL_S), MOST_S)
