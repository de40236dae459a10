"""What a source of metrics is: one class, one method, in one file under ``samplers/``."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from hindmost_agent.jobs.ranks import Ranks
from hindmost_agent.observe import Own

if TYPE_CHECKING:
    from collections.abc import Callable

    from hindmost_agent.metric import Metric, Series

NAN = float("nan")
#: Drivers that may keep who asks them for ever, while hardware is in trouble.
GPU, ADAPTER = DRIVERS = ("GPU", "adapter")


class Absent(Exception):  # noqa: N818 - it is an answer, not an error
    """What a sampler would read does not exist on this node. Raised by ``__init__`` or ``sample``."""


class GivenUp(Exception):  # noqa: N818 - it is an order, not an error
    """Raised in a thread whose GPU did not answer for so long that another has taken over."""


class Asking:
    """Which GPU is being read now, for the thread that waits for its answer."""

    def __init__(self) -> None:
        self.gpu = ""
        #: Threads that may not ask any more; not their numbers, which the next thread has as soon as one has ended.
        self.given_up: frozenset[threading.Thread] = frozenset()

    def of(self, gpu: str) -> None:
        """This GPU is asked next; empty: none. Raises ``GivenUp`` in a thread that may not."""
        if self.given_up and threading.current_thread() in self.given_up:
            raise GivenUp(gpu)
        self.gpu = gpu


@dataclass
class Host:
    """Where samplers look: kernel file roots, the job's processes, the agent's own counts. Tests hand in fakes."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    cgroup: Path = Path("/sys/fs/cgroup")
    dev: Path = Path("/dev")
    #: ``os.statvfs`` or a stand-in.
    statvfs: Callable[[str], os.statvfs_result] = os.statvfs
    ranks: Ranks = field(default_factory=Ranks)
    own: Own = field(default_factory=Own)
    #: The module ``pynvml`` or one that behaves like it; ``None`` imports it where a driver is loaded.
    nvml_library: Any = None
    nvml: Any = None
    #: The same of ``amdsmi``.
    amdsmi_library: Any = None
    amdsmi: Any = None
    #: Grows when a GPU that did not answer before does, so that samplers take it on.
    gpu_generation: int = 0
    #: GPUs of which was said that they do not answer.
    silent_gpus: set[str] = field(default_factory=set)
    #: Which GPU is asked, and those that did not come back from it and must not be asked.
    asking: Asking = field(default_factory=Asking)
    hung: frozenset[str] = frozenset()
    #: The module ``psutil``, imported where something asks for it, or one that behaves like it.
    psutil: Any = None
    #: Which GPU a rank of this node computes on, by pid and start ticks, as far as the drivers say.
    gpu_of: dict[tuple[int, int], str] = field(default_factory=dict)

    def has_driver(self, of: str) -> bool:
        """Whether there is one of ``GPU`` or ``ADAPTER`` that could be asked."""
        if of == ADAPTER:
            return (self.sys / "class/infiniband").exists()
        if self.nvml_library is not None or self.amdsmi_library is not None:
            return True
        return (self.dev / "nvidiactl").exists() or (self.dev / "kfd").exists()


class Sampler(ABC):
    """A source of metrics.

    ``series`` names what ``sample`` returns, value by value; assign a new tuple only when what there is to read has
    changed, because a new tuple is a new definition to send. A value that cannot be read is ``NAN``, never 0.
    Errors are raised: the runner owns them, and the timing.
    """

    name: ClassVar[str]
    #: Seconds between two readings at least; 0 means every tick.
    period: ClassVar[float] = 0.0
    #: Whether it is read at once, due or not, when the collector asks to see a rank closer: a cause is read from it.
    tells_why: ClassVar[bool] = False
    #: Which driver it asks that may never answer, ``GPU`` or ``ADAPTER``: it is then read outside the tick, in a thread
    #: of that driver's own.
    asks_driver: ClassVar[str] = ""
    #: What is read, for the documentation.
    source: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]

    series: tuple[Series, ...] = ()

    def __init__(self, host: Host) -> None:
        self.host = host

    @abstractmethod
    def sample(self) -> list[float]:
        """One value for each of ``series``. Raises ``Absent``, ``OSError``, ``ValueError``."""


REGISTRY: dict[str, type[Sampler]] = {}

SamplerType = TypeVar("SamplerType", bound=type[Sampler])


def register(sampler: SamplerType) -> SamplerType:
    """Class decorator that makes a sampler known under its ``name``."""
    if sampler.name in REGISTRY:
        raise ValueError(f"two samplers are called {sampler.name}")
    REGISTRY[sampler.name] = sampler
    return sampler
