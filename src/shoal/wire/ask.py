"""Commands to one server from code without an event loop: for supervision, diagnosis and Spark's workers.

Owns a blocking socket for as long as somebody asks. Everything that carries messages uses `shoal.wire.resp`.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from types import TracebackType
from typing import Any, Final, Self

import hiredis

from shoal.errors import ConnectError
from shoal.wire.commands import Command, encode_commands
from shoal.wire.frames import FrameReader
from shoal.wire.handshake import hello_command, judge_hello

_CLIENT_NAME: Final = "shoal-ask"
_READ_BYTES: Final = 1 << 18


class Asking:
    """One connection on which commands are asked, one after the other. Entering it connects and logs in.

    Raises what `RespLink.open` raises when the server cannot be used, and `ConnectError` when it has not answered
    `timeout_s` after it was asked.
    """

    def __init__(
        self,
        host: str,
        port: int,
        username: str | None,
        password: str | None,
        *,
        timeout_s: float = 5.0,
        frame_bytes_max: int = 1 << 26,
    ) -> None:
        self.where = f"{host}:{port}"
        self._address = (host, port)
        self._username = username
        self._password = password
        self._timeout_s = timeout_s
        self._reader = FrameReader(frame_bytes_max=frame_bytes_max)
        self._replies: deque[Any] = deque()
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        try:
            self._socket = socket.create_connection(self._address, timeout=self._timeout_s)
        except TimeoutError as error:
            raise ConnectError(f"{self.where} has not answered within {self._timeout_s} s") from error
        except OSError as error:
            raise ConnectError(f"cannot ask {self.where}: {error}") from error
        try:
            (hello,) = self._exchange([hello_command(self._username, self._password, _CLIENT_NAME)])
            judge_hello(hello, where=self.where, username=self._username)
        except BaseException:
            self._socket.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()

    def ask(self, *args: bytes | str | int) -> Any:
        """The reply to one command; `hiredis.ReplyError` when the server refuses it."""
        (reply,) = self._exchange([tuple(_argument(arg) for arg in args)])
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def _exchange(self, commands: list[Command]) -> list[Any]:
        """Sends commands and waits for their replies."""
        connection = self._socket
        assert connection is not None, "enter it first"
        deadline = time.monotonic() + self._timeout_s
        try:
            connection.settimeout(self._timeout_s)
            connection.sendall(encode_commands(commands))
            while len(self._replies) < len(commands):
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                data = connection.recv(_READ_BYTES)
                if not data:
                    raise ConnectError(f"{self.where} closed the connection before it answered")
                for frames in self._reader.read(data):
                    self._replies += [frame for frame in frames if not isinstance(frame, hiredis.PushNotification)]
                if time.monotonic() > deadline and len(self._replies) < len(commands):
                    raise TimeoutError("timed out")
        except TimeoutError as error:
            raise ConnectError(f"{self.where} has not answered within {self._timeout_s} s") from error
        except OSError as error:
            raise ConnectError(f"cannot ask {self.where}: {error}") from error
        return [self._replies.popleft() for _ in commands]


def ask(
    host: str,
    port: int,
    username: str | None,
    password: str | None,
    *args: bytes | str | int,
    timeout_s: float = 5.0,
    frame_bytes_max: int = 1 << 26,
) -> Any:
    """Connect, log in, run one command, return its reply; raises what `Asking` does."""
    with Asking(host, port, username, password, timeout_s=timeout_s, frame_bytes_max=frame_bytes_max) as asking:
        return asking.ask(*args)


def _argument(value: bytes | str | int) -> bytes:
    """An argument as the bytes that the server sees."""
    return value if isinstance(value, bytes) else str(value).encode()
