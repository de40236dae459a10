"""What the node is, once every few minutes: kernel, cores without hyper-threads, when it was booted."""

import importlib
from typing import Any

from hindmost_agent.kernel_files import text
from hindmost_agent.sampler import NAN, Absent, Host, Sampler, gauge, register, series

INFO = gauge("hindmost_node_info", "1; what the node runs.", "kernel")
BOOTED = gauge("hindmost_node_boot_time_seconds", "When the node was booted, seconds since 1970.")
PHYSICAL = gauge("hindmost_node_cpu_physical_cores", "Cores, their hyper-threads not counted.")


@register
class NodeInfo(Sampler):
    """Kernel, boot time and physical cores, as psutil finds them on each architecture."""

    name = "node_info"
    period = 300.0
    source = "psutil, /proc/sys/kernel/osrelease"
    metrics = (INFO, BOOTED, PHYSICAL)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._psutil = system(host)
        kernel = text(host.proc / "sys/kernel/osrelease") or "unknown"
        self.series = (series(INFO, kernel), series(BOOTED), series(PHYSICAL))

    def sample(self) -> list[float]:
        cores = self._psutil.cpu_count(logical=False)  # None where the kernel does not tell
        return [1.0, self._psutil.boot_time(), NAN if cores is None else cores]


def system(host: Host) -> Any:
    """The module ``psutil``. Raises ``Absent`` where it is not installed."""
    if host.psutil is None:
        try:
            host.psutil = importlib.import_module("psutil")
        except ImportError as error:
            raise Absent("psutil is not installed") from error
    return host.psutil
