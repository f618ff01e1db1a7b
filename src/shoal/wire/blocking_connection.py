"""A blocking connection to one server, for code without an event loop: commands, diagnosis, Spark workers.

Owns a private event loop while the connection is open. The connection is a `shoal.wire.connection.Connection`; code on
an event loop uses that directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from shoal.wire.commands import Request
from shoal.wire.connection import Connection
from shoal.wire.dial import Dial

_CLIENT_NAME: Final = "shoal-ask"

A = TypeVar("A")
T = TypeVar("T")


class BlockingConnection:
    """One connection for one command at a time. Entering it connects and logs in.

    Entering raises the errors of `Connection.open`; `ask` raises `ConnectError` if there is no reply within
    `timeout_s`. Use it from one thread at a time. It also works on a thread with a running event loop, and blocks that
    loop.
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
            _off_loop(self._run, self._connection.open())
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            _off_loop(self._abort, runner)

    def _abort(self, runner: asyncio.Runner) -> None:
        with runner:
            runner.get_loop().call_soon(self._connection.abort)
            runner.run(asyncio.sleep(0))  # the transport closes its socket in the next turn of the loop

    def ask(self, *args: bytes | str | int) -> Any:
        """Run one command and return the reply; raises `hiredis.ReplyError` if the server refuses it."""
        (reply,) = self.ask_all([args])
        return reply

    def ask_all(self, requests: Iterable[Request]) -> list[Any]:
        """Send commands together and return their replies; raises the first `hiredis.ReplyError` among them."""
        return _off_loop(self._run, self._connection.ask(*requests))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine. `Runner.run` would install a signal handler, which costs as much as a small request."""
        assert self._runner is not None, "used before `with`"
        loop = self._runner.get_loop()
        task = loop.create_task(work)
        try:
            return loop.run_until_complete(task)
        finally:
            task.cancel()  # no effect unless Ctrl-C interrupted the loop


def _off_loop(function: Callable[[A], T], argument: A) -> T:
    """Call a function that runs an event loop, in another thread if this thread's event loop is running."""
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
    """Connect, log in, run one command and return the reply; raises the errors of `BlockingConnection`."""
    with BlockingConnection(
        host, port, username, password, timeout_s=timeout_s, frame_bytes_max=frame_bytes_max, dial=dial
    ) as connection:
        return connection.ask(*args)
