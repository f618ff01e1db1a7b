"""The copy of a group of hosts keeps the members of its watch, whenever the reply to a read arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import cast

import msgspec

from shoal.coordination.interface import Coordinator
from shoal.leader.host_group import HostGroup
from shoal.plan.ring import ServerAddress

Q1 = ServerAddress("q1", "host", 1)


class LateCoordinator:
    """Answers `members` with what the group was when it was asked, as late as the test wants."""

    def __init__(self) -> None:
        self.group: dict[str, bytes] = {}
        self.may_answer = asyncio.Event()
        self.news: asyncio.Queue[dict[str, bytes]] = asyncio.Queue()
        self.asked = asyncio.Event()

    async def members(self, group: str) -> dict[str, bytes]:
        """The members at the time of the question."""
        found = dict(self.group)
        self.asked.set()
        await self.may_answer.wait()
        return found

    async def watch_members(self, group: str) -> AsyncGenerator[dict[str, bytes], None]:
        """The members given by the test."""
        while True:
            yield await self.news.get()


async def test_a_late_reply_does_not_replace_the_members_that_the_watch_delivered_meanwhile() -> None:
    coordinator, changed = LateCoordinator(), asyncio.Event()
    group = HostGroup(cast(Coordinator, coordinator), "stores", changed)
    following = asyncio.create_task(group.follow())
    loading = asyncio.create_task(group.load())
    await coordinator.asked.wait()
    coordinator.group = {"q1": msgspec.msgpack.encode(Q1)}
    coordinator.news.put_nowait(coordinator.group)
    await changed.wait()
    coordinator.may_answer.set()
    await loading
    assert group.hosts == {"q1": Q1}
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_load_takes_the_members_without_the_watch() -> None:
    coordinator = LateCoordinator()
    coordinator.group = {"q1": msgspec.msgpack.encode(Q1), "q2": b"not an address"}
    coordinator.may_answer.set()
    group = HostGroup(cast(Coordinator, coordinator), "stores", asyncio.Event())
    assert group.hosts is None
    await group.load()
    assert group.hosts == {"q1": Q1}
