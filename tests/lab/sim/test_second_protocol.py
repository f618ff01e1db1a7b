"""A second protocol is simulated by what ships: a scenario of lamps on shelves, a checker, a campaign and a break.

The lamps of `tests.support.lamp_kind` move by the shipped leader and conductor while leaders, shelves and the
coordinator crash. The promise: a shelf lets a lamp go only after the new shelf has taken it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from random import Random

from tests.support.lamp_kind import LAMP, LampCase, LampEntry, LampReport, LampRequest, LampSteps

from shoal.errors import CoordinatorError
from shoal.lab.sim.campaign import Protocol, run_campaign
from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.scenario import FaultTargets, Outcome, Scenario
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.lab.sim.world.process import COORDINATOR_URL, Process
from shoal.leader.conductor_shell import ConductorShell
from shoal.leader.leadership import Leader
from shoal.leader.timing import LeaderTiming
from shoal.limits import Limits
from shoal.plan import keys
from shoal.plan.conductor import Step
from shoal.plan.moving import encode_body
from shoal.plan.signing import Signer, Verifier

LAMPS = tuple(b"lamp %d" % number for number in range(3))
SHELVES = ("shelf-0", "shelf-1", "shelf-2")
CRASHES_PER_S = 0.6
CORNERS = {name: name for name in ("shelf crash", "leader crash", "coordinator crash", "taken", "let go")}


class HastySteps(LampSteps):
    """Broken: the old shelf is told to let go before the new one has the lamp."""

    def _carry(self, case: LampCase) -> Step[LampEntry]:
        return Step(LampEntry(case.entry.unit, case.entry.shelf, case.entry.revision + 1, "let_go", case.entry.before))


class LampRun(Scenario):
    def __init__(self, seed: int, broken: str | None) -> None:
        self.steps = HastySteps() if broken == "carry_first" else LampSteps()
        self.taken: Counter[tuple[bytes, str]] = Counter()
        self.dark: list[str] = []
        super().__init__(seed)

    def draw_faults(self, rng: Random) -> FaultOptions:
        return replace(super().draw_faults(rng), crashes_per_s=CRASHES_PER_S)

    def build(self, rng: Random) -> FaultTargets:
        self.signer = Signer(rng.randbytes(32))
        self.verifier = Verifier(self.signer.public)
        for lamp in LAMPS:
            entry = LampEntry(lamp, rng.choice(SHELVES), 1)
            self.taken[lamp, entry.shelf] = 1
            self.coordinator.store.put(keys.entry_key(lamp, LAMP), self.signer.line(entry))
        leaders = [self.participant(f"leader-{number}", "leader", self.lead).name for number in range(2)]
        shelves = [self.participant(name, "shelf", partial(self.keep, name)).name for name in SHELVES]
        self.participant("owner", "owner", self.ask)
        nodes = [*leaders, *shelves, "coordinator"]
        return FaultTargets(nodes, nodes, [*nodes, "owner"])

    async def lead(self, process: Process) -> None:
        holder = f"{process.node.name}/{process.node.incarnation}"
        async with await process.runtime.coordinator(COORDINATOR_URL, 1.0) as coordinator:
            leader = Leader(coordinator, self.signer, Limits(), LeaderTiming(), [], holder)
            shelves = frozenset(SHELVES)
            lamps = ConductorShell(
                coordinator, self.steps, self.signer, lambda: leader.leading, lambda leading: shelves, 0.25
            )
            await leader.run(lamps.run())

    async def keep(self, shelf: str, process: Process) -> None:
        """The agent of a shelf: takes and lets go as the entries say, and reports it."""
        seen: dict[bytes, int] = {}
        async with await process.runtime.coordinator(COORDINATOR_URL, 1.0) as coordinator:
            while True:
                try:
                    async with aclosing(coordinator.watch(keys.entries_prefix(LAMP))) as changes:
                        async for change in changes:
                            assert change.now is not None
                            entry = self.verifier.line(change.now.value, LampEntry)
                            await asyncio.sleep(self.world.rng("shelves").uniform(0.0, 0.5))
                            self.follow(shelf, entry)
                            seen[entry.unit] = entry.newness
                            report = encode_body(LAMP, LampReport(shelf, dict(seen)))
                            await coordinator.put(keys.report_key(shelf, LAMP), report)
                except CoordinatorError:
                    await asyncio.sleep(0.2)

    def follow(self, shelf: str, entry: LampEntry) -> None:
        if entry.phase == "carry" and entry.shelf == shelf:
            self.exercised["taken"] += 1
            self.taken[entry.unit, shelf] = entry.revision
        if entry.phase == "let_go" and entry.before == shelf != entry.shelf:
            self.exercised["let go"] += 1
            if self.taken[entry.unit, entry.shelf] < entry.revision - 1:
                self.dark.append(f"{entry.unit.decode()} was let go by {shelf} before {entry.shelf} had it")

    async def ask(self, process: Process) -> None:
        """The owner of the lamps wants them elsewhere, now and then."""
        rng, number = self.world.rng("owner"), 0
        async with await process.runtime.coordinator(COORDINATOR_URL, 1.0) as coordinator:
            while self.active:
                await asyncio.sleep(rng.uniform(0.5, 3.0))
                number += 1
                request = LampRequest(rng.choice(LAMPS), rng.choice(SHELVES), str(number))
                try:
                    await coordinator.put(keys.move_key(request.unit, LAMP), encode_body(LAMP, request))
                except CoordinatorError:
                    continue

    def quiet(self) -> bool:
        return not self.coordinator.store.list(keys.moves_prefix(LAMP))

    def judge(self) -> Verdict:
        verdict = Verdict(messages=self.exercised["taken"])
        verdict.own["lamps_moved"] = self.exercised["let go"]
        for text in self.dark:
            verdict.lost += 1
            verdict.violate("dark", text)
        for lamp in LAMPS:
            stored = self.coordinator.store.get(keys.entry_key(lamp, LAMP))
            assert stored is not None
            if self.verifier.line(stored.value, LampEntry).is_moving:
                verdict.violate("unsettled", f"{lamp.decode()} is still on its way")
        return verdict


def run_seed(seed: int, broken: str | None) -> Outcome:
    return LampRun(seed, broken).execute()


PROTOCOL = Protocol("lamps", run_seed, CORNERS, ("carry_first",), ("let go",))


def test_a_campaign_of_lamps_holds_and_meets_its_corners() -> None:
    result = run_campaign(PROTOCOL, 5, 0, None, lambda *_: None, workers=1)
    assert result.violations == []
    facts = result.facts()
    assert facts["lamps_moved"] == facts["moves"] > 0
    assert all(facts["exercised"].values()), facts["exercised"]


def test_a_broken_rule_of_lamps_is_caught() -> None:
    result = run_campaign(PROTOCOL, 12, 0, "carry_first", lambda *_: None, stop_at_first=True, workers=1)
    assert result.lost
    assert run_seed(result.failing[0], None).verdict.violations == []


def test_the_same_seed_gives_the_same_run() -> None:
    assert run_seed(3, None).digest == run_seed(3, None).digest


def test_another_run_has_another_digest() -> None:
    """Lamps speak with the coordinator only: no byte of theirs is on a link."""
    intact, broken = run_seed(3, None), run_seed(3, "carry_first")
    assert intact.events != broken.events
    assert intact.digest != broken.digest
