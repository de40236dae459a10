"""What the agent reads from the GPUs of every vendor, and what happens if a value or a card does not answer."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from hindmost_agent.jobs.processes import owner
from hindmost_agent.sampler import GPU, NAN, Absent, Host, Metric, Sampler, Series, TableSampler, counter, gauge, series

log = logging.getLogger(__name__)


def ratio(name: str, text: str, *labels: str) -> Metric:
    """A gauge from 0 to 1 of one GPU."""
    return gauge(f"hindmost_gpu_{name}_ratio", text, "gpu_uuid", *labels)


UP = gauge("hindmost_gpu_up", "1 if the GPU answers, 0 if it does not.", "gpu_uuid")
INFO = gauge("hindmost_gpu_info", "1; what the GPU is.", "gpu_uuid", "gpu", "vendor", "model", "pci_bus_id", "driver")
UTILIZATION = ratio("utilization", "Share of time with a kernel resident; says nothing of how much of the GPU it used.")
MEMORY_BUSY = ratio("memory_utilization", "Share of time in which device memory was read or written.")
MEMORY_USED = gauge("hindmost_gpu_memory_used_bytes", "Device memory in use.", "gpu_uuid")
MEMORY_TOTAL = gauge("hindmost_gpu_memory_total_bytes", "Device memory.", "gpu_uuid")
POWER = gauge("hindmost_gpu_power_watts", "Power drawn.", "gpu_uuid")
POWER_LIMIT = gauge("hindmost_gpu_power_limit_watts", "Power at which the GPU is slowed down.", "gpu_uuid")
TEMPERATURE = gauge("hindmost_gpu_temperature_celsius", "Temperature of the GPU's core.", "gpu_uuid")
MEMORY_TEMPERATURE = gauge("hindmost_gpu_memory_temperature_celsius", "Temperature of device memory.", "gpu_uuid")
SM_CLOCK = gauge("hindmost_gpu_sm_clock_hertz", "Clock of the compute units.", "gpu_uuid")
SM_CLOCK_MAX = gauge("hindmost_gpu_sm_clock_max_hertz", "Highest clock of the compute units.", "gpu_uuid")
MEMORY_CLOCK = gauge("hindmost_gpu_memory_clock_hertz", "Clock of device memory.", "gpu_uuid")
MEMORY_CLOCK_MAX = gauge("hindmost_gpu_memory_clock_max_hertz", "Highest clock of device memory.", "gpu_uuid")
ENERGY = counter("hindmost_gpu_energy_joules_total", "Energy used since the driver was loaded.", "gpu_uuid")
ECC = counter(
    "hindmost_gpu_ecc_errors_total", "Memory errors since the driver was loaded, by whether ECC corrected them.",
    "gpu_uuid", "corrected",
)  # fmt: skip
PCIE_WIDTH = gauge("hindmost_gpu_pcie_link_width", "PCIe lanes in use.", "gpu_uuid")
PCIE_GENERATION = gauge("hindmost_gpu_pcie_link_generation", "PCIe generation in use (lower when idle).", "gpu_uuid")
PCIE_REPLAYS = counter("hindmost_gpu_pcie_replays_total", "PCIe packets that had to be sent again.", "gpu_uuid")
RANK = gauge("hindmost_gpu_rank_info", "1; which rank computes on this GPU.", "gpu_uuid", "job", "rank")
RANK_MEMORY = gauge(
    "hindmost_gpu_process_memory_used_bytes",
    "Device memory that a rank and the processes below it use.",
    "gpu_uuid",
    "job",
    "rank",
)


class Trouble(Enum):
    """What an error of a GPU library means."""

    UNSUPPORTED = "is not supported"
    LOST = "the GPU is lost"
    PASSING = "could not be read"


class Call(NamedTuple):
    """One call into a GPU library: the series it fills, in order, and how to make it."""

    what: str
    fills: tuple[Series, ...]
    read: Callable[[], Sequence[float]]


class Card:
    """One GPU and the calls that are made on it at each reading. One sampler of a maker's says whether it is ``up``."""

    def __init__(
        self, uuid: str, calls: Sequence[Call], trouble: Callable[[Exception], Trouble], *, up: bool = False
    ) -> None:
        self.uuid = uuid
        self._up = (series(UP, uuid),) if up else ()
        self.series = (*self._up, *(fill for call in calls for fill in call.fills))
        self._calls: list[Callable[[], Sequence[float]] | None] = [call.read for call in calls]
        self._names = [call.what for call in calls]
        self._missing = [[NAN] * len(call.fills) for call in calls]
        self._trouble = trouble
        self._said: set[str] = set()

    def read(self) -> list[float]:
        """One value for each series. A call that is not supported is not made again; a lost GPU is looked for again."""
        values: list[float] = [0.0] * len(self._up)
        lost = answered = False
        for index, call in enumerate(self._calls):
            if call is None or lost:
                values += self._missing[index]
                continue
            try:
                values += call()
                answered = True
            except Exception as error:  # noqa: BLE001 - each library has its own; the others' values must go on
                lost = self._failed(index, error)
                values += self._missing[index]
        if self._up and not lost:
            # Where nothing was answered it is down, unless all that it was asked is not supported.
            values[0] = 1.0 if answered else NAN if self._calls and not any(self._calls) else 0.0
        return values

    def _failed(self, index: int, error: Exception) -> bool:
        """Note a failure; true when the GPU is gone."""
        trouble, what = self._trouble(error), self._names[index]
        if trouble is Trouble.UNSUPPORTED:
            self._calls[index] = None
        key = trouble.value if trouble is Trouble.LOST else what
        if key not in self._said:
            self._said.add(key)
            log.warning("GPU %s: %s %s (%s)", self.uuid, what, trouble.value, " ".join(str(error).split()))
        return trouble is Trouble.LOST


class Device(NamedTuple):
    """One GPU of this node; ``handle`` is its library's."""

    handle: Any
    number: int
    uuid: str
    model: str
    pci_bus_id: str
    driver: str


class Library(NamedTuple):
    """A maker's library (its Python module), the GPUs that answered, and number and slot of others.

    ``hung``: those of which an answer is still awaited, which must not be asked.
    """

    lib: Any
    devices: tuple[Device, ...]
    silent: tuple[tuple[int, Any], ...] = ()
    hung: tuple[Device, ...] = ()


class Maker(ABC):
    """How one maker's library is asked. It is opened once for all samplers of a host."""

    #: The library's name, that of its exception, and what its GPUs are called until they say who they are.
    library: str
    error: str
    called: str

    @abstractmethod
    def start(self, host: Host) -> tuple[Any, Sequence[Any]]:
        """The library, initialised, and the slots of its GPUs. Raises ``Absent`` where it is not there."""

    @abstractmethod
    def device(self, lib: Any, number: int, slot: Any) -> Device:
        """The GPU in a slot. Raises the library's exception where it does not say who it is."""

    @abstractmethod
    def trouble(self, error: Exception) -> Trouble:
        """What an error of the library means for the value that was asked for."""

    def opened(self, host: Host) -> Library:
        """The library, opened at first use, with the GPUs that may be asked. Raises ``Absent`` where there is none."""
        if self.library not in host.gpu_libraries:
            host.gpu_libraries[self.library] = self._open(host)
        found: Library = host.gpu_libraries[self.library]
        if not host.hung:
            return found
        devices = tuple(device for device in found.devices if device.uuid not in host.hung)
        return found._replace(devices=devices, hung=tuple(one for one in found.devices if one.uuid in host.hung))

    def _open(self, host: Host) -> Library:
        lib, slots = self.start(host)
        asked = [(number, slot, self._identity(host, lib, number, slot)) for number, slot in enumerate(slots)]
        found = tuple(device for *_, device in asked if device is not None)
        if not found:
            raise Absent(f"{self.library} lists no GPU that answers")
        return Library(lib, found, tuple((number, slot) for number, slot, device in asked if device is None))

    def look_again(self, host: Host) -> None:
        """Ask the GPUs that have not answered yet; one that does now joins the others, and all samplers take it on."""
        found = self.opened(host)
        for number, slot in found.silent:
            device = self._identity(host, found.lib, number, slot)
            if device is not None:
                known: Library = host.gpu_libraries[self.library]
                devices = tuple(sorted((*known.devices, device), key=lambda one: one.number))
                silent = tuple(one for one in known.silent if one[0] != number)
                host.gpu_libraries[self.library] = known._replace(devices=devices, silent=silent)
                host.silent_gpus.discard(f"{self.called} {number}")
                host.gpu_generation += 1
                log.info("%s %d answers now and is sampled", self.called, number)

    def _identity(self, host: Host, lib: Any, number: int, slot: Any) -> Device | None:
        """One GPU, or ``None`` with one line for it, however often it is asked, when it does not say who it is."""
        which = f"{self.called} {number}"
        if which in host.hung:
            return None
        host.asking.of(which)
        try:
            return self.device(lib, number, slot)
        except getattr(lib, self.error) as error:
            if which not in host.silent_gpus:
                host.silent_gpus.add(which)
                log.warning("%s does not answer (%s); the agent tries again", which, " ".join(str(error).split()))
            return None
        finally:
            host.asking.of("")


class GpuSampler(Sampler):
    """Base of the samplers of all GPU makers: ``calls`` says what a GPU is asked, the rest is alike."""

    asks_driver = GPU
    maker: Maker
    #: Whether this is the maker's sampler that says which GPUs are up.
    says_up = False

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._generation = host.gpu_generation
        self.found = self.cards()
        self.series = self.fixed()

    @abstractmethod
    def calls(self, lib: Any, device: Device) -> Sequence[Call]:
        """What this GPU is asked at each reading, of the maker's library."""

    def cards(self) -> list[Card]:
        """The GPUs of this node. Raises ``Absent`` when there is none."""
        found, trouble, up = self.maker.opened(self.host), self.maker.trouble, self.says_up
        cards = [Card(device.uuid, self.calls(found.lib, device), trouble, up=up) for device in found.devices]
        # A GPU that has not come back from an earlier question is asked nothing: all there is to say is that.
        return [*cards, *(Card(device.uuid, (), trouble, up=up) for device in found.hung)] if up else cards

    def fixed(self) -> tuple[Series, ...]:
        return tuple(one for card in self.found for one in card.series)

    def sample(self) -> list[float]:
        if self.host.gpu_generation != self._generation:
            self._generation = self.host.gpu_generation
            known = {card.uuid: card for card in self.found}
            # One is read on as before, with what it remembers; anew where it is asked again after it hung.
            self.found = [
                before if (before := known.get(card.uuid)) is not None and before.series == card.series else card
                for card in self.cards()
            ]
            self.series = self.fixed()
        values: list[float] = []
        for card in self.found:
            self.host.asking.of(card.uuid)
            values += card.read()
        self.host.asking.of("")
        return values


class EachGpu(TableSampler):
    """Base of samplers whose series of a GPU come and go. One that is lost takes no other's along."""

    asks_driver = GPU
    maker: Maker
    #: What is read of a GPU, for the log.
    what: str

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.library = self.maker.opened(host)
        self._error: type[Exception] = getattr(self.library.lib, self.maker.error)
        self._said: set[str] = set()

    @abstractmethod
    def of(self, lib: Any, device: Device) -> Mapping[Series, float]:
        """What a GPU has now."""

    def devices(self) -> Iterable[Device]:
        return self.maker.opened(self.host).devices

    def table(self) -> dict[Series, float]:
        found: dict[Series, float] = {}
        for device in self.devices():
            self.host.asking.of(device.uuid)
            try:
                found.update(self.of(self.library.lib, device))
            except self._error as error:
                if self.maker.trouble(error) is not Trouble.UNSUPPORTED and device.uuid not in self._said:
                    self._said.add(device.uuid)
                    why = " ".join(str(error).split())
                    log.warning("GPU %s: its %s could not be read (%s)", device.uuid, self.what, why)
        self.host.asking.of("")
        return found


class Owners(EachGpu):
    """The job's ranks on each GPU of one maker and the memory that they use there; the maker's file says how to ask."""

    period = 10.0
    tells_why = True
    metrics = (RANK, RANK_MEMORY)
    what = "processes"

    @abstractmethod
    def processes(self, lib: Any, device: Device) -> Iterable[tuple[int, float]]:
        """Pid and bytes in use of each process on a GPU; NaN where the driver does not report the bytes."""

    def table(self) -> dict[Series, float]:
        live = {(rank.pid, rank.start_ticks) for rank in self.host.ranks} if self.host.gpu_of else set()
        for key in self.host.gpu_of.keys() - live:  # no GPU of a rank that has gone is kept
            del self.host.gpu_of[key]
        return super().table()

    def of(self, lib: Any, device: Device) -> dict[Series, float]:
        return owners(self.host, device.uuid, self.processes(lib, device))


def owners(host: Host, gpu_uuid: str, processes: Iterable[tuple[int, float]]) -> dict[Series, float]:
    """The ranks on one GPU, of its ``processes`` (pid and bytes in use there); other processes are not named.

    Notes in ``host.gpu_of`` which GPU a rank uses: where its own process does not, one of those below it.
    """
    found: dict[Series, float] = {}
    for pid, used in processes:
        rank = owner(host, pid)
        if rank is None:
            continue
        if rank.pid == pid:
            host.gpu_of[rank.pid, rank.start_ticks] = gpu_uuid
        else:
            host.gpu_of.setdefault((rank.pid, rank.start_ticks), gpu_uuid)
        who = (gpu_uuid, rank.job_id, str(rank.rank))
        memory = series(RANK_MEMORY, *who)
        found[series(RANK, *who)] = 1.0
        found[memory] = found.get(memory, 0.0) + used
    return found
