"""The coordinator from a client's view: the cluster's public key once, the newest ring on request.

Owns the errors for a missing cluster, and limits a bus to one request at a time. It connects for each request and
disconnects again: messages flow without the coordinator, so a client keeps no connection to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from shoal.coordination.interface import Coordinator
from shoal.coordination.link import Address, parse_address
from shoal.errors import ClusterNotFoundError, ConfigError, ShoalError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.format import read_ring
from shoal.plan.keys import PUBLIC_KEY
from shoal.plan.recording_marks import recorded_patterns
from shoal.runtime import Runtime
from shoal.wire.backoff import Backoff

FETCH_PAUSE_S: Final = 0.25
"""Minimum time between two requests of one bus."""

_log: Final = get_log(__name__)


class PlanSource:
    """One coordinator and the login there; the servers accept the same user and password."""

    def __init__(self, url: str, timeout_s: float, runtime: Runtime) -> None:
        if "://" in url and not url.startswith(("shoal://", "shoals://")):
            scheme = url.split("://", 1)[0]
            raise ConfigError(f"{scheme}:// is not a cluster address", do="write shoal://user:password@host:port")
        self.address: Address = parse_address(url, None, None)
        self._url = url
        self._timeout_s = timeout_s
        self._runtime = runtime

    async def key_and_ring(self) -> tuple[bytes, bytes]:
        """Return the public key and the signed ring. Raises ClusterNotFoundError if the coordinator has none, and
        VersionError if their format is not this version's.
        """
        async with await self._connect() as coordinator:
            ring = await read_ring(coordinator)
            key = await coordinator.get(PUBLIC_KEY)
        if key is None or ring is None:
            missing = "public key" if key is None else "ring"
            raise ClusterNotFoundError(
                f"the coordinator at {self.address} has no {missing}: no cluster has started there yet",
                do="run `shoal status`, and start the cluster if it is not running",
            )
        return key.value, ring

    async def ring(self) -> bytes | None:
        """Return the newest signed ring."""
        async with await self._connect() as coordinator:
            return await read_ring(coordinator)

    async def recorded(self) -> list[bytes]:
        """Return the patterns of recorded channels."""
        async with await self._connect() as coordinator:
            return await recorded_patterns(coordinator)

    async def _connect(self) -> Coordinator:
        return await self._runtime.coordinator(self._url, self._timeout_s)


class RingFetcher:
    """Fetches the ring in the background, one request at a time, and retries until one succeeds."""

    def __init__(self, source: PlanSource, taker: Callable[[bytes], None], limits: Limits, random: Random) -> None:
        self._source = source
        self._taker = taker
        self._limits = limits
        self._random = random
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def want(self) -> None:
        """Request the newest ring, because the known one may be outdated."""
        self._wanted = True
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="fetch the ring")

    def cancel(self) -> asyncio.Task[None] | None:
        """Stop; return the task, to be awaited."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _run(self) -> None:
        backoff = Backoff(
            reconnect_delay_s_min=FETCH_PAUSE_S,
            reconnect_delay_s_max=max(FETCH_PAUSE_S, self._limits.reconnect_delay_s_max),
            random=self._random,
        )
        try:
            while self._wanted:
                try:
                    ring = await self._source.ring()
                except ShoalError as error:
                    _log.info("coordinator unavailable, using the last plan", error=str(error))
                    await asyncio.sleep(backoff.next_delay_s())
                    continue
                self._wanted = False
                if ring is not None:
                    self._taker(ring)
                await asyncio.sleep(FETCH_PAUSE_S)
        finally:
            self._task = None
