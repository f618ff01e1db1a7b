"""Change notifications: one subscription to the coordinator's channel, shared by all watches of a client.

Owns the subscribed connection, its reconnects, and the pending changes of each listener. It never reads a key. A
notification only means "read this path again", so a lost, repeated or forged notification does no harm: listeners read
the state itself, all of it after each (re)connect and periodically in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from shoal.coordination.layout import CHANNEL, decode_paths
from shoal.coordination.link import FAILURES, Link
from shoal.errors import ConnectError, CoordinatorError, ShoalError
from shoal.logs import get_log
from shoal.wire.connection import Connection

_log: Final = get_log(__name__)

QUIET_S: Final = 10.0
"""Time without traffic before a ping is sent. Without a reply for the same time again, the connection is replaced."""

PATHS_MAX: Final = 1024
"""Most changed paths that a listener remembers; beyond that it reads everything again."""


class Listener:
    """The pending changes of one watch: `everything`, or single `paths`."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.everything = True
        self.paths: set[str] = set()
        self.failure: ShoalError | None = None
        self._woken = asyncio.Event()

    def note(self, paths: Iterable[str]) -> None:
        """Record changed paths that match the prefix."""
        news = [path for path in paths if path.startswith(self.prefix)]
        if not news:
            return
        if len(self.paths) + len(news) <= PATHS_MAX:
            self.paths.update(news)
        else:
            self.everything = True
        self._woken.set()

    def note_everything(self) -> None:
        """Record that any path may have changed."""
        self.everything = True
        self._woken.set()

    def fail(self, failure: ShoalError) -> None:
        """Record that notifications cannot be received and that a retry does not help."""
        self.failure = failure
        self._woken.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a change; return False on timeout. Raises the error given to `fail`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        if self.failure is not None:
            raise self.failure
        return True

    def take(self) -> tuple[bool, set[str]]:
        """Return and clear the pending changes. Call it before reading the state, so that later changes wake the watch
        again.
        """
        everything, paths = self.everything, self.paths
        self.everything, self.paths = False, set()
        return everything, paths


class Feed:
    """The shared subscription. It starts with the first listener and ends with `close`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._heard = False
        self._closed = False

    def is_closed(self) -> bool:
        """Return whether the feed was closed, which ends all watches."""
        return self._closed

    @contextmanager
    def listen(self, prefix: str) -> Iterator[Listener]:
        """Listen for changes of paths with `prefix`. A new listener starts with `everything` set."""
        if self._closed:
            raise CoordinatorError("cannot watch: the coordinator was closed", do="connect again")
        listener = Listener(prefix)
        self._listeners.add(listener)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="shoal-coordinator-feed")
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def close(self) -> None:
        """Stop, and wake all listeners so that they see it."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for listener in self._listeners:
            listener.note_everything()

    async def _run(self) -> None:
        """Keep the subscription up; stop only on errors that a retry does not fix."""
        backoff = self._link.backoff()
        while True:
            connection = self._link.new_connection(self._pushed)
            try:
                await connection.open()
                await self._subscribe(connection)
                backoff.reset()
                await self._until_lost(connection)
            except FAILURES as error:
                failure = self._link.translate("listen for changes", error)
                if failure is not None:
                    self._fail(failure)
                    return
                _log.info("notifications interrupted", coordinator=str(self._link.address), reason=str(error))
            finally:
                connection.abort()
            await asyncio.sleep(backoff.next_delay_s())

    async def _subscribe(self, connection: Connection) -> None:
        """Subscribe first, then mark everything as changed, so that changes in between are notified."""
        await connection.ask(("SUBSCRIBE", CHANNEL))
        for listener in self._listeners:
            listener.note_everything()

    async def _until_lost(self, connection: Connection) -> None:
        """Ping an idle connection; raise when it is lost."""
        while True:
            self._heard = False
            try:
                async with asyncio.timeout(QUIET_S):
                    await connection.ended.wait()
            except TimeoutError:
                if not self._heard:
                    await connection.ask(("PING",), timeout_s=QUIET_S)
            else:
                raise connection.error or ConnectError("the connection was closed")

    def _pushed(self, push: list[Any]) -> None:
        """Pass a notification to the listeners."""
        self._heard = True
        if len(push) == 3 and push[0] == b"message":
            paths = decode_paths(push[2])
            for listener in self._listeners:
                listener.note(paths)

    def _fail(self, failure: ShoalError) -> None:
        for listener in self._listeners:
            listener.fail(failure)
