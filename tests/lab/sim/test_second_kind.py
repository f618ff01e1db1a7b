"""A second kind of unit is measured, planned, moved and simulated by shipped code, without any change to it.

Shelves write what their lamps use to the telemetry stream of a server. The shipped leader reads it, folds it, asks the
planner of lamps (`tests.support.lamp_kind`), writes the proposal down and carries it out by the lamps' table of steps,
while leaders, shelves, the server, its agent and the coordinator fail. The promises: a lamp is always on a shelf; at
the end no fuse is overloaded, every lamp is where its entry says, and each decision can be replayed.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from random import Random

import msgspec
from tests.support.lamp_kind import (
    CARRY_FIRST,
    FUSE_WATTS,
    LAMP,
    REGISTRY,
    SHELF,
    SHELVES_MAX,
    LampEntry,
    LampReport,
    shelf_record,
)

from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.decision_record import DecisionRecord, Outcome, decode_record, encode_record, proposal_of, replay
from shoal.balance.effects import ProviderState
from shoal.balance.settings import BalanceSettings
from shoal.channels.agent.process import Agent, AgentOptions
from shoal.errors import ClusterError, CoordinatorError, ShoalError
from shoal.lab.sim import scenario
from shoal.lab.sim.campaign import Protocol, run_campaign
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
from shoal.load.record import xadd
from shoal.plan import keys
from shoal.plan.move_request import encode_body
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Signer, Verifier
from shoal.rules import ALL_RULES, Rules
from shoal.wire.connection import Connection

LAMPS = tuple(b"lamp %d" % number for number in range(7))
SERVER = "s1"
CRASHES_PER_S = 0.4
LIMITS = msgspec.structs.replace(DEFAULT_LIMITS, clock_drift_max=0.05)
SETTINGS = BalanceSettings(window_s=2, lateness_s=1.0)
OPTIONS = BalancerOptions(auto=True, move_timeout_s=20.0, join_timeout_s=8.0, retry_s=1.5)
CORNERS = {
    name: name
    for name in (
        *("shelf crash", "leader crash", "coordinator crash", "server crash"),
        *("taken", "let go", "given up", "shelf added", "shelf refused", "plan applied", "plan ended"),
    )
}


class LampRun(Scenario):
    def __init__(self, seed: int, rules: Rules) -> None:
        self.rules = rules
        self.shelves = ["shelf-0", "shelf-1"]
        self.lit: dict[bytes, tuple[float, int]] = {}
        """How bright each lamp is: the part of a second for which it is lit, and its flashes a second."""
        self.stands: dict[bytes, set[str]] = {}
        """The shelves that really hold each lamp, whatever the processes know."""
        self.broken: list[tuple[str, str]] = []
        super().__init__(seed)

    def draw_faults(self, rng: Random) -> FaultOptions:
        return replace(super().draw_faults(rng), crashes_per_s=CRASHES_PER_S)

    def build(self, rng: Random) -> FaultTargets:
        self.signer = Signer(rng.randbytes(32))
        self.verifier = Verifier(self.signer.public)
        for lamp in LAMPS:
            entry = LampEntry(lamp, rng.choice(self.shelves), 1)
            self.stands[lamp] = {entry.shelf}
            self.coordinator.store.put(keys.entry_key(lamp, LAMP.name), self.signer.line(entry))
            self.lit[lamp] = self.brightness(rng)
        server = RedisNode(self.network, SERVER)
        server.node.on_crash = lambda: self.died("server", SERVER)
        agent = self.participant(f"agent-{SERVER}", "agent", self.watch_server).name
        leaders = [self.participant(f"leader-{number}", "leader", self.lead).name for number in range(2)]
        for shelf in self.shelves:
            self.start_shelf(shelf)
        nodes = [SERVER, agent, *leaders, *self.shelves, "coordinator"]
        return FaultTargets(nodes, nodes, nodes)

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
            leader = Leader(
                coordinator,
                self.signer,
                LIMITS,
                LeaderTiming(),
                [SERVER],
                holder,
                runtime.random,
                self.rules,
                REGISTRY,
                wall=runtime.wall,
            )
            balancing = BalancerShell(
                BalancerStore(coordinator, self.signer.public, changed, REGISTRY.planners),
                TelemetryReader(None, None, LIMITS, changed, runtime),
                self,
                self,
                lambda: leader.leading,
                SETTINGS,
                OPTIONS,
                changed,
                LeaderTiming().keeper_poll_s,
                rules=self.rules,
                wall=runtime.wall,
                registry=REGISTRY,
            )
            await leader.run(balancing.run())

    # The provider (`shoal.leader.providers.Provider`)

    def state(self) -> ProviderState:
        return ProviderState(servers_min=1, servers_max=1, is_fixed=True)

    async def add(self, kind: str, count: int, site: str = "") -> tuple[str, ...]:
        assert (kind, count, site) == (SHELF.name, 1, "attic")
        if self.world.rng("provider").random() < 0.3 or len(self.shelves) == SHELVES_MAX:
            self.exercised["shelf refused"] += 1
            raise ClusterError("no shelf is available")
        self.exercised["shelf added"] += 1
        shelf = f"shelf-{len(self.shelves)}"
        self.shelves.append(shelf)
        self.world.after(self.world.rng("provider").uniform(0.3, 3.0), self.start_shelf, shelf)
        return (shelf,)

    async def remove(self, host: str) -> None:
        raise ClusterError("nothing is removed here")

    # The audit log (`shoal.leader.balancer_shell.Audit`)

    def write_decision(self, record: DecisionRecord, *, quiet: bool) -> None:
        """Checks that each decision can be replayed from its bytes alone."""
        record = decode_record(encode_record(record))
        for change in proposal_of(record).changes:
            self.exercised[f"{change.reason} decided"] += 1
        if replay(record, REGISTRY).encode() != record.proposal:
            self.broken.append(("replay", f"{record.digest[:12]} gives another decision when it is replayed"))

    def write_outcome(self, outcome: Outcome) -> None:
        self.exercised[f"plan {outcome.state}"] += 1
        self.exercised["given up"] += int(outcome.facts.get("given_up", 0))
        if outcome.state == "failed":
            self.broken.append(("failed", str(outcome.facts)))

    # Shelves

    def start_shelf(self, shelf: str) -> None:
        self.participant(shelf, "shelf", partial(self.keep, shelf))
        if shelf not in ("shelf-0", "shelf-1"):
            self.faults.include((shelf,), pausable=(shelf,))

    async def keep(self, shelf: str, process: Process) -> None:
        """The agent of a shelf."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.measure(shelf, process))
            group.create_task(self.carry(shelf, process))

    async def measure(self, shelf: str, process: Process) -> None:
        """Writes each second what the lamps on the shelf use, as an agent does for its server."""
        runtime, sequence = process.runtime, 0
        while True:
            try:
                async with Connection(SERVER, 1, username=None, password=None, name=shelf, dial=runtime.dial) as server:
                    while True:
                        sequence += 1
                        lamps = {lamp: self.lit[lamp] for lamp in LAMPS if shelf in self.stands[lamp]}
                        record = shelf_record(
                            shelf,
                            int(runtime.wall()) - 1,
                            {lamp: {"lit_s": lit_s, "flashes": flashes} for lamp, (lit_s, flashes) in lamps.items()},
                            watts=sum(map(self.watts, lamps)),
                            fuse_watts=FUSE_WATTS,
                            instance=f"{process.node.incarnation:x}",
                            sequence=sequence,
                        )
                        await server.ask(xadd(record, 100))
                        await asyncio.sleep(1.0)
            except ShoalError:
                await asyncio.sleep(0.2)

    async def carry(self, shelf: str, process: Process) -> None:
        """Takes lamps and lets them go as the entries say, and reports it."""
        seen: dict[bytes, int] = {}
        async with await process.runtime.coordinator(COORDINATOR_URL, 1.0) as coordinator:
            while True:
                try:
                    await coordinator.put(keys.report_key(shelf, LAMP.name), self.report(shelf, seen))
                    async with aclosing(coordinator.watch(keys.entries_prefix(LAMP.name))) as changes:
                        async for change in changes:
                            assert change.now is not None
                            entry = self.verifier.line(change.now.value, LampEntry)
                            await asyncio.sleep(self.world.rng("shelves").uniform(0.0, 0.5))
                            self.follow(shelf, entry)
                            seen[entry.unit] = entry.newness
                            await coordinator.put(keys.report_key(shelf, LAMP.name), self.report(shelf, seen))
                except CoordinatorError:
                    await asyncio.sleep(0.2)

    def report(self, shelf: str, seen: dict[bytes, int]) -> bytes:
        return encode_body(LAMP.name, LampReport(shelf, dict(seen)))

    def follow(self, shelf: str, entry: LampEntry) -> None:
        stands = self.stands[entry.unit]
        if entry.shelf == shelf and entry.phase == "carry" and shelf not in stands:
            self.exercised["taken"] += 1
            stands.add(shelf)
        if entry.shelf != shelf and entry.phase != "carry" and shelf in stands:
            self.exercised["let go"] += 1
            stands.discard(shelf)
            if not stands:
                self.broken.append(("dark", f"{shelf} let {entry.unit.decode()} go before {entry.shelf} had it"))

    # Lamps

    def brightness(self, rng: Random) -> tuple[float, int]:
        """At most 45 W: one lamp alone, or two, never blow a fuse."""
        return rng.uniform(0.25, 0.58), rng.randint(0, 5)

    def watts(self, lamp: bytes) -> float:
        lit_s, flashes = self.lit[lamp]
        return 60.0 * lit_s + 2.0 * flashes

    def begin_safety(self) -> None:
        """From now on the owner turns lamps up and down."""
        rng = self.world.rng("owner")
        if self.active:
            self.lit[rng.choice(LAMPS)] = self.brightness(rng)
            self.world.after(rng.uniform(0.5, 4.0), self.begin_safety)

    # The verdict

    def used(self, shelf: str) -> float:
        return sum(self.watts(lamp) for lamp in LAMPS if shelf in self.stands[lamp])

    def quiet(self) -> bool:
        """Whether no move is requested and no fuse is overloaded, or there is nothing more to wait for."""
        asked = self.coordinator.store.list(keys.moves_prefix(LAMP.name))
        return bool(self.broken) or (not asked and not self.judge().violations)

    def judge(self) -> Verdict:
        verdict = Verdict(messages=self.exercised["taken"])
        verdict.own["lamps_moved"] = self.exercised["let go"]
        for kind, text in self.broken:
            verdict.lost += kind == "dark"
            verdict.violate(kind, text)
        for lamp in LAMPS:
            stored = self.coordinator.store.get(keys.entry_key(lamp, LAMP.name))
            assert stored is not None
            entry = self.verifier.line(stored.value, LampEntry)
            if entry.is_moving or self.stands[lamp] != {entry.shelf}:
                verdict.violate("unsettled", f"{lamp.decode()} is on {sorted(self.stands[lamp])}: {entry}")
        for shelf in self.shelves:
            if self.used(shelf) > FUSE_WATTS:
                verdict.violate("overload", f"{shelf} uses {self.used(shelf):.0f} W")
        return verdict


def run_seed(seed: int, broken: str | None) -> scenario.Outcome:
    return LampRun(seed, ALL_RULES if broken is None else Rules(CARRY_FIRST)).execute()


PROTOCOL = Protocol("lamps", run_seed, CORNERS, (CARRY_FIRST,), ("let go",))


def test_a_campaign_of_lamps_holds_and_meets_its_corners() -> None:
    result = run_campaign(PROTOCOL, 8, 0, None, lambda *_: None, workers=1)
    assert result.violations == []
    facts = result.facts()
    assert facts["lamps_moved"] == facts["moves"] > 0
    assert all(facts["exercised"].values()), facts["exercised"]


def test_a_broken_rule_of_lamps_is_caught() -> None:
    result = run_campaign(PROTOCOL, 12, 0, CARRY_FIRST, lambda *_: None, stop_at_first=True, workers=1)
    assert result.lost
    assert run_seed(result.failing[0], None).verdict.violations == []


def test_the_same_seed_gives_the_same_run() -> None:
    assert run_seed(3, None).digest == run_seed(3, None).digest != run_seed(4, None).digest
