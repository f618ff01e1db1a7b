"""A local cluster on an event loop of its own, in a thread: tests on their own loops share it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

from shoal.cluster.local import LocalCluster

T = TypeVar("T")
WAIT_S = 60.0


class ClusterThread:
    """Starts a cluster, and stops it at the end of the block."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(WAIT_S)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(WAIT_S)

    def call(self, action: Callable[[LocalCluster], Awaitable[T]]) -> T:
        """Does something to the cluster and waits for it."""

        async def act() -> T:
            return await action(self._cluster)

        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(WAIT_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        async with LocalCluster(servers=self._servers) as self._cluster:
            self.url = self._cluster.url
            self._ready.set()
            await self._end.wait()
