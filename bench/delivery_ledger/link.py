"""The network between an agent and its collector, as a TCP proxy that can be cut and restored."""

import asyncio
import contextlib
import socket
import threading


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
