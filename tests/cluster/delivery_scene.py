"""A real collector, a real agent and two training processes, with a link between them that can be cut."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hindmost_collector.store.parquet import segments


class Link:
    """Forwards every connection to ``target`` until it is cut. Lives in a thread of its own.

    While it is cut nothing passes and no side notices, as when a cable is pulled. Established connections stay, and
    what was in flight arrives late, after the link is restored, like a network's retransmissions.
    """

    def __init__(self) -> None:
        self.target = 0
        self._whole = asyncio.Event()
        self._whole.set()
        self._loop = asyncio.new_event_loop()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Nothing passes from now on."""
        self._loop.call_soon_threadsafe(self._whole.clear)

    def restore(self) -> None:
        """Everything passes again."""
        self._loop.call_soon_threadsafe(self._whole.set)

    def close(self) -> None:
        """End the thread and all connections; safe to call twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listening))
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._listening.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # at the end; the server would complain
            await self._forward(reader, writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        try:
            onward = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:  # no server listens there: refuse the client too
            writer.close()
            return
        await asyncio.gather(self._pass(reader, onward[1]), self._pass(onward[0], writer))

    async def _pass(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await self._whole.wait()
                to.write(data)
                await to.drain()
        await self._whole.wait()
        to.close()


ROOT = Path(__file__).resolve().parents[2]
RANKS = 2
#: Until a scene takes it for a hang: a busy machine is no failure.
PATIENCE_S = 300.0
#: The tables whose rows an agent counts as samples: the others hold what defines them.
COUNTED = ("metrics", "steps", "collectives", "intervals", "rank_states", "stacks")


class Scene:
    """Everything below one folder; ``close`` ends all of it."""

    def __init__(self, folder: Path) -> None:
        self.run, self.rings, self.spool = folder / "run", folder / "rings", folder / "spool"
        self.link = Link()
        self._errors = (folder / "errors.log").open("ab")
        self._ranks: list[subprocess.Popen[str]] = []
        self._started: list[subprocess.Popen[str]] = []
        self.collector = self.start_collector()
        self.agent = self.start_agent()

    def start_collector(self) -> subprocess.Popen[str]:
        """A collector on this scene's run directory; the link leads to it from now on."""
        process = self._hindmost(
            "collector", "--listen", "127.0.0.1:0", "--out", str(self.run), "--exit-when-stdin-closes"
        )
        self.link.target = int(_line(process)["grpc"].rpartition(":")[2])
        self.collector = process
        return process

    def start_agent(self) -> subprocess.Popen[str]:
        """An agent on this scene's rings and spool."""
        where = ("--ring-dir", str(self.rings), "--spool", str(self.spool), "--job-id", "ledger")
        address = f"127.0.0.1:{self.link.port}"
        self.agent = self._hindmost("agent", "--collector", address, *where, "--exit-when-stdin-closes")
        _line(self.agent)
        return self.agent

    def start_ranks(self, rate: float) -> None:
        """Training begins: ``rate`` steps a second a rank."""
        script = str(Path(__file__).with_name("delivery_rank.py"))
        self._ranks = [self._python(script, str(self.rings), str(rank), str(rate)) for rank in range(RANKS)]

    def end_ranks(self) -> list[int]:
        """Training ends: how many steps each rank marked."""
        return [int(rank.communicate(timeout=PATIENCE_S)[0]) for rank in self._ranks]

    def deliver(self) -> dict[str, Any]:
        """Let the agent leave, and where it ran out of time the next one, until nothing is kept: the last account."""
        account = self.end_agent()
        deadline = time.monotonic() + PATIENCE_S
        while account["kept"] and time.monotonic() < deadline:
            self.start_agent()
            account = self.end_agent()
        return account

    def end_agent(self) -> dict[str, Any]:
        """Let the agent leave in order: its account of samples."""
        said, _ = self.agent.communicate(timeout=PATIENCE_S)
        account: dict[str, Any] = json.loads(said.splitlines()[-1])["samples"]
        return account

    def end_collector(self) -> None:
        """Let the collector write what it has, judge and leave."""
        self.collector.communicate(timeout=PATIENCE_S)

    def kill(self, process: subprocess.Popen[str]) -> None:
        """``kill -9``: nothing is said or written in order."""
        process.send_signal(signal.SIGKILL)
        process.communicate()

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait for something that must come. Raises ``AssertionError`` when it does not in time."""
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline, f"did not happen within {PATIENCE_S:.0f} s: {what}"
            time.sleep(0.2)

    def spooled(self) -> int:
        """Bytes in the agent's spool."""
        return sum(path.stat().st_size for path in self.spool.glob("*.spool"))

    def table(self, name: str) -> pa.Table:
        """What is stored of one table, at this moment."""
        return segments.read_table(self.run / "segments" / name, name)[0]

    def last_step(self) -> int:
        """The highest step that is stored of every rank."""
        steps = self.table("steps")
        last = [pc.max(steps.filter(pc.equal(steps["rank"], rank))["step"]).as_py() for rank in range(RANKS)]
        return min(step or 0 for step in last)

    def moves_on(self) -> None:
        """Wait until more steps are stored than now."""
        before = self.last_step()
        self.until(lambda: self.last_step() > before, f"a step after {before} is stored")

    def close(self) -> None:
        """End whatever still runs."""
        for process in self._started:
            process.kill()
            process.wait()
        self.link.close()
        self._errors.close()

    def _hindmost(self, *arguments: str) -> subprocess.Popen[str]:
        return self._python("-m", "hindmost", *arguments)

    def _python(self, *arguments: str) -> subprocess.Popen[str]:
        environ = {**os.environ, "PYTHONPATH": ":".join(str(ROOT / part) for part in ("agent", "collector", "proto"))}
        process = subprocess.Popen(
            [sys.executable, *arguments], env=environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors,
        )  # fmt: skip
        self._started.append(process)
        return process


def _line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"ended before it was ready: {process.args}"
    said: dict[str, Any] = json.loads(line)
    return said
