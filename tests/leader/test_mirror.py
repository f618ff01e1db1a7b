"""A mirror keeps the values of its watch, whenever replies to other requests arrive."""

from __future__ import annotations

import asyncio
from typing import cast

from shoal.coordination.interface import Coordinator, Versioned
from shoal.leader.mirror import Mirror

KEY = "moves/a"


class LateCoordinator:
    """Answers `get` when the test allows it."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Versioned | None] = asyncio.get_running_loop().create_future()

    async def get(self, key: str) -> Versioned | None:
        """The reply given by the test."""
        return await self.answer


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
