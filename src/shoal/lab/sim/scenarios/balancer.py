"""The scenario `balancer`: load changes, servers come and go, and several leaders compete, under all faults.

Owns what is added to the cluster of the scenario `moves`: leaders (keeper, conductor and balancer under one lease),
telemetry, a provider, load, and requests for proposals. At the end the load is steady, and moves must stop.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any, Final, Self

import msgspec

from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.settings import BalanceSettings
from shoal.coordination.interface import Coordinator, KeyWrite, Lease
from shoal.errors import CoordinatorError
from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.models.coordinator import CoordinatorOptions, ModelClient
from shoal.lab.sim.models.redis_node import RedisNode
from shoal.lab.sim.scenario import BEGIN_S, COMMON, EndedError, Outcome, Variant
from shoal.lab.sim.scenarios.balancer_asks import Asker
from shoal.lab.sim.scenarios.balancer_checkers import BalancerCheck
from shoal.lab.sim.scenarios.balancer_load import Load, LoadedApp
from shoal.lab.sim.scenarios.balancer_pins import Pinner
from shoal.lab.sim.scenarios.balancer_watch import AuditTap, BalancerWatch
from shoal.lab.sim.scenarios.moves import MovesRun
from shoal.lab.sim.scenarios.provider import SimProvider
from shoal.lab.sim.scenarios.shape import Shape
from shoal.lab.sim.scenarios.telemetry_faults import TelemetryFaults
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.lab.sim.world.node import Node
from shoal.lab.sim.world.process import COORDINATOR_URL, Process, WallClock
from shoal.leader.process import BalancerSetup, balance
from shoal.plan.entry import Entry
from shoal.plan.keys import ENTRIES_PREFIX, RING_KEY, recorded_key
from shoal.plan.ring import ServerAddress
from shoal.rules import ALL_RULES, Rules
from shoal.runtime import Runtime
from shoal.wire.record_entry import ARCHIVED_KEY

SERVERS_MAX: Final = 6
SETTLE_WINDOWS: Final = {"shoal": 10, "dynamoth": 17}
"""After this many windows of steady load without a move there must be no further move. `dynamoth` leaves a replicated
channel alone for 30 s, as in the paper, and decides only then whether it stays replicated."""
REST_WINDOWS: Final = 5
"""Number of windows in which this is checked."""
STEADY_WINDOWS_MAX: Final = 80
"""Within this many windows of steady load all moves, merges and drains must be done, and `SETTLE_WINDOWS` must have
passed without a move."""
STEADY_RATIO: Final = 0.5
"""The steady load takes at most this share of the largest pool."""
STEADY_CHANNEL_RATIO: Final = 0.22
"""Under steady load a channel takes at most this share of one server."""
STRIKE_S: Final = 0.8
"""A fault may hit the leader within this time after its plan has begun."""
STRUCK_S: Final = (2.5, 6.0)
"""Duration of that fault, longer than the lease."""
STOPPED_RING: Final = 1.0
STOPPED_ENTRIES: Final = 0.03
"""How often a leader is paused between a decision and its write: for a ring without some server (which the next leader
writes only after a wait, unlike other rings), and for entries."""
STOPPED_S: Final = (3.2, 5.5)
"""Duration of that pause: long enough for another process to lead."""
TURN_S: Final = 0.001
"""A timer of this length ends the turn of a process, so that a pause takes effect before the next line."""
SKEWS_S: Final = (0.0, 0.0, 1.0, 3.0, -6.0)
"""Errors of the agents' time of day."""
LEADER_SKEWS_S: Final = (0.0, 0.1, -0.3)
"""Errors of the leaders' time of day."""
ENDS_IN_ORDER: Final = 0.7
"""How often the agent of a removed server has time to shut down cleanly."""
END_GRACE_S: Final = 0.5
SPIKE_S: Final = (0.01, 0.1)
"""Extra delay of a spike. With a longer one, a message would count in another second."""
WINDOW_BYTES_MIN: Final = 65_536
"""Links are large enough for the load: this scenario does not test congestion."""


@dataclass(frozen=True, slots=True)
class BalancerMix:
    """What a seed draws for this scenario: number of leaders, rates of faults, capacities."""

    leaders: int
    wander_s: float
    struck: float
    by_hand: bool
    strangers: bool
    capacity_bytes_per_s: float
    refuses: float
    fails: float

    @classmethod
    def draw(cls, rng: Random) -> Self:
        """Draws the values."""
        return cls(
            leaders=rng.choice((2, 2, 3)),
            wander_s=rng.choice((3.0, 8.0)),
            struck=rng.choice((0.0, 0.5, 0.9)),
            by_hand=rng.random() < 0.3,
            strangers=rng.random() < 0.5,
            capacity_bytes_per_s=rng.choice((25_000.0, 50_000.0, 80_000.0)),
            refuses=rng.choice((0.0, 0.3)),
            fails=rng.choice((0.0, 0.2)),
        )


class BalancerRun(MovesRun):
    """One seed of the scenario."""

    pace = fault_pace = 1.0
    ring_death = 0.1
    silences_share = 0.0
    ask_pause_s = 5.0
    """How often proposals are requested."""
    rival_asks = 0.3
    """How often two policies are asked at once and both proposals are applied at the same time."""
    applied_later_s: Sequence[float] = (0.0, 3.0, 9.0)
    """Times between a proposal and its application."""
    applied_again = 0.3
    """How often a proposal is applied a second time."""
    pinning = 0.5
    """Share of the runs in which channels are pinned."""
    pin_pause_s = 5.0
    pins_released = 0.4
    deposed = 0.3
    """How often a fault only prevents the leader from renewing its lease. Its process keeps its state, and leads again
    when the next leader fails."""
    shift_s = 4.0, 10.0
    """Time between two changes of the load."""
    rests = True
    """Whether the run continues until moves have stopped under steady load."""
    recorded_share = 0.3
    """Share of the runs in which one channel is recorded and drained servers stay until their records are archived."""
    archive_s = 10.0
    """The time between two runs of the archive job."""
    fixed_mix: Mapping[str, Any] = MappingProxyType({})
    fixed_options: Mapping[str, Any] = MappingProxyType({})
    """What a variant does not leave to the seed."""

    mix: BalancerMix
    settings: BalanceSettings
    options: BalancerOptions
    load: Load

    def __init__(self, seed: int, rules: Rules = ALL_RULES, trace: bool = False, variant: Variant = COMMON) -> None:
        self.leaders: list[str] = []
        self.balance = BalancerWatch(self)
        self.addresses: dict[str, ServerAddress] = {}
        self.removed: set[str] = set()
        self.ring_at = 0.0
        """When the ring was last written."""
        self.entry_at: dict[bytes, float] = {}
        """When each entry was last written."""
        super().__init__(seed, rules, trace, variant)
        assert self.operator is not None
        self.operator.mix = dataclasses.replace(self.operator.mix, pause_s=6.0, together=1, flurry=0.0)
        self.balance.sample()
        if self.options.keep_records:
            self.coordinator.store.put(recorded_key(self.channels[0].encode()), b"on")
            self._archive()
        tell = self.coordinator.store.on_change
        assert tell is not None

        def changed(key: str) -> None:
            self.balance.written(key)
            tell(key)

        self.coordinator.store.on_change = changed

    # Shape

    def draw_faults(self, rng: Random) -> FaultOptions:
        """The common faults, on links that can carry the load."""
        options = super().draw_faults(rng)
        return dataclasses.replace(options, window_bytes=max(options.window_bytes, WINDOW_BYTES_MIN), spike_s=SPIKE_S)

    def make_shape(self, options: FaultOptions) -> Shape:
        """A longer run with fewer applications, and settings in proportion to it."""
        rng = self.world.rng("balancer")
        self.mix = dataclasses.replace(BalancerMix.draw(rng), **self.fixed_mix)
        self.agent_capacity_bytes_per_s = self.mix.capacity_bytes_per_s
        self.settings = BalanceSettings(
            window_s=2,
            lateness_s=1.0,
            past_windows=8,
            wait_s=rng.choice((2.0, 4.0, 8.0)),
            settle_s=8.0,
            horizon_s=8.0,
            moves_max=rng.choice((2, 20)),
            all_subscribers_ratio=1.5,
            publications_min=5.0,
            all_publishers_ratio=4.0,
            subscribers_min=3,
        )
        self.options = BalancerOptions(
            policy=rng.choice(("shoal", "dynamoth")),
            auto=rng.random() < 0.9,
            servers_min=2,
            servers_max=SERVERS_MAX,
            new_max_out_bytes_per_s=self.mix.capacity_bytes_per_s,
            move_timeout_s=rng.choice((8.0, 30.0)),
            join_timeout_s=6.0,
            retry_s=1.5,
            empty_s=3.0,
            keep_records=self.world.rng("records").random() < self.recorded_share,
        )
        self.options = msgspec.structs.replace(self.options, **self.fixed_options)
        shape = super().make_shape(options)
        limits = msgspec.structs.replace(shape.limits, prepare_timeout_s=rng.choice((3.0, 10.0)))
        return dataclasses.replace(
            shape,
            limits=limits,
            clients=rng.randint(4, 6),
            channels=rng.randint(3, 5),
            safety_s=rng.uniform(20.0, 32.0),
        )

    def coordinator_options(self) -> CoordinatorOptions:
        """Changes of the plan may arrive late, but not so late that moves time out again and again."""
        slow_s = self.world.rng("news").choice((0.05, 0.05, 0.3))
        return CoordinatorOptions(watch_delay_s=(0.000_5, slow_s))

    @property
    def shifting(self) -> bool:
        """Whether load changes and clients come and go."""
        return self.active and self.world.now < BEGIN_S + self.shape.safety_s

    def apps_leave(self) -> bool:
        """Applications come and go while the load shifts."""
        return self.shifting

    def strangers_active(self) -> bool:
        """Plain clients publish only while the load shifts."""
        return self.mix.strangers and self.shifting

    # Participants

    def make_app(self, node: Node) -> LoadedApp:
        """Applications publish at the rates of the load."""
        if not hasattr(self, "load"):
            apps = [f"app{index}" for index in range(self.shape.clients)]
            self.load = Load(self.world.rng("load"), self.channels, apps)
        return LoadedApp(self, node)

    def agent_wall(self, node: Node) -> WallClock:
        """The agents' time of day is wrong, for some by seconds."""
        return self._wall(node, SKEWS_S)

    def _wall(self, node: Node, skews_s: tuple[float, ...]) -> WallClock:
        return WallClock(node, self.world.rng(f"wall/{node.name}").choice(skews_s))

    def make_leaders(self) -> list[str]:
        """Makes the leaders and the provider."""
        self.addresses = {name: ServerAddress(name, name, 1) for name in self.names}
        self.first_names = frozenset(self.names)
        self.telemetry = TelemetryFaults(self.world, lambda: self.shifting)
        for server in self.servers:
            self.telemetry.strike(server)
        self.provider = SimProvider(self, self.names, self.options, self.mix.refuses, self.mix.fails)
        self.leaders = [f"leader{index}" for index in range(self.mix.leaders)]
        for name in self.leaders:
            self.leader(name, "mover")
        self.conductors = list(self.leaders)
        return self.leaders

    async def lead(self, process: Process) -> None:
        """The main task of a leader's process."""
        node = process.node

        async def connect(url: str, timeout_s: float, runtime: Runtime) -> Coordinator:
            return LeaderClient(self, process, timeout_s)

        wall = self._wall(node, LEADER_SKEWS_S)
        runtime = dataclasses.replace(process.runtime, wall=wall, connect_coordinator=connect)
        holder = f"{node.name}/{node.incarnation}"
        setup = BalancerSetup(
            url=COORDINATOR_URL,
            reader=(None, None),
            key=self.plan_key,
            audit=AuditTap(self.balance, holder),
            limits=self.shape.limits,
            settings=self.settings,
            options=self.options,
            provider=self.provider.reached_from(process),
            expected=tuple(self.names[: self.shape.servers]),
        )
        await balance(setup, runtime, self.rules, holder, partial(self.balance.follow, holder))

    def _archive(self) -> None:
        """Archives everything that the servers have recorded so far."""
        for server in self.servers:
            server.model.keys.values[ARCHIVED_KEY] = b"%d" % (server.node.clock() * 1e3 + 1)
        self.world.after(self.archive_s, self._archive)

    def other_nodes(self) -> list[str]:
        """Makes no plain clients, because their load would never be steady."""
        return []

    def server_of(self, name: str) -> RedisNode:
        """A server by name."""
        return self.servers[self.names.index(name)]

    def is_there(self, name: str) -> bool:
        """Whether a server was started and has not been removed."""
        return name in self.addresses and name not in self.removed

    def book_ids(self) -> tuple[str, ...]:
        """The members of the ring."""
        return self.book.ring.ids if self.book.ring is not None else ()

    # Servers come and go

    def start_server(self, server: str) -> None:
        """Starts a server and its agent."""
        self.world.note("server starts", server)
        self.names.append(server)
        self.servers.append(self._server(server))
        self.telemetry.strike(self.servers[-1])
        self.agents.append(self._agent(server))
        self.addresses[server] = ServerAddress(server, server, 1)
        self.faults.include((server, f"agent-{server}"), pausable=(f"agent-{server}",))
        self.balance.added(server)

    def end_server(self, server: str) -> None:
        """Removes a server and its agent."""
        self.world.note("server ends", server)
        self.balance.removed(server)
        self.removed.add(server)
        if server in self.addresses:
            names = server, f"agent-{server}"
            self.faults.leave_out(names)
            nodes = [self.network.nodes[name] for name in names]
            for node in nodes:
                node.on_restart = node.on_crash = None
                node.resume()
            if self.world.rng("ends").random() < ENDS_IN_ORDER:
                self.agent_of(server).process.stop()
                self.world.after(END_GRACE_S, self._end, nodes)
            else:
                self._end(nodes)

    def _end(self, nodes: list[Node]) -> None:
        for node in nodes:
            node.crash()

    def _crash_agent(self, name: str, why: str) -> None:
        if name not in self.removed:
            super()._crash_agent(name, why)

    # The run

    def begin_safety(self) -> None:
        """Starts to shift the load; in some runs channels are also moved by hand."""
        if self.book.ring is None:
            self.world.after(0.2, self.begin_safety)
            return
        assert self.operator is not None
        if self.mix.by_hand:
            self.operator.start()
        Asker(self).start()
        Pinner(self).start()
        self._shift_later()
        self.world.at(BEGIN_S + self.shape.safety_s, self._last_move)

    def _shift_later(self) -> None:
        self.world.after(self.world.rng("load").uniform(*self.shift_s), self._shift)

    def _shift(self) -> None:
        if self.shifting:
            self.load.shift()
            self._shift_later()

    def _ring_written(self, data: bytes) -> None:
        before = set(self.history.members)
        super()._ring_written(data)
        self.ring_at = self.world.now
        self.balance.ring_written(before, set(self.history.members))

    def entry_written(self, entry: Entry) -> None:
        """Notes the time of the write."""
        self.entry_at[entry.unit] = self.world.now
        super().entry_written(entry)

    def plan_begun(self, leader: str) -> None:
        """Called when the first request of a plan was written; a fault may hit the leader."""
        rng = self.world.rng("strike")
        if leader and self.faults.active and not self.peaceful and rng.random() < self.mix.struck:
            if self.world.rng("depose").random() < self.deposed:
                self._strike("leader deposed with a plan under way", lambda: self._depose(leader))
                return
            node = self.network.nodes[leader]
            others = [name for name in self.network.nodes if name != leader]
            match rng.choice(("died", "paused", "cut off")):
                case "died":
                    self._strike("leader died with a plan under way", lambda: self.faults.crash(node))
                case "paused":
                    self._strike("leader paused with a plan under way", lambda: self.faults.pause(node, STRUCK_S))
                case _:
                    self._strike(
                        "leader cut off with a plan under way",
                        lambda: self.faults.partition([leader], others, STRUCK_S),
                    )

    async def stop_before_write(self, node: Node, probability: float) -> None:
        """Called before a leader writes a decision; its process may be paused here, and continues with the write."""
        rng = self.world.rng("stop")
        if self.faults.active and not self.peaceful and rng.random() < probability * self.mix.struck:
            self.balance.seen["leader stopped before a write"] += 1
            self.faults.pause(node, STOPPED_S)
            await asyncio.sleep(TURN_S)

    def _depose(self, leader: str) -> None:
        until = self.world.now + self.world.rng("depose").uniform(*STRUCK_S)
        self.world.note("deposed", leader, until)
        self.coordinator.mute_leases(leader, until)

    def _strike(self, what: str, strike: Callable[[], None]) -> None:
        self.balance.seen[what] += 1
        rng = self.world.rng("strike")
        self.world.after(rng.choice((0.0, 1.0)) * rng.uniform(0.0, STRIKE_S), strike)

    def _last_move(self) -> None:
        """Makes the load steady."""
        super()._last_move()
        self._steady()

    def _steady(self) -> None:
        """Makes the load steady, at a level that the largest pool can carry with the subscriptions that there are."""
        subs = [sub.text for app in self.apps for sub in app.subs]
        receivers = {channel: subs.count(channel) + subs.count(self.pattern) for channel in self.channels}
        capacity = self.mix.capacity_bytes_per_s
        channel_max, total_max = STEADY_CHANNEL_RATIO * capacity, STEADY_RATIO * SERVERS_MAX * capacity
        self.load.settle(self.settings.window_s, receivers, channel_max, total_max)

    def go_on(self) -> None:
        """Checks that moves stop under steady load."""
        if not self.rests:
            return
        self._steady()  # again: clients that were down when the faults ended have subscribed since
        world, watch, window_s = self.world, self.balance, self.settings.window_s
        began_at = world.now
        rest_s = SETTLE_WINDOWS[self.options.policy] * window_s
        while watch.leaving or world.now - max(began_at, watch.changed_at) < rest_s:
            if world.now - began_at > STEADY_WINDOWS_MAX * window_s:
                watch.violate("restless", f"no rest after {STEADY_WINDOWS_MAX} windows of steady load")
                return
            world.run(world.now + window_s)
        watch.at_rest = True
        world.run(world.now + REST_WINDOWS * window_s)
        watch.at_rest = False

    def violated(self) -> None:
        """A violation was recorded. With a broken rule it ends the run."""
        if self.rules is not ALL_RULES:
            self.world.at(self.world.now, self._end_run)

    def _end_run(self) -> None:
        raise EndedError

    def run_phases(self) -> Outcome:
        """Runs all phases and judges; with a broken rule, up to the first violation of the balancer."""
        try:
            return super().run_phases()
        except EndedError:
            verdict = Verdict(messages=len(self.history.messages))
            for kind, text in self.balance.violations:
                verdict.violate(kind, text)
            return self.outcome(verdict)

    def checker(self) -> BalancerCheck:
        """The checker of this scenario."""
        return BalancerCheck(self)

    def check(self, verdict: Verdict) -> None:
        """Adds the counters of the balancer to `exercised`."""
        super().check(verdict)
        self.balance.seen["deposed leader refused"] += self.coordinator.store.refused
        self.exercised[f"policy {self.options.policy}"] += 1
        self.exercised.update(self.balance.seen)


class LeaderClient(ModelClient):
    """The coordinator as a leader uses it."""

    def __init__(self, run: BalancerRun, process: Process, timeout_s: float) -> None:
        super().__init__(run.coordinator, process.loop, timeout_s)
        self._run = run

    async def put(self, key: str, value: bytes, expect: int | None = None, *, fence: Lease | None = None) -> int:
        """See `Coordinator.put`."""
        if key == RING_KEY and {*self._run.book_ids()} - {*self._run.verifier.ring(value).ids}:
            await self._run.stop_before_write(self.node, STOPPED_RING)
        return await super().put(key, value, expect, fence=fence)

    async def write_all(
        self, writes: Sequence[KeyWrite], *, fence: Lease | None = None
    ) -> list[int | CoordinatorError]:
        """See `Coordinator.write_all`."""
        if any(write.key.startswith(ENTRIES_PREFIX) for write in writes):
            await self._run.stop_before_write(self.node, STOPPED_ENTRIES)
        return await super().write_all(writes, fence=fence)


def run_seed(seed: int, rules: Rules = ALL_RULES, trace: bool = False, variant: Variant = COMMON) -> Outcome:
    """Runs one seed; the same seed always gives the same outcome."""
    return BalancerRun(seed, rules, trace, variant).execute()
