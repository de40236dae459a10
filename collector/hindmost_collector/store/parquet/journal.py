"""One file that makes many files change at once: the commit point of the store.

A commit writes, under temporary names, every segment that a flush made; then the journal, which names the renames and
deletions to do and the batch sequence that each agent has got to; then does them. The journal's own rename is the
commit: before it, a crash leaves temporary files that are swept away and agents replay; after it, the next start
finishes what is left to do. Rows and sequence numbers can therefore never disagree, so nothing is lost or doubled.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from hindmost.errors import HindmostError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = ".journal.json"
LOCK = ".lock"
TEMPORARY = ".tmp"
#: An agent whose batches are older than this sends none of them again; its numbers are dropped when there are many.
FORGOTTEN_S = 30 * 86400
LEAST_KEPT = 1024


def sync_directory(directory: Path) -> None:
    """Make renames and deletions in ``directory`` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: bytes) -> None:
    """Write and sync a new file. Raises OSError, leaving nothing behind."""
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):  # the disk may be the reason why we are here
            path.unlink()
        raise


def replace(path: Path, content: bytes) -> None:
    """Replace ``path`` in one step that survives kill -9. Raises OSError, ``path`` being what it was."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    write_synced(temporary, content)
    temporary.replace(path)


def write_durably(path: Path, content: bytes) -> None:
    """Replace ``path`` in one step that survives a power cut: file and directory are synced. Raises OSError."""
    replace(path, content)
    sync_directory(path.parent)


class UnsettledError(OSError):
    """Committed, but not all is synced and renamed yet: ``finish`` will, and nothing is written again."""


@dataclass
class State:
    """What the journal holds. Paths are relative to the store's root."""

    flush: int = 0
    sequences: dict[str, int] = field(default_factory=dict)
    renames: list[tuple[str, str]] = field(default_factory=list)
    deletions: list[str] = field(default_factory=list)
    clock: dict[str, Any] = field(default_factory=dict)
    #: Identity to when its sequence last moved, Unix s.
    moved: dict[str, int] = field(default_factory=dict)


class Journal:
    """The store's commit log of one entry, and its lock: one writer a store."""

    def __init__(self, root: Path, now: Callable[[], float] = time.time) -> None:
        """Open the journal in ``root``, finish what a crash left. Raises HindmostError when another writes here."""
        self.root, self._now = root, now
        self._path = root / NAME
        self._lock = os.open(root / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            message = f"{root} is being written by another collector: give this one a directory of its own"
            raise HindmostError(message) from error
        self.state = self._load()
        self._synced = False
        self._kept = LEAST_KEPT
        self.finish()

    def _load(self) -> State:
        try:
            stored = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return State()
        except ValueError as error:
            raise HindmostError(f"{self._path} is damaged: {error}; move it away to start afresh") from error
        stored["renames"] = [(str(old), str(new)) for old, new in stored["renames"]]
        return State(**{one.name: stored[one.name] for one in fields(State) if one.name in stored})

    def continue_after(self, flush: int) -> None:
        """Number no flush as one that has been, even where an earlier journal was moved away."""
        self.state.flush = max(self.state.flush, flush)

    def commit(
        self,
        renames: list[tuple[str, str]],
        deletions: list[str] | None = None,
        sequences: dict[str, int] | None = None,
        clock: dict[str, Any] | None = None,
    ) -> None:
        """Make ``renames`` (already synced temporary file, final name) and the rest true together.

        Raises:
            UnsettledError: it is committed, and ``finish`` has yet to succeed.
            OSError: nothing has changed.
        """
        self.finish()
        known, moved = self._known(sequences or {})
        state = State(self.state.flush + 1, known, renames, deletions or [], clock or self.state.clock, moved)
        replace(self._path, json.dumps(state.__dict__, separators=(",", ":")).encode())
        self.state, self._synced = state, False  # from here on a crash finds the new journal
        try:
            self.finish()
        except OSError as error:
            raise UnsettledError(error.errno, error.strerror) from error

    def _known(self, sequences: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
        """``(sequences, when each last moved)`` with the new ones, without agents that were not heard of for long."""
        now = int(self._now())
        known = {**self.state.sequences, **sequences}
        moved = {**dict.fromkeys(self.state.sequences, now), **self.state.moved, **dict.fromkeys(sequences, now)}
        if len(known) > 2 * self._kept:  # not at every commit
            known = {one: last for one, last in known.items() if now - moved[one] < FORGOTTEN_S}
            moved = {one: moved[one] for one in known}
            self._kept = max(len(known), LEAST_KEPT)
        return known, moved

    def finish(self) -> None:
        """Sync the last commit, and do those of its renames and deletions that are not done yet. Raises OSError."""
        if not self._synced:
            sync_directory(self.root)
            self._synced = True
        if not (self.state.renames or self.state.deletions):
            return
        touched: set[Path] = set()
        for old, new in self.state.renames:
            with contextlib.suppress(FileNotFoundError):  # done before the crash
                (self.root / old).replace(self.root / new)
            touched.add((self.root / new).parent)
        for name in self.state.deletions:
            (self.root / name).unlink(missing_ok=True)
        for directory in touched:
            sync_directory(directory)
        self.state.renames, self.state.deletions = [], []

    def close(self) -> None:
        """Give the lock back."""
        with contextlib.suppress(OSError):
            os.close(self._lock)
