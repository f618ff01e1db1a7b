"""Requests of a soak: the news that a request is gone counts for that request, however late it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from random import Random
from typing import cast

from shoal.coordination.interface import Change, Coordinator, KeyWrite, Versioned
from shoal.lab.soak.move_ledger import Fate
from shoal.lab.soak.move_requests import MoveRequester
from shoal.lab.soak.move_schedule import PlannedMove
from shoal.lab.soak.plan_follower import followed
from shoal.lab.soak.round_log import RoundLog
from shoal.plan import keys
from shoal.plan.placement import Mode
from shoal.plan.signature import Signer, Verifier

KEY = keys.move_key(b"c")


class WatchedMoves:
    """Takes requests; the test decides what the watch of requests shows, and when."""

    def __init__(self) -> None:
        self.shown: asyncio.Queue[Change] = asyncio.Queue()
        self.written: list[bytes] = []
        self.both_written = asyncio.Event()

    async def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        while True:
            change = await self.shown.get() if prefix == keys.moves_prefix() else await asyncio.Future()
            yield change

    async def write_all(self, writes: Sequence[KeyWrite]) -> list[int]:
        """A request is being written while the watch shows an older change."""
        self.written += [write.value for write in writes if write.value is not None]
        if len(self.written) == 2:
            self.shown.put_nowait(Change(KEY, None))
        await self.drain()
        self.show(len(self.written))
        await self.drain()
        if len(self.written) == 2:
            self.both_written.set()
        return [len(self.written)] * len(writes)

    async def list(self, prefix: str) -> dict[str, Versioned]:
        return {KEY: Versioned(self.written[-1], len(self.written))}

    def show(self, number: int) -> None:
        self.shown.put_nowait(Change(KEY, Versioned(self.written[number - 1], number)))

    async def drain(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_the_end_of_one_request_is_not_taken_for_the_end_of_the_next(tmp_path: Path) -> None:
    coordinator = WatchedMoves()
    moves = [PlannedMove(0.0, "c", Mode.SINGLE, False), PlannedMove(0.01, "c", Mode.SINGLE, False)]
    log = RoundLog(tmp_path / "moves.log")
    verifier = Verifier(Signer(Signer.generate()).public)
    requester = MoveRequester(cast(Coordinator, coordinator), verifier, moves, lambda: ("s1", "s2"), Random(1), log)
    async with followed(requester):
        running = asyncio.create_task(requester.run(0.0))
        await coordinator.both_written.wait()
        assert [move.fate for move in requester.ledger.moves] == [Fate.REPLACED, Fate.OPEN]
        coordinator.shown.put_nowait(Change(KEY, None))
        await coordinator.drain()
        assert [move.fate for move in requester.ledger.moves] == [Fate.REPLACED, Fate.ABORTED]
        running.cancel()
    log.end()
