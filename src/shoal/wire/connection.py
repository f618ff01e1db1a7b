"""One connection to one Redis or Valkey server. All traffic with servers uses it.

Owns opening and closing, the bounded write buffer, the pace of reading and the order of delivery. It never decides when
to reconnect and never interprets a frame. Dialling is in `shoal.wire.dial`, encoding in `shoal.wire.commands`, decoding
in `shoal.wire.frames`, the handshake in `shoal.wire.handshake`.

After the handshake, input is delivered in one of three modes:

    receiver=Receiver(...)    frames: replies and pushes, as objects (clients, links between servers)
    raw=RawReceiver(...)      bytes, in batches (the agent, whose scanner creates no objects)
    neither                   requests: `await connection.ask(...)` returns replies; other pushes go to `pushed`

    new --open()--> connecting --answered--> open --close(), abort(), error, end--> closed
                        |                                               lost() once
                        +--refused, timed out, cut: open() raises, lost() is never called--> closed

Everything runs on the thread of the event loop. A connection opens once; to reconnect, create another.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self, cast
from weakref import WeakKeyDictionary

import hiredis

from shoal.errors import ConnectError, ProtocolError
from shoal.wire.answers import Answers
from shoal.wire.commands import Commands, Request, count_commands, encode_commands, encode_requests
from shoal.wire.dial import Dial, find_alert
from shoal.wire.frames import FrameReader
from shoal.wire.handshake import NO_REDIS, ServerIdentity, handshake_commands, judge_handshake
from shoal.wire.tls import ALERT_RECORD, expects_tls, explain

READ_TURN_BYTES: Final = 1 << 17
"""Most bytes that a connection reads in one turn of the event loop."""

READ_BATCH_BYTES: Final = 65536
READ_PAUSE_S: Final = 0.001
READ_QUIET_S: Final = 0.004
"""In raw mode, the read after a read of less than `READ_BATCH_BYTES` waits for `READ_PAUSE_S`, if that read was the
second within `READ_QUIET_S`. So there are at most a thousand wake-ups per second at any message rate, and sparse
messages are read immediately.
"""

_NO_BUFFER: Final = bytearray()
_buffers: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, bytearray]] = WeakKeyDictionary()
"""One read buffer per event loop, shared by its connections, so that it stays in the CPU caches. Each read is consumed
before the next.
"""


class Receiver(Protocol):
    """Receives frames. Calls of one connection do not nest. There are none before `open` has succeeded."""

    def received(self, frames: list[Any]) -> None:
        """At least one frame arrived, in wire order.

        A `hiredis.PushNotification` (a list) is a push. Any other frame is the reply to the oldest unanswered command;
        a `hiredis.ReplyError` is a refusal. The receiver may keep the list. If this raises, the connection is aborted
        and `lost` gets the exception.
        """

    def lost(self, error: Exception | None) -> None:
        """The connection ended. Called once if it had opened; `error` is None after `close` or `abort`."""

    def can_send(self) -> None:
        """The connection is writable again."""


class RawReceiver(Protocol):
    """Receives bytes; otherwise like `Receiver`."""

    def received(self, data: bytes) -> None:
        """At least one byte arrived, in wire order. If this raises, the connection is aborted."""

    def lost(self, error: Exception | None) -> None:
        """The connection ended."""

    def can_send(self) -> None:
        """The connection is writable again."""


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """Traffic of one connection since it opened. `frames` counts pushes and replies; it is 0 in raw mode."""

    bytes_in: int
    bytes_out: int
    commands: int
    frames: int


class Connection(asyncio.BufferedProtocol):
    """One connection to one server, pipelined and bounded. `async with` opens it, and aborts it at the end.

    Only the transport calls the methods of `asyncio.BufferedProtocol`.
    """

    # From 30 attributes on, Python 3.11 looks them up in a plain dictionary, a third more slowly.
    __slots__ = (
        "_answer_timeout_s",
        "_answers",
        "_buffer",
        "_bytes_in",
        "_bytes_out",
        "_commands",
        "_connect_timeout_s",
        "_dial",
        "_encrypted",
        "_ended_by_us",
        "_error",
        "_fd",
        "_frames",
        "_full",
        "_handshake_done",
        "_handshake_replies",
        "_hello",
        "_high",
        "_identity",
        "_loop",
        "_max",
        "_opened",
        "_paused",
        "_pending",
        "_pending_bytes",
        "_raw",
        "_read_at",
        "_reader",
        "_receiver",
        "_resting",
        "_stalled",
        "_transport",
        "_usable",
        "_username",
        "_view",
        "ended",
        "host",
        "port",
    )

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
        """Create a connection; `open` connects it.

        `identify` reads the server's `run_id`, which needs permission for INFO. Above `write_buffer_bytes_high` unsent
        bytes the connection is not `writable`; commands that would exceed `write_buffer_bytes_max` are refused. The
        room between the two is for commands that cannot wait, such as PING.
        """
        if not 0 < 2 * write_buffer_bytes_high <= write_buffer_bytes_max:
            raise ValueError("write_buffer_bytes_max must be at least twice write_buffer_bytes_high")
        if sum(given is not None for given in (receiver, raw, pushed)) > 1:
            raise ValueError("receiver, raw and pushed exclude each other")
        self.host = host
        self.port = port
        self.ended = asyncio.Event()
        """Set when the connection has ended."""
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
        self._encrypted = False
        self._buffer = _NO_BUFFER
        self._view = memoryview(_NO_BUFFER)
        self._identity: ServerIdentity | None = None
        self._handshake_done: asyncio.Future[list[Any]] | None = None
        self._handshake_replies: list[Any] = []
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
        self._read_at = 0.0
        self._bytes_in = self._bytes_out = self._commands = self._frames = 0

    # -- opening ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, log in and check the server.

        Raises `ConnectError` (unreachable, disconnected, no reply within `connect_timeout_s`), `AuthenticationError`
        (wrong password or missing permission), `ServerTooOldError`, `TlsError`, or `ProtocolError` (not a Redis
        server).
        """
        if self._handshake_done is not None:
            raise RuntimeError("a connection opens once; create another one to reconnect")
        self._loop = loop = asyncio.get_running_loop()
        self._buffer = _shared_buffer(loop)
        self._view = memoryview(self._buffer)
        self._handshake_done = loop.create_future()
        try:
            replies = await self._handshake(self._handshake_done)
            self._identity = judge_handshake(replies, where=self._where, username=self._username)
            if self._transport is None:
                raise ConnectError(f"{self._where} closed the connection immediately")
        except BaseException as error:
            self._handshake_done.cancel()
            if self._transport is not None:
                self._transport.abort()
            if type(error) is ConnectError and self._encrypted and self.ended.is_set():
                alert = await find_alert(self._dial, self.host, self.port)
                if alert is not None:
                    raise alert from error
            raise
        self._opened = self._usable = True

    async def _handshake(self, done: asyncio.Future[list[Any]]) -> list[Any]:
        """Connect and do the handshake within `connect_timeout_s`."""
        try:
            async with asyncio.timeout(self._connect_timeout_s) as limit:
                transport = await self._dial(lambda: self, self.host, self.port)
                transport.write(encode_commands(self._hello))
                return await done
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
        """The server's run id, if it was requested. It changes when the server restarts."""
        run_id = self._known_identity.run_id
        if run_id is None:
            raise RuntimeError("the run id is known only with identify=True")
        return run_id

    @property
    def _known_identity(self) -> ServerIdentity:
        if self._identity is None:
            raise RuntimeError("the identity of the server is known only after open()")
        return self._identity

    @property
    def _where(self) -> str:
        return f"{self.host}:{self.port}"

    # -- sending ---------------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether commands can be sent: the connection is open and not closing."""
        return self._usable

    @property
    def writable(self) -> bool:
        """Whether more should be sent now. After False, `Receiver.can_send` is called when it is True again."""
        return self._usable and not self._full

    def send(self, commands: Commands) -> None:
        """Send commands in order; commands sent in one turn of the event loop are written together.

        Raises `ConnectError` and sends none of them if the connection is not open, or if unsent bytes would exceed
        `write_buffer_bytes_max`: the server does not read, and the caller decides whether to `abort`.
        """
        if not self._enqueue(encode_commands(commands)):
            cast(asyncio.AbstractEventLoop, self._loop).call_soon(self._flush)
        self._commands += count_commands(commands)

    def send_now(self, commands: Commands) -> None:
        """Like `send`, but write immediately, after pending commands: for callers that batch commands themselves."""
        self._enqueue(encode_commands(commands))
        self._commands += count_commands(commands)
        self._flush()

    async def ask(self, *requests: Request, timeout_s: float | None = None) -> list[Any]:
        """Send requests together and return their replies in order.

        Raises the first `hiredis.ReplyError` among the replies, once all have arrived, and `ConnectError` if the
        connection is not open, is lost, or gives no reply within `timeout_s` (None: `answer_timeout_s`), which ends it.
        Several callers may wait at a time; a cancelled one does not disturb the others. SUBSCRIBE and similar commands
        must name one channel each.
        """
        if self._answers is None:
            raise RuntimeError("a connection with a receiver cannot ask")
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
        """Append data to the pending writes; return whether there were any before."""
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
        """Mark the connection as not writable; raise ConnectError if the data does not fit at all."""
        unsent = pending_bytes + cast(asyncio.Transport, self._transport).get_write_buffer_size()
        if unsent > self._max:
            raise ConnectError(
                f"{self._where} reads too slowly: {unsent} bytes would be unsent",
                do=f"send while the connection is writable, or raise write_buffer_bytes_max ({self._max})",
            )
        self._full = True

    def _flush(self) -> None:
        """Pass all pending data to the transport in one write."""
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
        """Write directly to a plain socket if the transport's buffer is empty: uvloop would wait for its next turn.

        The transport gets the bytes that the socket does not take, and reports all errors.
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
        """Notify the receiver if the connection has become writable again."""
        if self._full and not self._stalled and self._usable and self._pending_bytes <= self._high:
            self._full = False
            cast(Receiver | RawReceiver, self._receiver or self._raw).can_send()

    # -- receiving and ending --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop reading. Bytes that were already read (at most one read) are still delivered.

        While paused, only a send notices that the connection has ended.
        """
        self._paused = self._usable
        self._read_or_not()

    def resume(self) -> None:
        """Continue reading after `pause`."""
        self._paused = False
        self._read_or_not()

    def _rest(self, pause_s: float) -> None:
        """Stop reading for `pause_s`, at least until the next turn of the loop. An event loop may read repeatedly while
        there is input, and consumers would not get a turn.
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
        """Send pending data, then end the connection; nothing more is delivered.

        This takes until the server has read everything. A caller that cannot wait calls `abort` later.
        """
        if self._usable:
            self._usable = False
            self._ended_by_us = True
            self._flush()
            cast(asyncio.Transport, self._transport).close()

    def abort(self, error: Exception | None = None) -> None:
        """End the connection now and drop pending data; nothing more is delivered except `error` to `lost`."""
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
        """Why the connection ended; None after `close` or `abort`."""
        return self._error

    def statistics(self) -> ConnectionStatistics:
        """Return the traffic so far."""
        return ConnectionStatistics(self._bytes_in, self._bytes_out, self._commands, self._frames)

    # -- called by the transport -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the high-water mark, and find out whether the socket may be written to directly."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._high, low=self._high // 4)
        self._encrypted = transport.get_extra_info("ssl_object") is not None
        connected = None if self._encrypted else transport.get_extra_info("socket")
        self._fd = -1 if connected is None else connected.fileno()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read. asyncio's TLS takes slices of it, which would be copies of a
        bytearray."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Deliver the read: frames slice by slice, or raw bytes unchanged."""
        try:
            if not self._opened:
                self._collect_handshake_replies(nbytes)
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
            if nbytes == READ_TURN_BYTES and self._answers is None:  # a request waits for the whole reply anyway
                self._rest(0.0)
        except Exception as error:
            self._fail(error)

    def _deliver_raw(self, nbytes: int) -> None:
        """Deliver bytes, and pause reading if they were few."""
        if self._usable:
            cast(RawReceiver, self._raw).received(self._view[:nbytes].tobytes())
            if nbytes < READ_BATCH_BYTES:
                before, self._read_at = self._read_at, cast(asyncio.AbstractEventLoop, self._loop).time()
                if self._read_at - before < READ_QUIET_S:
                    self._rest(READ_PAUSE_S)
            elif nbytes == READ_TURN_BYTES:
                self._rest(0.0)

    def _collect_handshake_replies(self, nbytes: int) -> None:
        """Collect the replies of the handshake. Anything after them is a protocol error."""
        if self._buffer[0] == ALERT_RECORD and not self._handshake_replies:
            raise expects_tls(self._where)
        for frames in self._reader.read(self._buffer, nbytes):
            self._handshake_replies += frames
        if len(self._handshake_replies) > len(self._hello):
            raise ProtocolError(f"{self._where} sent an unexpected reply", do=NO_REDIS)
        done = self._handshake_done
        if len(self._handshake_replies) == len(self._hello) and done is not None and not done.done():
            done.set_result(self._handshake_replies)

    def pause_writing(self) -> None:
        """The transport's buffer is above the high-water mark."""
        self._stalled = self._full = True

    def resume_writing(self) -> None:
        """The transport has room again."""
        self._stalled = False
        self._tell_writable()

    def eof_received(self) -> None:
        """The server closed the connection, so unsent data will never be read."""
        self._fail(ConnectError(f"{self._where} closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended: `open` raises, or the receiver is notified."""
        self._usable = False
        self._transport = None
        self._pending.clear()
        if self._error is None and exc is not None and not self._ended_by_us:
            self._error = self._broken(exc)
        self.ended.set()
        if self._opened:
            cast(Receiver | RawReceiver, self._receiver or self._raw).lost(self._error)
        elif self._handshake_done is not None and not self._handshake_done.done():
            if isinstance(next(iter(self._handshake_replies), None), hiredis.ReplyError):
                self._handshake_done.set_result(self._handshake_replies)  # it said why: maxclients, for example
            else:
                self._handshake_done.set_exception(self._error or ConnectError(f"{self._where} closed the connection"))

    def _broken(self, exc: Exception) -> ConnectError:
        if isinstance(exc, ssl.SSLError):
            return explain(exc, self._where)
        do = None if self._opened or self._encrypted else "if it expects TLS, write shoals:// instead of shoal://"
        error = ConnectError(f"the connection to {self._where} broke: {exc}", do=do)
        error.__cause__ = exc
        return error

    def _fail(self, error: Exception) -> None:
        """End the connection because of an error, which the receiver or the caller of `open` gets."""
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
