"""The shipped leader plans a shipped engine, while leaders, processes of the engine and the coordinator fail.

Events cost a matcher CPU that the run makes up; everything else ships. The promises: numbers of an operator stay, each
decision can be replayed, and under a steady load the engine gets what it needs and then stays as it is.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import msgspec

from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.decision_record import DecisionRecord, Outcome, decode_record, encode_record, proposal_of, replay
from shoal.balance.effects import ProviderState
from shoal.balance.engine_entry import EngineMove
from shoal.balance.engine_model import scale
from shoal.balance.settings import BalanceSettings
from shoal.bus.client import Bus
from shoal.channels.agent.process import Agent, AgentOptions
from shoal.coordination.interface import Coordinator
from shoal.engine.director import Wanted
from shoal.engine.engine_report import (
    decode_report,
    decode_wanted,
    encode_wanted,
    read_report,
    report_key,
    wanted_key,
)
from shoal.engine.shell import EngineShell
from shoal.errors import ClusterError, ShoalError
from shoal.lab.sim import scenario
from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.models.redis_node import RedisNode
from shoal.lab.sim.scenario import FaultTargets, Scenario
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.lab.sim.world.process import COORDINATOR_URL, Process
from shoal.leader.balancer_shell import BalancerShell
from shoal.leader.balancer_store import BalancerStore
from shoal.leader.leader_timeouts import LeaderTiming
from shoal.leader.leadership import Leader
from shoal.leader.telemetry_reader import TelemetryReader
from shoal.limits import DEFAULT_LIMITS
from shoal.load_kinds import REGISTRY
from shoal.plan.kinds import ENGINE
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Signer

SERVER = "s1"
PROCESSES_MAX = 3
EVENT_CPU_S = 0.08
"""What an event costs a single matcher."""
BUSY, IDLE = 12.0, 1.2
"""Events a second: nearly a whole core, and a tenth of one."""
LIMITS = msgspec.structs.replace(DEFAULT_LIMITS, clock_drift_max=0.05, engine_roll_s=0.3)
SETTINGS = BalanceSettings(
    window_s=2,
    lateness_s=1.0,
    engine_latency_ms=1000.0,
    engine_settle_s=3.0,
    engine_shrink_s=5.0,
    engine_operators_max=PROCESSES_MAX,
)
OPTIONS = BalancerOptions(auto=True, move_timeout_s=10.0, join_timeout_s=8.0, retry_s=1.5)
STEADY_S = 35.0


class PlannedEngine(Scenario):
    calm_s = 2.0

    def __init__(self, seed: int) -> None:
        self.names = ["engine-main-1"]
        self.events_per_s = BUSY
        self.broken: list[tuple[str, str]] = []
        self.is_pinned = False
        self.steady_from: float | None = None
        self.steady: list[int] = []
        """The sizes of the configurations under the steady load."""
        super().__init__(seed)
        tell = self.coordinator.store.on_change
        assert tell is not None

        def changed(key: str) -> None:
            if key == wanted_key("main"):
                self.wanted_changed()
            tell(key)

        self.coordinator.store.on_change = changed

    def draw_faults(self, rng: Random) -> FaultOptions:
        return replace(super().draw_faults(rng), crashes_per_s=0.2)

    def build(self, rng: Random) -> FaultTargets:
        self.signer = Signer(rng.randbytes(32))
        server = RedisNode(self.network, SERVER)
        server.node.on_crash = lambda: self.died("server", SERVER)
        agent = self.participant(f"agent-{SERVER}", "agent", self.watch_server).name
        leaders = [self.participant(f"leader-{number}", "leader", self.lead).name for number in range(2)]
        engines = [self.participant(name, "engine", self.serve).name for name in self.names]
        self.participant("emitter", "emitter", self.emit)
        self.participant("operator", "operator", self.operate)
        hit = [*leaders, *engines, "coordinator"]
        return FaultTargets(hit, hit, [*hit, SERVER, agent])

    # Participants as they ship

    async def watch_server(self, process: Process) -> None:
        options = AgentOptions(address=ServerAddress(SERVER, SERVER, 1), url=COORDINATOR_URL, limits=LIMITS)

        async def loaded() -> None:
            return

        await Agent(options, process.runtime).work(loaded)

    async def lead(self, process: Process) -> None:
        runtime, changed = process.runtime, asyncio.Event()
        holder = f"{process.node.name}/{process.node.incarnation}"
        async with await runtime.coordinator(COORDINATOR_URL, LIMITS.server_lease_s / 2) as coordinator:
            timing = LeaderTiming()
            leader = Leader(
                *(coordinator, self.signer, LIMITS, timing, [SERVER], holder, runtime.random), wall=runtime.wall
            )
            balancing = BalancerShell(
                BalancerStore(
                    *(coordinator, self.signer.public, changed, REGISTRY.planners),
                    lambda: self.state().engine_processes_max,
                ),
                TelemetryReader(None, None, LIMITS, changed, runtime),
                *(self, self, lambda: leader.leading, SETTINGS, OPTIONS, changed, timing.keeper_poll_s),
                wall=runtime.wall,
            )
            await leader.run(balancing.run())

    async def serve(self, process: Process) -> None:
        """A process of the engine. Its CPU is that of the events that its matcher has matched."""
        bus = await self.open_bus(process)
        async with await process.runtime.coordinator(COORDINATOR_URL, LIMITS.server_lease_s / 2) as coordinator:
            spent, seen = 0.0, 0

            def cpu_s() -> float:
                nonlocal spent, seen
                matched, operators = shell.meter.matched, shell.operators
                matchers = 1
                if operators is not None and operators.matcher is not None:
                    matchers = len(operators.matcher._configuration.matchers)
                spent += (matched - seen) * EVENT_CPU_S * scale(matchers)
                seen = matched
                return spent

            name = f"{process.node.name}-{process.node.incarnation}"
            shell = EngineShell(
                *("main", bus, coordinator, name, LIMITS), cpu_s=cpu_s, thread_s=cpu_s, background=process.background
            )
            await shell.run()

    async def open_bus(self, process: Process) -> Bus:
        while True:
            bus = Bus(COORDINATOR_URL, limits=LIMITS, runtime=process.runtime)
            try:
                await bus.open()
                return bus
            except ShoalError:
                await asyncio.sleep(0.3)

    async def emit(self, process: Process) -> None:
        """Events that nobody wants."""
        bus = await self.open_bus(process)
        while True:
            try:
                await bus.emit({"a": 1})
                self.exercised["event emitted"] += 1
            except ShoalError:
                await asyncio.sleep(0.3)
            await asyncio.sleep(1 / self.events_per_s)

    async def operate(self, process: Process) -> None:
        """Chooses numbers, and releases them, until the load is steady."""
        random = self.world.rng("operator")
        while self.steady_from is None:
            try:
                async with await process.runtime.coordinator(COORDINATOR_URL, 1.0) as coordinator:
                    await asyncio.sleep(random.uniform(3.0, 12.0))
                    if self.is_pinned:
                        await self.release(coordinator)
                    else:
                        wanted = Wanted(random.randint(1, PROCESSES_MAX))
                        await coordinator.put(wanted_key("main"), encode_wanted(wanted))
            except ShoalError:
                await asyncio.sleep(0.3)
        while self.is_pinned:
            try:
                async with await process.runtime.coordinator(COORDINATOR_URL, 1.0) as coordinator:
                    await self.release(coordinator)
            except ShoalError:
                await asyncio.sleep(0.3)

    async def release(self, coordinator: Coordinator) -> None:
        """Leaves the numbers to the planner. It begins with those in force, as after `shoal engine scale --auto`."""
        report = await read_report(coordinator, "main")
        numbers = (1, 1) if report is None else (len(report.matchers), len(report.exits))
        await coordinator.put(wanted_key("main"), encode_wanted(Wanted(*numbers, by="auto")))

    def wanted_changed(self) -> None:
        """Only an operator changes what an operator has chosen."""
        stored = self.coordinator.store.get(wanted_key("main"))
        assert stored is not None
        wanted = decode_wanted(stored.value)
        planned = wanted.by not in ("", "auto")
        if self.is_pinned and planned:
            self.broken.append(("pinned", f"the plan {wanted.by} changed what an operator had chosen"))
        self.is_pinned = not wanted.by
        self.exercised["planned"] += planned
        self.exercised["pinned"] += self.is_pinned
        if planned and self.steady_from is not None:
            self.steady.append(wanted.matchers + wanted.exits)

    # The provider (`shoal.leader.providers.Provider`)

    def state(self) -> ProviderState:
        return ProviderState(servers_min=1, servers_max=1, is_fixed=True, engine_processes_max=PROCESSES_MAX)

    async def add(self, kind: str, count: int, site: str = "") -> tuple[str, ...]:
        assert kind == ENGINE
        if self.world.rng("provider").random() < 0.3 or len(self.names) + count > PROCESSES_MAX:
            self.exercised["process refused"] += 1
            raise ClusterError("no process is available")
        names = tuple(f"engine-main-{len(self.names) + number}" for number in range(1, count + 1))
        self.names += names
        for name in names:
            self.exercised["process added"] += 1
            self.world.after(self.world.rng("provider").uniform(0.3, 3.0), self.start_process, name)
        return names

    def start_process(self, name: str) -> None:
        self.participant(name, "engine", self.serve)
        self.faults.include((name,), pausable=(name,))

    async def remove(self, host: str) -> None:
        raise ClusterError("nothing is removed here")

    # The audit log (`shoal.leader.balancer_shell.Audit`)

    def write_decision(self, record: DecisionRecord, *, quiet: bool) -> None:
        """Checks that each decision can be replayed from its bytes alone."""
        record = decode_record(encode_record(record))
        for change in proposal_of(record).changes:
            if isinstance(change, EngineMove):
                more = sum(change.after) > sum(change.before)
                self.exercised["operator added" if more else "operator removed"] += 1
        if replay(record, REGISTRY).encode() != record.proposal:
            self.broken.append(("replay", f"{record.digest[:12]} gives another decision when it is replayed"))

    def write_outcome(self, outcome: Outcome) -> None:
        self.exercised[f"plan {outcome.state}"] += 1
        if outcome.state == "failed":
            self.broken.append(("failed", str(outcome.facts)))

    # Load

    def begin_safety(self) -> None:
        """The load rises and falls."""
        rng = self.world.rng("load")
        if self.active:
            self.events_per_s = rng.choice((BUSY, IDLE))
            self.world.after(rng.uniform(8.0, 20.0), self.begin_safety)

    def go_on(self) -> None:
        """From now on the load is steady."""
        self.events_per_s = self.world.rng("load").choice((BUSY, IDLE))
        self.steady_from = self.world.now

    # The verdict

    def quiet(self) -> bool:
        return bool(self.broken) or (self.steady_from is not None and self.world.now > self.steady_from + STEADY_S)

    def judge(self) -> Verdict:
        verdict = Verdict(messages=self.exercised["event emitted"])
        for kind, text in self.broken:
            verdict.violate(kind, text)
        top = self.steady.index(max(self.steady)) if self.steady else 0
        rising, falling = self.steady[: top + 1], self.steady[top:]
        if rising != sorted(rising) or falling != sorted(falling, reverse=True):
            verdict.violate("flaps", f"under a steady load: {self.steady}")
        stored = self.coordinator.store.get(report_key("main"))
        if stored is None:
            verdict.violate("no engine", "no engine has served")
            return verdict
        report = decode_report(stored.value)
        wanted = range(2, PROCESSES_MAX + 1) if self.events_per_s == BUSY else range(1, 2)
        if not self.broken and (len(report.matchers) not in wanted or report.phase != "idle"):
            verdict.violate("unmet", f"{report.configuration} ({report.phase}) at {self.events_per_s:g} events/s")
        return verdict


def run_seed(seed: int) -> scenario.Outcome:
    return PlannedEngine(seed).execute()


SEEDS = (1, 4, 13)
CORNERS = (
    *("planned", "pinned", "process added", "process refused", "operator added", "operator removed"),
    *("plan applied", "plan ended", "leader crash", "engine crash", "coordinator crash"),
)


def test_the_engine_gets_what_its_load_needs_whatever_fails() -> None:
    outcomes = [run_seed(seed) for seed in SEEDS]
    assert [outcome.verdict.violations for outcome in outcomes] == [[] for _ in SEEDS]
    assert [corner for corner in CORNERS if not any(one.exercised[corner] for one in outcomes)] == []


def test_the_same_seed_gives_the_same_run() -> None:
    assert run_seed(22).digest == run_seed(22).digest
