"""A mirror keeps what its watch brought, whenever the answers to other requests arrive."""

from __future__ import annotations

import asyncio
from typing import cast

from shoal.coordination.interface import Coordinator, Versioned
from shoal.leader.mirror import Mirror

KEY = "moves/a"


class LateCoordinator:
    """Answers `get` when the test says so."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Versioned | None] = asyncio.get_running_loop().create_future()

    async def get(self, key: str) -> Versioned | None:
        """The answer that the test gives."""
        return await self.answer


def make_mirror(coordinator: LateCoordinator) -> Mirror[str, bytes]:
    return Mirror(cast(Coordinator, coordinator), "moves/", lambda key, now: (key, now.value), asyncio.Event())


async def test_a_value_written_after_a_delete_outlives_the_late_answer_to_the_delete() -> None:
    mirror = make_mirror(LateCoordinator())
    mirror.take(KEY, Versioned(b"first", 57))
    mirror.take(KEY, Versioned(b"second", 58))
    mirror.deleted(KEY, 57)
    assert mirror.values == {KEY: b"second"}
    mirror.deleted(KEY, 58)
    assert mirror.values == {}


async def test_a_value_that_came_while_a_key_was_asked_for_stays() -> None:
    coordinator = LateCoordinator()
    mirror = make_mirror(coordinator)
    mirror.take(KEY, Versioned(b"first", 57))
    refresh = asyncio.create_task(mirror.refresh(KEY))
    await asyncio.sleep(0)
    mirror.take(KEY, Versioned(b"second", 58))
    coordinator.answer.set_result(None)
    await refresh
    assert mirror.values == {KEY: b"second"}


async def test_a_key_that_is_gone_is_dropped_by_a_refresh() -> None:
    coordinator = LateCoordinator()
    mirror = make_mirror(coordinator)
    mirror.take(KEY, Versioned(b"first", 57))
    coordinator.answer.set_result(None)
    await mirror.refresh(KEY)
    assert mirror.values == {}
