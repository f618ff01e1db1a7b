"""A player: a bus of its own, a way through the world, and an account of what it published and received.

Owns one player's tasks. It subscribes to the tile that it walks into, publishes there once the subscription
is in force, and leaves the old tile when its own updates have come back from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import Final

from shoal.bus import Bus, Subscription
from shoal.demo.audit import Reading, Receipt, Tally
from shoal.demo.game import UPDATES_PER_S, Update, Walker
from shoal.message import Gap, Item

LEAVE_S_MAX: Final = 20.0
"""How long a player that has left a tile waits there for its own updates."""

TAKE_ITEMS_MAX: Final = 256


class Notes:
    """What the players of a crowd count together. `responses_ms` are those since somebody last asked."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.responses_ms: list[float] = []
        self.gap_reasons: Counter[str] = Counter()
        self.troubles: list[str] = []


class Visit:
    """One stay in a tile: a subscription, its reader, and the player's own updates that are not back yet."""

    def __init__(self, player: Player, subscription: Subscription) -> None:
        self._player = player
        self._subscription = subscription
        self._heard: dict[int, tuple[int, int]] = {}
        """Publisher to its player, and by how much that one's number is ahead of the sequence."""
        self._home = asyncio.Event()
        self.channel = subscription.name
        self.leaving = False
        self.waiting: dict[int, float] = {}
        """Number of an own update to when it was published, in order."""
        self.reading = Reading(self.channel, time.monotonic(), player.notes.tally)
        self._reader = asyncio.create_task(self._read(), name=f"read {self.channel}")

    async def leave(self) -> None:
        """Waits for the own updates, then ends the subscription."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S_MAX):
                while self.waiting:
                    self._home.clear()
                    await self._home.wait()
        self.reading.receipt.until = time.monotonic()
        await self._subscription.aclose()
        await self._reader

    async def _read(self) -> None:
        try:
            while items := await self._subscription.take(TAKE_ITEMS_MAX):
                now = time.monotonic()
                for item in items:
                    self._item(item, now)
        except Exception as error:
            self._player.trouble(error)

    def _item(self, item: Item, now: float) -> None:
        if isinstance(item, Gap):
            self._gap(item)
            return
        update = Update.decode(item.payload)
        self._heard[item.publisher] = update.player, update.number - item.sequence
        self.reading.update(update)
        if update.player == self._player.id:
            self._own(update, now)

    def _gap(self, gap: Gap) -> None:
        """Translates what was reported, which speaks of publishers and sequences, to players and numbers."""
        self._player.notes.gap_reasons[gap.reason] += 1
        heard = None if gap.publisher is None else self._heard.get(gap.publisher)
        if heard is None:
            self.reading.gap_of_strangers()
        else:
            player, offset = heard
            self.reading.gap(player, None if gap.last is None else gap.last + offset)

    def _own(self, update: Update, now: float) -> None:
        published_at = self.waiting.pop(update.number, None)
        if published_at is not None:
            self._player.notes.responses_ms.append(round((now - published_at) * 1000, 3))
        if not self.waiting:
            self._home.set()


class Player:
    """One player; what it counts goes to the shared notes of its crowd."""

    def __init__(self, id: int, bus: Bus, walker: Walker, notes: Notes, update_bytes: int = 0) -> None:
        self.id = id
        self.notes = notes
        self._update_bytes = update_bytes
        self.published: dict[str, list[float]] = {}
        """Channel to the times of the updates there."""
        self._bus = bus
        self._walker = walker
        self._visits: list[Visit] = []
        self._receipts: list[Receipt] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # -- what it knows ---------------------------------------------------------------------------------------

    @property
    def receipts(self) -> list[Receipt]:
        """The accounts of all its subscriptions."""
        return [*self._receipts, *(visit.reading.receipt for visit in self._visits)]

    @property
    def oldest_waiting_at(self) -> float | None:
        """When the oldest own update that is not back was published."""
        return min((next(iter(visit.waiting.values())) for visit in self._visits if visit.waiting), default=None)

    def trouble(self, error: Exception) -> None:
        """Something went wrong that should not have: it is told at the end."""
        self.notes.troubles.append(f"player {self.id}: {type(error).__name__}: {error}")

    # -- what it does ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to play."""
        self._task = asyncio.create_task(self._play(), name=f"player {self.id}")

    def call(self, in_town: bool) -> None:
        """Calls the player to the town, or lets it go."""
        self._walker.call(in_town, time.monotonic())

    async def stop(self) -> None:
        """Publishes no more and waits until servers have all that it published; it goes on to read."""
        self._stopping.set()
        if self._task is not None:
            await self._task
        try:
            await self._bus.drain()
        except Exception as error:
            self.trouble(error)

    async def leave(self) -> None:
        """Ends the game for this player: publishes no more, waits for its own updates, and goes."""
        await self.stop()
        try:
            for visit in list(self._visits):
                self._leave(visit)
            await asyncio.gather(*self._leaving)
            await self._bus.aclose()
        except Exception as error:
            self.trouble(error)

    async def _play(self) -> None:
        entering: asyncio.Task[Visit] | None = None
        try:
            visit = await self._enter(self._walker.channel)
            due = time.monotonic()
            while not self._stopping.is_set():
                self._walker.move(time.monotonic())
                if entering is not None and entering.done():
                    self._leave(visit)
                    visit, entering = await entering, None
                if entering is None and self._walker.channel != visit.channel:
                    entering = asyncio.create_task(self._enter(self._walker.channel))
                await self._publish(visit)
                due = max(due + 1 / UPDATES_PER_S, time.monotonic())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), due - time.monotonic())
            if entering is not None:
                await entering
        except Exception as error:
            self.trouble(error)

    async def _enter(self, channel: str) -> Visit:
        visit = Visit(self, await self._bus.subscribe(channel).open())
        self._visits.append(visit)
        return visit

    def _leave(self, visit: Visit) -> None:
        if visit.leaving:
            return
        visit.leaving = True
        task = asyncio.create_task(self._leave_visit(visit), name=f"leave {visit.channel}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _leave_visit(self, visit: Visit) -> None:
        await visit.leave()
        self._visits.remove(visit)
        self._receipts.append(visit.reading.receipt)

    async def _publish(self, visit: Visit) -> None:
        times = self.published.setdefault(visit.channel, [])
        before_at = times[-1] if times else 0.0
        now = time.monotonic()
        number = len(times) + 1
        update = Update(self.id, number, now, before_at, self._walker.x, self._walker.y)
        times.append(now)
        visit.waiting[number] = now
        self.notes.tally.messages += 1
        await self._bus.publish(visit.channel, update.encode().ljust(self._update_bytes, b"\0"))
