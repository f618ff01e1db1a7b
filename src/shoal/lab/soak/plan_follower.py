"""Follows the plan of a round in the coordinator: requests, entries and the ring, as they change.

Owns the log of moves and the ledger made from it. It requests no moves itself: `move_requests` does, or the balancer.
It sees only what is in the coordinator.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from time import monotonic
from typing import Any, Final

from shoal.coordination.interface import Change, Coordinator
from shoal.errors import CoordinatorError, PlanError, ProtocolError
from shoal.lab.machine import MachineMeter
from shoal.lab.soak.move_ledger import Ledger, RequestedMove
from shoal.lab.soak.round_log import (
    CornerMet,
    CpuSample,
    EntryChanged,
    MoveRequested,
    MoveUnfinished,
    Note,
    Problem,
    RequestRemoved,
    RoundLog,
)
from shoal.plan import keys
from shoal.plan.entry import Entry, Phase
from shoal.plan.move_request import decode_report, decode_request
from shoal.plan.placement import BY_THE_RING, Mode
from shoal.plan.signature import Verifier

SAMPLE_S: Final = 0.05
"""How often the use of processors is sampled: about the latency of the slowest messages, and five ticks of the kernel's
clock."""


class PlanFollower:
    """Follows one round. `channels` are the channels whose homes are logged while they have no entry."""

    def __init__(self, coordinator: Coordinator, verifier: Verifier, channels: Iterable[str], log: RoundLog) -> None:
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
        """Whether all requested moves have ended."""
        return not self.ledger.open

    def begin(self) -> None:
        """Logs changes of entries and requests from now on, until `stop`."""
        self._watching = asyncio.create_task(self._watch_all())

    async def stop(self) -> None:
        """Stops. Raises the error that ended the watch before, if any."""
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
        """The tasks that run while it follows."""
        yield self._watch(keys.RING_KEY, self._ring)
        yield self._watch(keys.entries_prefix(), self._entry)
        yield self._watch(keys.moves_prefix(), self._request)
        yield self._sample()

    async def finish(self) -> None:
        """Stops, logs open moves with their reasons, and ends the log."""
        await self.stop()
        try:
            reports = await self._coordinator.list(keys.reports_prefix())
        except CoordinatorError as error:
            reports = {}
            self.log.write(Problem(f"unsettled: the coordinator does not answer: {error}"))
        for move in self.ledger.open:
            self.log.write(MoveUnfinished(move.channel, self._why(move, [kept.value for kept in reports.values()])))
        waiting = sum(entry.phase != "end" for entry in self.ledger.entries.values()) - len(self.ledger.open)
        self.log.write(Note(f"{waiting} channels are at narrow and wait for idle or plain clients", monotonic()))
        for corner, times in self.counts.items():
            self.log.write(CornerMet(corner, times))
        self.log.end()

    # Watching

    async def _sample(self) -> None:
        """Logs the use of processors: while they are saturated, latency says little about moves."""
        machine = MachineMeter()
        while True:
            await asyncio.sleep(SAMPLE_S)
            self.log.write(CpuSample(round(machine.share(), 3), monotonic()))

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
            self.log.write(Problem(f"forged: {change.key}: {error}"))
            return
        self.take(_changed(entry, monotonic()))

    def _ring(self, change: Change) -> None:
        """Logs the homes of channels without an entry, as if they were entries."""
        if change.now is None or change.key != keys.RING_KEY:
            return
        ring = self._verifier.ring(change.now.value)
        for channel in self._channels:
            known = self.ledger.entries.get(channel)
            if known is None or not known.revision:
                home = ring.home(channel.encode())
                at_home = EntryChanged(
                    channel, Phase.END, 0, BY_THE_RING | ring.version, Mode.SINGLE, (home,), (), monotonic()
                )
                self.take(at_home)

    def _request(self, change: Change) -> None:
        channel = keys.move_unit(change.key)
        if channel is None:
            return
        if change.now is None:
            self._removed(channel.decode())
        else:
            self._requested(change.now.value)

    def _removed(self, channel: str) -> None:
        """Logs that a request is gone."""
        self.take(RequestRemoved(channel, monotonic()))

    def _requested(self, data: bytes) -> None:
        """Logs a move that was requested elsewhere."""
        try:
            request = decode_request(data)
        except PlanError as error:
            self.log.write(Problem(f"forged: a request: {error}"))
            return
        if request.id in self._requests:  # it was seen before the connection was lost
            return
        self._requests.add(request.id)
        self.counts["move asked eagerly" if request.eager else "move asked lazily"] += 1
        self.take(MoveRequested(request.unit.decode(), request.mode, request.servers, request.eager, monotonic()))

    def take(self, record: MoveRequested | EntryChanged | RequestRemoved) -> None:
        """Logs a line about a move, and updates the ledger."""
        self.log.write(record)
        self.ledger.take(record)

    def _why(self, move: RequestedMove, reports: list[bytes]) -> str:
        """The known facts about a move that has not ended."""
        entry = self.ledger.entries.get(move.channel)
        words = [f"requested: {move.target[0]} on {','.join(sorted(move.target[1]))}"]
        if entry is not None:
            words.append(f"entry at {entry.phase}, revision {entry.revision}, helped {','.join(entry.helped) or '-'}")
        for data in reports:
            try:
                report = decode_report(data)
            except ProtocolError as error:
                words.append(str(error))
                continue
            counts = report.channels.get(move.channel.encode())
            words.append(f"{report.server} reports {counts}" if counts else f"{report.server} reports nothing")
        return "; ".join(words)


@asynccontextmanager
async def followed(follower: PlanFollower) -> AsyncIterator[None]:
    """Follows until the block is left, or the follower has finished."""
    follower.begin()
    try:
        yield
    finally:
        await follower.stop()


def _changed(entry: Entry, at: float) -> EntryChanged:
    placement = entry.placement
    return EntryChanged(
        entry.unit.decode(),
        entry.phase,
        entry.newness,
        placement.version,
        placement.mode,
        placement.servers,
        entry.helped,
        at,
    )
