"""What a part of hindmost needs installed, by the extras in the metadata of hindmost's own distribution."""

from __future__ import annotations

import functools
import re
import shlex
import sys
from importlib import metadata
from typing import NamedTuple

#: ``name>=1.2; (python_version < '3.11') and extra == 'agent'``, as Requires-Dist has it.
_REQUIREMENT = re.compile(r"\s*([\w.-]+)[^>;]*(?:>=\s*([\w.!]+))?[^;]*(?:;(.*))?")
_BELOW = re.compile(r"python_version\s*<\s*['\"](\d+)\.(\d+)['\"]")


class Requirement(NamedTuple):
    """A distribution that is needed, and from which version on; ``installed`` is empty where it is not."""

    name: str
    least: str
    installed: str

    @property
    def met(self) -> bool:
        """Whether it is installed, and new enough."""
        return bool(self.installed) and _numbers(self.installed) >= _numbers(self.least)

    @property
    def fault(self) -> str:
        """Why it is not met."""
        return f"{self.name} {self.installed} is older than {self.least}" if self.installed else f"no {self.name}"

    def __str__(self) -> str:
        """As pip takes it."""
        return f"{self.name}>={self.least}" if self.least else self.name


def required(extra: str) -> list[Requirement]:
    """What ``extra`` needs in this interpreter. Raises ``PackageNotFoundError`` where hindmost is not installed."""
    found = []
    for line in metadata.requires("hindmost") or ():
        name, least, marker = (_REQUIREMENT.fullmatch(line) or _nothing(line)).groups(default="")
        below = _BELOW.search(marker)
        if re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", marker) and not (
            below and sys.version_info[:2] >= (int(below[1]), int(below[2]))
        ):
            found.append(Requirement(name, least, installed(name)))
    return found


def unmet(extra: str) -> list[Requirement]:
    """What of it is not installed, or too old. Empty too where hindmost was not installed by a package tool."""
    try:
        return [one for one in required(extra) if not one.met]
    except metadata.PackageNotFoundError:
        return []


def install(*requirements: Requirement | str) -> str:
    """The command that installs these for the interpreter that runs now."""
    return shlex.join([sys.executable, "-m", "pip", "install", *map(str, requirements)])


def faults(requirements: list[Requirement]) -> str:
    """What is wrong with these, in words."""
    absent = [one.name for one in requirements if not one.installed]
    said = [f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed"] if absent else []
    return "; ".join(said + [one.fault for one in requirements if one.installed])


@functools.lru_cache(maxsize=64)
def installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> list[int]:
    """``1.10rc1`` as [1, 10]: what of a version is compared."""
    epoch, _, rest = version.rpartition("!")
    numbers = re.match(r"\d+(?:\.\d+)*", rest)
    found = [int(part) for part in (numbers[0] if numbers else "0").split(".")]
    while found and not found[-1]:
        found.pop()
    return [int(epoch or 0), *found]


def _nothing(line: str) -> re.Match[str]:
    raise ValueError(f"the metadata of hindmost has a requirement that cannot be read: {line}")
