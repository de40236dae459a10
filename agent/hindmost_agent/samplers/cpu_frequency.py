"""The clock of each core: a throttled socket is a straggler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_agent.files import NumberFile, NumberFiles
from hindmost_agent.metric import counter, gauge, series
from hindmost_agent.sampler import register

if TYPE_CHECKING:
    from collections.abc import Iterator

FREQUENCY = gauge("hindmost_node_cpu_frequency_hertz", "Clock of each core.", "cpu")
HIGHEST = gauge("hindmost_node_cpu_frequency_max_hertz", "Highest clock of each core.", "cpu")
CORE_THROTTLED = counter("hindmost_node_cpu_core_throttles_total", "Times a core was slowed down for its heat.", "cpu")
PACKAGE_THROTTLED = counter(
    "hindmost_node_cpu_package_throttles_total", "Times the core's package was slowed down for its heat.", "cpu"
)
FILES = (
    (FREQUENCY, "cpufreq/scaling_cur_freq", 1e3),
    (HIGHEST, "cpufreq/cpuinfo_max_freq", 1e3),
    (CORE_THROTTLED, "thermal_throttle/core_throttle_count", 1.0),
    (PACKAGE_THROTTLED, "thermal_throttle/package_throttle_count", 1.0),
)


@register
class CpuFrequency(NumberFiles):
    """Clock and thermal throttling of each core. Reading a clock may interrupt the core, so it is read rarely."""

    name = "cpu_frequency"
    period = 30.0
    source = "/sys/devices/system/cpu/cpu*/{cpufreq,thermal_throttle}"
    metrics = (FREQUENCY, HIGHEST, CORE_THROTTLED, PACKAGE_THROTTLED)

    def scan(self) -> Iterator[NumberFile]:
        cores = self.host.sys / "devices/system/cpu"
        numbered = sorted(int(path.name[3:]) for path in cores.glob("cpu[0-9]*") if path.name[3:].isdigit())
        for metric, name, unit in FILES:
            for core in numbered:
                yield NumberFile(series(metric, str(core)), cores / f"cpu{core}" / name, unit, fixed=metric is HIGHEST)
