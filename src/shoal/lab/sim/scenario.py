"""A simulated run: the world, its faults, and the phases of the test.

    begin     participants start and find each other
    safety    applications work while faults occur
    calm      faults have ended and every process is up; applications continue for a while
    liveness  applications are quiet; everything owed must arrive, everything must settle

Owns the order of a run and its outcome. Knows no protocol: a subclass of `Scenario` builds the participants, drives
them and judges what happened (`shoal.lab.sim.scenarios`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any, Final

from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.models.coordinator import CoordinatorOptions, ModelCoordinator
from shoal.lab.sim.world.background import no_threads
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.lab.sim.world.faults import Faults
from shoal.lab.sim.world.network import Network
from shoal.lab.sim.world.node import Node
from shoal.lab.sim.world.process import Process, Processes, failures_logged
from shoal.lab.sim.world.world import World

BEGIN_S: Final = 1.5
BEGIN_S_MAX: Final = 10.0
FORM_LOOK_S: Final = 0.25
"""The first phase lasts `BEGIN_S`, and longer in a slow world: until participants are ready, which is checked every
`FORM_LOOK_S`, or until `BEGIN_S_MAX`."""
QUIET_S_MIN: Final = 1.0
QUIET_S: Final = 10.0
TRANSIT_S: Final = 5.0
LOOK_S: Final = 0.5
"""The quiet phase is checked every `LOOK_S`. From `QUIET_S_MIN` on it ends when no check finds anything missing; from
`QUIET_S` on, also when no process has waited for anything for `TRANSIT_S`: what a server has confirmed may still be on
its way to a subscriber; and nothing that is missing is asked for."""
LIVENESS_S_MAX: Final = 400.0
"""A healthy world must have settled by then, even with slow links."""


@dataclass(slots=True)
class Outcome:
    """The result of one seed."""

    seed: int
    verdict: Verdict
    faults: int
    exercised: Counter[str]
    events: int = 0
    trace: list[tuple[object, ...]] = field(default_factory=list)
    digest: bytes = b""


Variant = Mapping[str, Any]
"""Attributes of a scenario that have other values in a run: shares, sizes and times, by name."""
COMMON: Final[Variant] = MappingProxyType({})
"""The scenario as it is."""


class EndedError(Exception):
    """Ends a run with a broken rule at its first violation. Raised by an event of its own, outside of shipped code."""


@dataclass(frozen=True, slots=True)
class FaultTargets:
    """The names of the nodes that faults may crash, pause and cut off."""

    crashable: Sequence[str]
    pausable: Sequence[str]
    partitionable: Sequence[str]


class Scenario:
    """One seed of a scenario."""

    safety_s = 20.0
    """How long the safety phase lasts."""
    calm_s = 8.0
    """How long applications continue in a healthy world after it."""
    liveness_s_max = LIVENESS_S_MAX
    """When the run ends at the latest, settled or not."""

    def __init__(self, seed: int, trace: bool = False, variant: Variant = COMMON) -> None:
        for name, value in variant.items():
            getattr(type(self), name)  # a variant invents no attributes
            setattr(self, name, value)
        self.world = World(seed, trace=trace)
        rng = self.world.rng("shape")
        options = self.draw_faults(rng)
        self.draw_shape(rng, options)
        self.network = Network(self.world, options)
        self.exercised: Counter[str] = Counter()
        self.deaths = 0
        """Number of processes that have crashed, by faults or by the scenario."""
        self.active = True
        """Whether applications work: until the quiet phase."""
        self.began_at = BEGIN_S
        """When the safety phase began."""
        self.peace_s = 0.0
        """How long the safety phase lasts before the first fault."""
        self.coordinator = ModelCoordinator(self.network, options=self.coordinator_options())
        self.coordinator.node.on_crash = lambda: self.died("coordinator", "coordinator")
        self.processes = Processes(self.network, self.coordinator)
        targets = self.build(rng)
        self.faults = Faults(
            self.network,
            crashable=targets.crashable,
            pausable=targets.pausable,
            partitionable=targets.partitionable,
        )

    # For subclasses

    def draw_faults(self, rng: Random) -> FaultOptions:
        """The faults of links and nodes."""
        return FaultOptions.draw(rng)

    def draw_shape(self, rng: Random, options: FaultOptions) -> None:
        """The size of the run; called before anything is built."""

    def coordinator_options(self) -> CoordinatorOptions:
        """The speed of the coordinator."""
        return CoordinatorOptions()

    def build(self, rng: Random) -> FaultTargets:
        """Makes all participants."""
        raise NotImplementedError

    def recorded(self) -> Sequence[object]:
        """The history of the run, for its digest; it holds no sets."""
        return ()

    def formed(self) -> bool:
        """Whether participants are ready for the safety phase."""
        return True

    def begin_safety(self) -> None:
        """Participants are up; faults begin after `peace_s`."""

    def faults_began(self) -> None:
        """Faults may occur from now on."""

    def go_on(self) -> None:
        """Lets applications work for longer in a healthy world."""

    def quiet(self) -> bool:
        """Whether everything has settled."""
        raise NotImplementedError

    def heals(self) -> bool:
        """Whether something that is missing is being asked for: it may still arrive, or be reported."""
        return False

    def finish(self) -> bool:
        """Collects what is left at the end of the run; returns whether there was anything for `judge`."""
        return False

    def judge(self) -> Verdict:
        """The verdict on what has happened so far. Called more than once in a run."""
        raise NotImplementedError

    def check(self, verdict: Verdict) -> None:
        """Adds what can be checked only once, at the end."""

    # Participants

    def participant(
        self, name: str, kind: str, main: Callable[[Process], Coroutine[Any, Any, None]], host: str | None = None
    ) -> Node:
        """Makes a node on which shipped code runs: `main` of a new process, now and after each crash. Nodes of one
        `host` are near each other."""
        node = self.network.node(name, host)

        def start() -> None:
            process = self.processes.new(node)
            process.begin(main(process))

        node.on_restart, node.on_crash = start, lambda: self.died(kind, name)
        start()
        return node

    def died(self, kind: str, name: str) -> None:
        """Counts the crash of a node's process."""
        self.deaths += 1
        self.exercised[f"{kind} crash"] += 1

    # The run

    def execute(self) -> Outcome:
        """Runs all phases and returns the outcome."""
        try:
            with failures_logged(self.processes.failures), no_threads():
                return self.run_phases()
        finally:
            self.processes.close()

    def run_phases(self) -> Outcome:
        """The phases of a run, one after the other."""
        world = self.world
        world.run(BEGIN_S)
        while not self.formed() and world.now < BEGIN_S_MAX:
            world.run(world.now + FORM_LOOK_S)
        self.began_at = world.now
        self.begin_safety()
        world.run(BEGIN_S + self.peace_s)
        self.faults.start()
        self.faults_began()
        world.run(BEGIN_S + self.safety_s)
        self.faults.stop()
        world.run(world.now + self.calm_s)
        self.go_on()
        self.active = False
        quiet_at = world.now
        world.run(quiet_at + QUIET_S_MIN)
        verdict: Verdict | None = None
        ends_at = quiet_at + QUIET_S
        while world.now < self.liveness_s_max:
            if self.quiet():
                verdict = self.judge()
                if not verdict.violations or (world.now >= ends_at and not self.heals()):
                    break
            else:
                ends_at = max(ends_at, world.now + TRANSIT_S)
            world.run(world.now + LOOK_S)
        if self.finish() or verdict is None or verdict.violations:
            verdict = self.judge()
        return self._judged(verdict)

    def _judged(self, verdict: Verdict) -> Outcome:
        self.processes.note_failures()
        for failure in self.processes.failures:
            verdict.violate("failure", failure)
        self.check(verdict)
        self.exercised.update(self.faults.counts)
        self.exercised.update(verdict.seen)
        return self.outcome(verdict)

    def outcome(self, verdict: Verdict) -> Outcome:
        """The result of the run. Its digest also covers the history, the counters and the violations."""
        world = self.world
        counted = sorted((self.exercised + verdict.own).items())
        world.mix_values(self.recorded(), counted, verdict.violations, world.events_run)
        return Outcome(
            world.seed, verdict, sum(self.faults.counts.values()), self.exercised, world.events_run, world.trace or [],
            world.digest,
        )  # fmt: skip
