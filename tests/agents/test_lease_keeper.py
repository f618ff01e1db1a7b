"""Whoever takes a lease that had lapsed reads the ring before it counts as granted, however often that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from shoal.agents.lease_keeper import LeaseKeeper
from shoal.coordination.acl import SERVERS, STORES
from shoal.coordination.interface import Versioned
from shoal.errors import CoordinatorUnavailableError
from shoal.lab.sim.models.coordinator import Store
from shoal.limits import Limits
from shoal.plan.keys import RING_KEY
from shoal.plan.ring import ServerAddress

SERVER = "servers/s1"
LIMITS = Limits(heartbeat_interval_s=0.01)


class Coordinator:
    """The model store, asked by coroutines; operations named in `cut` are done, but their answer is lost."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store = Store(lambda: self.now)
        self.cut: list[str] = []
        self.store.put(RING_KEY, b"ring 7")

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        async def ask(*args: Any, **kwargs: Any) -> Any:
            result = getattr(self.store, operation)(*args, **kwargs)
            if operation in self.cut:
                self.cut.remove(operation)
                raise CoordinatorUnavailableError("no answer")
            return result

        return ask

    async def join(self, *_: Any) -> None:
        """Membership is another matter."""


class Told:
    """What the agent is told, in order."""

    def __init__(self) -> None:
        self.heartbeats: asyncio.Queue[str] = asyncio.Queue()

    def granted(self, sent_at: float, lapsed: bool) -> None:
        self.heartbeats.put_nowait("granted, had lapsed" if lapsed else "granted")

    def ring_read(self, ring: Versioned) -> None:
        self.heartbeats.put_nowait(ring.value.decode())

    def refused(self) -> None:
        self.heartbeats.put_nowait("refused")

    def asked(self) -> None: ...

    def answered(self) -> None: ...


async def words_of(coordinator: Coordinator, count: int, group: str = SERVERS) -> list[str]:
    """The first `count` calls that a new agent gets."""
    told, address = Told(), ServerAddress("s1", "127.0.0.1", 1)
    lease_keeper = LeaseKeeper(coordinator, address, "me", LIMITS, told, lambda: True, lambda: True, group)  # type: ignore[arg-type]
    task = asyncio.create_task(lease_keeper.run())
    async with asyncio.timeout(10):
        heartbeats = [await told.heartbeats.get() for _ in range(count)]
    task.cancel()
    return heartbeats


async def test_a_lapsed_lease_counts_when_the_ring_has_been_read() -> None:
    assert await words_of(Coordinator(), 3) == ["ring 7", "granted, had lapsed", "granted"]


async def test_a_running_lease_is_taken_over_without_a_look_at_the_ring() -> None:
    coordinator = Coordinator()
    coordinator.store.acquire(SERVER, "before", 1000.0)
    assert await words_of(coordinator, 2) == ["granted", "granted"]


@pytest.mark.parametrize("cut", [["get"], ["get", "get"], ["acquire"], ["acquire", "get"]])
async def test_a_lost_answer_does_not_let_it_forget_that_the_lease_had_lapsed(cut: list[str]) -> None:
    coordinator = Coordinator()
    coordinator.cut = cut
    assert await words_of(coordinator, 3) == ["ring 7", "granted, had lapsed", "granted"]
    assert coordinator.cut == []


async def test_the_lease_of_a_store_is_in_the_group_of_stores_and_no_ring_is_read() -> None:
    coordinator = Coordinator()
    assert await words_of(coordinator, 2, STORES) == ["granted, had lapsed", "granted"]
    assert [*coordinator.store.leases("stores/")] == ["stores/s1"]
    assert not coordinator.store.leases("servers/")
