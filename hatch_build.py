"""The build hook of ``make wheel``: compile the native parts for one machine into a manylinux wheel.

It is off by default: an installation from source needs no compiler, and builds its parts at first use. To switch it on:

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=true HINDMOST_WHEEL_MACHINE=aarch64 pip wheel .

Zig's C compiler has the headers and symbols of every version of glibc, for each machine: any host builds any wheel.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "agent"))
from hindmost.native import build  # this tree's

#: The oldest C library that the parts run on: RHEL 7 and later, Debian 8 and later.
GLIBC = (2, 17)
MACHINES = ("x86_64", "aarch64")


class NativeParts(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the prebuilt libraries to a wheel, and says which machines it is for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile every library into ``build/prebuilt``; an editable install has its sources, and gets none."""
        if version == "editable":
            return
        machine = os.environ.get("HINDMOST_WHEEL_MACHINE", platform.machine())
        if machine not in MACHINES:
            raise SystemExit(f"HINDMOST_WHEEL_MACHINE={machine}: set it to one of {', '.join(MACHINES)}")
        folder = Path(self.root, "build", "prebuilt", machine)
        folder.mkdir(parents=True, exist_ok=True)
        for kind, flags in build.variants():
            target = folder / build.prebuilt_name(kind, flags, machine)
            build.compile_library(kind, [*zig(machine), *build.FLAGS, *flags], target, os.environ)
            build_data["force_include"][str(target)] = f"hindmost/native/prebuilt/{target.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"


def zig(machine: str) -> list[str]:
    """The cross compiler's command. Python's symbols are the interpreter's: a library may leave them undefined."""
    target = f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    return [sys.executable, "-m", "ziglang", "cc", "-target", target, "-s", "-Wl,-z,undefs"]
