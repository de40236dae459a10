"""Which process groups a Flight Recorder dump knows, and how far each came: formats 1.1 to 2.10 tell it differently.

Format 1 numbers groups within the process: two ranks' group 1 need not be the same one. Since format 2 they have names,
alike on all members. Gloo's groups are all described under an empty name.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hindmost_collector.formats.process_groups import ProcessGroup

#: Operations that a group's status stands for where a dump has no others: a rank runs no further ahead of its GPU.
_MOST_OPEN = 1000
#: Characters of a name.
_LONGEST = 4096


def name_of(entry: dict[str, Any]) -> str:
    """What the group of an operation is called in its dump: its name, or its number where it has none."""
    group = entry.get("process_group")
    if isinstance(group, list | tuple) and group:
        return text(group[0])
    return text(entry.get("pg_name", entry.get("pg_id", "")))


def text(value: Any) -> str:
    """Text, or a number as text. Nothing of what is neither: lists that hold themselves have a text without an end."""
    return str(value)[:_LONGEST] if isinstance(value, str | int) else ""


def of_dump(content: dict[str, Any], entries: list[dict[str, Any]], rank: int) -> dict[str, ProcessGroup]:
    """The groups of a dump by what its entries call them."""
    config = content.get("pg_config")
    config = config if isinstance(config, dict) else {}
    known = {text(name): one for name, one in config.items() if isinstance(one, dict)}
    found = {n: ProcessGroup.named(n, one.get("ranks"), text(one.get("desc"))) for n, one in known.items()}
    found |= _of_numbers({text(name): one for name, one in config.items() if isinstance(one, list)})
    used = dict.fromkeys(name_of(entry) for entry in entries)
    nameless = found.get("")
    if nameless is not None and len(used) == 1 and rank in nameless.ranks:
        (name,) = used
        del found[""]
        found[name] = ProcessGroup.named(name, nameless.ranks, nameless.name)
    if not config and entries and not any("process_group" in entry for entry in entries):
        # format 1.1 has no members: the first group is the job's; others' numbers mean nothing to other ranks
        found = {name: ProcessGroup.named(f"{name} of rank {rank}", ()) for name in used if name != "0"}
    return found


def _of_numbers(config: dict[str, list[Any]]) -> dict[str, ProcessGroup]:
    """Groups known by numbers of the process: named by their members, and which of several with the same it is."""
    times: Counter[tuple[int, ...]] = Counter()
    found = {}
    for number, ranks in config.items():
        members = ProcessGroup.named("", ranks).ranks
        found[number] = ProcessGroup.named(f"group {times[members]}", members)
        times[members] += 1
    return found


def completed(content: dict[str, Any]) -> dict[str, int]:
    """Group, by its number in the process, to the last collective that it completed, counted from 1."""
    return {name: last for name, (_, last) in _status(content).items()}


def entries_of_status(content: dict[str, Any]) -> list[dict[str, Any]] | None:
    """What a dump without operations tells of them, where it knows one group: those enqueued and not completed."""
    status, config = _status(content), content.get("pg_config")
    if len(status) != 1 or not isinstance(config, dict) or len(config) != 1:
        return None
    ((number, (enqueued, last)),) = status.items()
    group = {"pg_id": number, "process_group": [next(iter(config)), ""], "profiling_name": "collective"}
    open_ones = range(max(last, 0) + 1, min(enqueued, max(last, 0) + _MOST_OPEN) + 1)
    done = [{**group, "collective_seq_id": last, "state": "completed"}] if last > 0 else []
    return done + [{**group, "collective_seq_id": seq, "state": "scheduled"} for seq in open_ones]


def _status(content: dict[str, Any]) -> dict[str, tuple[int, int]]:
    status = content.get("pg_status")
    found = {}
    for name, one in status.items() if isinstance(status, dict) else ():
        if isinstance(one, dict):
            found[text(name)] = (_count(one, "last_enqueued_collective"), _count(one, "last_completed_collective"))
    return found


def _count(status: dict[str, Any], key: str) -> int:
    """A number; as JSON writes it, in quotes. -1: unknown."""
    number = text(status.get(key))
    return int(number) if number.isdecimal() and len(number) < 16 else -1
