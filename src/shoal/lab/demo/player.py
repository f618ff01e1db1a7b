"""A player: a bus, its place on the map, and a record of what it published and received.

Owns the tasks of one player. It subscribes to the tile that it enters, publishes there once the subscription is in
force, and leaves the old tile when its own updates have come back from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import Final

from shoal.bus import Bus, Subscription
from shoal.errors import ProtocolError
from shoal.lab.demo.delivery_audit import Receipt, SubscriptionCheck, Tally, Update
from shoal.lab.demo.game_map import GameMap
from shoal.lab.rgame import UPDATES_PER_S
from shoal.message import Gap, Item, Retraction

LEAVE_S_MAX: Final = 20.0
"""How long a player that has left a tile waits for its own updates there."""

TAKE_ITEMS_MAX: Final = 256


class PlayerCounts:
    """What the players of a crowd count together. `responses_ms` are those since the last report."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.responses_ms: list[float] = []
        self.gap_reasons: Counter[str] = Counter()
        self.troubles: list[str] = []


class TileVisit:
    """One stay on a tile: a subscription, its reader, and the player's own updates that have not come back yet."""

    def __init__(self, player: Player, subscription: Subscription) -> None:
        self._player = player
        self._subscription = subscription
        self._publishers: dict[int, tuple[int, int]] = {}
        """Publisher to its player, and the difference between that player's numbers and the sequence numbers."""
        self._all_back = asyncio.Event()
        self.channel = subscription.name
        self.leaving = False
        self.waiting: dict[int, float] = {}
        """Number of an own update to when it was published, in order."""
        self.check = SubscriptionCheck(self.channel, time.monotonic(), player.counts.tally)
        self._reader = asyncio.create_task(self._read(), name=f"read {self.channel}")

    async def leave(self) -> None:
        """Waits for the player's own updates, then ends the subscription."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S_MAX):
                while self.waiting:
                    self._all_back.clear()
                    await self._all_back.wait()
        self.check.receipt.until = time.monotonic()
        await self._subscription.aclose()
        await self._reader

    async def _read(self) -> None:
        try:
            while items := await self._subscription.take(TAKE_ITEMS_MAX):
                now = time.monotonic()
                for item in items:
                    self._take(item, now)
        except Exception as error:
            self._player.report_trouble(error)

    def _take(self, item: Item, now: float) -> None:
        if isinstance(item, Gap):
            self._take_gap(item)
            return
        if isinstance(item, Retraction):
            raise ProtocolError(f"no client of the demo forges messages, but one was retracted: {item}")
        update = Update.decode(item.payload)
        self._publishers[item.publisher] = update.player, update.number - item.sequence
        self.check.update(update)
        if update.player == self._player.id:
            self._take_own(update, now)

    def _take_gap(self, gap: Gap) -> None:
        """Translates a gap from publishers and sequence numbers to players and update numbers."""
        self._player.counts.gap_reasons[gap.reason] += 1
        known = None if gap.publisher is None else self._publishers.get(gap.publisher)
        if known is None:
            self.check.gap_of_strangers()
        else:
            player, offset = known
            self.check.gap(player, None if gap.last is None else gap.last + offset)

    def _take_own(self, update: Update, now: float) -> None:
        published_at = self.waiting.pop(update.number, None)
        if published_at is not None:
            self._player.counts.responses_ms.append(round((now - published_at) * 1000, 3))
        if not self.waiting:
            self._all_back.set()


class Player:
    """One player. `place` is its number on the map; `counts` are shared by all players of its crowd."""

    def __init__(
        self, id: int, bus: Bus, game_map: GameMap, place: int, counts: PlayerCounts, update_bytes: int = 0
    ) -> None:
        self.id = id
        self.counts = counts
        self._update_bytes = update_bytes
        self.published: dict[str, list[float]] = {}
        """Channel to the times of the updates there."""
        self._bus = bus
        self._map = game_map
        self._place = place
        self._visits: list[TileVisit] = []
        self._receipts: list[Receipt] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def receipts(self) -> list[Receipt]:
        """What all its subscriptions have received."""
        return [*self._receipts, *(visit.check.receipt for visit in self._visits)]

    @property
    def oldest_waiting_at(self) -> float | None:
        """When its oldest update that has not come back was published."""
        return min((next(iter(visit.waiting.values())) for visit in self._visits if visit.waiting), default=None)

    def report_trouble(self, error: Exception) -> None:
        """Keeps an unexpected error for the summary."""
        self.counts.troubles.append(f"player {self.id}: {type(error).__name__}: {error}")

    def start(self) -> None:
        """Begins to play."""
        self._task = asyncio.create_task(self._play(), name=f"player {self.id}")

    async def stop(self) -> None:
        """Stops publishing and waits until servers have everything that it published. It continues to read."""
        self._stopping.set()
        if self._task is not None:
            await self._task
        try:
            await self._bus.drain()
        except Exception as error:
            self.report_trouble(error)

    async def leave(self) -> None:
        """Stops publishing, waits for its own updates, and closes its bus."""
        await self.stop()
        try:
            for visit in list(self._visits):
                self._leave(visit)
            await asyncio.gather(*self._leaving)
            await self._bus.aclose()
        except Exception as error:
            self.report_trouble(error)

    async def _play(self) -> None:
        entering: asyncio.Task[TileVisit] | None = None
        try:
            visit = await self._enter(self._channel())
            due = time.monotonic()
            while not self._stopping.is_set():
                if entering is not None and entering.done():
                    self._leave(visit)
                    visit, entering = await entering, None
                channel = self._channel()
                if entering is None and channel != visit.channel:
                    entering = asyncio.create_task(self._enter(channel))
                await self._publish(visit)
                due = max(due + 1 / UPDATES_PER_S, time.monotonic())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), due - time.monotonic())
            if entering is not None:
                await entering
        except Exception as error:
            self.report_trouble(error)

    def _channel(self) -> str:
        """The channel of the tile that the player is on now."""
        self._map.advance(time.monotonic())
        return self._map.channel(self._place)

    async def _enter(self, channel: str) -> TileVisit:
        visit = TileVisit(self, await self._bus.subscribe(channel).open())
        self._visits.append(visit)
        return visit

    def _leave(self, visit: TileVisit) -> None:
        if visit.leaving:
            return
        visit.leaving = True
        task = asyncio.create_task(self._leave_visit(visit), name=f"leave {visit.channel}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _leave_visit(self, visit: TileVisit) -> None:
        await visit.leave()
        self._visits.remove(visit)
        self._receipts.append(visit.check.receipt)

    async def _publish(self, visit: TileVisit) -> None:
        times = self.published.setdefault(visit.channel, [])
        before_at = times[-1] if times else 0.0
        now = time.monotonic()
        number = len(times) + 1
        update = Update(self.id, number, now, before_at, *self._map.position(self._place))
        times.append(now)
        visit.waiting[number] = now
        self.counts.tally.messages += 1
        await self._bus.publish(visit.channel, update.encode().ljust(self._update_bytes, b"\0"))
