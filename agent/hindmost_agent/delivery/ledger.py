"""The account of samples that survives a restart: produced = delivered + dropped + pending, always."""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

#: Why samples are given up: the spool's limit; that of memory while the disk takes nothing; the agent ended meanwhile;
#: files of the spool were damaged, or taken away.
REASONS = ("spool_full", "memory_full", "memory_lost", "damaged")
#: Of these any part may be lost, of the others always the oldest that is held.
ANYWHERE = ("memory_lost", "damaged")
#: The highest sequence sent is saved this far ahead, so that it is not saved with every batch.
AHEAD = 64
#: Made once: ``json.dumps`` makes a new encoder for each call with separators.
COMPACT = json.JSONEncoder(separators=(",", ":")).encode


class Ledger:
    """Counts of samples, and sequences up to which batches were made, sent and acknowledged.

    ``doubt`` holds (sequence, samples, reason) of batches that were dropped after they had been sent: the collector
    may have them, and says so when it next acknowledges or welcomes.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._length = 0
        self.agent_id = uuid.uuid4().hex
        self.sequence = 0
        self.sent = 0
        #: What ``sent`` is without being ahead: exact in the agent that sends, after a restart an upper bound.
        self._gone_out = 0
        self.acked = 0
        self.dropped_through = 0
        self.produced = 0
        self.delivered = 0
        self.dropped: Counter[str] = Counter()
        self.doubt: list[tuple[int, int, str]] = []
        #: Samples that memory alone held since the disk last failed, at most: a killed agent takes them with it.
        self.in_memory = 0
        self.fresh = not self._load()

    @property
    def pending(self) -> int:
        """Samples that are neither delivered nor dropped yet."""
        return self.produced - self.delivered - self.dropped.total()

    def made(self, sequence: int, samples: int) -> None:
        """A batch was appended. Not saved: the segment itself says so after a restart."""
        self.sequence = sequence
        self.produced += samples

    def skip_sent(self) -> None:
        """Use no number up to ``sent`` again: what was sent while the disk took nothing left no other trace."""
        self.sequence = max(self.sequence, self.sent)

    def sending(self, sequence: int) -> None:
        """A batch is about to be sent."""
        self._gone_out = max(self._gone_out, sequence)
        if sequence > self.sent:
            self.sent = sequence + AHEAD
            self.save()

    def drop(self, sequence: int, samples: int, reason: str) -> None:
        """A batch was given up; if it may have arrived, that is left open. ``save`` before its bytes are removed.

        Of all that is held the oldest is given up first; what was lost may have come after what is kept.
        """
        if self.acked < sequence <= self._gone_out:
            self.doubt.append((sequence, samples, reason))
        else:
            self.dropped[reason] += samples
        if reason not in ANYWHERE:
            self.dropped_through = max(self.dropped_through, sequence)

    def hold(self, samples: int) -> int:
        """So many are held by the spool that was found; returns how many were damaged or taken away.

        What else an earlier agent had pending went with its memory first. What an earlier one could not read, and this
        one can, is pending again.
        """
        lost = self.pending - sum(samples for _, samples, _ in self.doubt) - samples
        with_memory = min(max(lost, 0), self.in_memory)
        damaged = max(lost - with_memory, -self.dropped["damaged"])
        self.dropped += Counter(memory_lost=with_memory)
        self.dropped["damaged"] += damaged
        self.dropped = +self.dropped
        self.in_memory = 0
        return damaged

    def resolve(self, durable: int, received: int | None = None) -> None:
        """Everything up to ``durable`` is safe at the collector; of what is in doubt nothing after ``received`` is."""
        still = []
        for sequence, samples, reason in self.doubt:
            if sequence <= durable:
                self.delivered += samples
            elif received is not None and sequence > received:
                self.dropped[reason] += samples
            else:
                still.append((sequence, samples, reason))
        self.doubt = still

    def save(self) -> None:
        """Write the account. One write in place: whole or not at all, also when the agent is killed in it."""
        if self._path is None:
            return
        state = {name: value for name, value in vars(self).items() if not name.startswith("_") and name != "fresh"}
        data = COMPACT(state).encode().ljust(self._length)
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:  # a full or read-only disk: the account goes on in memory
            return
        try:
            os.pwrite(fd, data, 0)
            self._length = len(data)
        except OSError:
            return
        finally:
            os.close(fd)

    def _load(self) -> bool:
        if self._path is None:
            return False
        try:
            data = self._path.read_bytes()
            state: dict[str, Any] = json.loads(data)
            self.dropped = Counter({str(reason): int(count) for reason, count in state["dropped"].items()})
            self.doubt = [(int(sequence), int(samples), str(reason)) for sequence, samples, reason in state["doubt"]]
            self.agent_id = str(state["agent_id"])
            for name in ("sequence", "sent", "acked", "dropped_through", "produced", "delivered"):
                setattr(self, name, int(state[name]))
            self.in_memory = int(state.get("in_memory", 0))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
        self._length, self._gone_out = len(data), self.sent
        return True
