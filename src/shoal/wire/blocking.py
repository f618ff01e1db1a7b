"""Commands to one server from code without an event loop: command line, diagnosis and Spark's workers.

Owns a private event loop for as long as the connection lasts. The connection itself is that of
`shoal.wire.connection`; code on an event loop uses that one directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from shoal.wire.connection import Connection
from shoal.wire.dial import Dial

_CLIENT_NAME: Final = "shoal-ask"

A = TypeVar("A")
T = TypeVar("T")


class BlockingConnection:
    """One connection on which commands are asked, one after the other. Entering it connects and logs in.

    Raises what `Connection.open` raises when the server cannot be used, and `ConnectError` when it has not answered
    `timeout_s` after it was asked. For one thread at a time. On a thread whose event loop runs it works too, and blocks
    that loop.
    """

    def __init__(
        self,
        host: str,
        port: int,
        username: str | None,
        password: str | None,
        *,
        dial: Dial,
        timeout_s: float = 5.0,
        frame_bytes_max: int = 1 << 26,
    ) -> None:
        self.where = f"{host}:{port}"
        self._runner: asyncio.Runner | None = None
        self._connection = Connection(
            host,
            port,
            username=username,
            password=password,
            name=_CLIENT_NAME,
            dial=dial,
            connect_timeout_s=timeout_s,
            answer_timeout_s=timeout_s,
            frame_bytes_max=frame_bytes_max,
        )

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        try:
            _undisturbed(self._runner.get_loop().run_until_complete, self._connection.open())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            _undisturbed(self._abort, runner)

    def _abort(self, runner: asyncio.Runner) -> None:
        with runner:
            runner.get_loop().call_soon(self._connection.abort)
            runner.run(asyncio.sleep(0))  # the transport closes its socket in the loop's next turn

    def ask(self, *args: bytes | str | int) -> Any:
        """The reply to one command; `hiredis.ReplyError` when the server refuses it."""
        assert self._runner is not None, "enter it first"
        # Runner.run would install and remove a signal handler, which costs as much as the rest of a small request
        (reply,) = _undisturbed(self._runner.get_loop().run_until_complete, self._connection.ask(args))
        return reply


def _undisturbed(function: Callable[[A], T], argument: A) -> T:
    """Call a function that runs an event loop; in another thread if this one's event loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function(argument)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, argument).result()


def ask(
    host: str,
    port: int,
    username: str | None,
    password: str | None,
    *args: bytes | str | int,
    dial: Dial,
    timeout_s: float = 5.0,
    frame_bytes_max: int = 1 << 26,
) -> Any:
    """Connect, log in, run one command, return its reply; raises what `BlockingConnection` does."""
    with BlockingConnection(
        host, port, username, password, timeout_s=timeout_s, frame_bytes_max=frame_bytes_max, dial=dial
    ) as connection:
        return connection.ask(*args)
