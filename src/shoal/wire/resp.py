"""The RESP3 client that carries all data traffic: one connection to one Redis or Valkey server.

Owns the connection's life, its bounded write buffer and the order of what it delivers. Never decides: when
to connect again, what to send and what a frame means is the business of the caller. Encoding is in
`shoal.wire.commands`, decoding in `shoal.wire.frames`, the first words in `shoal.wire.handshake`.

    new --open()--> connecting --HELLO and INFO answered--> open --close(), abort(), error, end--> closed
                        |                                                              lost() once
                        +--refused, timed out, cut: open() raises, lost() is never called--> closed

Everything runs on the event loop's thread. A link opens once; to connect again, make another.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast
from weakref import WeakKeyDictionary

from shoal.errors import ConnectError, ProtocolError
from shoal.wire.ask import ask
from shoal.wire.commands import Command, encode_commands
from shoal.wire.frames import FrameReader
from shoal.wire.handshake import (
    HANDSHAKE_REPLIES,
    NO_REDIS,
    ServerIdentity,
    handshake_commands,
    judge_handshake,
)

__all__ = ["Command", "LinkStatistics", "Receiver", "RespLink", "ask", "encode_commands"]

READ_TURN_BYTES: Final = 1 << 17
"""What a link reads in one turn of the event loop at the most."""

_NO_BUFFER: Final = bytearray()
_buffers: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, bytearray]] = WeakKeyDictionary()
"""One for all links of an event loop, so that it stays in the processor's caches: what is read is used up at once."""


class Receiver(Protocol):
    """Who a link reports to. The calls of one link do not nest; none comes before `open` has succeeded."""

    def received(self, frames: list[Any]) -> None:
        """Frames in the order of the wire, at least one.

        An instance of `hiredis.PushNotification` (a list) is a push; everything else is the reply to the
        oldest command that awaits one, a refusal being a `hiredis.ReplyError`. The list is the receiver's to
        keep. If this raises, the link is cut and `lost` is given the exception.
        """

    def lost(self, error: Exception | None) -> None:
        """The connection is gone: once for each link that opened; None if `close` or `abort` ended it."""

    def can_send(self) -> None:
        """The link is writable again after it was not."""


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """What one link has carried since it opened. `commands` does not count what `send_raw` sent; `frames` are
    pushes and replies.
    """

    bytes_in: int
    bytes_out: int
    commands: int
    frames: int


class RespLink(asyncio.BufferedProtocol):
    """One connection to one server: pipelined, bounded, with callbacks instead of streams.

    The methods of `asyncio.BufferedProtocol` are for the event loop only.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        username: str | None,
        password: str | None,
        name: str,
        receiver: Receiver,
        connect_timeout_s: float = 5.0,
        write_buffer_bytes_high: int = 1 << 20,
        write_buffer_bytes_max: int = 1 << 27,
        frame_bytes_max: int = 1 << 26,
        read_slice_bytes: int = 16384,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Prepare a link; `open` connects it.

        Above `write_buffer_bytes_high` unsent bytes the link is not `writable`; what would lift them above
        `write_buffer_bytes_max` is refused. The room between is for commands that cannot wait, such as a
        PING.
        """
        if not 0 < 2 * write_buffer_bytes_high <= write_buffer_bytes_max:
            raise ValueError("write_buffer_bytes_max must be at least twice write_buffer_bytes_high")
        self.host = host
        self.port = port
        self._username = username
        self._password = password
        self._name = name
        self._receiver = receiver
        self._connect_timeout_s = connect_timeout_s
        self._high = write_buffer_bytes_high
        self._max = write_buffer_bytes_max
        self._loop = loop
        self._reader = FrameReader(frame_bytes_max=frame_bytes_max, read_slice_bytes=read_slice_bytes)
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._buffer = _NO_BUFFER
        self._identity: ServerIdentity | None = None
        self._answered: asyncio.Future[list[Any]] | None = None
        self._answers: list[Any] = []
        self._opened = False
        self._usable = False
        self._ended_by_us = False
        self._error: Exception | None = None
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._stalled = False
        self._full = False
        self._paused = False
        self._resting = False
        self._bytes_in = self._bytes_out = self._commands = self._frames = 0

    # -- opening ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, log in, check the server.

        Raises `ConnectError` (unreachable, cut, silent for `connect_timeout_s`), `AuthenticationError`
        (password or missing permission), `ServerTooOldError`, or `ProtocolError` (no Redis server at all).
        """
        if self._answered is not None:
            raise RuntimeError("a link opens once; make another to connect again")
        self._loop = loop = self._loop or asyncio.get_running_loop()
        self._buffer = _buffers.setdefault(loop, bytearray(READ_TURN_BYTES))
        self._answered = loop.create_future()
        try:
            replies = await self._shake_hands(loop, self._answered)
            self._identity = judge_handshake(replies, where=self._where, username=self._username)
            if self._transport is None:
                raise ConnectError(f"{self._where} closed the connection at once")
        except BaseException:
            self._answered.cancel()
            if self._transport is not None:
                self._transport.abort()
            raise
        self._opened = self._usable = True

    async def _shake_hands(self, loop: asyncio.AbstractEventLoop, answered: asyncio.Future[list[Any]]) -> list[Any]:
        """Connect and exchange the first words within `connect_timeout_s`."""
        hello = encode_commands(handshake_commands(self._username, self._password, self._name))
        try:
            async with asyncio.timeout(self._connect_timeout_s) as limit:
                transport, _ = await loop.create_connection(lambda: self, self.host, self.port)
                transport.write(hello)
                return await answered
        except (OSError, UnicodeError) as error:
            if not limit.expired():
                raise ConnectError(f"cannot connect to {self._where}: {error}") from error
            missing = "no connection" if self._transport is None else "connected, but no answer to HELLO"
            raise ConnectError(f"{self._where}: {missing} within {self._connect_timeout_s} s") from error

    @property
    def server_name(self) -> str:
        """`redis` or `valkey`."""
        return self._known_identity.name

    @property
    def server_version(self) -> str:
        """The server's own version, such as `7.0.15`."""
        return self._known_identity.version

    @property
    def run_id(self) -> str:
        """The id of this run of the server: another one means that it was restarted."""
        return self._known_identity.run_id

    @property
    def _known_identity(self) -> ServerIdentity:
        if self._identity is None:
            raise RuntimeError("the server is known only after open()")
        return self._identity

    @property
    def _where(self) -> str:
        return f"{self.host}:{self.port}"

    # -- sending ---------------------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """Whether more should be sent now; after False, `Receiver.can_send` tells when."""
        return self._usable and not self._full

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands in their order; whatever is sent in one turn of the event loop is written at once.

        Raises `ConnectError`, and sends none of them, when the link is not open or when they would lift
        what is unsent above `write_buffer_bytes_max`: the server does not read, and the caller decides
        whether to `abort`.
        """
        self.send_raw(encode_commands(commands))
        self._commands += len(commands)

    def send_now(self, commands: Sequence[Command]) -> None:
        """As `send`, but written at once, behind what is pending: for callers that gather commands themselves."""
        self._enqueue(encode_commands(commands))
        self._commands += len(commands)
        self._flush()

    def send_raw(self, data: bytes) -> None:
        """Send commands that are encoded already; bounds and errors as in `send`."""
        if not self._enqueue(data):
            cast(asyncio.AbstractEventLoop, self._loop).call_soon(self._flush)

    def _enqueue(self, data: bytes) -> bool:
        """Puts data behind what is pending; says whether anything was."""
        if not self._usable:
            raise ConnectError(f"the link to {self._where} is not open")
        pending_bytes = self._pending_bytes + len(data)
        if pending_bytes > self._high or self._stalled:
            self._check_room(pending_bytes)
        self._pending.append(data)
        self._pending_bytes = pending_bytes
        return len(self._pending) > 1

    def _check_room(self, pending_bytes: int) -> None:
        """Above the high-water mark: no longer writable, and refuse what does not fit at all."""
        unsent = pending_bytes + cast(asyncio.Transport, self._transport).get_write_buffer_size()
        if unsent > self._max:
            raise ConnectError(
                f"{unsent} bytes would wait for {self._where}, which reads too slowly",
                do=f"send while the link is writable, or raise write_buffer_bytes_max ({self._max})",
            )
        self._full = True

    def _flush(self) -> None:
        """Hand everything pending to the transport in one write."""
        pending = self._pending
        if not pending or self._transport is None:
            return
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        pending.clear()
        self._pending_bytes = 0
        self._bytes_out += len(data)
        self._write(self._transport, data)
        self._tell_writable()

    def _write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Writes to the socket itself when nothing is ahead: a transport of uvloop would wait for its loop's next turn.

        What the socket does not take, and every error, is the transport's.
        """
        if not transport.get_write_buffer_size():
            try:
                written = os.write(self._fd, data)
            except OSError:
                written = 0
            if written == len(data):
                return
            data = data[written:]
        transport.write(data)

    def _tell_writable(self) -> None:
        """Tell the receiver if the link has become writable again."""
        if self._full and not self._stalled and self._usable and self._pending_bytes <= self._high:
            self._full = False
            self._receiver.can_send()

    # -- receiving and ending --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop reading; what has been read already (one read at most) is still delivered.

        While paused, the end of the connection is noticed by sending only.
        """
        self._paused = self._usable
        self._read_or_not()

    def resume(self) -> None:
        """Read on after `pause`."""
        self._paused = False
        self._read_or_not()

    def _rest(self) -> None:
        """Reads on in the loop's next turn only: an event loop may read again and again while there is more, and
        whoever is to use what was read would not get a turn.
        """
        if not self._resting:
            self._resting = True
            self._read_or_not()
            cast(asyncio.AbstractEventLoop, self._loop).call_soon(self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._read_or_not()

    def _read_or_not(self) -> None:
        if self._usable:
            transport = cast(asyncio.Transport, self._transport)
            if self._paused or self._resting:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def close(self) -> None:
        """Send what is pending, then end the connection; nothing is delivered any more.

        It takes as long as the server takes to read: a caller that cannot wait calls `abort` later.
        """
        if self._usable:
            self._usable = False
            self._ended_by_us = True
            self._flush()
            cast(asyncio.Transport, self._transport).close()

    def abort(self) -> None:
        """End the connection now; what is pending is dropped, nothing is delivered any more."""
        if self._opened and self._transport is not None:
            self._usable = False
            self._ended_by_us = True
            self._pending.clear()
            self._transport.abort()

    def statistics(self) -> LinkStatistics:
        """What the link has carried so far."""
        return LinkStatistics(self._bytes_in, self._bytes_out, self._commands, self._frames)

    # -- called by the event loop ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the socket: no delay for small writes, and our own high-water mark."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._high, low=self._high // 4)
        connected = transport.get_extra_info("socket")
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._fd = connected.fileno()

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where the next read goes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Deliver what has come, slice by slice."""
        try:
            if not self._opened:
                self._collect_answers(nbytes)
                return
            self._bytes_in += nbytes
            for frames in self._reader.read(self._buffer, nbytes):
                if not self._usable:
                    return
                self._frames += len(frames)
                self._receiver.received(frames)
            if nbytes == READ_TURN_BYTES:
                self._rest()
        except Exception as error:
            self._fail(error)

    def _collect_answers(self, nbytes: int) -> None:
        """The replies of the handshake; anything that follows them unasked is no RESP3."""
        for frames in self._reader.read(self._buffer, nbytes):
            self._answers += frames
        if len(self._answers) > HANDSHAKE_REPLIES:
            raise ProtocolError(f"{self._where} sent more than it was asked for", do=NO_REDIS)
        answered = self._answered
        if len(self._answers) == HANDSHAKE_REPLIES and answered is not None and not answered.done():
            answered.set_result(self._answers)

    def pause_writing(self) -> None:
        """The transport holds more than the high-water mark."""
        self._stalled = self._full = True

    def resume_writing(self) -> None:
        """The transport has room again."""
        self._stalled = False
        self._tell_writable()

    def eof_received(self) -> None:
        """The server ends the connection: whatever is unsent will never be read."""
        self._fail(ConnectError(f"{self._where} closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: `open` raises, or the receiver is told."""
        self._usable = False
        self._transport = None
        self._pending.clear()
        error = self._error
        if error is None and exc is not None:
            error = ConnectError(f"the connection to {self._where} broke: {exc}")
            error.__cause__ = exc
        if self._opened:
            self._receiver.lost(error)
        elif self._answered is not None and not self._answered.done():
            self._answered.set_exception(error or ConnectError(f"{self._where} closed the connection"))

    def _fail(self, error: Exception) -> None:
        """End the connection because of an error; the receiver or the caller of `open` will be given it."""
        if self._error is None and not self._ended_by_us:
            self._error = error
        self._usable = False
        self._pending.clear()
        if self._transport is not None:
            self._transport.abort()
