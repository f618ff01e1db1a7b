"""A proxy for a Redis server that cuts connections at a chosen command: before it, after it, or in its reply.

It counts the commands of all connections together, so a test can say "at the third command from now". Subscribed
connections are forwarded uncounted, because their commands depend on the timing of notifications.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

READ_BYTES = 65_536


class Kind(Enum):
    """The kinds of disturbance at a command."""

    PAUSE = "pause"
    """The command is delayed while other clients write."""
    BEFORE = "before"
    """The command is lost and the connection is cut."""
    AFTER = "after"
    """The server runs the command; its reply is lost and the connection is cut."""
    MID_REPLY = "mid-reply"
    """As above, but part of the reply arrives."""
    LATE = "late"
    """The connection is cut, and the command reaches the server much later."""


@dataclass(slots=True)
class Cut:
    """A disturbance at the `at`-th command after the previous one; with `disturb`, other clients write at that
    moment.
    """

    at: int
    kind: Kind
    disturb: bool = False


def _line_end(data: bytes, start: int) -> int:
    end = data.find(b"\r\n", start)
    return -1 if end < 0 else end + 2


def item_end(data: bytes, start: int = 0) -> int:
    """Return the end of the RESP item (either version) that begins at `start`; -1 if it is incomplete."""
    end = _line_end(data, start)
    if end < 0:
        return -1
    mark, head = data[start : start + 1], data[start + 1 : end - 2]
    if mark in b"$=!" and head != b"-1":
        end += int(head) + 2
        return end if end <= len(data) else -1
    if mark in b"*~>%" and head != b"-1":
        for _ in range(int(head) * (2 if mark == b"%" else 1)):
            end = item_end(data, end)
            if end < 0:
                return -1
    return end


class Splitter:
    """Splits a stream of bytes into RESP items."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._data += data
        while self._data and (end := item_end(self._data)) > 0:
            item, self._data = self._data[:end], self._data[end:]
            yield item


class Connection:
    """One client connection and its connection to the server."""

    def __init__(self, proxy: CutProxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.subscribed = False
        self.closed = False
        self._sent = 0
        self._answered = 0
        self._lost_from: int | None = None
        """Number of the first reply that the client does not get; of that one it gets `_mid_bytes`."""
        self._mid_bytes = 0
        self._progress = asyncio.Event()

    async def command(self, item: bytes) -> None:
        """Handle a command from the client."""
        if b"SUBSCRIBE" in item[:40].upper():
            self.subscribed = True
        cut = None if self.subscribed else self.proxy.next_cut()
        if cut is None:
            self.forward(item)
            return
        if cut.kind in (Kind.AFTER, Kind.MID_REPLY):
            self._lost_from = self._sent + 1
            self._mid_bytes = int(cut.kind is Kind.MID_REPLY)
            self.forward(item)
        await self.all_answered()
        if cut.disturb:
            await self.proxy.disturb_now()
        self.proxy.fired[cut.kind] += 1
        if cut.kind is Kind.PAUSE:
            self.forward(item)
            return
        if cut.kind is Kind.LATE:
            self.client.transport.abort()
            self.proxy.late.append((self, item))
        else:
            self.close()
        self.proxy.cut_done()

    def forward(self, item: bytes) -> None:
        self._sent += 1
        self.server.write(item)

    def reply(self, item: bytes) -> None:
        """Handle a reply from the server."""
        if not item.startswith(b">"):
            self._answered += 1
        if self._lost_from is None or self._answered < self._lost_from:
            self.client.write(item)
        elif self._answered == self._lost_from and self._mid_bytes:
            self.client.write(item[: max(1, len(item) // 2)])
        self._progress.set()

    async def all_answered(self) -> None:
        """Wait until the server has run all commands sent to it."""
        while self._answered < self._sent and not self.closed and not self.subscribed:
            self._progress.clear()
            await self._progress.wait()

    def close(self) -> None:
        self.closed = True
        self._progress.set()
        self.client.close()
        self.server.close()


class CutProxy:
    """Listens on its own port and forwards everything to `port`, except where `plan` cuts."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.plan: list[Cut] = []
        self.disturb: Callable[[], Awaitable[None]] | None = None
        """Called once, at a cut with `disturb`: the writes of other clients."""
        self.outage = False
        """Whether connections keep failing after the last cut."""
        self.down = False
        self.late: list[tuple[Connection, bytes]] = []
        self.fired: Counter[Kind] = Counter()
        self._server_port = port
        self._connections: list[Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._accepted: set[tuple[str, int]] = set()
        self._one_accepted = asyncio.Event()
        self._round = 0
        """Connections of earlier rounds are ignored."""
        self._commands = asyncio.Lock()
        """Held while a command is handled, so that a test can wait for it."""

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        self.late.clear()
        self.cut_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def next_cut(self) -> Cut | None:
        """Return the disturbance at this command, if any."""
        if not self.plan:
            return None
        self.plan[0].at -= 1
        return self.plan.pop(0) if self.plan[0].at == 0 else None

    async def disturb_now(self) -> None:
        disturb, self.disturb = self.disturb, None
        if disturb is not None:
            await disturb()

    def cut_done(self) -> None:
        """Record a cut; if it was the last one before an outage, the server is unreachable from now on."""
        if self.outage and not self.plan:
            self.down = True
            self.cut_all()

    def cut_all(self) -> None:
        """Cut all connections. Delayed commands stay in flight."""
        kept = [connection for connection in self._connections if self._is_late(connection)]
        for connection in self._connections:
            if connection not in kept:
                connection.close()
        self._connections = kept

    async def settle(self, *, given_up: bool = False) -> None:
        """End an outage, let delayed commands reach the server, and wait until it has run everything.

        A client that has given up may have sent commands that the proxy has not read yet; they are lost.
        """
        self.plan, self.outage, self.down = [], False, False
        self.disturb = None
        if given_up:
            await self._accept_all()
        async with self._commands:
            late, self.late = self.late, []
            for connection, item in late:
                if not connection.closed:
                    connection.forward(item)
            for connection in list(self._connections):
                await connection.all_answered()
            for connection, _ in late:
                connection.close()
            if given_up:
                self._round += 1
                self.cut_all()

    async def _accept_all(self) -> None:
        """Wait until all earlier connections have been accepted (they are accepted in order)."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        name = writer.get_extra_info("sockname")
        while name not in self._accepted:
            self._one_accepted.clear()
            await self._one_accepted.wait()
        self._accepted.clear()
        writer.close()

    def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self._accepted.add(client.get_extra_info("peername"))
        self._one_accepted.set()
        if self.down:
            client.transport.abort()
        else:
            self._start(self._connect(reader, client))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        round_ = self._round
        server_reader, server = await asyncio.open_connection("127.0.0.1", self._server_port)
        connection = Connection(self, client, server)
        if round_ != self._round:
            connection.close()
            return
        self._connections.append(connection)
        self._start(self._requests(connection, client_reader))
        self._start(self._replies(connection, server_reader))

    async def _requests(self, connection: Connection, reader: asyncio.StreamReader) -> None:
        splitter = Splitter()
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                for item in splitter.feed(data):
                    async with self._commands:
                        if self._is_late(connection):
                            self.late.append((connection, item))
                        elif not connection.closed:
                            await connection.command(item)
        if not self._is_late(connection):
            connection.close()

    async def _replies(self, connection: Connection, reader: asyncio.StreamReader) -> None:
        splitter = Splitter()
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                for item in splitter.feed(data):
                    connection.reply(item)
        connection.close()

    def _is_late(self, connection: Connection) -> bool:
        return any(one is connection for one, _ in self.late)
