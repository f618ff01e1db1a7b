"""A process with many players: `python -m shoal.lab.demo.crowd`, a load process (`shoal.lab.harness`).

Owns its players and the map that they walk on.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from shoal.bus import Bus, connect
from shoal.lab.demo.crowd_orders import (
    ORDERS,
    Accounts,
    CrowdOrder,
    CrowdStatus,
    Gather,
    Grow,
    OpenCrowd,
    SendAccounts,
    Stopped,
)
from shoal.lab.demo.delivery_audit import Publications, Receipt
from shoal.lab.demo.game_map import GameMap
from shoal.lab.demo.player import Player, PlayerCounts
from shoal.lab.harness import Parent, Ready, Stop, run_worker

STATUS_S: Final = 0.2
JOIN_S: Final = 0.01
"""Pause between two players that join or leave, so that a change of the crowd is not one burst."""


class Crowd:
    """The players of one process. `first_bus` has found the cluster; each player opens a bus beside it."""

    def __init__(self, opened: OpenCrowd, first_bus: Bus, parent: Parent[CrowdOrder]) -> None:
        self._opened = opened
        self._map = GameMap(
            opened.tiles, self._share(opened.players_max), (opened.seed, opened.crowd), time.monotonic()
        )
        self._first_bus = first_bus
        self._parent = parent
        self._counts = PlayerCounts()
        self._players: list[Player] = []
        self._left: list[Player] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._wanted = 0
        self._changed = asyncio.Event()

    def grow(self, players: int) -> None:
        """Sets how many players all crowds together should have; each crowd takes its share."""
        self._wanted = self._share(min(players, self._opened.players_max))
        self._changed.set()

    def gather(self, players: int) -> None:
        """Sets how many players of all crowds should be in the town."""
        self._map.gather(self._share(players))

    def _share(self, players: int) -> int:
        """This crowd's share of a number of players."""
        return len(range(self._opened.crowd, players, self._opened.crowds))

    async def keep_size(self) -> None:
        """Lets players join, or the newest leave, one by one, until there are as many as wanted. Runs forever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while len(self._players) != self._wanted:
                if len(self._players) < self._wanted:
                    await self._add()
                else:
                    self._remove()
                await asyncio.sleep(JOIN_S)

    async def _add(self) -> None:
        id = self._opened.crowd + (len(self._players) + len(self._left)) * self._opened.crowds
        bus = await self._first_bus.sibling().open()
        player = Player(id, bus, self._map, len(self._players), self._counts, self._opened.update_bytes)
        self._players.append(player)
        player.start()

    def _remove(self) -> None:
        """The newest player leaves; the audit still covers what it published and received."""
        player = self._players.pop()
        self._left.append(player)
        task = asyncio.create_task(player.leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def report(self) -> None:
        """Reports the status of the crowd at intervals. Runs forever."""
        while True:
            self._parent.tell(self._status())
            await asyncio.sleep(STATUS_S)

    def _status(self) -> CrowdStatus:
        waiting = [at for player in self._players if (at := player.oldest_waiting_at) is not None]
        counts = self._counts
        status = CrowdStatus(
            players=len(self._players),
            tally=counts.tally,
            responses_ms=counts.responses_ms,
            back_until=min(waiting, default=time.monotonic()),
            gap_reasons=counts.gap_reasons,
            troubles=counts.troubles,
        )
        counts.responses_ms = []
        return status

    async def stop(self) -> None:
        """All players stop publishing."""
        self._wanted = len(self._players)
        await asyncio.gather(*(player.stop() for player in self._players), *self._leaving)
        self._parent.tell(Stopped())

    def send_accounts(self) -> None:
        """Reports everything that was published and received, after a last status."""
        self._parent.tell(self._status())
        publications: Publications = {}
        receipts: list[Receipt] = []
        for player in (*self._players, *self._left):
            receipts += player.receipts
            for channel, times in player.published.items():
                publications.setdefault(channel, {})[player.id] = times
        self._parent.tell(Accounts(publications, receipts, self._counts.tally))


async def work(parent: Parent[CrowdOrder]) -> None:
    """Follows orders until there are no more. Players stay in the game, because the cluster ends too."""
    opened = await parent.order()
    if not isinstance(opened, OpenCrowd):
        return
    crowd = Crowd(opened, await connect(opened.url, limits=opened.limits).open(), parent)
    parent.tell(Ready())
    async with asyncio.TaskGroup() as tasks:
        endless = [tasks.create_task(crowd.keep_size()), tasks.create_task(crowd.report())]
        while (order := await parent.order()) is not None:
            match order:
                case Grow(players):
                    crowd.grow(players)
                case Gather(players):
                    crowd.gather(players)
                case Stop():
                    tasks.create_task(crowd.stop())
                case SendAccounts():
                    crowd.send_accounts()
        for task in endless:
            task.cancel()


if __name__ == "__main__":
    run_worker(ORDERS, work)
