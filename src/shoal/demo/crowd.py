"""A process full of players: `python -m shoal.demo.crowd`, started and told what to do by the demo.

Owns its players and their one event loop. It ends when its standard input does, so no demo leaves one behind.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from random import Random
from typing import Final

from shoal import logs
from shoal.bus import Bus, connect
from shoal.demo.audit import Publications, Receipt
from shoal.demo.game import Walker, World
from shoal.demo.player import Notes, Player
from shoal.demo.talk import Account, Accounts, Answer, Begin, Gather, Grow, Rest, Rested, Tick, frame, read_order

TICK_S: Final = 0.2
GROW_S: Final = 0.01
"""Pause between two players that join, so that a growing crowd does not come as a shock."""


class Crowd:
    """The players of one process."""

    def __init__(self, begin: Begin, door: Bus, out: asyncio.WriteTransport) -> None:
        self._begin = begin
        self._world = World(begin.tiles)
        self._door = door
        self._out = out
        self._notes = Notes()
        self._players: list[Player] = []
        self._gone: list[Player] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._wanted = 0
        self._in_town = 0
        self._more = asyncio.Event()

    def grow(self, players: int) -> None:
        """Wants so many players in all crowds, more or fewer than there are; every crowd takes its turn."""
        self._wanted = self._share(players)
        self._more.set()

    def gather(self, players: int) -> None:
        """Wants so many players of all crowds in the town."""
        self._in_town = self._share(players)
        for place, player in enumerate(self._players):
            player.call(place < self._in_town)

    def _share(self, players: int) -> int:
        """How many of all these are players of this crowd."""
        return len(range(self._begin.crowd, players, self._begin.crowds))

    async def join(self) -> None:
        """Lets players join, or the newest leave, one after the other, until there are as many as are wanted."""
        while True:
            await self._more.wait()
            self._more.clear()
            while len(self._players) != self._wanted:
                if len(self._players) < self._wanted:
                    await self._add()
                else:
                    self._let_go()
                await asyncio.sleep(GROW_S)

    def _let_go(self) -> None:
        """The newest player leaves; what it published and received is still accounted for."""
        player = self._players.pop()
        self._gone.append(player)
        task = asyncio.create_task(player.leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _add(self) -> None:
        id = self._begin.crowd + (len(self._players) + len(self._gone)) * self._begin.crowds
        bus = await self._door.sibling().open()
        walker = Walker(self._world, Random(f"{self._begin.seed} {id}"), time.monotonic())
        player = Player(id, bus, walker, self._notes, self._begin.update_bytes)
        player.call(len(self._players) < self._in_town)
        self._players.append(player)
        player.start()

    async def tick(self) -> None:
        """Says how the crowd is, again and again."""
        while True:
            self.say(self._now())
            await asyncio.sleep(TICK_S)

    def _now(self) -> Tick:
        waiting = [at for player in self._players if (at := player.oldest_waiting_at) is not None]
        notes = self._notes
        tick = Tick(
            players=len(self._players),
            tally=notes.tally,
            responses_ms=notes.responses_ms.copy(),
            back_until=min(waiting, default=time.monotonic()),
            gap_reasons=notes.gap_reasons,
            troubles=notes.troubles,
        )
        notes.responses_ms.clear()
        return tick

    async def rest(self) -> None:
        """All players stop publishing."""
        self._wanted = len(self._players)
        await asyncio.gather(*(player.stop() for player in self._players), *self._leaving)
        self.say(Rested())

    def account(self) -> None:
        """Says everything that was published and received, and first what a tick would say."""
        self.say(self._now())
        publications: Publications = {}
        receipts: list[Receipt] = []
        for player in (*self._players, *self._gone):
            receipts += player.receipts
            for channel, times in player.published.items():
                publications.setdefault(channel, {})[player.id] = times
        self.say(Accounts(publications, receipts, self._notes.tally))

    def say(self, answer: Answer) -> None:
        """Answers the demo."""
        self._out.write(frame(answer))


async def run() -> None:
    """Does what the demo asks for until it asks no more. Leaves without goodbye: the cluster ends, too."""
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    out, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout)
    begin = await read_order(orders)
    if not isinstance(begin, Begin):
        return
    door = await connect(begin.url, limits=begin.limits).open()
    crowd = Crowd(begin, door, out)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(crowd.join())
        tasks.create_task(crowd.tick())
        while (order := await read_order(orders)) is not None:
            if isinstance(order, Grow):
                crowd.grow(order.players)
            elif isinstance(order, Gather):
                crowd.gather(order.players)
            elif isinstance(order, Rest):
                tasks.create_task(crowd.rest())
            elif isinstance(order, Account):
                crowd.account()
        os._exit(0)


def main() -> None:
    """The process."""
    import uvloop

    logs.configure(level="error", format="text")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


if __name__ == "__main__":
    main()
