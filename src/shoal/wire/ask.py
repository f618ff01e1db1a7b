"""One command to one server from code without an event loop: for supervision and diagnosis, not for data.

Owns a blocking socket for the length of one call. Everything that carries messages uses `shoal.wire.resp`.
"""

from __future__ import annotations

import socket
import time
from typing import Any, Final

import hiredis

from shoal.errors import ConnectError
from shoal.wire.commands import Command, encode_commands
from shoal.wire.frames import FrameReader
from shoal.wire.handshake import hello_command, judge_hello

_CLIENT_NAME: Final = "shoal-ask"
_READ_BYTES: Final = 65536


def ask(
    host: str,
    port: int,
    username: str | None,
    password: str | None,
    *args: bytes | str | int,
    timeout_s: float = 5.0,
    frame_bytes_max: int = 1 << 26,
) -> Any:
    """Connect, log in, run one command, return its reply.

    Raises what `RespLink.open` raises when the server cannot be used, `ConnectError` when it has not answered
    `timeout_s` after the call, and `hiredis.ReplyError` when it refuses the command.
    """
    where = f"{host}:{port}"
    command: Command = tuple(_argument(arg) for arg in args)
    deadline = time.monotonic() + timeout_s
    commands = [hello_command(username, password, _CLIENT_NAME), command]
    replies: list[Any] = []
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(encode_commands(commands))
            reader = FrameReader(frame_bytes_max=frame_bytes_max)
            while len(replies) < len(commands):
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                data = connection.recv(_READ_BYTES)
                if not data:
                    break
                for frames in reader.read(data):
                    replies += [frame for frame in frames if not isinstance(frame, hiredis.PushNotification)]
                if time.monotonic() > deadline:
                    raise TimeoutError("timed out")
    except TimeoutError as error:
        raise ConnectError(f"{where} has not answered within {timeout_s} s") from error
    except OSError as error:
        raise ConnectError(f"cannot ask {where}: {error}") from error
    if replies:
        judge_hello(replies[0], where=where, username=username)
    if len(replies) < len(commands):
        raise ConnectError(f"{where} closed the connection before it answered")
    reply = replies[-1]
    if isinstance(reply, hiredis.ReplyError):
        raise reply
    return reply


def _argument(value: bytes | str | int) -> bytes:
    """An argument as the bytes that the server sees."""
    return value if isinstance(value, bytes) else str(value).encode()
