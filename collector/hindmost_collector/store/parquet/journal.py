"""The journal of a store: it commits many segments at once, and lets one collector write.

A commit writes, under temporary names, every segment that a flush made; then the journal, which names the renames and
deletions to do and the batch sequence that each agent has got to; then does them. The journal's own rename is the
commit: before it, a crash leaves temporary files that are swept away and agents replay; after it, the next start
finishes what is left to do. Rows and sequence numbers can therefore never disagree, so nothing is lost or doubled.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hindmost.errors import HindmostError

NAME = ".journal.json"
_BASE = ".sequences-"
LOCK = ".lock"
TEMPORARY = ".tmp"
#: An agent whose batches are older than this sends none of them again; its numbers are dropped when there are many.
FORGOTTEN_S = 30 * 86400
#: The journal has so many sequences, and as many as its base, before it gets a new base.
LEAST_KEPT = 1024


def _packed(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


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


def replace_files(path: Path, content: bytes) -> None:
    """Replace ``path`` in one step that survives kill -9. Raises OSError, ``path`` being what it was."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    write_synced(temporary, content)
    temporary.replace(path)


def write_durably(path: Path, content: bytes) -> None:
    """Replace ``path`` in one step that survives a power cut: file and directory are synced. Raises OSError."""
    replace_files(path, content)
    sync_directory(path.parent)


class UnsettledError(OSError):
    """Committed, but not all is synced and renamed yet: ``finish`` will, and nothing is written again."""


@dataclass
class State:
    """What the journal holds. Paths are relative to the store's root.

    Its file has those sequences that moved since ``base`` was written, a file that has all others: a commit writes as
    much as has changed, however many agents there ever were.
    """

    flush: int = 0
    sequences: dict[str, int] = field(default_factory=dict)
    renames: list[tuple[str, str]] = field(default_factory=list)
    deletions: list[str] = field(default_factory=list)
    clock: dict[str, Any] = field(default_factory=dict)
    #: Identity to when its sequence last moved, Unix s.
    moved: dict[str, int] = field(default_factory=dict)
    #: The name of that file; none while few have moved.
    base: str = ""


def is_locked(root: Path) -> bool | None:
    """Whether a collector writes here; ``None`` where it is not known, as of a job of a store, or of a copy."""
    try:
        lock = os.open(root / LOCK, os.O_RDONLY | os.O_NONBLOCK)  # of a pipe it would wait for a writer
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(lock)
    return False


class Journal:
    """The store's commit log of one entry, and its lock: one writer a store."""

    def __init__(self, root: Path, now: Callable[[], float] = time.time) -> None:
        """Open the journal in ``root``, finish what a crash left. Raises HindmostError when another writes here."""
        self.root, self._now = root, now
        self._path = root / NAME
        self._moved: set[str] = set()  # whose sequence moved since the base was written
        self._in_base = 0
        self._old_bases: list[str] = []  # that no journal names any more once this one's commit is synced
        self._lock = os.open(root / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            message = f"{root} is being written by another collector: give this one a directory of its own"
            raise HindmostError(message) from error
        #: When this store's segments were last looked into; 0: unknown.
        self.checked_ns = os.fstat(self._lock).st_mtime_ns if self._path.exists() else 0
        self.state = self._load()
        self._old_bases = [one.name for one in root.glob(f"{_BASE}*") if one.name != self.state.base]
        self._synced = False
        self.finish()

    def _load(self) -> State:
        try:
            stored = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return State()
        except ValueError as error:
            raise HindmostError(f"{self._path} is damaged: {error}; move it away to start afresh") from error
        stored["renames"] = [(str(old), str(new)) for old, new in stored["renames"]]
        state = State(**{one.name: stored[one.name] for one in fields(State) if one.name in stored})
        self._moved = set(state.sequences)
        if state.base:
            based = self._based(state.base)
            self._in_base = len(based["sequences"])
            state.sequences, state.moved = ({**based[name], **stored[name]} for name in ("sequences", "moved"))
        state.moved = {**dict.fromkeys(state.sequences, int(self._now())), **state.moved}
        return state

    def _based(self, name: str) -> dict[str, dict[str, int]]:
        try:
            found: dict[str, dict[str, int]] = json.loads((self.root / name).read_bytes())
        except (OSError, ValueError) as error:
            message = f"{self.root / name} is damaged: {error}; move {self._path} away to start afresh"
            raise HindmostError(message) from error
        return found

    def checked(self) -> None:
        """Note that all segments that there are have been looked into. Raises OSError."""
        os.utime(self.root / LOCK)

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
        if len(self._moved) > max(LEAST_KEPT, self._in_base):
            self._write_base()
        new, now = sequences or {}, int(self._now())
        state = replace(self.state, flush=self.state.flush + 1, renames=renames, deletions=deletions or [])
        state.clock = clock or state.clock
        moved = self._moved | new.keys()
        changed = {
            "sequences": {one: new[one] if one in new else state.sequences[one] for one in moved},
            "moved": {one: now if one in new else state.moved[one] for one in moved},
        }
        replace_files(self._path, _packed({**state.__dict__, **changed}))
        state.sequences.update(new)
        state.moved.update(dict.fromkeys(new, now))
        self._moved = moved
        self.state, self._synced = state, False  # from here on a crash finds the new journal
        try:
            self.finish()
        except OSError as error:
            raise UnsettledError(error.errno, error.strerror) from error

    def _write_base(self) -> None:
        """Write all sequences into a file of their own, those of agents that were not heard of for long left out.

        It counts from the next commit on. Raises OSError, nothing having changed.
        """
        state, now = self.state, int(self._now())
        known = {one: last for one, last in state.sequences.items() if now - state.moved[one] < FORGOTTEN_S}
        moved, name = {one: state.moved[one] for one in known}, f"{_BASE}{state.flush}.json"
        write_synced(self.root / name, _packed({"sequences": known, "moved": moved}))
        sync_directory(self.root)  # before a journal names it
        self._old_bases += [state.base] if state.base else []
        self.state = replace(state, base=name, sequences=known, moved=moved)
        self._moved, self._in_base = set(), len(known)

    def finish(self) -> None:
        """Sync the last commit, and do those of its renames and deletions that are not done yet. Raises OSError."""
        if not self._synced:
            sync_directory(self.root)
            self._synced = True
            for name in self._old_bases:
                (self.root / name).unlink(missing_ok=True)
            self._old_bases.clear()
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
