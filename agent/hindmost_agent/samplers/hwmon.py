"""Temperatures, fans and power as the board's sensors give them, and energy as the processors do."""

import re
from collections.abc import Iterator

from hindmost_agent.kernel_files import NumberFile, NumberFiles, text
from hindmost_agent.sampler import counter, gauge, register, series

_BY = ("chip", "sensor")
TEMPERATURE = gauge("hindmost_node_temperature_celsius", "Temperature.", *_BY)
CRITICAL = gauge("hindmost_node_temperature_critical_celsius", "Temperature at which hardware protects itself.", *_BY)
FAN = gauge("hindmost_node_fan_speed_rpm", "Fan speed in revolutions per minute.", *_BY)
POWER = gauge("hindmost_node_power_watts", "Power.", *_BY)
ENERGY = counter("hindmost_node_energy_joules_total", "Energy used by a package, its cores or its memory.", "zone")

#: File name to metric and unit; the rest of the name is the sensor.
PATTERNS = (
    (re.compile(r"(temp\d+)_input"), TEMPERATURE, 1e-3),
    (re.compile(r"(temp\d+)_crit"), CRITICAL, 1e-3),
    (re.compile(r"(fan\d+)_input"), FAN, 1.0),
    (re.compile(r"(power\d+)_(?:average|input)"), POWER, 1e-6),
)


@register
class Hwmon(NumberFiles):
    """Hardware monitoring chips, thermal zones and RAPL energy counters."""

    name = "hwmon"
    period = 15.0
    source = "/sys/class/hwmon, /sys/class/thermal, /sys/class/powercap"
    metrics = (TEMPERATURE, CRITICAL, FAN, POWER, ENERGY)

    def scan(self) -> Iterator[NumberFile]:
        unique: dict[object, NumberFile] = {}
        for item in (*self._chips(), *self._zones(), *self._energy()):
            unique.setdefault(item.series, item)  # of two files of one sensor the first stays
        order = {metric: place for place, metric in enumerate(self.metrics)}
        yield from sorted(unique.values(), key=lambda item: order[item.series.metric])

    def _chips(self) -> Iterator[NumberFile]:
        for chip in sorted((self.host.sys / "class/hwmon").glob("hwmon*")):
            # Before Linux 3.15 or so what a chip measures is in the folder of its device.
            old = not (chip / "name").exists() and (chip / "device/name").exists()
            folder = chip / "device" if old else chip
            name = f"{text(folder / 'name') or 'unknown'}_{chip.name.removeprefix('hwmon')}"
            for path in sorted(folder.iterdir()):
                for pattern, metric, unit in PATTERNS:
                    if match := pattern.fullmatch(path.name):
                        label = text(folder / f"{match[1]}_label") or match[1]
                        yield NumberFile(series(metric, name, label), path, unit)

    def _zones(self) -> Iterator[NumberFile]:
        for zone in sorted((self.host.sys / "class/thermal").glob("thermal_zone*")):
            kind = text(zone / "type") or "unknown"
            yield NumberFile(series(TEMPERATURE, zone.name, kind), zone / "temp", 1e-3)

    def _energy(self) -> Iterator[NumberFile]:
        for zone in sorted((self.host.sys / "class/powercap").glob("*rapl:*")):
            yield NumberFile(series(ENERGY, f"{zone.name}/{text(zone / 'name')}"), zone / "energy_uj", 1e-6)
