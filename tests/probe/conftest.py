"""What tests of the training process's side share."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hindmost import errors, ring, stepping
from hindmost.native import build

from tests.probe.torch_loop import Loop


@pytest.fixture(params=["python", pytest.param("c", marks=pytest.mark.needs("cc"))])
def written_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs over pure Python and over its twin in C, where that can be built."""
    monkeypatch.delenv("HINDMOST_RING_MODULE", raising=False)
    if request.param == "c":
        monkeypatch.setenv("HINDMOST_RING_MODULE", str(build.library("ring")))
    return str(request.param)


IDENTITY = SimpleNamespace(
    job_id="job-1", rank=3, world_size=8, local_rank=1, framework="torch", command="python train.py --größe"
)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[ring.Writer]:
    """A small ring of this process."""
    writer = ring.Writer.create(tmp_path, IDENTITY, "py", capacity=64)
    yield writer
    writer.close()


@pytest.fixture
def loop(tmp_path: Path, written_in: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    """A torch loop that is hooked, in Python and in C."""
    monkeypatch.setattr(errors, "warned", False)
    made = Loop(tmp_path, written_in)
    yield made
    stepping.attach(None)
    made.reader.close()
    made.writer.close()
