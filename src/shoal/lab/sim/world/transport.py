"""Connections of shipped code in the simulator: an asyncio transport on a simulated link.

Owns: the translation between a link's ends and the callbacks of an asyncio protocol, and the `dial` that a simulated
process opens connections with. Never touches: what the bytes mean.

Callbacks of a protocol run as turns of its process's loop, and never while the process is paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from shoal.lab.sim.world.link import LinkEnd
from shoal.lab.sim.world.loop import SimLoop
from shoal.lab.sim.world.network import Network


class Tap(Protocol):
    """Observes the connections of one process."""

    def wrote(self, peer: str, data: bytes) -> None:
        """The process writes to its connection to `peer`."""

    def ended(self, peer: str) -> None:
        """The process has closed its connection to `peer`, or learns that it is lost."""


class SimTransport(asyncio.Transport):
    """One open connection of a process."""

    def __init__(self, loop: SimLoop, end: LinkEnd, protocol: asyncio.BaseProtocol, tap: Tap | None) -> None:
        super().__init__()
        self._loop = loop
        self._end = end
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self._tap = tap
        self._peer = end.peer.node.name
        self._closing = False
        self._reading = True
        self._high = 65_536
        self._low = 16_384
        self._writing_paused = False
        end.handler = self
        end.on_drain = self._drained

    # -- what the protocol calls -------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The peer's name and port; there is no socket."""
        return (self._peer, 1) if name == "peername" else default

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol that gets the data."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replaces the protocol."""
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def is_closing(self) -> bool:
        """Whether the connection is closed or lost."""
        return self._closing

    def is_reading(self) -> bool:
        """Whether data is read."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """Stops reading until `resume_reading`."""
        if self._reading and not self._closing:
            self._reading = False
            self._end.pause_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        if not self._reading and not self._closing:
            self._reading = True
            self._end.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The protocol is told to pause writing above `high` unsent bytes, and to resume at `low`."""
        self._high = 65_536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Low and high."""
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken."""
        return self._end.unsent_bytes

    def can_write_eof(self) -> bool:
        """No."""
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Sends bytes. After the end of the connection they are dropped."""
        if self._closing or self._loop.dead:
            return
        sent = bytes(data)
        if self._tap is not None:
            self._tap.wrote(self._peer, sent)
        self._end.send(sent)
        if not self._writing_paused and self._end.unsent_bytes > self._high:
            self._writing_paused = True
            self._protocol.pause_writing()

    def close(self) -> None:
        """Closes the connection after the bytes written so far."""
        if not self._closing:
            self._over()
            self._end.close()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        """Aborts the connection."""
        if not self._closing:
            self._over()
            self._end.abort()
            self._loop.call_soon(self._protocol.connection_lost, None)

    # -- what the link calls -----------------------------------------------------------------------------------------

    def received(self, end: LinkEnd, data: bytes) -> None:
        """Bytes arrived."""
        self._loop.run(self._deliver, data)

    def lost(self, end: LinkEnd, reason: str) -> None:
        """The connection has ended: closed by the peer, reset, or timed out."""
        self._loop.run(self._end_reading, reason)

    def _deliver(self, data: bytes) -> None:
        protocol: Any = self._protocol
        if not self._buffered:
            protocol.data_received(data)
            return
        while data and not self._closing:
            size = len(data)
            buffer = protocol.get_buffer(size)
            if size <= len(buffer):
                buffer[:size] = data
                protocol.buffer_updated(size)
                return
            count = len(buffer)
            buffer[:] = data[:count]
            protocol.buffer_updated(count)
            data = data[count:]

    def _end_reading(self, reason: str) -> None:
        if self._closing:
            return
        self._over()
        protocol: Any = self._protocol
        error: OSError | None = None
        if reason == "closed":
            protocol.eof_received()
        elif reason == "reset":
            error = ConnectionResetError(104, "Connection reset by peer")
        else:
            error = TimeoutError(110, "Connection timed out")
        protocol.connection_lost(error)

    def _over(self) -> None:
        self._closing = True
        if self._tap is not None:
            self._tap.ended(self._peer)

    def _drained(self) -> None:
        if self._writing_paused and self._end.unsent_bytes <= self._low:
            self._writing_paused = False
            self._loop.call_soon(self._tell_drained)

    def _tell_drained(self) -> None:
        if not self._closing and not self._writing_paused:
            self._protocol.resume_writing()


class _Attempt:
    """A connection attempt, until it succeeds or fails."""

    def __init__(self, loop: SimLoop, made: asyncio.Future[LinkEnd]) -> None:
        self._loop = loop
        self._made = made

    def connected(self, end: LinkEnd) -> None:
        self._loop.run(self._settle, end, None)

    def failed(self, reason: str) -> None:
        error = ConnectionRefusedError(111, "Connection refused") if reason == "refused" else TimeoutError(110, reason)
        self._loop.run(self._settle, None, error)

    def _settle(self, end: LinkEnd | None, error: OSError | None) -> None:
        if self._made.done():
            if end is not None:
                end.abort()
        elif error is not None:
            self._made.set_exception(error)
        elif end is not None:
            end.pause_reading()  # until there is a protocol
            self._made.set_result(end)

    def received(self, end: LinkEnd, data: bytes) -> None:
        raise AssertionError("nothing is read before there is a transport")

    def lost(self, end: LinkEnd, reason: str) -> None:
        """The transport, which comes in the next turn, finds the end closed."""


class SimDial:
    """Opens connections for one process: the `dial` of shipped code."""

    def __init__(self, network: Network, loop: SimLoop, tap: Tap | None = None) -> None:
        self._network = network
        self._loop = loop
        self._tap = tap

    async def __call__(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> asyncio.Transport:
        """Connects to the node of that name. Raises OSError if that fails."""
        made: asyncio.Future[LinkEnd] = self._loop.create_future()
        attempt = self._network.connect(self._loop.node, host, _Attempt(self._loop, made))
        try:
            end = await made
        except asyncio.CancelledError:
            attempt.cancel()
            raise
        if not end.open:
            raise ConnectionResetError(104, "Connection reset by peer")
        protocol = protocol_factory()
        transport = SimTransport(self._loop, end, protocol, self._tap)
        protocol.connection_made(transport)
        end.resume_reading()
        return transport
