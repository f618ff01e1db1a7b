"""One TCP connection to one Redis or Valkey server: all traffic with servers goes through it.

Owns opening and closing, its bounded write buffer, the pace of reading and the order of what it delivers. It never
decides when to connect again or what a frame means. Opening is in `shoal.wire.dial`, encoding in
`shoal.wire.commands`, decoding in `shoal.wire.frames`, the handshake in `shoal.wire.handshake`.

What arrives after the handshake is delivered in one of three ways, chosen by the receiver:

    receiver=Receiver(...)    frames: replies and pushes, as objects (clients, links between servers)
    raw=RawReceiver(...)      bytes, in batches (the agent, whose scanner makes no objects of them)
    neither                   answers: `await connection.ask(...)` returns replies; other pushes go to `pushed`

    new --open()--> connecting --answered--> open --close(), abort(), error, end--> closed
                        |                                               lost() once
                        +--refused, timed out, cut: open() raises, lost() is never called--> closed

Everything runs on the event loop's thread. A connection opens once; to connect again, make another.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self, cast
from weakref import WeakKeyDictionary

import hiredis

from shoal.errors import ConnectError, ProtocolError
from shoal.wire.answers import Answers
from shoal.wire.commands import Command, Request, encode_commands, encode_requests
from shoal.wire.dial import Dial
from shoal.wire.frames import FrameReader
from shoal.wire.handshake import NO_REDIS, ServerIdentity, handshake_commands, judge_handshake

READ_TURN_BYTES: Final = 1 << 17
"""Most bytes that a connection reads in one turn of the event loop."""

READ_BATCH_BYTES: Final = 65536
READ_PAUSE_S: Final = 0.001
"""Raw bytes: after a read of less than `READ_BATCH_BYTES` the next one waits this long, so that a thousand messages a
second cost a thousand wake-ups at most, and forty thousand no more. A message after a quiet moment is read at once.
"""

_NO_BUFFER: Final = bytearray()
_buffers: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, bytearray]] = WeakKeyDictionary()
"""One read buffer for all connections of an event loop, so that it stays in the processor's caches. Every read is used
up before the next.
"""


class Receiver(Protocol):
    """Receives frames. The calls of one connection do not nest; none comes before `open` has succeeded."""

    def received(self, frames: list[Any]) -> None:
        """Frames in the order of the wire, at least one.

        An instance of `hiredis.PushNotification` (a list) is a push; everything else is the reply to the
        oldest command that awaits one, a refusal being a `hiredis.ReplyError`. The list is the receiver's to
        keep. If this raises, the connection is cut and `lost` is given the exception.
        """

    def lost(self, error: Exception | None) -> None:
        """The connection is gone: once for each connection that opened; None if `close` or `abort` ended it."""

    def can_send(self) -> None:
        """The connection is writable again after it was not."""


class RawReceiver(Protocol):
    """Receives bytes; apart from that as `Receiver`."""

    def received(self, data: bytes) -> None:
        """Bytes in the order of the wire, at least one. If this raises, the connection is cut."""

    def lost(self, error: Exception | None) -> None:
        """The connection is gone."""

    def can_send(self) -> None:
        """The connection is writable again after it was not."""


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """What one connection has carried since it opened. `frames` are pushes and replies; there are none in raw bytes."""

    bytes_in: int
    bytes_out: int
    commands: int
    frames: int


class Connection(asyncio.BufferedProtocol):
    """One connection to one server: pipelined and bounded. `async with` opens it, and aborts it at the end.

    The methods of `asyncio.BufferedProtocol` are for the transport only.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        username: str | None,
        password: str | None,
        name: str,
        dial: Dial,
        receiver: Receiver | None = None,
        raw: RawReceiver | None = None,
        pushed: Callable[[list[Any]], None] | None = None,
        identify: bool = False,
        connect_timeout_s: float = 5.0,
        answer_timeout_s: float = 5.0,
        write_buffer_bytes_high: int = 1 << 20,
        write_buffer_bytes_max: int = 1 << 27,
        frame_bytes_max: int = 1 << 26,
        read_slice_bytes: int = 16384,
    ) -> None:
        """Prepare a connection; `open` connects it.

        `identify` asks the server for its `run_id`, which takes the right to INFO. Above
        `write_buffer_bytes_high` unsent bytes the connection is not `writable`; commands that would lift them above
        `write_buffer_bytes_max` are refused. The room between is for commands that cannot wait, such as a PING.
        """
        if not 0 < 2 * write_buffer_bytes_high <= write_buffer_bytes_max:
            raise ValueError("write_buffer_bytes_max must be at least twice write_buffer_bytes_high")
        if sum(given is not None for given in (receiver, raw, pushed)) > 1:
            raise ValueError("receiver, raw and pushed exclude each other")
        self.host = host
        self.port = port
        self.ended = asyncio.Event()
        """Set when the connection is gone."""
        self._username = username
        self._hello = handshake_commands(username, password, name, identify=identify)
        self._answers = Answers(self._where, pushed) if receiver is None and raw is None else None
        self._receiver: Receiver | None = receiver or self._answers
        self._raw = raw
        self._dial = dial
        self._connect_timeout_s = connect_timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._high = write_buffer_bytes_high
        self._max = write_buffer_bytes_max
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reader = FrameReader(frame_bytes_max=frame_bytes_max, read_slice_bytes=read_slice_bytes)
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self._buffer = _NO_BUFFER
        self._identity: ServerIdentity | None = None
        self._greeted: asyncio.Future[list[Any]] | None = None
        self._greetings: list[Any] = []
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
        if self._greeted is not None:
            raise RuntimeError("a connection opens once; make another to connect again")
        self._loop = loop = asyncio.get_running_loop()
        self._buffer = _shared_buffer(loop)
        self._greeted = loop.create_future()
        try:
            replies = await self._shake_hands(self._greeted)
            self._identity = judge_handshake(replies, where=self._where, username=self._username)
            if self._transport is None:
                raise ConnectError(f"{self._where} closed the connection at once")
        except BaseException:
            self._greeted.cancel()
            if self._transport is not None:
                self._transport.abort()
            raise
        self._opened = self._usable = True

    async def _shake_hands(self, greeted: asyncio.Future[list[Any]]) -> list[Any]:
        """Connect and do the handshake within `connect_timeout_s`."""
        try:
            async with asyncio.timeout(self._connect_timeout_s) as limit:
                transport = await self._dial(lambda: self, self.host, self.port)
                transport.write(encode_commands(self._hello))
                return await greeted
        except (OSError, UnicodeError) as error:
            if not limit.expired():
                raise ConnectError(f"cannot connect to {self._where}: {error}") from error
            missing = "no connection" if self._transport is None else "connected, but no answer to HELLO"
            raise ConnectError(f"{self._where}: {missing} within {self._connect_timeout_s} s") from error

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

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
        """The id of this run of the server, if it was asked for: another one means that it was restarted."""
        run_id = self._known_identity.run_id
        if run_id is None:
            raise RuntimeError("the run of a server is known only with identify=True")
        return run_id

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
    def usable(self) -> bool:
        """Whether commands can be sent: it is open and has not begun to end."""
        return self._usable

    @property
    def writable(self) -> bool:
        """Whether more should be sent now; after False, `Receiver.can_send` tells when."""
        return self._usable and not self._full

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands in their order; commands sent in one turn of the event loop are written together.

        Raises `ConnectError`, and sends none of them, when the connection is not open or when they would lift
        what is unsent above `write_buffer_bytes_max`: the server does not read, and the caller decides
        whether to `abort`.
        """
        if not self._enqueue(encode_commands(commands)):
            cast(asyncio.AbstractEventLoop, self._loop).call_soon(self._flush)
        self._commands += len(commands)

    def send_now(self, commands: Sequence[Command]) -> None:
        """As `send`, but written at once, behind what is pending: for callers that gather commands themselves."""
        self._enqueue(encode_commands(commands))
        self._commands += len(commands)
        self._flush()

    async def ask(self, *requests: Request, timeout_s: float | None = None) -> list[Any]:
        """Send requests together and return their replies in order; the first refusal among them is raised.

        Raises `hiredis.ReplyError` (a refusal, once all replies have come), or `ConnectError` when the connection is
        not open, is lost or gives no answer within `timeout_s` (None: `answer_timeout_s`), which ends it. Several
        callers may ask at a time, and one that is cancelled leaves the connection in order. SUBSCRIBE and its kin take
        one channel each here.
        """
        if self._answers is None:
            raise RuntimeError("a connection with a receiver does not ask")
        loop = cast(asyncio.AbstractEventLoop, self._loop)
        self._enqueue(encode_requests(requests))
        answered: asyncio.Future[list[Any]] = loop.create_future()
        self._answers.expect(len(requests), answered)
        self._commands += len(requests)
        self._flush()
        patience_s = self._answer_timeout_s if timeout_s is None else timeout_s
        timer = loop.call_later(patience_s, self._give_up, patience_s)
        try:
            replies = await answered
        finally:
            timer.cancel()
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise reply
        return replies

    def _give_up(self, patience_s: float) -> None:
        self._fail(ConnectError(f"{self._where} has not answered within {patience_s:g} s"))

    def _enqueue(self, data: bytes) -> bool:
        """Put data behind what is pending; say whether anything was."""
        if not self._usable:
            why = f" ({self._error})" if self._error is not None else ""
            raise ConnectError(f"the connection to {self._where} is not open{why}")
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
                do=f"send while the connection is writable, or raise write_buffer_bytes_max ({self._max})",
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
        """Write to a plain socket itself when nothing is ahead: a transport of uvloop would wait for its loop's next
        turn.

        What the socket does not take, and every error, is the transport's.
        """
        if self._fd >= 0 and not transport.get_write_buffer_size():
            try:
                written = os.write(self._fd, data)
            except OSError:
                written = 0
            if written == len(data):
                return
            data = data[written:]
        transport.write(data)

    def _tell_writable(self) -> None:
        """Tell the receiver if the connection has become writable again."""
        if self._full and not self._stalled and self._usable and self._pending_bytes <= self._high:
            self._full = False
            cast(Receiver | RawReceiver, self._receiver or self._raw).can_send()

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

    def _rest(self, pause_s: float) -> None:
        """Stop reading for a while, at least until the loop's next turn: an event loop may read again and again while
        there is more, and the consumers of what was read would not get a turn.
        """
        if not self._resting:
            self._resting = True
            self._read_or_not()
            loop = cast(asyncio.AbstractEventLoop, self._loop)
            if pause_s:
                loop.call_later(pause_s, self._rested)
            else:
                loop.call_soon(self._rested)

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

    def abort(self, error: Exception | None = None) -> None:
        """End the connection now; what is pending is dropped, nothing is delivered any more but `error` to `lost`."""
        if self._opened and self._transport is not None:
            if error is not None:
                self._fail(error)
                return
            self._usable = False
            self._ended_by_us = True
            self._pending.clear()
            self._transport.abort()

    @property
    def error(self) -> Exception | None:
        """Why the connection ended, if not by `close` or `abort`."""
        return self._error

    def statistics(self) -> ConnectionStatistics:
        """What the connection has carried so far."""
        return ConnectionStatistics(self._bytes_in, self._bytes_out, self._commands, self._frames)

    # -- called by the transport -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set our own high-water mark, and look for a socket that may be written to directly."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._high, low=self._high // 4)
        plain = transport.get_extra_info("ssl_object") is None
        connected = transport.get_extra_info("socket") if plain else None
        self._fd = -1 if connected is None else connected.fileno()

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where the next read goes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Deliver what has come: frames slice by slice, raw bytes as they are."""
        try:
            if not self._opened:
                self._collect_greetings(nbytes)
                return
            self._bytes_in += nbytes
            receiver = self._receiver
            if receiver is None:
                self._deliver_raw(nbytes)
                return
            for frames in self._reader.read(self._buffer, nbytes):
                if not self._usable:
                    return
                self._frames += len(frames)
                receiver.received(frames)
            if nbytes == READ_TURN_BYTES and self._answers is None:  # a request waits for the whole answer anyway
                self._rest(0.0)
        except Exception as error:
            self._fail(error)

    def _deliver_raw(self, nbytes: int) -> None:
        """Deliver bytes, and rest a moment if they were few."""
        if self._usable:
            cast(RawReceiver, self._raw).received(memoryview(self._buffer)[:nbytes].tobytes())
            if nbytes < READ_BATCH_BYTES:
                self._rest(READ_PAUSE_S)
            elif nbytes == READ_TURN_BYTES:
                self._rest(0.0)

    def _collect_greetings(self, nbytes: int) -> None:
        """The replies of the handshake; anything that follows them unasked is no RESP3."""
        for frames in self._reader.read(self._buffer, nbytes):
            self._greetings += frames
        if len(self._greetings) > len(self._hello):
            raise ProtocolError(f"{self._where} sent more than it was asked for", do=NO_REDIS)
        greeted = self._greeted
        if len(self._greetings) == len(self._hello) and greeted is not None and not greeted.done():
            greeted.set_result(self._greetings)

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
        if self._error is None and exc is not None:
            self._error = ConnectError(f"the connection to {self._where} broke: {exc}")
            self._error.__cause__ = exc
        self.ended.set()
        if self._opened:
            cast(Receiver | RawReceiver, self._receiver or self._raw).lost(self._error)
        elif self._greeted is not None and not self._greeted.done():
            self._greeted.set_exception(self._error or ConnectError(f"{self._where} closed the connection"))

    def _fail(self, error: Exception) -> None:
        """End the connection because of an error; the receiver or the caller of `open` will be given it."""
        if self._error is None and not self._ended_by_us:
            self._error = error
        self._usable = False
        self._pending.clear()
        if self._transport is not None:
            self._transport.abort()


def _shared_buffer(loop: asyncio.AbstractEventLoop) -> bytearray:
    """The read buffer of an event loop."""
    buffer = _buffers.get(loop)
    if buffer is None:
        buffer = _buffers[loop] = bytearray(READ_TURN_BYTES)
    return buffer
