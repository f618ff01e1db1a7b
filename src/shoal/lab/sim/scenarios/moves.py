"""The scenario `moves`: channels move between servers and kinds of placement, under load and faults.

Owns what is added to the common cluster: conductors, an operator that requests moves, idle channels and plain Redis
clients. Applications and servers are in `cluster`, faults and phases of a run in `shoal.lab.sim.scenario`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Mapping
from random import Random
from types import MappingProxyType
from typing import Any, Final
from zlib import crc32

import msgspec

from shoal.errors import ProtocolError
from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.models.coordinator import CoordinatorOptions
from shoal.lab.sim.scenario import COMMON, Outcome, Variant
from shoal.lab.sim.scenarios.cluster import ChannelScenario
from shoal.lab.sim.scenarios.moves_checkers import MovesCheck
from shoal.lab.sim.scenarios.moves_operator import Operator
from shoal.lab.sim.scenarios.moves_provocation import SEQUENCE_S, SilentPublisher, UnheardPublisher
from shoal.lab.sim.scenarios.moves_watch import MovesWatch
from shoal.lab.sim.scenarios.plain import PlainPublisher, PlainSubscriber
from shoal.lab.sim.scenarios.shape import Shape
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.plan.entry import Entry, Phase
from shoal.plan.keys import KEEPER_LEASE
from shoal.plan.placement import at_home
from shoal.queues.keyspace.resp import CommandReader
from shoal.rules import ALL_RULES, Rules
from shoal.wire import control
from shoal.wire.envelope import BEACON, FOREIGN, HEADER, HEADER_BYTES, INBOX_PREFIX, is_envelope

PLAIN_MAX: Final = 3
BEFORE_MOVES_S: Final = 1.0
"""Time for plain subscribers to subscribe before the first move."""
LAST_MOVE_S: Final = 4.0
"""The last move is requested at least this long before the applications fall silent."""
PEACE_S: Final = 10.0
"""Some runs begin with moves without faults, because some promises hold only then. Shorter by the run's pace."""
BURST_PAUSES: Final = 1.5
"""Applications publish less often than in `channels`: what is tested are moves."""
QUICK_LOAD_S: Final = (0.0, 0.3)
RESYNC_S: Final = 0.4
FEW_FAULTS: Final[dict[str, Any]] = {
    "spike_probability": 0.0, "resets_per_s": 0.1, "stalls_per_s": 0.0, "partitions_per_s": 0.0, "pauses_per_s": 0.0,
    "crashes_per_s": 0.0,
}  # fmt: skip
"""Where a publisher is silent while an agent restarts, agents load quickly, wait less for clients that do not answer a
resync, and there are few other faults: the publisher must continue before its lease is over."""
COPIES_MAX: Final = 300
"""A message that agents forward more often than this circulates without end."""
BEACONS_FACTOR: Final = 20


class RunawayError(BaseException):
    """Agents forward a message without end. Not an `Exception`: it is raised in a turn of shipped code, which must not
    catch it, so that it ends the run."""


class MovesRun(ChannelScenario):
    """One seed of the scenario."""

    silences_share = 0.12
    """How often a publisher is silent while an agent restarts (`moves_provocation`). These runs have few other faults,
    and changes of the plan spread quickly: a move must end before the publisher's lease does."""
    fault_pace = 2.3
    """Higher than in `channels`, because some runs begin with a time without faults."""
    calm_s = 6.5
    """Moves continue in it, and the last ones must end."""
    plain_publishers = 0.5
    """Share of the runs in which plain clients publish on every server."""
    peaceful_share = 0.7
    """Share of the runs without faults in which the scenario also causes no crashes and no unplanned changes of the
    ring."""
    fixed_operator: Mapping[str, Any] = MappingProxyType({})
    """The rates of `MovesMix` that a variant does not leave to the seed."""

    def __init__(self, seed: int, rules: Rules = ALL_RULES, trace: bool = False, variant: Variant = COMMON) -> None:
        self.moving = True
        self.sleepers: set[int] = set()
        """Clients that were paused by the operator; their servers may disconnect them for not reading."""
        self.spared: set[str] = set()
        """Channels of a sequence of faults, for which the operator requests no move."""
        self.peaceful = False
        self.hasty = False
        """Whether moves time out before slow watches can have reached all agents."""
        self.idle_channels = ["i.0", "i.1"]
        self.watch = MovesWatch({name.encode() for name in self.idle_channels})
        self.idle_notices: Counter[str] = Counter()
        self.conductors: list[str] = []
        self.operator: Operator | None = None
        self.silences = False
        self.silent: SilentPublisher | None = None
        self.plain: list[PlainSubscriber] = []
        self._writers: dict[bytes, str] = {}
        self._copies: Counter[tuple[bytes, int, int, bool]] = Counter()
        super().__init__(seed, rules, trace, variant)
        self.movable = self.channels + self.quiet_channels + self.idle_channels
        self.operator = Operator(self)
        peace_s = self.world.rng("moves").choice((0.0, 0.0, PEACE_S)) / self.pace
        self.peace_s = 0.0 if self.silences else peace_s

    # What is added to the cluster

    def draw_faults(self, rng: Random) -> FaultOptions:
        """The faults of links and nodes; few of them where a publisher is silent."""
        options = super().draw_faults(rng)
        self.silences = self.world.rng("silences").random() < self.silences_share and not options.peaceful
        if self.silences:
            self.load_s = QUICK_LOAD_S
            options = dataclasses.replace(options, **FEW_FAULTS)
        return options

    def make_shape(self, options: FaultOptions) -> Shape:
        """The common shape with fewer applications and with limits for moves."""
        shape = super().make_shape(options)
        rng = self.world.rng("moves")
        limits = msgspec.structs.replace(
            shape.limits,
            prepare_timeout_s=rng.choice((1.0, 3.0, 10.0)),
            widen_timeout_s=rng.choice((0.2, 0.5, 2.0)),
            notice_retry_s=rng.choice((0.3, 1.0)),
        )
        self.peaceful = options.peaceful and rng.random() < self.peaceful_share
        if self.peaceful:
            self.ring_death = 0.0
        safety_s = shape.safety_s
        if self.silences:
            limits = msgspec.structs.replace(limits, linger_s=0.5, widen_timeout_s=0.2, resync_s=RESYNC_S)
            safety_s = max(safety_s, SEQUENCE_S)
        return dataclasses.replace(
            shape,
            limits=limits,
            safety_s=safety_s,
            clients=rng.randint(3, 6),
            channels=rng.randint(2, 4),
            burst_pause_s=BURST_PAUSES * shape.burst_pause_s,
            lapses=shape.lapses and not self.peaceful and not self.silences,
        )

    def coordinator_options(self) -> CoordinatorOptions:
        """In some runs the plan's changes reach agents late, each at its own time."""
        slow_s = 0.05 if self.silences else self.world.rng("news").choice((0.05, 0.05, 0.3, 0.9))
        self.hasty = slow_s > 0.1 and self.shape.limits.prepare_timeout_s < 4 * slow_s
        return CoordinatorOptions(watch_delay_s=(0.000_5, slow_s))

    def other_nodes(self) -> list[str]:
        """Makes the nodes of plain clients."""
        rng = self.world.rng("moves")
        for index in range(rng.randint(0, PLAIN_MAX)):
            self.network.node(f"plain{index}")
        if rng.random() < self.plain_publishers:
            for server in self.names:
                PlainPublisher(self.network, f"plain-publisher-{server}", server, self.history, self._foreign_channel)
        return []

    def _foreign_channel(self, server: str) -> str | None:
        """The channel for the next message of a plain client: mostly one that is placed on the server."""
        if not self.active or self.book.ring is None:
            return None
        rng = self.world.rng("foreign")
        here = [name for name in self.channels if server in self.book.placement(name.encode()).servers]
        return rng.choice(here if here and rng.random() < 0.7 else self.channels)

    def make_leaders(self) -> list[str]:
        """Makes one or two leaders, each with ring keeper and conductor; the second is a standby. The node names
        predate the term conductor; random streams and traces depend on them."""
        self.conductors = [f"mover{index}" for index in range(self.world.rng("moves").randint(1, 2))]
        for name in self.conductors:
            self.leader(name, "mover")
        return self.conductors

    def subscribable(self) -> list[str]:
        """Idle channels have subscribers and no publishers."""
        return super().subscribable() + self.idle_channels

    def begin_safety(self) -> None:
        """Starts plain subscribers, and moves a little later."""
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
        self.world.after(self.shape.safety_s + self.calm_s - LAST_MOVE_S, self._last_move)

    def faults_began(self) -> None:
        """In some runs a publisher is silent while an agent restarts."""
        super().faults_began()
        if self.silences:
            self.silent = SilentPublisher(self)
            self.silent.begin()
            UnheardPublisher(self).begin()

    def _last_move(self) -> None:
        self.moving = False

    # Observing

    def entry_written(self, entry: Entry) -> None:
        """Follows the moves; the operator may crash a process in response."""
        ring = self.book.ring
        home = at_home(ring.version, ring.home(entry.unit)) if ring else entry.placement
        self._count_takeover(entry)
        self.watch.written(entry, home, self.world.now)
        if self.operator is not None:
            self.operator.strike(entry)
        if self.silent is not None:
            self.silent.entry_written(entry)

    def _count_takeover(self, entry: Entry) -> None:
        """Counts moves that another conductor takes over."""
        lease = self.coordinator.store.lease_of(KEEPER_LEASE)
        holder = lease.holder if lease is not None else ""
        before = self.watch.entries.get(entry.unit)
        if before is not None and before.phase is not Phase.END:
            self.watch.seen["mover takes over"] += self._writers.get(entry.unit) != holder
        self._writers[entry.unit] = holder

    def died(self, kind: str, name: str) -> None:
        """Counts the crash in the phases of the moves under way."""
        super().died(kind, name)
        self.watch.died(kind, name)

    def agent_wrote(self, agent: str, server: str, data: bytes) -> None:
        """Observes what agents forward to other servers, and their notices."""
        if agent == server and INBOX_PREFIX not in data:
            return
        for command in CommandReader().read(data):
            if command[0] == b"PUBLISH" and agent != server:
                self._passed_on(agent, server, command[1], command[2])
            elif command[0] == b"PUBLISH" and command[1].startswith(INBOX_PREFIX):
                self._noticed(command[2])

    def _noticed(self, data: bytes) -> None:
        """Counts the notices that agents send to clients."""
        with contextlib.suppress(ProtocolError):
            said = control.decode(data).message
            if isinstance(said, control.Notice):
                self.watch.seen["notice"] += 1
                if said.name.decode() in self.idle_channels:
                    self.idle_notices[said.name.decode()] += 1

    def _passed_on(self, agent: str, server: str, channel: bytes, blob: bytes) -> None:
        """Counts the forwarded copies of each message, by reason."""
        flags, version, stream, sequence = 0, 0, 0, 0
        if is_envelope(blob):
            _, flags, version, stream, sequence, _ = HEADER.unpack_from(blob)
        core = self.agent_of(agent).agent.core
        assert core is not None, "an agent that forwards has a core"
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
            raise RunawayError(f"agents forwarded one message of {channel.decode()} {self._copies[key]} times: {key}")

    # The run

    def run_phases(self) -> Outcome:
        """Runs all phases and judges. A message that is forwarded without end ends the run."""
        try:
            return super().run_phases()
        except RunawayError as error:
            verdict = Verdict(messages=len(self.history.messages))
            verdict.violate("runaway", str(error))
            return self.outcome(verdict)

    @property
    def calm(self) -> bool:
        """Whether the run had no fault; pauses by the operator count as faults."""
        return super().calm and not self.sleepers

    @property
    def trouble_at(self) -> float:
        """The time of the first fault of a server, agent or link; infinity if there was none. Pauses of clients do not
        count."""
        times = [interval.began_at for interval in self.history.unwatched]
        if self.faults.first_at is not None:
            times.append(self.faults.first_at)
        return min(times, default=float("inf"))

    def quiet(self) -> bool:
        """Whether everything, moves included, has settled."""
        return super().quiet() and not self.checker().unsettled()

    def checker(self) -> MovesCheck:
        """The checker of moves."""
        return MovesCheck(self)

    def judge(self) -> Verdict:
        """Checks channels and moves."""
        verdict = super().judge()
        self.checker().judge(verdict)
        return verdict

    def check(self, verdict: Verdict) -> None:
        """Adds the counters of moves to `exercised`."""
        self.exercised.update(self.watch.seen)


def run_seed(seed: int, rules: Rules = ALL_RULES, trace: bool = False, variant: Variant = COMMON) -> Outcome:
    """Runs one seed; the same seed always gives the same outcome."""
    return MovesRun(seed, rules, trace, variant).execute()
