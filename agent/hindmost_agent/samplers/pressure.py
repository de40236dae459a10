"""Pressure stall information: how long work stalled because CPU, memory or I/O was short."""

import errno
from pathlib import Path

from hindmost_agent.kernel_files import File
from hindmost_agent.sampler import Absent, Host, Series, TableSampler, counter, register, series

RESOURCES = ("cpu", "io", "memory", "irq")

WAITING = counter(
    "hindmost_node_pressure_waiting_seconds_total", "Time in which some task waited for this resource.", "resource"
)
STALLED = counter(
    "hindmost_node_pressure_stalled_seconds_total", "Time in which all tasks waited for this resource.", "resource"
)
METRIC = {b"some": WAITING, b"full": STALLED}
#: Of the node as a whole the kernel does not define when all stand still for a CPU, and writes 0.
UNDEFINED = ("cpu", b"full")


@register
class Pressure(TableSampler):
    """Pressure stall information (PSI) of the node; off where the kernel was built or booted without it."""

    name = "pressure"
    period = 2.0
    source = "/proc/pressure"
    metrics = (WAITING, STALLED)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        folder = host.proc / "pressure"
        self._files = {name: file for name in RESOURCES if (file := _accounted_file(folder / name))}
        if not self._files:
            raise Absent("pressure is not kept; boot with psi=1" if folder.exists() else "no /proc/pressure")

    def table(self) -> dict[Series, float]:
        found: dict[Series, float] = {}
        for resource, file in self._files.items():
            for line in file.read().splitlines():
                kind, _, rest = line.partition(b" ")
                if kind in METRIC and (resource, kind) != UNDEFINED:
                    found[series(METRIC[kind], resource)] = int(rest[rest.rindex(b"=") + 1 :]) / 1e6
        return found


def _accounted_file(path: Path) -> File | None:
    """The file, if the kernel keeps what it is for. RHEL 8 and 9 have the files and, without ``psi=1``, refuse to read
    them; newer kernels so refuse ``irq`` where they do not account for interrupts."""
    try:
        file = File(path)
        file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return None
        raise
    return file
