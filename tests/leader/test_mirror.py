"""A mirror keeps the values of its watch, whenever replies to other requests arrive."""

from __future__ import annotations

import asyncio
from typing import cast

from shoal.coordination.interface import Coordinator, Versioned
from shoal.leader.mirror import Mirror

KEY = "moves/a"


class LateCoordinator:
    """Answers `get` and `list` when the test allows it."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Versioned | None] = asyncio.get_running_loop().create_future()
        self.listing: asyncio.Future[dict[str, Versioned]] = asyncio.get_running_loop().create_future()

    async def get(self, key: str) -> Versioned | None:
        """The reply given by the test."""
        return await self.answer

    async def list(self, prefix: str) -> dict[str, Versioned]:
        """The listing given by the test."""
        return await self.listing


def make_mirror(coordinator: LateCoordinator) -> Mirror[str, bytes]:
    return Mirror(cast(Coordinator, coordinator), "moves/", lambda key, now: (key, now.value), asyncio.Event())


async def test_a_value_written_after_a_delete_survives_the_late_reply_to_the_delete() -> None:
    mirror = make_mirror(LateCoordinator())
    mirror.take(KEY, Versioned(b"first", 57))
    mirror.take(KEY, Versioned(b"second", 58))
    mirror.deleted(KEY, 57)
    assert mirror.values == {KEY: b"second"}
    mirror.deleted(KEY, 58)
    assert mirror.values == {}


async def test_a_value_that_arrived_during_a_refresh_stays() -> None:
    coordinator = LateCoordinator()
    mirror = make_mirror(coordinator)
    mirror.take(KEY, Versioned(b"first", 57))
    refresh = asyncio.create_task(mirror.refresh(KEY))
    await asyncio.sleep(0)
    mirror.take(KEY, Versioned(b"second", 58))
    coordinator.answer.set_result(None)
    await refresh
    assert mirror.values == {KEY: b"second"}


async def test_a_refresh_drops_a_deleted_key() -> None:
    coordinator = LateCoordinator()
    mirror = make_mirror(coordinator)
    mirror.take(KEY, Versioned(b"first", 57))
    coordinator.answer.set_result(None)
    await mirror.refresh(KEY)
    assert mirror.values == {}


async def test_a_load_takes_new_values_and_drops_deleted_keys() -> None:
    coordinator = LateCoordinator()
    mirror = make_mirror(coordinator)
    mirror.take(KEY, Versioned(b"first", 57))
    mirror.take("moves/old", Versioned(b"gone", 50))
    coordinator.listing.set_result({KEY: Versioned(b"second", 58), "moves/new": Versioned(b"new", 59)})
    await mirror.load()
    assert mirror.values == {KEY: b"second", "moves/new": b"new"}


async def test_changes_that_arrive_during_a_load_stay() -> None:
    coordinator = LateCoordinator()
    mirror = make_mirror(coordinator)
    mirror.take(KEY, Versioned(b"first", 57))
    mirror.take("moves/ended", Versioned(b"first", 40))
    load = asyncio.create_task(mirror.load())
    await asyncio.sleep(0)
    mirror.take(KEY, Versioned(b"third", 60))
    mirror.take("moves/ended", None)
    mirror.take("moves/new", Versioned(b"new", 61))
    coordinator.listing.set_result({KEY: Versioned(b"second", 58), "moves/ended": Versioned(b"first", 40)})
    await load
    assert mirror.values == {KEY: b"third", "moves/new": b"new"}
