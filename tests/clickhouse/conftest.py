"""A stand-in server with the real engine, and a database of its own for each test."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collector.conftest import collecting, collector_process, fake_agent

__all__ = ["collecting", "collector_process", "fake_agent"]


pytest.importorskip("chdb", reason="needs the engine: make test-clickhouse")


class Standin:
    """A server process; ``url`` names a database of it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, 0
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """Serve, on the port that it had before."""
        command = [sys.executable, "-m", "tests.clickhouse.server", str(self._folder), str(self.port)]
        root = Path(__file__).parents[2]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, env=environ)
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        assert self._process
        self._process.kill()
        self._process.wait()

    def url(self, database: str) -> str:
        """What ``--store`` is given."""
        return f"clickhouse://default@127.0.0.1:{self.port}/{database}"


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standin]:
    """One server for all tests."""
    made = Standin(tmp_path_factory.mktemp("clickhouse"))
    yield made
    made.kill()


_numbers = itertools.count()


@pytest.fixture
def url(standin: Standin) -> str:
    """The URL of an unused database."""
    return standin.url(f"test{next(_numbers)}")
