"""The demo from its start to its summary.

Owns the order of things: cluster, crowds, faults, the end, and the account. What is shown, and where, is the
caller's: it is handed frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Final

import msgspec

from shoal.cluster.acl import ADMIN
from shoal.cluster.load import ServerLoad, measure_load
from shoal.cluster.local import LocalCluster
from shoal.coordination.redis import RedisCoordinator
from shoal.demo.audit import Tally
from shoal.demo.crowds import CROWDS, Crowds
from shoal.demo.game import World, crowd_size, tiles_for
from shoal.demo.moves import TILES, Plot, carry_out
from shoal.demo.sampling import Frame, Sampler, percentile, rows
from shoal.demo.script import Deed, Event, Script
from shoal.demo.talk import Begin
from shoal.limits import Limits
from shoal.plan.signing import Verifier

STEP_S: Final = 0.1
SAMPLE_S: Final = 1.0
LOAD_TIMEOUT_S: Final = 1.0

SETTLE_S_MAX: Final = 20.0
"""How long after the last update everything may take to arrive; longer than the longest wait for a hole."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    seconds: float
    players: int
    servers: int
    limits: Limits
    seed: int = 1


class Summary(msgspec.Struct, frozen=True):
    """What came of it."""

    players: int
    tally: Tally
    server_kills: int
    moves_asked: int
    moves_ended: int
    p50_ms: float | None
    p99_ms: float | None
    seconds: float
    servers: int
    ring_version: int
    cpu_share_mean: float
    cpu_share_max: float
    interrupted: bool
    events: list[Event]
    gap_reasons: dict[str, int]
    troubles: list[str]

    @property
    def holds(self) -> bool:
        """Whether the promise was kept."""
        tally = self.tally
        return not (tally.lost or tally.duplicated or tally.reordered or self.troubles)


Show = Callable[[Frame], None]


async def run_demo(options: Options, show: Show, say: Callable[[str], None]) -> Summary:
    """Runs the demo. `show` gets a frame ten times a second, `say` what goes on before the first one."""
    stop = asyncio.Event()
    with _interrupts(stop):
        say(f"starting a cluster of {options.servers} servers with their agents ...")
        async with (
            LocalCluster(options.servers, limits=options.limits) as cluster,
            Crowds(cluster.directory.log("players")) as crowds,
        ):
            say("starting the processes of the players ...")
            tiles = tiles_for(options.players)
            await crowds.begin(
                [Begin(cluster.url, options.limits, tiles, crowd, CROWDS, options.seed) for crowd in range(CROWDS)]
            )
            return await Demo(options, tiles, cluster, crowds, show, stop).run()


class Demo:
    """A demo with everything that it needs running."""

    def __init__(
        self,
        options: Options,
        tiles: int,
        cluster: LocalCluster,
        crowds: Crowds,
        show: Show,
        stop: asyncio.Event,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._crowds = crowds
        self._show = show
        self._stop = stop
        self._tiles = tiles
        self._start = self._sample_at = time.monotonic()
        self._script = Script([server.id for server in cluster.servers], options.seconds, self._start)
        busiest = World(tiles).busiest[:TILES]
        self._plot = Plot(busiest, options.seconds, self._start, self._script.tell)
        self._sampler = Sampler(self._start)
        self._loads: dict[str, ServerLoad | None] = {}
        self._players_max = 0
        self._phase = "the crowd grows"

    async def run(self) -> Summary:
        """Plays for the time that was asked for, or until somebody interrupts; then counts."""
        self._script.tell(self._start, "plan", f"{len(self._cluster.servers)} servers run; players come")
        async with _background(self._measure()), _background(self._move()):
            while not self._stop.is_set() and time.monotonic() < self._start + self._options.seconds:
                elapsed_s = time.monotonic() - self._start
                self._crowds.grow(crowd_size(self._options.players, elapsed_s, self._options.seconds))
                await self._do(self._script.due(time.monotonic()))
                await self._step()
            played_s = time.monotonic() - self._start
            lost = await self._settle()
        return self._summary(played_s, lost)

    async def _settle(self) -> int:
        """Lets players stop and everything arrive; returns how many deliveries are missing in the end."""
        self._phase = "the last updates arrive"
        deadline = time.monotonic() + SETTLE_S_MAX
        await self._do(self._script.finish(time.monotonic()))
        resting = asyncio.create_task(self._crowds.rest())
        while not resting.done():
            await self._step()
        await resting
        lost = await self._crowds.audit()
        while lost and time.monotonic() < deadline:
            await self._step()
            lost = await self._crowds.audit()
        await self._step()
        return lost

    async def _do(self, deeds: list[Deed]) -> None:
        for deed, server in deeds:
            if deed == "release":
                self._cluster.release(server)
                continue
            if deed == "hold":
                self._cluster.hold(server)
            await self._cluster.kill(server)

    async def _step(self) -> None:
        """A tenth of a second: look, show, wait."""
        self._crowds.check()
        now = time.monotonic()
        self._script.look(self._cluster.status(), self._crowds.back_until, now)
        self._players_max = max(self._players_max, self._crowds.players)
        if now >= self._sample_at:
            self._sample_at += SAMPLE_S
            pids = [os.getpid(), *self._crowds.pids]
            pids += [process.pid for process in self._cluster.state.processes()]
            responses_ms = self._crowds.take_responses_ms()
            self._sampler.sample(now, self._crowds.players, self._crowds.tally, responses_ms, pids)
        self._show(self._frame(now))
        await asyncio.sleep(STEP_S)

    def _frame(self, now: float) -> Frame:
        status = self._cluster.status()
        return Frame(
            phase=self._phase,
            elapsed_s=now - self._start,
            seconds=self._options.seconds,
            players_max=self._options.players,
            tiles=self._tiles,
            history=self._sampler.history,
            tally=self._crowds.tally,
            waiting_s=max(0.0, now - self._crowds.back_until),
            ring_version=status.ring_version,
            moves_ended=self._plot.ended,
            moves_under_way=self._plot.under_way,
            servers=rows(status, self._loads),
            events=self._script.events,
        )

    async def _measure(self) -> None:
        """Asks the servers for their load, again and again."""
        while True:
            state = self._cluster.state
            self._loads = await asyncio.to_thread(measure_load, state, SAMPLE_S, LOAD_TIMEOUT_S)

    async def _move(self) -> None:
        """Moves busy channels at their times."""
        verifier = Verifier(bytes.fromhex(self._cluster.state.public_key))
        url, timeout_s = self._cluster.url_for(ADMIN), self._options.limits.connect_timeout_s
        async with await RedisCoordinator.connect(url, timeout_s=timeout_s) as coordinator:
            await carry_out(self._plot, coordinator, verifier, self._members)

    def _members(self) -> list[str]:
        """The servers of the ring that run."""
        status = self._cluster.status()
        running = {process.name for process in status.processes if process.state == "running"}
        return [server.id for server in status.servers if server.in_ring and server.lease and server.id in running]

    def _summary(self, played_s: float, lost: int) -> Summary:
        sampler = self._sampler
        responses_ms = sorted([*sampler.responses_ms, *self._crowds.take_responses_ms()])
        tally = self._crowds.tally
        tally.lost = lost
        return Summary(
            players=self._players_max,
            tally=tally,
            server_kills=self._script.kills,
            moves_asked=self._plot.asked,
            moves_ended=self._plot.ended,
            p50_ms=percentile(responses_ms, 0.50),
            p99_ms=percentile(responses_ms, 0.99),
            seconds=round(played_s, 1),
            servers=len(self._cluster.servers),
            ring_version=self._cluster.status().ring_version,
            cpu_share_mean=sampler.cpu_share_mean,
            cpu_share_max=sampler.cpu_share_max,
            interrupted=self._stop.is_set(),
            events=self._script.events,
            gap_reasons=dict(self._crowds.gap_reasons.most_common()),
            troubles=self._crowds.troubles,
        )


@contextlib.contextmanager
def _interrupts(stop: asyncio.Event) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks for the end, the next one insists."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def interrupt() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    signals = (signal.SIGINT, signal.SIGTERM)
    for signum in signals:
        loop.add_signal_handler(signum, interrupt)
    try:
        yield
    finally:
        for signum in signals:
            loop.remove_signal_handler(signum)


@contextlib.asynccontextmanager
async def _background(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Work that goes on meanwhile; its failure is not worth the demo."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
