"""The agent's connection to its own server: raw bytes in, commands out.

Owns one socket, its handshake and the bound on what waits to be written. Never looks into the bytes that
come after the handshake: they go to the scanner, which is why this is not a `RespLink`, that makes objects
of them.

    new --open()--> handshake --answered--> open --attach(receive)--> observing --abort, error, end--> closed
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from shoal.errors import ConnectError, ProtocolError, ShoalError
from shoal.logs import get_log
from shoal.wire.commands import Command, encode_commands
from shoal.wire.frames import FrameReader
from shoal.wire.handshake import (
    HANDSHAKE_REPLIES,
    NO_REDIS,
    ServerIdentity,
    handshake_commands,
    judge_handshake,
)

HANDSHAKE_BYTES_MAX: Final = 1 << 20
READ_BATCH_BYTES: Final = 65536
READ_PAUSE_S: Final = 0.001
"""After a read of less than `READ_BATCH_BYTES` the next one waits so long, so that a thousand messages a
second cost a thousand wake-ups at most, and forty thousand no more. A message after a quiet moment is read
at once."""

WRITE_BUFFER_BYTES_MAX: Final = 16 << 20
"""What may wait for a server that does not read. More: the connection is dropped, and made anew."""


_log: Final = get_log(__name__)


class ObservingLink(asyncio.Protocol):
    """One connection; it opens once. The methods of `asyncio.Protocol` are for the event loop only."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        username: str | None,
        password: str | None,
        name: str,
        connect_timeout_s: float,
    ) -> None:
        self._host = host
        self._port = port
        self._username = username
        self._where = f"{host}:{port}"
        self._hello = encode_commands(handshake_commands(username, password, name))
        self._connect_timeout_s = connect_timeout_s
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(frame_bytes_max=HANDSHAKE_BYTES_MAX)
        self._answers: list[Any] = []
        self._answered: asyncio.Future[None] | None = None
        self._receive: Callable[[bytes], None] = self._take_answers
        self._error: Exception | None = None
        self.ended = asyncio.Event()
        """Set when the connection is gone."""

    async def open(self) -> ServerIdentity:
        """Connects, logs in and asks who the server is; the errors are those of `RespLink.open`."""
        loop = asyncio.get_running_loop()
        self._answered = loop.create_future()
        try:
            async with asyncio.timeout(self._connect_timeout_s) as limit:
                await loop.create_connection(lambda: self, self._host, self._port)
                cast(asyncio.Transport, self._transport).write(self._hello)
                await self._answered
            return judge_handshake(self._answers, where=self._where, username=self._username)
        except (OSError, UnicodeError) as error:
            self.abort()
            if limit.expired():
                raise ConnectError(f"{self._where} has not answered within {self._connect_timeout_s} s") from error
            raise ConnectError(f"cannot connect to {self._where}: {error}") from error
        except BaseException:
            self.abort()
            raise

    @property
    def error(self) -> Exception | None:
        """Why the connection is gone, if anybody knows."""
        return self._error

    def attach(self, receive: Callable[[bytes], None]) -> None:
        """From now on bytes go to `receive`; if it raises, the connection is dropped."""
        self._receive = receive

    def send(self, commands: Sequence[Command]) -> None:
        """Writes commands in one go; drops the connection when the server reads nothing."""
        transport = self._transport
        if transport is None:
            return
        transport.write(encode_commands(commands))
        if transport.get_write_buffer_size() > WRITE_BUFFER_BYTES_MAX:
            self._fail(ConnectError(f"{self._where} does not read what is sent to it"))

    def abort(self) -> None:
        """Ends the connection now."""
        if self._transport is not None:
            self._transport.abort()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Small writes go out at once."""
        self._transport = cast(asyncio.Transport, transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Hands the bytes on, and rests a moment if there were few."""
        if self._error is not None:
            return
        try:
            self._receive(data)
        except Exception as error:
            if not isinstance(error, ShoalError):
                _log.exception("what came from the server could not be handled; begins anew", server=self._where)
            self._fail(error)
            return
        if len(data) < READ_BATCH_BYTES and self._transport is not None:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(READ_PAUSE_S, self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> None:
        """The server ends the connection."""
        self._fail(ConnectError(f"{self._where} closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._transport = None
        if self._error is None and exc is not None:
            self._error = ConnectError(f"the connection to {self._where} broke: {exc}")
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(self._error or ConnectError(f"{self._where} closed the connection"))
        self.ended.set()

    def _take_answers(self, data: bytes) -> None:
        for frames in self._reader.read(data):
            self._answers += frames
        if len(self._answers) > HANDSHAKE_REPLIES:
            raise ProtocolError(f"{self._where} sent more than it was asked for", do=NO_REDIS)
        if len(self._answers) == HANDSHAKE_REPLIES and self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self.abort()
