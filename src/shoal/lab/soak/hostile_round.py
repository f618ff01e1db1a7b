"""Soaks with hostile clients: honest publishers and subscribers, and beside them clients that lie, flood and stall.

Owns the course of such a round, its goals, and the facts that are printed. The attacks are in `attacks`, their process
in `hostile_worker`. Phases alternate: harmless traffic, then the attack at the same rate, for each attack in turn, so
that the latency of honest clients can be compared within one run. In both phases of an attack that answers honest
clients, the round cuts their connections, so that they greet agents, subscribe and ask for missing messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from shoal.cluster.acl import ADMIN, CLIENT
from shoal.cluster.local import LocalCluster
from shoal.cluster.parts import agent_name
from shoal.errors import ShoalError
from shoal.lab.harness import LoadProcess, Stop
from shoal.lab.soak.attacks import ATTACKS
from shoal.lab.soak.checker import RoundReport, Severity
from shoal.lab.soak.hostile_orders import REPORTS, PhaseOver, RunPhase, StartHostile
from shoal.lab.soak.load_shape import draw
from shoal.lab.soak.outcome import BaseOutcome
from shoal.lab.soak.round_log import CornerMet, Note, PhaseBegan, Problem
from shoal.lab.soak.rounds import BaseRound, Tell
from shoal.lab.soak.run import round_directory
from shoal.limits import Limits
from shoal.runtime import PRODUCTION
from shoal.wire.blocking_connection import BlockingConnection

RSS_MB_MAX: Final = 128.0
"""Memory that an agent may take above what it takes with honest clients only."""
P99_RATIO_MAX: Final = 1.5
"""The 99th percentile of honest latencies during attacks, divided by that during harmless traffic."""
WARM_S: Final = 2.0
"""Load without other traffic, before the first phase. The memory of agents is measured at its end."""
SAMPLE_S: Final = 0.1
PHASE_S_MIN: Final = 0.4
"""How long a phase lasts at least, however many there are."""
PHASE_S_MAX: Final = 60.0
"""How much longer than asked a phase may take to end."""
CUT_S: Final = 0.05
"""Time between two connections that are cut."""
AFTER_CUTS_S: Final = 1.0
"""Time in which cut clients return, before the next phase."""


class HostileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a soak with hostile clients. `seconds` are divided among the phases of all `attacks`."""

    servers: int
    subscribers: int
    seconds: float
    attacks: tuple[str, ...]
    seed: int
    limits: Limits


class AgentSamples:
    """Samples the memory of agents, and which servers are in the ring."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._idle: dict[str, float] = {}
        self._members = self._ring()
        self.rss_mb_max = 0.0
        self.evicted = 0

    def begin(self) -> None:
        """Takes the present memory as that of an idle agent."""
        self._idle = self._rss_mb()

    async def run(self) -> None:
        """Samples until it is cancelled."""
        while True:
            for name, rss_mb in self._rss_mb().items():
                self.rss_mb_max = max(self.rss_mb_max, rss_mb - self._idle.get(name, rss_mb))
            members = self._ring()
            self.evicted += len(self._members - members)
            self._members = members
            await asyncio.sleep(SAMPLE_S)

    def _ring(self) -> frozenset[str]:
        return frozenset(server.id for server in self._cluster.status().servers if server.in_ring)

    def _rss_mb(self) -> dict[str, float]:
        names = {agent_name(server.id) for server in self._cluster.servers}
        found = {}
        for process in self._cluster.status().processes:
            if process.name in names and process.pid is not None:
                with contextlib.suppress(OSError, StopIteration, ValueError):
                    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                    line = next(line for line in lines if line.startswith("VmRSS:"))
                    found[process.name] = int(line.split()[1]) / 1024
        return found


class Cuts:
    """Cuts connections of honest clients, as an operator can."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self._servers = list(map(PRODUCTION.address_book.reach, cluster.servers))
        self._login = ADMIN, cluster.state.passwords[ADMIN]
        self._random = Random(seed)
        self.count = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Cuts a connection every `CUT_S` while the block runs."""
        cutting = asyncio.create_task(self._run())
        try:
            yield
        finally:
            cutting.cancel()
            await asyncio.gather(cutting, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.to_thread(self._cut_one)
            await asyncio.sleep(CUT_S)

    def _cut_one(self) -> None:
        to = self._random.choice(self._servers)
        with BlockingConnection(to.host, to.port, *self._login, dial=to.dial) as server:
            lines = server.ask("CLIENT", "LIST", "TYPE", "pubsub").decode().splitlines()
            clients = [dict(field.split("=", 1) for field in line.split()) for line in lines]
            honest = [client["id"] for client in clients if client["user"] == CLIENT and client["name"]]
            if honest:
                server.ask("CLIENT", "KILL", "ID", self._random.choice(honest))
                self.count += 1


class HostileRound(BaseRound):
    """A round with hostile clients."""

    def __init__(self, options: HostileOptions, directory: Path, tell: Tell) -> None:
        servers = [f"s{number}" for number in range(1, options.servers + 1)]
        shape = draw(options.seed, options.seconds, servers, options.subscribers, options.limits)
        super().__init__(shape, Severity.AGENTS, directory, tell)
        self._options = options
        self.samples: AgentSamples | None = None
        self.phases: list[PhaseOver] = []

    @property
    def kills(self) -> int:
        """The number of attacks so far."""
        return sum(not phase.harmless for phase in self.phases)

    def make_cluster(self, directory: Path) -> LocalCluster:
        """A cluster without faults."""
        return LocalCluster(self._options.servers, directory, limits=self._options.limits)

    async def prepare(self, cluster: LocalCluster, stack: contextlib.AsyncExitStack) -> None:
        """All channels follow the ring."""

    async def load(self, cluster: LocalCluster) -> None:
        """Harmless and hostile phases in turn."""
        self.samples = samples = AgentSamples(cluster)
        errors = self.directory / "hostile.err"
        sampling = None
        try:
            async with LoadProcess("hostile process", "shoal.lab.soak.hostile_worker", REPORTS, log=errors) as process:
                addresses = tuple(cluster.servers)
                password = cluster.state.passwords[CLIENT]
                process.send(StartHostile(addresses, CLIENT, password, self._options.seed))
                await self.until_load(WARM_S, "load")
                samples.begin()
                sampling = asyncio.create_task(samples.run())
                await self._run_phases(cluster, process)
            self.log.write(PhaseBegan(False, "", False, time.monotonic()))
            self.send(Stop(), "publish")
        finally:
            if sampling is not None:
                sampling.cancel()
                await asyncio.gather(sampling, return_exceptions=True)

    async def _run_phases(self, cluster: LocalCluster, process: LoadProcess) -> None:
        attacks = self._options.attacks
        seconds = max(PHASE_S_MIN, (self._options.seconds - WARM_S) / (2 * len(attacks)))
        cuts = Cuts(cluster, self._options.seed)
        for attack in attacks:
            for harmless in (True, False):
                cut = ATTACKS[attack].answers
                self.log.write(PhaseBegan(not harmless, attack, cut, time.monotonic()))
                process.send(RunPhase(attack, harmless, seconds))
                answer = asyncio.ensure_future(process.answer(PhaseOver, seconds + PHASE_S_MAX))
                async with cuts.running() if cut else contextlib.nullcontext():
                    await self.until(answer.done, seconds + PHASE_S_MAX + 1, f"{'harmless' if harmless else attack}")
                over = await answer
                if cut:
                    self.log.write(PhaseBegan(False, "", False, time.monotonic()))
                    await asyncio.sleep(AFTER_CUTS_S)
                self.phases.append(over)
                self.log.write(Note(f"{over}", time.monotonic()))
                if not harmless:
                    self.log.write(CornerMet(f"attack {attack}", over.commands + over.cut_off))
                    self.log.write(CornerMet("hostile commands refused", over.refused))
                    self.log.write(CornerMet("hostile connections cut", over.cut_off))
        self.log.write(CornerMet("honest connection cut", cuts.count))

    async def finish(self, cluster: LocalCluster) -> None:
        """Agents must still serve: a last look at the ring."""
        if not cluster.status().ready:
            self.log.write(Problem("unsettled: the cluster is not ready after the attacks"))


class HostileOutcome(BaseOutcome):
    """The outcome of a soak with hostile clients."""

    def __init__(self, options: HostileOptions) -> None:
        attacks = [f"attack {name}" for name in options.attacks]
        super().__init__("hostile", [*attacks, "burst", "late joiner", "channel", "pattern"])
        self.evicted = 0
        self.rss_mb_max = 0.0
        self.phases: list[PhaseOver] = []

    def take(self, report: RoundReport, one: HostileRound) -> None:
        """Adds a round."""
        self.add(report, one.kills)
        self.phases += one.phases
        if one.samples is not None:
            self.evicted += one.samples.evicted
            self.rss_mb_max = max(self.rss_mb_max, one.samples.rss_mb_max)

    @property
    def moves(self) -> int:
        """No channel is moved."""
        return 0

    @property
    def _p99_ms(self) -> tuple[float | None, float | None]:
        report = self.report
        values = (report.harmless.percentile_s(0.99), report.hostile.percentile_s(0.99))
        harmless, hostile = (None if value is None else round(1000 * value, 3) for value in values)
        return harmless, hostile

    @property
    def p99_ratio(self) -> float | None:
        """Honest latency during attacks, relative to that during harmless traffic."""
        harmless, hostile = self._p99_ms
        return None if not harmless or hostile is None else round(hostile / harmless, 2)

    @property
    def missed(self) -> list[str]:
        """The goals that were not reached."""
        ratio = self.p99_ratio
        checks = {
            f"lost: {self.report.lost}": self.report.lost == 0,
            f"evicted: {self.evicted} servers left the ring": self.evicted == 0,
            f"gaps: {self.report.gaps_false} false ones": self.report.gaps_false == 0,
            f"memory: an agent took {self.rss_mb_max:.0f} MB more": self.rss_mb_max <= RSS_MB_MAX,
            f"latency: p99 is {ratio} times that of harmless traffic": ratio is not None and ratio <= P99_RATIO_MAX,
        }
        return [text for text, holds in checks.items() if not holds]

    @property
    def holds(self) -> bool:
        """Whether every goal was reached, beside the promises."""
        return super().holds and not self.missed

    def more_facts(self) -> dict[str, Any]:
        """The goals, and what was sent."""
        harmless, hostile = self._p99_ms
        return {
            "silent": self.report.lost,
            "evicted": self.evicted,
            "gaps_false": self.report.gaps_false,
            "agent_rss_mb_max": round(self.rss_mb_max, 1),
            "p99_ms": {"harmless": harmless, "hostile": hostile, "ratio": self.p99_ratio},
            "latency_ms": {
                "harmless": self.report.harmless.summary_ms(),
                "hostile": self.report.hostile.summary_ms(),
            },
            "p99_ms_by_phase": {
                name: round(1000 * (one.percentile_s(0.99) or 0.0), 3) for name, one in self.report.attacks.items()
            },
            "phases": [msgspec.structs.asdict(phase) for phase in self.phases],
            "goals_missed": self.missed,
        }


async def run_hostile(options: HostileOptions, tell: Tell) -> HostileOutcome:
    """Runs the soak: one round."""
    for name in options.attacks:
        if name not in ATTACKS:
            raise ShoalError(f"there is no attack {name!r}", do=f"use one of {', '.join(ATTACKS)}")
    outcome = HostileOutcome(options)
    began = time.monotonic()
    with round_directory(outcome) as directory:
        one = HostileRound(options, directory, tell)
        outcome.take(await one.execute(), one)
    outcome.seconds = time.monotonic() - began
    return outcome
