"""A soak of channels or moves: rounds with faults, and with moves that are asked for.

Owns what happens during the load of such a round, and the sum over rounds. The order of a round is in `rounds.py`; the
last part of its load is without faults.

A run that is longer than `ROUND_S_MAX` has several rounds, so that logs and memory stay bounded, and so that no
publisher is silent so long that its stream ends and its sequence numbers begin again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.cluster.timing import Timing
from shoal.coordination.redis import RedisCoordinator
from shoal.plan.keys import entry_key
from shoal.plan.signing import Signer
from shoal.soak.asking import Asking, begin_asking
from shoal.soak.faults import Faults
from shoal.soak.forwarding import count_forwarded
from shoal.soak.outcome import BaseOutcome, Options, Outcome
from shoal.soak.records import Counted, Wrong
from shoal.soak.rounds import READY_S_MAX, SETTLE_S_MAX, BaseRound, Tell
from shoal.soak.shape import IDLE_CHANNELS, Shape, draw, draw_burst_shape

ROUND_S_MAX: Final = 60.0
RESTART_PAUSE_S_MAX: Final = 1.0
"""The supervisor would wait longer and longer for a process that is killed all the time."""


async def run_soak(options: Options, tell: Tell) -> Outcome:
    """Runs all rounds."""
    outcome = Outcome(options)
    began = time.monotonic()
    rounds = math.ceil(options.seconds / ROUND_S_MAX)
    for number in range(rounds):
        with round_directory(outcome) as directory:
            moves = options.moves * (number + 1) // rounds - options.moves * number // rounds
            part = msgspec.structs.replace(options, moves=moves, seconds=options.seconds / rounds)
            one = Round(part, options.seed + number, directory, tell)
            outcome.add(await one.execute(), one.kills, one.forwarded)
    outcome.seconds = time.monotonic() - began
    return outcome


@contextlib.contextmanager
def round_directory(outcome: BaseOutcome) -> Iterator[Path]:
    """A directory for the logs of a round; it is kept if the round was not right."""
    directory = Path(tempfile.mkdtemp(prefix="shoal-soak-"))
    before = outcome.report.violation_count
    try:
        yield directory
    finally:
        if outcome.report.violation_count > before:
            outcome.kept.append(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)


class Round(BaseRound):
    """A round with faults, or with moves that are asked for."""

    def __init__(self, options: Options, seed: int, directory: Path, tell: Tell) -> None:
        super().__init__(_shape(options, seed), options.severity, directory, tell)
        self.forwarded = 0
        self._options = options
        self._asking: Asking | None = None
        self._faults: Faults | None = None

    @property
    def kills(self) -> int:
        """Of agents, servers and the coordinator."""
        return self._faults.kills if self._faults else 0

    def make_cluster(self, directory: Path) -> LocalCluster:
        """With a supervisor that never waits long."""
        timing = Timing(restart_pause_s_max=RESTART_PAUSE_S_MAX)
        return LocalCluster(self._options.servers, directory, limits=self._options.limits, timing=timing)

    async def prepare(self, cluster: LocalCluster, stack: contextlib.AsyncExitStack) -> None:
        """Places channels, and follows the plan if there are to be moves."""
        await self._place(cluster)
        if self._options.protocol == "moves":
            asking = begin_asking(cluster, self.shape, self._options, self.directory)
            self.following = self._asking = await stack.enter_async_context(asking)
            self.watchers = 1

    async def _place(self, cluster: LocalCluster) -> None:
        """Writes the plan's entries: some channels live where no ring would put them."""
        signer = Signer(cluster.directory.key_file.read_bytes())
        async with await RedisCoordinator.connect(cluster.url_for(ADMIN), timeout_s=READY_S_MAX) as coordinator:
            for channel in self.shape.channels:
                if channel.placement is not None:
                    name = channel.name.encode()
                    await coordinator.put(entry_key(name), signer.entry(name, channel.placement))
                    self.log.write(Counted(f"placement {channel.placement.mode}", 1))

    async def load(self, cluster: LocalCluster) -> None:
        """Faults strike and channels move."""
        seconds = self.shape.seconds
        faults = Faults(cluster, self._options.faults, seconds, self.shape.rng("faults"), self.log)
        self._faults = faults
        striking = asyncio.create_task(faults.run())
        asking = asyncio.create_task(self._asking.run(self.load_began)) if self._asking else None
        try:
            await self.until_load(seconds, "load")
            await self.end_moves()
            for role in ("watch", "publish"):
                self.order("stop", role)
            if not await self.until(striking.done, SETTLE_S_MAX, "mending"):
                self.log.write(Wrong(f"unsettled: the cluster was not well {SETTLE_S_MAX:g} s after the last fault"))
        finally:
            tasks = [task for task in (striking, asking) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for corner, times in faults.counts.items():
            self.log.write(Counted(corner, times))

    async def finish(self, cluster: LocalCluster) -> None:
        """Ends the log of moves."""
        if self._asking is not None:
            await self._asking.finish()
            self.forwarded = await asyncio.to_thread(count_forwarded, cluster.state)


def _shape(options: Options, seed: int) -> Shape:
    if options.burst:
        return draw_burst_shape(seed, options.seconds, options.burst, options.limits)
    servers = [f"s{number}" for number in range(1, options.servers + 1)]
    idle = IDLE_CHANNELS if options.moves else 0
    return draw(seed, options.seconds, servers, options.subscribers, options.limits, idle)
