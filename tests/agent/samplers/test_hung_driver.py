"""A driver that never answers stops neither the tick nor the other GPUs, and what it answers late is taken."""

import threading
import time
from collections.abc import Iterator
from functools import partial
from inspect import signature
from typing import Any

import pytest
from hindmost_agent import samplers
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Host, Reading

from tests.agent.conftest import ANSWERS, FakeNvml
from tests.agent.readings import Steady

FIRST, SECOND = "GPU-00000000", "GPU-00000001"
#: A tick waits so long for a driver that answers; for one that does not, the tests do not wait.
PATIENT = 300.0


@pytest.fixture
def free(nvml: Any) -> Iterator[threading.Event]:
    """Set, it lets every call that blocks return; at the test's end it is set."""
    event = threading.Event()
    yield event
    event.set()


def made(host: Host, *names: str) -> Runner:
    kinds = {name: samplers.load()[name] for name in names}
    return Runner({**kinds, "steady": Steady}, host, 100 * NS, patience_s=PATIENT)


def at(runner: Runner, second: int, *, patiently: bool = True) -> dict[str, Reading]:
    """The readings of one tick, by sampler."""
    for thread in runner.drivers.values():
        thread.patience_s = PATIENT if patiently else 0
    return {reading.sampler: reading for reading in runner.run(second * NS, everything=True)}


def gpus(reading: Reading, metric: str) -> dict[str, float]:
    found = zip(reading.series, reading.values, strict=True)
    return {one.values[0]: value for one, value in found if one.metric.name == f"hindmost_gpu_{metric}"}


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "drivers"]


def hang(runner: Runner, nvml: Any, call: str, free: threading.Event, gpu: int = 0) -> None:
    """One GPU's driver does not come back from a call, as is seen at second 101."""
    at(runner, 0)
    nvml.blocks[call] = gpu, free
    at(runner, 100, patiently=False)
    assert nvml.blocked.wait(PATIENT)
    assert set(at(runner, 101, patiently=False)) == {"steady"}


def hang_for_long(runner: Runner, nvml: Any, free: threading.Event) -> threading.Thread:
    """The first GPU does not answer until it is given up: the thread that still waits for it."""
    hang(runner, nvml, "nvmlDeviceGetPowerUsage", free)
    at(runner, 112)
    (given_up,) = runner.host.asking.given_up
    return given_up


def answered(runner: Runner) -> None:
    """Wait until the driver has answered all that it was asked for."""
    until = time.monotonic() + PATIENT
    while runner.drivers["GPU"].waiting:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_a_call_that_never_returns_keeps_no_tick(gpu_host: Host, nvml: Any, free: threading.Event) -> None:
    """The rest of the node is read on, and no value of a GPU is shown that is not of now."""
    runner = made(gpu_host, "nvidia", "nvidia_state")
    hang(runner, nvml, "nvmlDeviceGetPowerUsage", free)
    assert set(runner.latest) == {"steady"}
    assert gpu_host.counts.success == {"steady": 1, "nvidia": 0, "nvidia_state": 0}


def test_a_hung_gpu_is_down(gpu_host: Host, nvml: Any, free: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    """After ten seconds the others are read; of it alone is said that it is down; one line, and one error counted."""
    runner = made(gpu_host, "nvidia", "nvidia_gpm", "nvidia_processes", "nvidia_state")
    hang(runner, nvml, "nvmlDeviceGetPowerUsage", free)
    for second in range(112, 116):
        found = at(runner, second)
    assert gpus(found["nvidia"], "up") == {FIRST: 0, SECOND: 1}
    assert gpus(found["nvidia"], "power_watts") == {SECOND: pytest.approx(689.001)}
    assert gpus(found["nvidia_state"], "temperature_celsius") == {SECOND: 61}
    assert gpus(found["nvidia_gpm"], "tensor_activity_ratio") == {SECOND: pytest.approx(0.936)}
    assert (+gpu_host.counts.errors, gpu_host.counts.success["nvidia"]) == ({"nvidia": 1}, 1)
    assert caplog.messages == [f"{FIRST} has not answered nvidia for 10 s: not sampled until it does"]


def test_a_gpu_that_comes_back_is_taken_on(gpu_host: Host, nvml: Any, free: threading.Event) -> None:
    """Its call returned after all: it is read like the others, and only one thread is left."""
    before = set(threads())
    runner = made(gpu_host, "nvidia", "nvidia_state")
    given_up = hang_for_long(runner, nvml, free)
    nvml.blocks.clear()
    free.set()
    given_up.join(PATIENT)
    found = at(runner, 113)
    assert gpus(found["nvidia"], "up") == {FIRST: 1, SECOND: 1}
    assert gpus(found["nvidia_state"], "temperature_celsius") == {FIRST: 60, SECOND: 61}
    assert len(set(threads()) - before) == 1


@pytest.mark.parametrize("comes", [True, False])
def test_a_driver_that_is_being_loaded_has_not_failed(
    gpu_host: Host, nvml: Any, free: threading.Event, caplog: pytest.LogCaptureFixture, *, comes: bool
) -> None:
    """It takes seconds where GPUs sleep: its samplers are not reported until they answer, or hang."""
    runner = made(gpu_host, "nvidia", "nvidia_state")
    nvml.blocks["nvmlInit"] = 0, free
    for second in (0, 1, 5):
        assert set(at(runner, second, patiently=False)) == {"steady"}
        assert nvml.blocked.wait(PATIENT)
        assert (gpu_host.counts.success, +gpu_host.counts.errors) == ({"steady": 1}, {})
    if comes:
        free.set()
        answered(runner)
    at(runner, 12)
    assert gpu_host.counts.success == {"steady": 1, "nvidia": int(comes), "nvidia_state": int(comes)}
    assert +gpu_host.counts.errors == ({} if comes else {"nvidia": 1})
    assert [record.levelname for record in caplog.records] == ([] if comes else ["WARNING"])


def test_what_a_thread_given_up_read_counts_nowhere(gpu_host: Host, nvml: Any, free: threading.Event) -> None:
    """It neither goes on to the next GPU nor hands in what it had."""
    runner = made(gpu_host, "nvidia")
    given_up = hang_for_long(runner, nvml, free)
    nvml.calls.clear()
    free.set()
    given_up.join(PATIENT)
    # The GPU that it came back from is read to its end; of the second nothing is asked.
    assert nvml.calls.count("nvmlDeviceGetUtilizationRates") == 0
    assert {one.time_ns for one in runner.run(113 * NS, everything=True)} == {113 * NS}


def test_a_thread_with_the_number_of_one_given_up_may_ask(gpu_host: Host, nvml: Any, free: threading.Event) -> None:
    """Once a thread has ended the system gives its number to the next, before a tick has seen that it ended."""
    runner = made(gpu_host, "nvidia")
    given_up = hang_for_long(runner, nvml, free)
    free.set()
    given_up.join(PATIENT)
    asked: list[int] = []

    def ask() -> None:
        gpu_host.asking.of(SECOND)
        asked.append(threading.get_ident())

    for _ in range(100):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(PATIENT)
        assert asked.pop() == thread.ident
        if thread.ident == given_up.ident:
            return
    pytest.fail("no thread had its number")


def test_every_gpu_may_hang(gpu_host: Host, nvml: Any, free: threading.Event) -> None:
    """One after the other is found out; then nothing is asked any more, and each is said to be down."""
    runner = made(gpu_host, "nvidia")
    hang(runner, nvml, "nvmlDeviceGetPowerUsage", free)
    nvml.blocks["nvmlDeviceGetUtilizationRates"] = 1, free
    nvml.blocked.clear()
    at(runner, 112, patiently=False)
    assert nvml.blocked.wait(PATIENT)
    for second in (113, 124, 135):
        found = at(runner, second)
    assert gpus(found["nvidia"], "up") == {FIRST: 0, SECOND: 0}


def test_an_answer_that_comes_late_is_taken_at_the_next_tick(gpu_host: Host, nvml: Any, free: threading.Event) -> None:
    """A driver that takes seconds to load is slow, not lost; no two values are of one moment."""
    runner = made(gpu_host, "nvidia")
    nvml.blocks["nvmlInit"] = 0, free
    assert set(at(runner, 0, patiently=False)) == {"steady"}
    free.set()
    answered(runner)
    runner.drivers["GPU"].patience_s = PATIENT
    late = [one for one in runner.run(3 * NS, everything=True) if one.sampler == "nvidia"]
    both = {FIRST: 1, SECOND: 1}
    assert [(one.time_ns, gpus(one, "up")) for one in late] == [(3 * NS - 1, both), (3 * NS, both)]
    assert +gpu_host.counts.errors == {}


def test_a_late_answer_of_the_tick_before_has_its_own_moment(gpu_host: Host, nvml: Any, free: threading.Event) -> None:
    """At an interval of a second it comes in the very tick that asks again: of one moment there is one value."""
    runner = Runner({"nvidia": samplers.load()["nvidia"]}, gpu_host, NS, patience_s=PATIENT)
    found = runner.run(0)
    nvml.blocks["nvmlDeviceGetPowerUsage"] = 0, free
    runner.drivers["GPU"].patience_s = 0
    found += runner.run(NS)
    free.set()
    answered(runner)
    runner.drivers["GPU"].patience_s = PATIENT
    found += [*runner.run(2 * NS), *runner.run(3 * NS)]
    assert [one.time_ns for one in found] == [0, 2 * NS - 1, 2 * NS, 3 * NS]


def test_a_driver_that_does_not_even_load_is_said_once(
    gpu_host: Host, nvml: Any, free: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """No GPU is to blame: none is read until it answers, no second thread is started."""
    before = set(threads())
    runner = made(gpu_host, "nvidia", "nvidia_state")
    nvml.blocks["nvmlInit"] = 0, free
    for second in range(0, 60, 5):
        assert set(at(runner, second, patiently=False)) == {"steady"}
    assert len(set(threads()) - before) == 1
    assert (len(caplog.records), +gpu_host.counts.errors) == (1, {"nvidia": 1})


def test_a_gpu_that_hangs_when_asked_who_it_is_is_left_out(gpu_host: Host, nvml: Any, free: threading.Event) -> None:
    """At the agent's start: the others are found without it."""
    runner = made(gpu_host, "nvidia")
    nvml.blocks["nvmlDeviceGetUUID"] = 0, free
    at(runner, 0, patiently=False)
    assert nvml.blocked.wait(PATIENT)
    at(runner, 1, patiently=False)
    assert gpus(at(runner, 12)["nvidia"], "up") == {SECOND: 1}


def asked_of_a_gpu() -> list[str]:
    """Every call of NVML that is about one GPU."""
    calls = ANSWERS | {name[1:]: partial(call, None) for name, call in vars(FakeNvml).items() if name[:5] == "_nvml"}
    names = [name for name in calls if name.startswith(("nvmlDevice", "nvmlGpmQuery", "nvmlGpmSampleGet"))]
    return [name for name in names if signature(calls[name]).parameters]


@pytest.mark.parametrize("late", [False, True], ids=["from the start", "later"])
@pytest.mark.parametrize("call", asked_of_a_gpu())
def test_a_hang_in_any_call_stops_one(gpu_host: Host, nvml: Any, free: threading.Event, call: str, late: bool) -> None:
    """The read names its GPU: that one is left out, and all samplers read the other."""
    nvml.instances = {0: ["MIG-0"], 1: ["MIG-1"]}
    nvml.processes = {0: [(1, 1)], 1: [(2, 1)]}
    names = [name for name in samplers.load() if name.startswith("nvidia")]
    runner = made(gpu_host, *names)
    if late:
        at(runner, 0)
    nvml.blocks[call] = 0, free
    at(runner, 1, patiently=False)
    while runner.drivers["GPU"].waiting and not nvml.blocked.wait(0.001):
        pass
    assert nvml.blocked.is_set() or late  # what never changes is asked for once
    for second in (2, 13, 100, 200):
        found = at(runner, second)
    assert gpus(found["nvidia"], "up")[SECOND] == 1
    assert set(runner.latest) >= {*names, "steady"} - {"nvidia_processes"}  # no rank is on a GPU here
    assert gpu_host.counts.success == dict.fromkeys((*names, "steady"), 1)


def test_a_nameless_gpu_that_hangs_takes_no_other_along(gpu_host: Host, nvml: Any, free: threading.Event) -> None:
    """One that did not answer at first tells of an XID error: it is asked who it is."""
    runner = made(gpu_host, "nvidia", "nvidia_health")
    at(runner, 0)
    nvml.xids.append((7, 79))
    nvml.listened[-1].gpus.add(7)
    nvml.blocks["nvmlDeviceGetUUID"] = 7, free
    at(runner, 1, patiently=False)
    assert nvml.blocked.wait(PATIENT)
    at(runner, 2, patiently=False)
    found = at(runner, 13)
    assert gpus(found["nvidia"], "up") == {FIRST: 1, SECOND: 1}


def test_a_node_without_a_gpu_has_no_thread_for_one(tmp_path: Any) -> None:
    """All samplers are looked for, and nothing is started."""
    before = set(threads())
    runner = Runner(samplers.load(), Host(dev=tmp_path), NS)
    runner.run(0)
    assert set(threads()) <= before  # one of an earlier test may end meanwhile


def test_the_thread_ends_with_its_runner(gpu_host: Host) -> None:
    """Nothing is left of an agent that was."""
    before = set(threads())
    runner = made(gpu_host, "nvidia")
    at(runner, 0)
    (mine,) = set(threads()) - before
    del runner
    mine.join(PATIENT)
    assert not mine.is_alive()


def test_whatever_asks_a_driver_says_so() -> None:
    """A sampler of GPUs or adapters that ran in the tick's own thread could stop the agent."""
    asking = {name for name, kind in samplers.load().items() if kind.asks_driver == "GPU"}
    assert asking == {name for name, kind in samplers.load().items() if kind.source.startswith(("NVML", "AMD SMI"))}
    assert samplers.load()["infiniband"].asks_driver == "adapter"


def test_an_adapter_that_hangs_stops_neither_the_node_nor_its_gpus(
    node: Host, nvml: Any, free: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading its counters waits for its firmware: each driver has a thread of its own."""
    runner = made(node, "nvidia", "infiniband")
    assert set(at(runner, 0)) == {"infiniband", "steady", "nvidia"}
    sampler = samplers.load()["infiniband"]
    monkeypatch.setattr(sampler, "sample", lambda _: free.wait(300) and [])
    runner.drivers["adapter"].patience_s = 0
    for second in (100, 101, 112, 123):
        found = {reading.sampler for reading in runner.run(second * NS, everything=True)}
        assert found == {"steady", "nvidia"}
    assert node.counts.success["infiniband"] == 0
    assert caplog.messages == [
        "the adapter driver has not answered infiniband for 10 s: it is not sampled until it does"
    ]
