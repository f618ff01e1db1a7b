"""The demo from its start to its summary.

Owns the order of things: cluster, crowds, the kill, the end, and the audit. The cluster's balancer decides where
channels live and how many servers there are. The caller is given frames, and decides what to show.
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

from shoal.balance.window_source import Way, WindowRoute
from shoal.cluster.local import LocalCluster
from shoal.cluster.server_meter import ServerMeter, ServerSecond
from shoal.config import environment_of
from shoal.lab.demo.balancer_events import AuditLogReader, BalancerEvents
from shoal.lab.demo.crowds import Crowds, start_crowds
from shoal.lab.demo.delivery_audit import Tally
from shoal.lab.demo.frames import DemoFrame, Sampler, ServerFrame, percentile, server_rows
from shoal.lab.demo.game_map import tiles_for
from shoal.lab.demo.server_events import DemoEvent, ServerEvents
from shoal.lab.demo.timeline import OPTIONS, SETTINGS, Timeline
from shoal.limits import Limits

STEP_S: Final = 0.1
SAMPLE_S: Final = 1.0
FOLLOW_S: Final = 0.3
"""How often agents' reports and the balancer's decisions are read."""

SETTLE_S_MAX: Final = 20.0
"""How long deliveries may take after the last update; longer than the longest wait for missing messages."""


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a demo."""

    seconds: float
    players: int
    servers: int
    """At the start, and at least."""
    servers_max: int
    limits: Limits
    seed: int = 1
    windows: Way = Way.IN_PROCESS
    """Where load windows are folded."""


class Summary(msgspec.Struct, frozen=True):
    """The outcome of a demo."""

    players: int
    tally: Tally
    server_kills: int
    moves_asked: int
    moves_ended: int
    proposals: int
    replicated: int
    servers_added: int
    servers_removed: int
    servers_most: int
    p50_ms: float | None
    p99_ms: float | None
    seconds: float
    servers: int
    """In the ring at the end."""
    ring_version: int
    cpu_share_mean: float
    cpu_share_max: float
    interrupted: bool
    events: list[DemoEvent]
    gap_reasons: dict[str, int]
    troubles: list[str]
    windows: Way = Way.IN_PROCESS
    """Where load windows were folded at the end."""
    windows_why: str = ""
    spark_at_s: float | None = None
    """When load windows first came from Spark; None if they never did."""

    @property
    def holds(self) -> bool:
        """Whether the promise was kept."""
        tally = self.tally
        return not (tally.lost or tally.duplicated or tally.reordered or self.troubles)


Show = Callable[[DemoFrame], None]


async def run_demo(options: DemoOptions, show: Show, say: Callable[[str], None]) -> Summary:
    """Runs the demo. `show` gets a frame ten times a second, `say` gets progress texts before the first frame."""
    stop = asyncio.Event()
    with _interrupts(stop):
        spark = " and a Spark job for load windows" if options.windows is Way.SPARK else ""
        say(f"starting a cluster of {options.servers} servers with their agents, and a balancer{spark} ...")
        timeline = Timeline(options.seconds, options.players)
        async with (
            LocalCluster(
                options.servers,
                limits=options.limits,
                balancers=1,
                servers_max=options.servers_max,
                max_out_bytes_per_s=timeline.capacity_bytes_per_s,
                balancer_environment=environment_of(balance=SETTINGS, balancer=OPTIONS),
                windows=options.windows,
            ) as cluster,
            start_crowds(cluster.directory.log("players")) as crowds,
        ):
            say("starting the players ...")
            await crowds.open(
                cluster.url,
                options.limits,
                tiles=tiles_for(options.players),
                players_max=options.players,
                seed=options.seed,
                update_bytes=timeline.update_bytes,
            )
            return await Demo(options, timeline, cluster, crowds, show, stop).run()


class Demo:
    """A demo whose cluster and crowds are running."""

    def __init__(
        self,
        options: DemoOptions,
        timeline: Timeline,
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
        self._timeline = timeline
        self._start = self._sample_at = time.monotonic()
        servers = [server.id for server in cluster.servers]
        self._servers = ServerEvents(servers, self._start + timeline.kill_at_s, self._start)
        self._balancer = BalancerEvents(self._servers.add)
        self._audit_log = AuditLogReader(cluster.directory.audit)
        self._sampler = Sampler(self._start)
        self._loads: dict[str, ServerSecond] = {}
        self._players_max = 0
        self._phase = timeline.phase(0.0)
        self._route: WindowRoute | None = None
        self._spark_at_s: float | None = None

    async def run(self) -> Summary:
        """Plays for the requested time, or until an interrupt; then audits the deliveries."""
        self._servers.add(self._start, "plan", f"{len(self._cluster.servers)} servers run; players join")
        async with _background(self._read_loads()), _background(self._read_decisions()):
            while not self._stop.is_set() and time.monotonic() < self._start + self._options.seconds:
                elapsed_s = time.monotonic() - self._start
                self._phase = self._timeline.phase(elapsed_s)
                self._crowds.grow(self._timeline.crowd(elapsed_s))
                self._crowds.gather(self._timeline.gathered(elapsed_s))
                for server in self._servers.due(time.monotonic()):
                    await self._cluster.kill(server)
                await self._step()
            played_s = time.monotonic() - self._start
            lost = await self._settle()
        return self._summary(played_s, lost)

    async def _settle(self) -> int:
        """Stops the players and waits for their last updates; returns how many deliveries are missing."""
        self._phase = "the last updates arrive"
        deadline = time.monotonic() + SETTLE_S_MAX
        self._servers.finish()
        stopping = asyncio.create_task(self._crowds.stop())
        while not stopping.done():
            await self._step()
        await stopping
        lost = await self._crowds.audit()
        while lost and time.monotonic() < deadline:
            await self._step()
            lost = await self._crowds.audit()
        await self._step()
        return lost

    async def _step(self) -> None:
        """Looks at everything, shows a frame, and waits for a tenth of a second."""
        self._crowds.check()
        now = time.monotonic()
        self._servers.look(self._cluster.status(), self._crowds.back_until, now)
        self._look_at_windows(now)
        self._players_max = max(self._players_max, self._crowds.players)
        if now >= self._sample_at:
            self._sample_at += SAMPLE_S
            pids = [os.getpid(), *self._crowds.pids]
            pids += [process.pid for process in self._cluster.state.processes()]
            responses_ms = self._crowds.take_responses_ms()
            ratios = [row.load.load_ratio for row in self._rows() if row.load is not None]
            self._sampler.sample(now, self._crowds.players, self._crowds.tally, responses_ms, pids, ratios)
        self._show(self._frame(now))
        await asyncio.sleep(STEP_S)

    def _look_at_windows(self, now: float) -> None:
        """Adds an event when load windows are folded elsewhere."""
        route, before = self._cluster.status().windows, self._route
        if route is None or route == before:
            return
        self._route = route
        if route.way is Way.SPARK:
            self._spark_at_s = self._spark_at_s or now - self._start
            self._servers.add(now, "good", f"load windows come from Spark now: {route.why}")
        elif before is not None and before.way is Way.SPARK:
            self._servers.add(now, "bad", f"load windows are folded in process again: {route.why}")

    def _frame(self, now: float) -> DemoFrame:
        return DemoFrame(
            phase=self._phase,
            elapsed_s=now - self._start,
            seconds=self._options.seconds,
            players_max=self._options.players,
            tiles=tiles_for(self._options.players),
            history=self._sampler.history,
            tally=self._crowds.tally,
            waiting_s=max(0.0, now - self._crowds.back_until),
            ring_version=self._cluster.status().ring_version,
            moves_ended=self._balancer.moves_ended,
            moves_under_way=self._balancer.moves_under_way,
            proposals=self._balancer.proposals,
            replicated=len(self._balancer.replicated),
            servers_added=self._servers.servers_added,
            servers_removed=self._servers.servers_removed,
            servers=self._rows(),
            events=self._servers.events,
        )

    def _rows(self) -> list[ServerFrame]:
        return server_rows(self._cluster.status(), self._loads, self._balancer.draining, time.time())

    async def _read_loads(self) -> None:
        """Reads the agents' reports about their servers. Runs forever."""
        async with ServerMeter(self._cluster) as meter:
            while True:
                meter.follow()
                self._loads |= {second.server: second for second in meter.take()}
                await asyncio.sleep(FOLLOW_S)

    async def _read_decisions(self) -> None:
        """Reads the balancer's decisions. Runs forever."""
        while True:
            self._balancer.take(await asyncio.to_thread(self._audit_log.read_new), time.monotonic())
            await asyncio.sleep(FOLLOW_S)

    def _summary(self, played_s: float, lost: int) -> Summary:
        sampler = self._sampler
        responses_ms = sorted([*sampler.responses_ms, *self._crowds.take_responses_ms()])
        tally = self._crowds.tally
        tally.lost = lost
        servers = sum(server.in_ring for server in self._cluster.status().servers)
        return Summary(
            players=self._players_max,
            tally=tally,
            server_kills=self._servers.kills,
            moves_asked=self._balancer.moves_asked,
            moves_ended=self._balancer.moves_ended,
            proposals=self._balancer.proposals,
            replicated=len(self._balancer.replicated),
            servers_added=self._servers.servers_added,
            servers_removed=self._servers.servers_removed,
            servers_most=max(self._servers.servers_max, servers),
            p50_ms=percentile(responses_ms, 0.50),
            p99_ms=percentile(responses_ms, 0.99),
            seconds=round(played_s, 1),
            servers=servers,
            ring_version=self._cluster.status().ring_version,
            cpu_share_mean=sampler.cpu_share_mean,
            cpu_share_max=sampler.cpu_share_max,
            interrupted=self._stop.is_set(),
            events=self._servers.events,
            gap_reasons=dict(self._crowds.gap_reasons.most_common()),
            troubles=self._crowds.troubles,
            windows=self._route.way if self._route else Way.IN_PROCESS,
            windows_why=self._route.why if self._route else "",
            spark_at_s=None if self._spark_at_s is None else round(self._spark_at_s, 1),
        )


@contextlib.contextmanager
def _interrupts(stop: asyncio.Event) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the demo in order, the second one at once."""
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
    """Runs work in the background; the demo continues if it fails."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
