"""All crowd processes, seen from the demo: it starts them, sets their number of players, audits them and ends them.

Owns the processes and their last reports. It counts nothing itself: the players do, in `delivery_audit`.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shoal.lab.demo.crowd_orders import REPORTS, Accounts, CrowdStatus, Gather, Grow, OpenCrowd, SendAccounts, Stopped
from shoal.lab.demo.delivery_audit import Publications, Receipt, Tally, audit
from shoal.lab.harness import LoadProcess, Ready, Stop
from shoal.limits import Limits

CROWDS: Final = 2
"""Processes with players: as many as the smallest machine that we support has cores."""
ANSWER_S_MAX: Final = 40.0
"""How long a crowd may take to answer. Its players may drain their buses meanwhile, which has a separate limit."""


class _Crowd:
    """One process and its last report."""

    def __init__(self, process: LoadProcess) -> None:
        self.process = process
        self.status = CrowdStatus(0, Tally(), [], time.monotonic(), {}, [])
        self.responses_ms: list[float] = []
        process.on(CrowdStatus, self._take)

    def _take(self, status: CrowdStatus) -> None:
        self.status = status
        self.responses_ms += status.responses_ms


class Crowds:
    """All crowds together."""

    def __init__(self, crowds: Sequence[_Crowd]) -> None:
        self._crowds = crowds
        self._wanted = 0
        self._gathered = 0

    # -- orders ----------------------------------------------------------------------------------------------

    async def open(
        self, url: str, limits: Limits, *, tiles: int, players_max: int, seed: int, update_bytes: int
    ) -> None:
        """Connects all crowds to a cluster. There are no players yet."""
        for number, crowd in enumerate(self._crowds):
            crowd.process.send(
                OpenCrowd(url, limits, tiles, players_max, number, len(self._crowds), seed, update_bytes)
            )
        for crowd in self._crowds:
            await crowd.process.answer(Ready, ANSWER_S_MAX)

    def grow(self, players: int) -> None:
        """Sets how many players there should be."""
        if players != self._wanted:
            self._wanted = players
            for crowd in self._crowds:
                crowd.process.send(Grow(players))

    def gather(self, players: int) -> None:
        """Sets how many players should be in the town."""
        if players != self._gathered:
            self._gathered = players
            for crowd in self._crowds:
                crowd.process.send(Gather(players))

    async def stop(self) -> None:
        """Stops all players; returns when servers have everything that they published."""
        for crowd in self._crowds:
            crowd.process.send(Stop())
        for crowd in self._crowds:
            await crowd.process.answer(Stopped, ANSWER_S_MAX)

    async def audit(self) -> int:
        """How many deliveries are missing now."""
        publications: Publications = {}
        receipts: list[Receipt] = []
        for crowd in self._crowds:
            crowd.process.send(SendAccounts())
        for crowd in self._crowds:
            accounts = await crowd.process.answer(Accounts, ANSWER_S_MAX)
            crowd.status = msgspec.structs.replace(crowd.status, tally=accounts.tally)
            receipts += accounts.receipts
            for channel, players in accounts.publications.items():
                publications.setdefault(channel, {}).update(players)
        return audit(publications, receipts)

    def check(self) -> None:
        """LoadError if a crowd has failed."""
        for crowd in self._crowds:
            crowd.process.check()

    # -- reports ---------------------------------------------------------------------------------------------

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [crowd.process.pid for crowd in self._crowds]

    @property
    def players(self) -> int:
        """How many players there are."""
        return sum(crowd.status.players for crowd in self._crowds)

    @property
    def tally(self) -> Tally:
        """What all players have counted so far."""
        total = Tally()
        for crowd in self._crowds:
            total.add(crowd.status.tally)
        return total

    @property
    def back_until(self) -> float:
        """Every update published before this moment has come back."""
        return min(crowd.status.back_until for crowd in self._crowds)

    @property
    def troubles(self) -> list[str]:
        """Unexpected errors of players."""
        return [trouble for crowd in self._crowds for trouble in crowd.status.troubles]

    @property
    def gap_reasons(self) -> Counter[str]:
        """Number of reported gaps by reason."""
        total: Counter[str] = Counter()
        for crowd in self._crowds:
            total.update(crowd.status.gap_reasons)
        return total

    def take_responses_ms(self) -> list[float]:
        """The response times since the last call."""
        taken: list[float] = []
        for crowd in self._crowds:
            taken += crowd.responses_ms
            crowd.responses_ms = []
        return taken


@contextlib.asynccontextmanager
async def start_crowds(log: Path, prefix: Sequence[str] = ()) -> AsyncIterator[Crowds]:
    """Starts the crowd processes, and ends them when the block is left. `prefix` is put before their command."""
    async with contextlib.AsyncExitStack() as stack:
        processes = [
            LoadProcess(f"players, process {number}", "shoal.lab.demo.crowd", REPORTS, prefix=prefix, log=log)
            for number in range(CROWDS)
        ]
        crowds = [_Crowd(process) for process in processes]
        for process in processes:
            await stack.enter_async_context(process)
        yield Crowds(crowds)
