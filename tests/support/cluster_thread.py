"""A local cluster on an event loop of its own, in a thread: tests on their own loops share it.

Its leases are long. On a busy machine an agent may not run for seconds, and one that was killed takes seconds to start;
with the default lease its server would leave the ring meanwhile, and channels would change their homes in the middle of
tests that are about something else. Tests of leases start clusters of their own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from shoal.cluster.local import LocalCluster
from shoal.cluster.parts import shoal_agent
from shoal.limits import Limits
from shoal.plan.ring import ServerAddress

T = TypeVar("T")
WAIT_S: Final = 60.0
LEASE_S: Final = 30.0


def patient_agent(server: ServerAddress) -> Sequence[str]:
    """The command of an agent with the long lease."""
    return ["env", f"SHOAL_LIMITS_SERVER_LEASE_S={LEASE_S}", *shoal_agent(server)]


class ClusterThread:
    """Starts a cluster, and stops it at the end of the block."""

    def __init__(self, servers: int, tls: bool | None = None, stores: int = 0, engine: bool = False) -> None:
        self._servers = servers
        self._stores = stores
        self._engine = engine
        """Whether a client that emits or matches gets an engine."""
        self._tls = tls
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
        limits = Limits(server_lease_s=LEASE_S)
        cluster = LocalCluster(
            self._servers,
            limits=limits,
            agent_command=patient_agent,
            tls=self._tls,
            stores=self._stores,
            engine_when_asked=self._engine,
        )
        async with cluster as self._cluster:
            self.url = self._cluster.url
            self._ready.set()
            await self._end.wait()
