"""A blocking connection to a real Redis, for tests that compare the model with it."""

from __future__ import annotations

import socket
from itertools import count
from typing import Any

import hiredis

from shoal.wire.commands import encode_commands

_fences = count(1)


class RealClient:
    """Sends commands, reads frames; `frames_until_fence` returns all frames up to the fence."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20.0)
        self._reader = hiredis.Reader(notEnoughData=self)

    def send(self, *commands: tuple[bytes, ...]) -> None:
        self._socket.sendall(encode_commands(commands))

    def frames_until_fence(self) -> tuple[list[Any], bool]:
        """The frames that arrived, and whether the connection is still open.

        The fence is a command that no server knows: it is answered in every state, with any permissions.
        """
        name = f"FENCE-{next(_fences)}"
        frames: list[Any] = []
        try:
            self.send((name.encode(),))
            while True:
                frame = self._read()
                if isinstance(frame, hiredis.ReplyError) and name in str(frame):
                    return frames, True
                frames.append(frame)
        except (ConnectionError, EOFError):
            return frames, False

    def call(self, *command: bytes) -> Any:
        self.send(command)
        return self._read()

    def quit(self) -> None:
        """Closes the connection, and returns when the server has dropped it."""
        try:
            self.send((b"QUIT",))
            while True:
                self._read()
        except (ConnectionError, EOFError):
            self._socket.close()

    def _read(self) -> Any:
        while (frame := self._reader.gets()) is self:
            data = self._socket.recv(65536)
            if not data:
                raise EOFError
            self._reader.feed(data)
        return frame
