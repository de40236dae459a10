"""Run-queue delay: how long threads of the whole node waited for a core; of one rank: `process.py`."""

from hindmost_agent.kernel_files import File
from hindmost_agent.sampler import Absent, Host, Sampler, counter, register

WAITED = counter("hindmost_node_runqueue_seconds_total", "Time that threads could have run but had no core, added up.")
RAN = counter("hindmost_node_scheduled_seconds_total", "Time that threads ran, added up over cores.")
SLICES = counter("hindmost_node_timeslices_total", "Times a thread was given a core.")


@register
class Runqueue(Sampler):
    """Run-queue delay of the node, summed over cores."""

    name = "runqueue"
    period = 5.0
    source = "/proc/schedstat"
    metrics = (RAN, WAITED, SLICES)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        try:
            self._file = File(host.proc / "schedstat")
        except FileNotFoundError as error:
            raise Absent("the kernel keeps no scheduler statistics") from error

    def sample(self) -> list[float]:
        ran = waited = slices = cores = 0
        for line in self._file.read().splitlines():
            if line.startswith(b"cpu"):
                fields = line.split()
                ran, waited, slices = ran + int(fields[7]), waited + int(fields[8]), slices + int(fields[9])
                cores += 1
        if not cores:
            raise ValueError(f"{self._file.path} names no core")
        return [ran / 1e9, waited / 1e9, slices]
