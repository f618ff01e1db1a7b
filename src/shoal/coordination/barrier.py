"""Barriers in Redis: a set of the members that have arrived.

Owns the records under `@barrier/`. It never touches keys or grants.
"""

from __future__ import annotations

import asyncio
from typing import Final

from shoal.coordination.feed import Feed, Listener
from shoal.coordination.interface import Barrier
from shoal.coordination.layout import BARRIER, CHANNEL, redis_key
from shoal.coordination.link import Link, Session

BARRIER_KEEP_S: Final = 6 * 3600
"""How long a barrier is kept after the last arrival."""

BARRIER_POLL_S: Final = 1.0
"""How often a waiting member polls, in case the notification of the last arrival was lost."""


class RedisBarrier(Barrier):
    """A barrier that opens when the set has `parties` members. Once it is open, no arrival is withdrawn."""

    def __init__(self, link: Link, feed: Feed, name: str, member: str, parties: int) -> None:
        self.name = name
        self.member = member
        self.parties = parties
        self._link = link
        self._feed = feed
        self._path = BARRIER + name
        self._key = redis_key(self._path)

    async def wait(self, timeout_s: float) -> bool:
        """Arrive, and wait for the others."""
        with self._feed.listen(self._path) as listener:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._link.run(f"reach barrier {self.name}", self._arrive)
                    await self._until_open(listener)
            except TimeoutError:
                return await self._link.run(f"leave barrier {self.name}", self._withdraw)
        return True

    async def _until_open(self, listener: Listener) -> None:
        while not await self._link.run(f"watch barrier {self.name}", self._is_open):
            await listener.wait(BARRIER_POLL_S)

    async def _arrive(self, session: Session) -> None:
        await session.commit(
            ("SADD", self._key, self.member),
            ("EXPIRE", self._key, BARRIER_KEEP_S),
            ("PUBLISH", CHANNEL, self._path),
        )

    async def _is_open(self, session: Session) -> bool:
        return int((await session.ask(("SCARD", self._key)))[0]) >= self.parties

    async def _withdraw(self, session: Session) -> bool:
        """Withdraw the arrival. Returns True if the barrier has opened in the meantime: an open barrier must stay
        open.
        """
        (arrived,) = await session.watch([self._key], ("SCARD", self._key))
        if int(arrived) >= self.parties:
            return True
        await session.commit(("SREM", self._key, self.member))
        return False
