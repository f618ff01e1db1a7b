"""The scenario `moves`: channels change servers and kinds of placement while everybody goes on and everything suffers.

Owns what is added to the cluster of every scenario: movers, an operator that asks for moves, idle channels, plain Redis
subscribers. Everything else (applications, faults, phases of a run) is `scenario.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from typing import Final
from zlib import crc32

import msgspec

from shoal.errors import ProtocolError
from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.models.coordinator import CoordinatorOptions
from shoal.lab.sim.models.resp import CommandReader
from shoal.lab.sim.scenario import CALM_S, Outcome
from shoal.lab.sim.scenarios.cluster import ChannelScenario
from shoal.lab.sim.scenarios.moves_checkers import MovesCheck
from shoal.lab.sim.scenarios.moves_operator import Operator
from shoal.lab.sim.scenarios.moves_watch import MovesWatch
from shoal.lab.sim.scenarios.plain import PlainPublisher, PlainSubscriber
from shoal.lab.sim.scenarios.shape import Shape
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.plan.entry import Entry, Phase
from shoal.plan.keys import KEEPER_LEASE
from shoal.plan.placement import at_home
from shoal.rules import ALL_RULES, Rules
from shoal.wire import control
from shoal.wire.envelope import BEACON, FOREIGN, HEADER, HEADER_BYTES, INBOX_PREFIX, is_envelope

PLAIN_MAX: Final = 3
PLAIN_PUBLISHERS: Final = 0.5
"""In so many of the runs plain clients publish too, on every server."""
BEFORE_MOVES_S: Final = 1.0
"""Plain subscribers have this time to subscribe before the first move."""
LAST_MOVE_S: Final = 4.0
"""So long before the applications fall silent nobody asks for moves any more."""
PEACE_S: Final = 10.0
"""Some runs have moves without trouble first, so that what is promised then is put to the test more often."""
PEACEFUL: Final = 0.7
"""How many of the runs without faults have no deaths either, and no changes of the ring but those that are planned."""
COPIES_MAX: Final = 300
"""How often one message is passed on at most, whatever is repeated; beyond it, messages chase each other."""
BEACONS_FACTOR: Final = 20


class RunawayError(BaseException):
    """A message was passed on so often that it would never end. It ends the run: shipped code, in whose turn it is
    noticed, must not catch it."""


class MovesRun(ChannelScenario):
    """One seed of the scenario."""

    def __init__(self, seed: int, rules: Rules = ALL_RULES, trace: bool = False) -> None:
        self.moving = True
        self.sleepers: set[int] = set()
        """Clients that were put to sleep; servers may cut off whoever does not read for long."""
        self.peaceful = False
        self.hasty = False
        """Whether moves are given up before slow news can have come to all agents."""
        self.idle_channels = ["i.0", "i.1"]
        self.watch = MovesWatch({name.encode() for name in self.idle_channels})
        self.idle_notices: Counter[str] = Counter()
        self.movers: list[str] = []
        self.operator: Operator | None = None
        self.plain: list[PlainSubscriber] = []
        self._writers: dict[bytes, str] = {}
        self._copies: Counter[tuple[bytes, int, int, bool]] = Counter()
        super().__init__(seed, rules, trace)
        self.movable = self.channels + self.quiet_channels + self.idle_channels
        self.operator = Operator(self)
        self.peace_s = self.world.rng("moves").choice((0.0, 0.0, PEACE_S))

    # What is added to the cluster

    def make_shape(self, options: FaultOptions) -> Shape:
        """As everywhere, with fewer applications and limits for moves."""
        shape = super().make_shape(options)
        rng = self.world.rng("moves")
        limits = msgspec.structs.replace(
            shape.limits,
            prepare_timeout_s=rng.choice((1.0, 3.0, 10.0)),
            widen_timeout_s=rng.choice((0.2, 0.5, 2.0)),
            notice_retry_s=rng.choice((0.3, 1.0)),
        )
        self.peaceful = options.peaceful and rng.random() < PEACEFUL
        if self.peaceful:
            self.ring_death = 0.0
        return dataclasses.replace(
            shape,
            limits=limits,
            clients=rng.randint(3, 6),
            channels=rng.randint(2, 4),
            lapses=shape.lapses and not self.peaceful,
        )

    def coordinator_options(self) -> CoordinatorOptions:
        """In some runs agents hear of the plan late, each at its own time."""
        slow_s = self.world.rng("news").choice((0.05, 0.05, 0.3, 0.9))
        self.hasty = slow_s > 0.1 and self.shape.limits.prepare_timeout_s < 4 * slow_s
        return CoordinatorOptions(watch_delay_s=(0.000_5, slow_s))

    def other_nodes(self) -> list[str]:
        """Makes the nodes of plain clients."""
        rng = self.world.rng("moves")
        for index in range(rng.randint(0, PLAIN_MAX)):
            self.network.node(f"plain{index}")
        if rng.random() < PLAIN_PUBLISHERS:
            for server in self.names:
                PlainPublisher(self.network, f"plain-publisher-{server}", server, self.history, self._foreign_channel)
        return []

    def _foreign_channel(self, server: str) -> str | None:
        """What a plain client publishes on: mostly a channel that lives on the server, as far as it can know."""
        if not self.active or self.book.ring is None:
            return None
        rng = self.world.rng("foreign")
        here = [name for name in self.channels if server in self.book.placement(name.encode()).servers]
        return rng.choice(here if here and rng.random() < 0.7 else self.channels)

    def make_leaders(self) -> list[str]:
        """Makes those who move channels and keep the ring; the second one waits for the death of the first."""
        self.movers = [f"mover{index}" for index in range(self.world.rng("moves").randint(1, 2))]
        for name in self.movers:
            self.leader(name, "mover")
        return self.movers

    def subscribable(self) -> list[str]:
        """Idle channels have subscribers too, and nobody who publishes."""
        return super().subscribable() + self.idle_channels

    def begin_safety(self) -> None:
        """Plain subscribers first, moves a little later."""
        if self.book.ring is None:
            self.world.after(0.2, self.begin_safety)
            return
        rng = self.world.rng("plain")
        for name in [name for name in self.network.nodes if name.startswith("plain") and "-" not in name]:
            channel = rng.choice(self.channels)
            servers = self.book.placement(channel.encode()).subscribe_servers(rng.getrandbits(16))
            self.plain.append(PlainSubscriber(self.network, name, channel, servers))
            self.watch.seen["plain subscriber"] += 1
        assert self.operator is not None
        self.world.after(BEFORE_MOVES_S, self.operator.start)
        self.world.after(self.shape.safety_s + CALM_S - LAST_MOVE_S, self._last_move)

    def _last_move(self) -> None:
        self.moving = False

    # What is seen

    def entry_written(self, entry: Entry) -> None:
        """Follows the moves; perhaps somebody dies of it."""
        ring = self.book.ring
        home = at_home(ring.version, ring.home(entry.unit)) if ring else entry.placement
        self._count_takeover(entry)
        self.watch.written(entry, home, self.world.now)
        if self.operator is not None:
            self.operator.strike(entry)

    def _count_takeover(self, entry: Entry) -> None:
        """Notes when a move is carried on by another mover than the one that carried it so far."""
        lease = self.coordinator.store.lease_of(KEEPER_LEASE)
        holder = lease.holder if lease is not None else ""
        before = self.watch.entries.get(entry.unit)
        if before is not None and before.phase is not Phase.END:
            self.watch.seen["mover takes over"] += self._writers.get(entry.unit) != holder
        self._writers[entry.unit] = holder

    def died(self, kind: str, name: str) -> None:
        """Counts the death in the phases of the moves that it meets."""
        super().died(kind, name)
        self.watch.died(kind, name)

    def agent_wrote(self, agent: str, server: str, data: bytes) -> None:
        """Looks at what agents pass on to other servers, and at their notices."""
        if agent == server and INBOX_PREFIX not in data:
            return
        for command in CommandReader().read(data):
            if command[0] == b"PUBLISH" and agent != server:
                self._passed_on(agent, server, command[1], command[2])
            elif command[0] == b"PUBLISH" and command[1].startswith(INBOX_PREFIX):
                self._noticed(command[2])

    def _noticed(self, data: bytes) -> None:
        """An agent says something to a client."""
        with contextlib.suppress(ProtocolError):
            said = control.decode(data).message
            if isinstance(said, control.Notice):
                self.watch.seen["notice"] += 1
                if said.name.decode() in self.idle_channels:
                    self.idle_notices[said.name.decode()] += 1

    def _passed_on(self, agent: str, server: str, channel: bytes, blob: bytes) -> None:
        """Counts the copies of each message, and why they are made."""
        flags, version, stream, sequence = 0, 0, 0, 0
        if is_envelope(blob):
            _, flags, version, stream, sequence, _ = HEADER.unpack_from(blob)
        core = self.agent_of(agent).agent.core
        assert core is not None, "an agent that passes something on has a core"
        book = core.book
        entry = book.entry(channel)
        if flags & BEACON:
            reason = "beacon forwarded"
        elif flags & FOREIGN:
            reason = "foreign message forwarded"
        elif (
            entry
            and server in entry.helped
            and any(placement.version == version for placement in book.subscribed(channel))
        ):
            reason = "message forwarded to a helped server"
        else:
            reason = "stale publish forwarded"
        self.watch.seen[reason] += 1
        self.watch.seen["forwarded by a server without part in the channel"] += (
            entry is not None and agent not in entry.servers
        )
        key = channel, stream, sequence or crc32(blob[HEADER_BYTES:]), bool(flags & BEACON)
        self._copies[key] += 1
        if self._copies[key] > COPIES_MAX * (BEACONS_FACTOR if key[3] else 1):
            raise RunawayError(f"agents passed one message of {channel.decode()} on {self._copies[key]} times: {key}")

    @property
    def copies_most(self) -> int:
        """How often the message was passed on that was passed on most often."""
        return max((count for key, count in self._copies.items() if not key[3]), default=0)

    # The run

    def run_phases(self) -> Outcome:
        """Runs all phases and judges; messages that chase each other end the run."""
        try:
            return super().run_phases()
        except RunawayError as error:
            verdict = Verdict(messages=len(self.history.messages))
            verdict.violate("runaway", str(error))
            return self.outcome(verdict)

    @property
    def calm(self) -> bool:
        """A nap is a fault for whoever sleeps."""
        return super().calm and not self.sleepers

    @property
    def trouble_at(self) -> float:
        """When servers, agents or links first met trouble; infinity if they never did. Naps of clients are none."""
        times = [interval.began_at for interval in self.history.unwatched]
        if self.faults.first_at is not None:
            times.append(self.faults.first_at)
        return min(times, default=float("inf"))

    def quiet(self) -> bool:
        """Moves must have settled too."""
        return super().quiet() and not self.checker().unsettled()

    def checker(self) -> MovesCheck:
        """Who judges what was moved."""
        return MovesCheck(self)

    def judge(self) -> Verdict:
        """Moves end, plain clients lose nothing, idle channels cost nothing."""
        verdict = super().judge()
        self.checker().judge(verdict)
        return verdict

    def check(self, verdict: Verdict) -> None:
        """Counts what was seen of moves."""
        self.exercised.update(self.watch.seen)


def run_seed(seed: int, rules: Rules = ALL_RULES, trace: bool = False) -> Outcome:
    """Runs one seed; the same seed gives the same outcome, always."""
    return MovesRun(seed, rules, trace).execute()
