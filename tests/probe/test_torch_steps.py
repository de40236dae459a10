"""Where steps begin and end, for loops of any shape: given as times, read from the ring."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost.probes.torch_native import native_hooks
from hindmost.probes.torch_steps import SOURCES, StepDetector
from hindmost.recorder import PHASE, STEP, Recorder


class Loop:
    """A training loop that takes 10 of whatever it does."""

    def __init__(self, directory: Path, written_in: str) -> None:
        self.now = 0
        self.writer = ring.Writer.create(directory, Identity("job", 0, 1, 0, "node", "torch", "train.py"), "py", 1024)
        self.reader = ring.Reader(self.writer.path)
        self.recorder = Recorder(self.writer, clock=lambda: self.now)
        torch: Any = SimpleNamespace(is_grad_enabled=lambda: True)
        native = native_hooks(torch, self.recorder, None)
        assert (native is not None) == (written_in == "c")
        if native is not None:
            native.first(False)
        self.seen: Any = native.loop if native is not None else StepDetector(self.recorder)
        self._read: list[ring.Event] = []

    @property
    def written(self) -> list[ring.Event]:
        self._read += self.reader.poll()
        return self._read

    def fetch(self, work: int = 0, source: int = 1, gradients: bool = True) -> None:
        start = self.now
        self.seen.input_begins(start, source, gradients)
        self.now += 10
        self.seen.input_ends(start, self.now, work)

    def exhausted(self, gradients: bool = True, source: int = 1) -> None:
        self.seen.input_begins(self.now, source, gradients)
        self.seen.input_fails()

    def compute(self) -> None:
        self.now += 10

    def backward(self) -> None:
        start = self.now
        self.seen.backward_begins(start)
        self.now += 10
        self.seen.backward_ends(start, self.now)

    def optimize(self, optimizer: int = 1) -> None:
        start = self.now
        self.seen.optimizer_begins(start)
        self.now += 10
        self.seen.optimizer_ends(start, self.now, optimizer)

    def train(self, batches: int) -> None:
        for _ in range(batches):
            self.fetch(work=16)
            self.compute()
            self.backward()
            self.optimize()

    def do(self, word: str) -> None:
        ((what, number, source, without),) = re.findall(r"(\S)(\d*)@?(\d*)(-?)", word)
        match what:
            case "f":
                self.fetch(int(number or 0), int(source or 1), not without)
            case "o":
                self.optimize(int(number or 1))
            case "x":
                self.exhausted(not without, int(source or 1))
            case ".":
                self.now += 1000
            case "p":
                self.seen.pauses(self.now)
            case _:
                {"c": self.compute, "b": self.backward, "r": self.seen.forgets, "!": self.seen.finish}[what]()

    def steps(self, name: str = "train") -> list[tuple[int, int]]:
        return self.intervals(STEP, name)

    def phases(self, name: str) -> list[tuple[int, int]]:
        return self.intervals(PHASE, name)

    def intervals(self, kind: int, name: str) -> list[tuple[int, int]]:
        found = [event for event in self.written if (event.kind, event.name) == (kind, name)]
        return [(event.start_ns, event.start_ns + event.duration_ns) for event in found]

    def numbers(self, name: str) -> list[int]:
        return [event.seq for event in self.written if (event.kind, event.name) == (STEP, name)]

    def work(self) -> list[int]:
        return [event.value for event in self.written if event.kind == STEP]


@pytest.fixture
def loop(tmp_path: Path, written_in: str) -> Iterator[Loop]:
    """A loop whose detector is in Python, or in C."""
    made = Loop(tmp_path, written_in)
    yield made
    made.reader.close()
    made.writer.close()


def test_a_step_reaches_from_fetch_to_fetch(loop: Loop) -> None:
    """Each batch with an optimizer step is one step; the last ends with its optimizer."""
    loop.train(3)
    loop.seen.finish()
    assert loop.steps() == [(0, 40), (40, 80), (80, 120)]
    assert loop.phases("forward") == [(10, 20), (50, 60), (90, 100)]
    assert loop.numbers("train") == [0, 1, 2]
    assert set(loop.work()) == {16}


TRAIN = "f16 c b o "
EACH_PARAMETER = " ".join(f"o{number}" for number in range(1, 51))
#: What a loop does, its steps, those of evaluation, and the work of each step. Words are ``f`` fetch (of so much work,
#: ``@`` a loader, ``-`` without gradients), ``c`` compute, ``b`` backward, ``o`` an optimizer, ``x`` a loader is
#: exhausted, ``p`` something else begins, ``r`` an elastic job begins again, ``.`` time passes, ``!`` the end.
LOOPS: dict[str, tuple[str, str, str, list[int] | None]] = {
    "fetches without an optimizer step between them belong together, and so does their work": (
        "f4 b f4 b f4 b o " * 2 + "x", "0-70 70-140", "", [12, 12],
    ),
    "a GAN steps its discriminator and its generator in one step": ("f b o1 b o2 " * 2 + "x", "0-50 50-100", "", None),
    "without input a step ends with the first optimizer's step": ("c b o1 b o2 " * 3, "10-30 30-80 80-130", "", None),
    "from the second fetched step on each has its fetch and its work, after steps on made-up data": (
        "b o " * 3 + "f7 b o " * 4 + "x", "0-20 20-40 40-60 70-90 90-120 120-150 150-180", "", [0, 0, 0, 0, 7, 7, 7],
    ),
    "the same of fetches without gradients": (
        "b o " * 3 + "f7- b o " * 4 + "x", "0-20 20-40 40-60 70-90 90-120 120-150 150-180", "", [0, 0, 0, 0, 7, 7, 7],
    ),
    "batches without gradients are evaluation, and training goes on counting": (
        TRAIN * 2 + "x " + "f@2- c " * 2 + TRAIN + "x", "0-40 40-80 120-160", "80-100 100-120", None,
    ),
    "the last batch of an evaluation is one step, and what comes after it is none": (
        (TRAIN + "x f@2- f@2- x- . ") * 2 + TRAIN + "!",
        "0-40 1060-1100 2120-2160", "40-50 50-60 1100-1110 1110-1120", None,
    ),
    "two loaders of one data set count, from the second step on": ("f8 f4 b o " * 4 + "!", "", "", [8, 12, 12, 12]),
    "a loader that is a batch ahead counts each once": ("f5 f5 b o f5 b o x b o " * 3 + "!", "", "", [5] * 9),
    "optimizers that step inside backward, one a parameter, do not end a step each": (
        f"f b {EACH_PARAMETER} " * 3 + "!", "0-520 520-1040 1040-1560", "", None,
    ),
    "a checkpoint ends the evaluation before it, and is no step's": (
        f"{TRAIN} f@2- c p . {TRAIN} x", "0-40 1060-1100", "40-60", None,
    ),
    "where an elastic job begins again, what was begun is forgotten, and what had ended is kept": (
        f"{TRAIN} r . f5 b r . {TRAIN} x", "0-40 2060-2100", "", [16, 16],
    ),
    "a loader that no backward ever followed, next to one that trains, only evaluates": (
        TRAIN * 2 + "x " + "f@2 c " * 2 + "x", "0-40 40-80", "80-100 100-120", None,
    ),
    "a loop that fetches one batch ahead has a step a batch, from the first on": (
        "f7 f0 b o f1 b o f2 b o x b o", "0-40 40-70 70-100 100-120", "", [7, 0, 1, 2],
    ),
    "time between epochs belongs to no step": (f"{TRAIN} x . {TRAIN} !", "0-40 1040-1080", "", None),
    "Horovod steps an optimizer once to give it state, before any backward": (f"o {TRAIN} x", "10-50", "", None),
    "without any backward, steps are believed after some": ("o " * 12, "0-90 90-100 100-110 110-120", "", None),
}  # fmt: skip


@pytest.mark.parametrize("truth", LOOPS)
def test_steps_of_each_loop_are_recognised(loop: Loop, truth: str) -> None:
    """Those of each kind are numbered without gaps, and none is open at the end."""
    does, steps, evaluation, work = LOOPS[truth]
    for word in does.split():
        loop.do(word)
    for name, expected in (("train", steps), ("eval", evaluation)):
        if steps:
            assert [f"{begin}-{end}" for begin, end in loop.steps(name)] == expected.split()
        assert loop.numbers(name) == list(range(len(loop.steps(name))))
    assert work in (None, loop.work())
    assert "!" not in does or loop.reader.open_records() == []


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_evaluating_in_a_loop_that_fetches_nothing_merges_no_steps(loop: Loop, gradients: bool, ends: bool) -> None:
    """Batches that only an evaluation fetches, exhausted or not, are no input of the steps that follow."""
    for _ in range(3):
        for _ in range(4):
            loop.backward()
            loop.optimize()
        for _ in range(2):
            loop.fetch(work=5, source=2, gradients=gradients)
        if ends:
            loop.exhausted(gradients, source=2)
    assert [end - begin for begin, end in loop.steps()] == [20] * 12
    assert len(loop.steps("eval")) == (0 if gradients else 6 if ends else 3), "of the last, nothing tells when it ended"
    assert [event.value for event in loop.written if (event.kind, event.name) == (STEP, "train")] == [0] * 12


def test_one_batch_used_for_ever_becomes_steps(loop: Loop) -> None:
    """After one fetch that is followed by many optimizer steps, every optimizer step is a step."""
    loop.fetch()
    for _ in range(20):
        loop.backward()
        loop.optimize()
    assert len(loop.steps()) == 12
    assert loop.steps()[-1] == (390, 410)


def test_work_of_more_sources_than_are_kept_apart_is_counted(loop: Loop) -> None:
    """Every epoch may have a data set of its own: each step still has its own batch's work."""
    for source in range(1, 41):
        loop.fetch(work=source, source=source)
        loop.backward()
        loop.optimize()
    loop.seen.finish()
    assert loop.work() == list(range(1, 41))


def test_a_closure_inside_the_optimizer_keeps_its_phases_nested(loop: Loop) -> None:
    """An optimizer that runs forward and backward in a closure has them inside its own interval."""
    loop.fetch()
    start = loop.now
    loop.seen.optimizer_begins(start)
    loop.compute()
    loop.backward()
    loop.seen.optimizer_ends(start, loop.now, 1)
    assert loop.phases("forward") == [(10, 20)]
    assert loop.phases("backward") == [(20, 30)]
    assert loop.phases("optimizer") == [(10, 30)]


def test_marked_steps_replace_recognised_ones(loop: Loop) -> None:
    """Once the loop marks its own steps, none is recognised, and phases still are."""
    loop.recorder.marks()
    loop.train(3)
    loop.seen.finish()
    assert loop.steps() == []
    assert len(loop.phases("backward")) == 3


def test_a_data_set_an_epoch_is_forgotten_when_others_have_come(loop: Loop) -> None:
    """However many sources of input a loop goes through, the last few are known; which of them trains is, too."""
    for source in range(1, 101):
        loop.fetch(source=source, work=source)
        loop.compute()
        loop.backward()
        loop.optimize()
    loop.fetch(source=200, work=7)
    loop.fetch(source=100, work=1)
    loop.seen.finish()
    assert [event.value for event in loop.written if event.kind == STEP and event.name == "train"] == [*range(1, 101)]
    assert [event.value for event in loop.written if event.kind == STEP and event.name == "eval"] == [7]
    assert len(getattr(loop.seen, "_sources", ())) <= SOURCES  # of what is in memory nothing else tells
