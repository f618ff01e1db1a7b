"""Follows the plan of a round in the coordinator: requests, entries and the ring, as they change.

Owns the log of moves and the ledger that is kept from it. It asks for nothing itself; who does is in `asking.py`, or is
the balancer. It sees what is in the coordinator, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final

from shoal.coordination.interface import Change, Coordinator
from shoal.errors import CoordinatorError, PlanError, ProtocolError
from shoal.plan import keys
from shoal.plan.entry import Entry, Phase
from shoal.plan.moving import decode_report, decode_request
from shoal.plan.placement import BY_THE_RING, Mode
from shoal.plan.signing import Verifier
from shoal.soak.ledger import Ledger, Move
from shoal.soak.records import Asked, Busy, Counted, Dropped, Log, Noted, Phased, Stayed, Wrong

SAMPLE_S: Final = 0.05
"""How often it looks how busy the machine is: as long as the slowest messages take. Five ticks of its clock."""


class Following:
    """Follows one round. `channels` are those whose homes are of interest while they have no entry."""

    def __init__(self, coordinator: Coordinator, verifier: Verifier, channels: Iterable[str], log: Log) -> None:
        self.ledger = Ledger()
        self.log = log
        self.counts: Counter[str] = Counter()
        self._coordinator = coordinator
        self._verifier = verifier
        self._channels = sorted(channels)
        self._requests: set[str] = set()
        self._watching: asyncio.Task[None] | None = None

    @property
    def settled(self) -> bool:
        """Whether all moves that were asked for have come to an end."""
        return not self.ledger.open

    def begin(self) -> None:
        """Writes down how entries and requests change from now on, until it is stopped."""
        self._watching = asyncio.create_task(self._watch_all())

    async def stop(self) -> None:
        """Stops; what has ended the watch before that is raised."""
        task, self._watching = self._watching, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _watch_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for work in self._watches():
                group.create_task(work)

    def _watches(self) -> Iterable[Coroutine[Any, Any, None]]:
        """What goes on as long as it watches."""
        yield self._watch(keys.RING_KEY, self._ring)
        yield self._watch(keys.ENTRIES_PREFIX, self._entry)
        yield self._watch(keys.MOVES_PREFIX, self._request)
        yield self._sample()

    async def finish(self) -> None:
        """Stops, writes down what is still open, and why, and ends the log."""
        await self.stop()
        try:
            reports = await self._coordinator.list(keys.REPORTS_PREFIX)
        except CoordinatorError as error:
            reports = {}
            self.log.write(Wrong(f"unsettled: the coordinator does not answer: {error}"))
        for move in self.ledger.open:
            self.log.write(Stayed(move.channel, self._why(move, [kept.value for kept in reports.values()])))
        waiting = sum(entry.phase != "end" for entry in self.ledger.entries.values()) - len(self.ledger.open)
        self.log.write(Noted(f"{waiting} channels are at narrow, and wait for somebody idle or plain", monotonic()))
        for corner, times in self.counts.items():
            self.log.write(Counted(corner, times))
        self.log.end()

    # Watching

    async def _sample(self) -> None:
        """Writes down how busy the machine is: where it has nothing left, latency says little about moves."""
        before = _processor_ticks()
        while True:
            await asyncio.sleep(SAMPLE_S)
            now = _processor_ticks()
            idle, total = now[0] - before[0], now[1] - before[1]
            before = now
            self.log.write(Busy(round(1 - idle / max(total, 1), 3), monotonic()))

    async def _watch(self, prefix: str, take: Callable[[Change], None]) -> None:
        async with aclosing(self._coordinator.watch(prefix)) as changes:
            async for change in changes:
                take(change)

    def _entry(self, change: Change) -> None:
        if change.now is None:
            return
        try:
            entry = self._verifier.entry(change.now.value)
        except PlanError as error:
            self.log.write(Wrong(f"forged: {change.key}: {error}"))
            return
        self.take(_phased(entry, monotonic()))

    def _ring(self, change: Change) -> None:
        """A channel without an entry lives at its home, which counts as its entry here."""
        if change.now is None or change.key != keys.RING_KEY:
            return
        ring = self._verifier.ring(change.now.value)
        for channel in self._channels:
            known = self.ledger.entries.get(channel)
            if known is None or not known.revision:
                home = ring.home(channel.encode())
                at_home = Phased(
                    channel, Phase.END, 0, BY_THE_RING | ring.version, Mode.SINGLE, (home,), (), monotonic()
                )
                self.take(at_home)

    def _request(self, change: Change) -> None:
        channel = keys.move_channel(change.key)
        if channel is None:
            return
        if change.now is None:
            self.take(Dropped(channel.decode(), monotonic()))
        else:
            self._requested(change.now.value)

    def _requested(self, data: bytes) -> None:
        """Somebody else has asked for a move."""
        try:
            request = decode_request(data)
        except PlanError as error:
            self.log.write(Wrong(f"forged: a request: {error}"))
            return
        if request.id in self._requests:  # seen already, before the connection was lost
            return
        self._requests.add(request.id)
        self.counts["move asked eagerly" if request.eager else "move asked lazily"] += 1
        self.take(Asked(request.channel.decode(), request.mode, request.servers, request.eager, monotonic()))

    def take(self, record: Asked | Phased | Dropped) -> None:
        """Writes a line about a move, and keeps the ledger."""
        self.log.write(record)
        self.ledger.take(record)

    def _why(self, move: Move, reports: list[bytes]) -> str:
        """What is known of a move that has not ended."""
        entry = self.ledger.entries.get(move.channel)
        words = [f"asked for {move.target[0]} on {','.join(sorted(move.target[1]))}"]
        if entry is not None:
            words.append(f"entry at {entry.phase}, revision {entry.revision}, helped {','.join(entry.helped) or '-'}")
        for data in reports:
            try:
                report = decode_report(data)
            except ProtocolError as error:
                words.append(str(error))
                continue
            said = report.channels.get(move.channel.encode())
            words.append(f"{report.server} says {said}" if said else f"{report.server} says nothing")
        return "; ".join(words)


@asynccontextmanager
async def watching(following: Following) -> AsyncIterator[None]:
    """Watches until it is left, or finished before."""
    following.begin()
    try:
        yield
    finally:
        await following.stop()


def _processor_ticks() -> tuple[int, int]:
    """Ticks that all processors were idle, and all ticks."""
    user, nice, system, idle, iowait, *others = map(int, Path("/proc/stat").read_text().split()[1:9])
    return idle + iowait, user + nice + system + idle + iowait + sum(others)


def _phased(entry: Entry, at: float) -> Phased:
    placement = entry.placement
    return Phased(
        entry.channel.decode(),
        entry.phase,
        entry.newness,
        placement.version,
        placement.mode,
        placement.servers,
        entry.helped,
        at,
    )
