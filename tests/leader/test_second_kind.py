"""A second kind of unit is planned, requested, moved, taken over and audited by what ships, without a change to it.

Lamps (`tests.support.lamp_kind`) run through the shipped leader, conductor shell and balancer store on the simulator's
model coordinator, and through the balancer's core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import pytest
from tests.balance.balancing import OPTIONS, SETTINGS, T, ring_of, window_of, wish
from tests.balance.tiny_policy import Wish
from tests.support.lamp_kind import LAMP, LampEntry, LampPlanner, LampReport, LampRequest, LampSteps, Shelves

from shoal.balance.balancer import Balancer
from shoal.balance.change import Units
from shoal.balance.effects import Effect, ProviderState, PutState, RecordDecision, RecordOutcome, View, WriteUnitMove
from shoal.balance.proposal import decode_proposal
from shoal.balance.recording import replay
from shoal.balance.records import BalancerState
from shoal.errors import PlanError
from shoal.lab.sim.models.coordinator import ModelCoordinator
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.lab.sim.world.network import Network
from shoal.lab.sim.world.process import COORDINATOR_URL, Process, Processes
from shoal.lab.sim.world.world import World
from shoal.leader.audit_log import AuditLog
from shoal.leader.balancer_store import BalancingStore
from shoal.leader.conductor_shell import ConductorShell
from shoal.leader.leader_timeouts import LeaderTiming
from shoal.leader.leadership import Leader
from shoal.limits import Limits
from shoal.load_kinds import KINDS
from shoal.plan import keys
from shoal.plan.move_request import encode_body
from shoal.plan.signature import Signer, Verifier

__all__ = ["wish"]

DESK = b"desk lamp"
SHELVES: Shelves = frozenset({"shelf-1", "shelf-2"})
SIGNER = Signer(bytes(range(32)))
VERIFIER = Verifier(SIGNER.public)
HERE = LampEntry(DESK, "shelf-1", 4)

K = TypeVar("K")


class House:
    """Two leaders, two shelves with their agents, a lamp on the first shelf, and the model coordinator."""

    def __init__(self) -> None:
        self.world = World(5)
        self.network = Network(self.world, FaultOptions())
        self.coordinator = ModelCoordinator(self.network)
        self.processes = Processes(self.network, self.coordinator)
        self.asked: list[WriteUnitMove] = []
        self.seen: dict[str, Units] = {}
        self.coordinator.store.put(keys.entry_key(DESK, LAMP), SIGNER.line(HERE))
        for shelf in sorted(SHELVES):
            process = self.processes.new(self.network.node(shelf))
            process.begin(self._shelf(process, shelf))

    def start_leader(self, name: str) -> None:
        process = self.processes.new(self.network.node(name))
        process.begin(self._lead(process, name))

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)
        assert self.processes.failures == []

    @property
    def entry(self) -> LampEntry:
        stored = self.coordinator.store.get(keys.entry_key(DESK, LAMP))
        assert stored is not None
        return VERIFIER.line(stored.value, LampEntry)

    @property
    def leader(self) -> str | None:
        lease = self.coordinator.store.lease_of(keys.KEEPER_LEASE)
        return lease.holder if lease else None

    async def _lead(self, process: Process, name: str) -> None:
        """A leader as it ships, with one more conductor."""
        async with await process.runtime.coordinator(COORDINATOR_URL, 1.0) as coordinator:
            leader = Leader(coordinator, SIGNER, Limits(), LeaderTiming(), [], name)
            lamps = ConductorShell(
                coordinator, LampSteps(), SIGNER, lambda: leader.leading, lambda leading: SHELVES, 0.25
            )
            store = BalancingStore(coordinator, SIGNER.public, asyncio.Event(), [LampPlanner("shelf-2")])

            async def ask() -> None:
                while True:
                    await asyncio.sleep(0.05)
                    leading = leader.leading
                    if leading is not None:
                        asked, self.asked = self.asked, []
                        await store.write_moves(asked, leading.fence)
                        self.seen = store.others

            await leader.run(lamps.run(), store.follow(), ask())

    async def _shelf(self, process: Process, shelf: str) -> None:
        """An agent that reports each entry a second after it has seen it."""
        coordinator = await process.runtime.coordinator(COORDINATOR_URL, 1.0)
        async with coordinator, aclosing(coordinator.watch(keys.entries_prefix(LAMP))) as changes:
            async for change in changes:
                await asyncio.sleep(1.0)
                assert change.now is not None
                entry = VERIFIER.line(change.now.value, LampEntry)
                report = LampReport(shelf, {entry.unit: entry.newness})
                await coordinator.put(keys.report_key(shelf, LAMP), encode_body(LAMP, report))


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.processes.close()


def look(core: Balancer, units: Units, at_s: float, *, window: bool = True) -> list[Effect]:
    """One look of the balancer's core at a quiet cluster of channels and at the lamps."""
    ring = ring_of("s1")
    view = View(ring, {}, {}, {}, ProviderState(1, 9), others={LAMP: units})
    return core.observe([window_of(int(at_s) - 2, ring.ids)] if window else [], view, at_s)


def only(effects: list[Effect], kind: type[K]) -> K:
    (found,) = (effect for effect in effects if isinstance(effect, kind))
    return found


def test_a_lamp_is_planned_moved_taken_over_and_audited(house: House, wish: Wish, tmp_path: Path) -> None:
    planner = LampPlanner("shelf-2")
    house.start_leader("leader-1")
    house.run(2.0)
    assert house.leader == "leader-1"

    # Planned: one proposal, one plan under way, on record
    core = Balancer(SETTINGS, OPTIONS, KINDS, planners=[planner])
    effects = look(core, house.seen[LAMP], T + 2.5)
    asked, decided, kept = only(effects, WriteUnitMove), only(effects, RecordDecision), only(effects, PutState)
    assert (asked.kind, asked.request.unit, asked.request.shelf) == (LAMP, DESK, "shelf-2")
    assert core.waiting == 1
    audit = AuditLog(tmp_path)
    audit.write_decision(decided.record, quiet=decided.is_empty)
    recorded = audit.find(decided.record.digest[:12])
    (move,) = decode_proposal(recorded.proposal).changes
    assert (move.unit, move.after, move.reason) == (DESK, "shelf-2", "spread")
    assert replay(recorded).digest == recorded.digest

    # Moved by its own steps, by a second leader from the middle on
    house.asked = [asked]
    house.run(1.0)
    assert (house.entry.phase, house.entry.shelf) == ("carry", "shelf-2")
    house.network.nodes["leader-1"].crash()
    house.start_leader("leader-2")
    taken_over = Balancer(SETTINGS, OPTIONS, KINDS, kept.state, planners=[planner])
    look(taken_over, Units({DESK: house.entry}, {DESK: asked.request}), T + 4.5, window=False)
    assert taken_over.waiting == 1
    house.run(10.0)
    assert house.leader == "leader-2"
    assert house.entry == LampEntry(DESK, "shelf-2", 7)
    assert house.coordinator.store.list(keys.moves_prefix(LAMP)) == {}

    # Ended, on record
    ended = only(look(taken_over, house.seen[LAMP], T + 6.5, window=False), RecordOutcome)
    assert (ended.outcome.state, ended.outcome.facts["moved"], ended.outcome.facts["given_up"]) == ("ended", 1, 0)
    audit.write_outcome(ended.outcome)
    assert [outcome.digest for outcome in audit.outcomes()] == [recorded.digest]


def test_a_lamp_that_cannot_be_carried_goes_back(house: House) -> None:
    house.network.nodes["shelf-2"].crash()
    house.start_leader("leader-1")
    house.asked = [WriteUnitMove(LAMP, LampRequest(DESK, "shelf-2", "by hand"))]
    house.run(20.0)
    assert (house.entry.shelf, house.entry.phase) == ("shelf-1", "end")
    assert house.coordinator.store.list(keys.moves_prefix(LAMP)) == {}


def test_a_proposal_with_an_unknown_kind_is_refused(wish: Wish) -> None:
    core = Balancer(SETTINGS, OPTIONS, KINDS, BalancerState(), planners=[LampPlanner("shelf-2")])
    effects = look(core, Units({DESK: HERE}, {}), T + 2.5)
    decided = only(effects, RecordDecision)
    data = decided.record.proposal
    assert decode_proposal(data).encode() == data
    with pytest.raises(PlanError, match="no proposal"):
        decode_proposal(data.replace(b"\xa6change\xa4lamp", b"\xa6change\xa4limp"))
