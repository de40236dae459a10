"""The job comes first, with torch in it: whatever befalls a process that trains, it ends as it would unobserved."""

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import NamedTuple

import pytest
from hindmost.native import build
from hindmost_cli.run import environment

from tests.cluster.jobs import mounted
from tests.needs import need
from tests.torch.conftest import PATIENCE_S, forked

pytestmark = pytest.mark.torch

#: What is trained is the same in each run: so are its losses, to the last digit.
START = """
import glob, os, signal, sys, threading, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
def train(steps, seed=0, through=lambda x: x, **options):
    generator = torch.Generator().manual_seed(seed)
    data = TensorDataset(torch.rand(4 * steps, 8, generator=generator))
    weight = nn.Parameter(torch.rand(8, generator=generator))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    for (x,) in DataLoader(data, batch_size=4, **options):
        loss = through(x @ weight).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()
class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x.clone()
    @staticmethod
    def backward(context, gradient): raise ArithmeticError("mine")
class Bad(TensorDataset):
    def __getitem__(self, index):
        if index == 9: raise LookupError("mine")
        return super().__getitem__(index)
print(repr(train(20)), flush=True)
"""
FATES = {
    "an exception in backward": "train(5, through=Breaks.apply)",
    "an exception in a loader's worker, caught": (
        "try:\n    for _ in DataLoader(Bad(torch.rand(16, 8)), batch_size=4, num_workers=1): pass\n"
        "except LookupError: print('caught')\nprint(repr(train(5)))"
    ),
    "os._exit in backward": "train(5, through=lambda x: (x.register_hook(lambda _: os._exit(9)), x)[1])",
    "SIGKILL in forward": "train(5, through=lambda x: os.kill(os.getpid(), signal.SIGKILL))",
    "an interruption in forward": "train(5, through=lambda x: (signal.raise_signal(signal.SIGINT), x)[1])",
    "100 threads that train": (
        "found = {}\nts = [threading.Thread(target=lambda i=i: found.update({i: train(5, i)})) for i in range(100)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]; print(sorted(found.items())); print(repr(train(5)))"
    ),
    "the ring removed under it": (
        "[os.unlink(f) for f in glob.glob(os.environ['RINGS'] + '/*')]; print(repr(train(20))); sys.exit(3)"
    ),
    "a child that trains": (
        "pid = os.fork()\nif pid == 0: print(repr(train(5)), flush=True); sys.exit(4)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])); print(repr(train(5)))"
    ),
    "training at interpreter shutdown": (
        "import atexit\natexit.register(lambda: print(repr(train(5))))\n"
        "class Late:\n    def __del__(self): print(repr(train(5)))\nkept = Late()"
    ),
}


#: What is also tried without a compiler.
IN_PYTHON = ("an exception in backward", "100 threads that train", "a child that trains")
#: What is tried in C with all that `hindmost run` preloads into a Python; the others are forked, with torch in them.
WHOLE = ("100 threads that train", "a child that trains", "training at interpreter shutdown")


class Ended(NamedTuple):
    """Exit code, stdout, and lines of stderr but for ours, and ours."""

    code: int
    out: str
    err: list[str]
    ours: list[str]


def environ(rings: Path, native: dict[str, Path] | None) -> dict[str, str]:
    """Of a rank; unobserved without ``native``, what ``hindmost run`` has built for the job."""
    found = {"PATH": os.environ["PATH"], "RINGS": str(rings), "RANK": "0", "WORLD_SIZE": "2"}
    if native is None:
        return found
    return found | environment.variables(found, job="job", rings=rings, collector="", launcher="python", native=native)


def trained(folder: Path, script: str, *environs: dict[str, str]) -> list[Ended]:
    """How this ends in each of the environments: where something is preloaded, as a Python that imports torch."""
    path = folder / "script.py"
    path.write_text(START + script)
    alone = [each for each in environs if "LD_PRELOAD" in each]
    line = [sys.executable, str(path)]
    started = [subprocess.Popen(line, env=each, stdout=PIPE, stderr=PIPE, text=True) for each in alone]
    done = iter(forked(folder, [str(path)], [each for each in environs if each not in alone]))
    said = [(one.communicate(timeout=PATIENCE_S), one.returncode) for one in started]
    preloaded = iter([subprocess.CompletedProcess(line, code, *texts) for texts, code in said])
    return [_ended(next(preloaded if each in alone else done)) for each in environs]


def _ended(done: subprocess.CompletedProcess[str]) -> Ended:
    lines = done.stderr.splitlines()
    ours = [line for line in lines if line.startswith("hindmost: ")]
    return Ended(done.returncode, done.stdout, [line for line in lines if line not in ours], ours)


@pytest.fixture
def native() -> dict[str, Path]:
    """What ``hindmost run`` has built for the job: the shim and the extension."""
    need("cc")
    return {kind: build.library(kind) for kind in ("pmpi", "ring")}


@pytest.mark.parametrize("fate", FATES)
def test_training_ends_as_without_hindmost(fate: str, tmp_path: Path, native: dict[str, Path]) -> None:
    """Exit code, losses and errors are those of the same script unobserved; with hooks in C, from Python 3.12 on, so
    are tracebacks."""
    built = native if fate in WHOLE else {"ring": native["ring"]}
    watched = {tmp_path / "C": built} | ({tmp_path / "Python": {}} if fate in IN_PYTHON else {})
    environs = [environ(*each) for each in ((tmp_path / "none", None), *watched.items())]
    expected, *found = trained(tmp_path, FATES[fate], *environs)
    for (code, out, err, _), rings in zip(found, watched, strict=True):
        first = 0 if rings.name == "C" and sys.version_info >= (3, 12) else -1
        assert (code, out, err[first:]) == (expected.code, expected.out, expected.err[first:])
        assert rings.is_dir(), "it was not observed"


@pytest.mark.parametrize("options", ["size=64k", "ro"])
def test_training_where_shared_memory_is_full_or_read_only(
    options: str, tmp_path: Path, native: dict[str, Path]
) -> None:
    """It says so in one line, and trains."""
    with mounted(tmp_path / "rings", options) as rings:
        (done,) = trained(tmp_path, "print(repr(train(5)))", environ(rings, {"ring": native["ring"]}))
    assert (done.code, len(done.out.splitlines())) == (0, 2)
    assert (len(done.ours), done.err) == (1, [])


def test_training_with_a_broken_extension(tmp_path: Path) -> None:
    """What should be the hooks in C and is no library is left out: hooks in Python do the same."""
    broken = tmp_path / "ring-abi3-broken.so"
    broken.write_bytes(b"\x7fELF garbage")
    rings = tmp_path / "rings"
    (done,) = trained(tmp_path, "print(repr(train(5)))", environ(rings, {"ring": broken}))
    assert done.code == 0
    assert list(rings.glob("*.ring"))
