"""The scenario `recording`: channels are recorded while they move, under all faults.

Owns the marks of recorded channels, servers that keep their keys through some crashes (as with an append-only file) and
lose them in others, and the check of the records, without any code of the recorder. Everything else is the scenario
`moves`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from random import Random
from typing import Final, NamedTuple

from shoal.errors import ProtocolError
from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.history import History, Published, number_in
from shoal.lab.sim.models.redis_node import RedisNode
from shoal.lab.sim.scenario import BEGIN_S, COMMON, Outcome, Variant
from shoal.lab.sim.scenarios.channel_checkers import FOREIGN
from shoal.lab.sim.scenarios.cluster import AgentProcess
from shoal.lab.sim.scenarios.moves import MovesRun
from shoal.lab.sim.world.fault_options import FaultOptions
from shoal.plan.keys import recorded_key
from shoal.queues.keyspace.keys import Stream
from shoal.rules import ALL_RULES, Rules
from shoal.wire.envelope import client_of
from shoal.wire.record_entry import RecordedGap, RecordedMessage, read_entry, record_key

BREAKS: Final = ("record_once", "record_absence", "record_loss", "record_alone", "deletions", "told")
"""The rules that this scenario tests."""

CORNERS: Final = {
    "message recorded": "agent recorded",
    "copy not recorded again": "agent record_duplicates",
    "gap written down": "agent record_gaps",
    "absence healed by a publisher": "agent record_healed",
    "missing message in a gap": "record gap",
    "channel recorded on several servers": "records spread",
    "agent crash": "agent crash",
    "server crash": "server crash",
    "server that lost its keys": "keys lost",
    "client crash": "client crash",
    "connection reset": "reset",
    "partition": "partition",
    "move": "move",
    "mark deleted": "mark deleted",
    "connection lost with commands on their way": "late writer",
}
"""Every corner that a campaign must exercise, and its counter."""

MARKS: Final = (b"c.*", b"q.*", b"i.*")

UNMARKED: Final = 0.4
"""Share of the runs in which the mark of a channel is deleted while messages are published on it."""
UNMARKED_MARKS: Final = (b"c.0", b"c.[^0]*", *MARKS[1:])
"""The marks in these runs. The first one is deleted."""
UNMARKED_HEARD_S: Final = 4.0
"""Every agent knows of the deletion this long after the last fault."""

KEYS_LOST: Final = 0.5
"""Share of the server crashes that lose the keys."""

AGENT_DELAY_S: Final = (0.000_1, 0.005)
"""Delay between an agent and its server on another machine."""
LATE: Final = 0.5
"""Share of the lost connections whose last commands arrive late."""
LATE_WRITERS: Final = 0.3
LATE_WRITER_EVERY_S: Final = 3.0
LATE_WRITER_S: Final = (0.05, 0.6)
"""In the share `LATE_WRITERS` of the runs with faults, agents lose their connections while commands to their own
servers are on the way: about every `LATE_WRITER_EVERY_S` at pace 1, when nothing has arrived for `LATE_WRITER_S`. What
is not lost arrives up to `LATE_COMMANDS_S` later."""
LATE_COMMANDS_S: Final = (0.1, 1.5)

END_S: Final = 5.0
"""Duration of each step of the last act (`_end`)."""
STEADY_S: Final = 2.0
"""How long a recorder must have had its connection to be settled."""
SETTLE_S_MAX: Final = 60.0
"""Time limit for the recorders to settle at the end."""


class Wipe(NamedTuple):
    """A server crashed and came back without its keys."""

    died_at: float
    agent: AgentProcess
    """The server's agent when it crashed. A later agent cannot know what was recorded."""


class RecordingRun(MovesRun):
    """One seed of the scenario."""

    silences_share = 0.0

    def __init__(self, seed: int, rules: Rules = ALL_RULES, trace: bool = False, variant: Variant = COMMON) -> None:
        self._wipes: defaultdict[str, list[Wipe]] = defaultdict(list)
        self._keys_lost = KEYS_LOST
        self._unmarked_from: dict[str, float] = {}
        """Channels whose recording was ended, and the time from which every agent knows that."""
        super().__init__(seed, rules, trace, variant)
        rng = self.world.rng("unmark")
        unmarks = rng.random() < UNMARKED
        for mark in UNMARKED_MARKS if unmarks else MARKS:
            self.coordinator.store.put(recorded_key(mark), b"on")
        if unmarks:
            self.world.at(BEGIN_S + rng.uniform(0.3, 1.0) * self.shape.safety_s, self._unmark)

    def draw_faults(self, rng: Random) -> FaultOptions:
        """As in other scenarios; and commands of an agent's lost connection may arrive late, when another one writes
        already. Agents may be on other machines than their servers: then more commands are on their way."""
        options = super().draw_faults(rng)
        if options.peaceful:
            return options
        delay_s = rng.choice((options.delay_local_s, AGENT_DELAY_S))
        return replace(options, late_probability=LATE, delay_local_s=delay_s)

    def faults_began(self) -> None:
        """In some runs agents also lose connections while they write records."""
        super().faults_began()
        if not self.network.options.peaceful and self.world.rng("late writer").random() < LATE_WRITERS:
            self._late_writer()

    def _late_writer(self) -> None:
        """The commands of an agent to its own server are delayed, and then the agent loses the connection. It opens
        another one while they may still arrive."""
        if not self.faults.active:
            return
        rng = self.world.rng("late writer")
        name = rng.choice(self.names)
        duration_s = rng.uniform(*LATE_WRITER_S)
        for end in self.network.ends(name):
            if end.peer.node.name == f"agent-{name}":
                self.exercised["late writer"] += 1
                self.network.stall(end, duration_s + rng.uniform(*LATE_COMMANDS_S), one_way=True)
                self.world.after(duration_s, self.network.reset, end)
        self.world.after(rng.expovariate(self.pace / LATE_WRITER_EVERY_S), self._late_writer)

    def _unmark(self) -> None:
        self.exercised["mark deleted"] += 1
        self.coordinator.store.delete(recorded_key(UNMARKED_MARKS[0]))
        self._unmarked_from["c.0"] = BEGIN_S + self.shape.safety_s + UNMARKED_HEARD_S

    def _server(self, name: str) -> RedisNode:
        server = super()._server(name)
        restart, crash = server.node.on_restart, server.node.on_crash
        deaths: list[Wipe] = []

        def crashed() -> None:
            deaths.append(Wipe(self.world.now, self.agent_of(name)))
            assert crash is not None
            crash()

        def restarted() -> None:
            keys = server.model.keys
            assert restart is not None
            restart()
            if self.world.rng("keys").random() >= self._keys_lost:
                server.model.keys = keys
            else:
                self.exercised["keys lost"] += 1
                self._wipes[name].append(deaths[-1])

        server.node.on_restart, server.node.on_crash = restarted, crashed
        return server

    def _end(self) -> None:
        """The last act: all clients end, then a server comes back without its keys. Only its agent still knows what it
        had recorded."""
        world, self._keys_lost = self.world, 1.0
        for app in self.apps:
            app.node.crash()
        world.run(world.now + END_S)
        node = world.rng("end").choice(self.servers).node
        node.crash()
        world.run(world.now + END_S)
        node.restart()
        until = world.now + SETTLE_S_MAX
        world.run(world.now + END_S)
        while not self._recorders_settled and world.now < until:
            world.run(world.now + END_S)

    @property
    def _recorders_settled(self) -> bool:
        """Whether no recorder waits for anything. One that has just lost its connection, as a server cuts off readers
        that are too slow, does not know yet what it will wait for."""
        latest = [processes[-1] for processes in self.agent_processes]
        steady = all(process.steady_since <= self.world.now - STEADY_S for process in latest)
        cores = [process.agent.core for process in latest]
        return steady and all(core is not None and core.recorder.settled for core in cores)

    def _unknown_until(self) -> float:
        """Messages before this time may be lost without any process that knows of them: a server lost its keys, and its
        agent ended too."""
        wipes = ((name, wipe) for name, wipes in self._wipes.items() for wipe in wipes)
        return max((wipe.died_at for name, wipe in wipes if wipe.agent is not self.agent_of(name)), default=0.0)

    def quiet(self) -> bool:
        """Whether everything, recorders included, has settled."""
        return super().quiet() and self._recorders_settled

    def check(self, verdict: Verdict) -> None:
        """Checks the records before and after the last act."""
        super().check(verdict)
        self._check_records(verdict)
        self._end()
        self._check_records(verdict)

    def _check_records(self, verdict: Verdict) -> None:
        for channel in self.movable:
            unmarked_from = self._unmarked_from.get(channel)
            _RecordCheck(self.history, channel, verdict, self._unknown_until(), unmarked_from).run(self.servers)


class _Absence(NamedTuple):
    """An absence in a record: a time span in which the recorder was away."""

    since: float
    until: float
    known: set[int]
    """The publishers of the record's messages: for these it must report missing messages as gaps. Empty if the
    record begins with the absence: then everything before it is lost."""

    def hides(self, message: Published) -> bool:
        """Whether a message may be missing because of this absence."""
        confirmed_at = message.confirmed_at or message.called_at
        overlaps = self.since <= confirmed_at and message.called_at <= self.until
        return overlaps and message.publisher not in self.known


class _RecordCheck:
    """Checks that the records of a channel contain every message that was published on it, or report it as missing."""

    def __init__(
        self,
        history: History,
        channel: str,
        verdict: Verdict,
        unknown_until: float,
        unmarked_from: float | None,
    ) -> None:
        self._history = history
        self._channel = channel
        self._verdict = verdict
        self._unknown_until = unknown_until
        self._unmarked_from = unmarked_from
        self._gaps: list[RecordedGap] = []
        self._heard: defaultdict[int, set[int]] = defaultdict(set)
        self._absences: list[_Absence] = []

    def run(self, servers: list[RedisNode]) -> None:
        """Reads all records, then looks for each message that a server confirmed. Channels whose recording was ended
        are not checked for missing messages, because messages in flight at that time are not recorded."""
        records = [self._read(server) for server in servers]
        self._verdict.seen["records spread"] += sum(map(bool, records)) > 1
        if self._unmarked_from is not None:
            return
        for message in self._history.messages.values():
            if message.unit == self._channel and message.confirmed_at is not None:
                self._look_for(message)

    def _read(self, server: RedisNode) -> int:
        """Reads one record and returns the number of its messages. Messages that are sent again after an absence may be
        recorded twice, because the agent does not know everything that it wrote before."""
        stream = server.model.keys.values.get(record_key(self._channel.encode()))
        copies: Counter[tuple[int, int, int]] = Counter()
        absences = 0
        known: set[int] = set()
        for place, (id, fields) in enumerate(stream.entries if isinstance(stream, Stream) else ()):
            try:
                _, said = read_entry(fields)
            except ProtocolError as error:
                self._verdict.violate("garbage", f"an entry of {self._channel} on {server.node.name}: {error}")
                continue
            if isinstance(said, RecordedGap):
                self._gaps.append(said)
                if said.stream == 0:
                    absences += 1
                    since, until = server.node.true_time(said.since_ms / 1e3), server.node.true_time((id[0] + 1) / 1e3)
                    self._absences.append(_Absence(since, until, known if place else set()))
            elif isinstance(said, RecordedMessage) and not said.is_end and said.stream:
                copies[absences, said.stream, said.sequence] += 1
                known.add(client_of(said.stream))
                self._take(said)
        for (_, number, sequence), count in copies.items():
            if count > 1:
                what = f"{sequence} of {number:x} is {count} times in the record of {self._channel}"
                self._verdict.violate("recorded twice", f"{what} on {server.node.name}")
        return len(copies)

    def _take(self, said: RecordedMessage) -> None:
        payload = said.split()[1]
        published = self._history.messages.get(number_in(payload))
        publisher = client_of(said.stream)
        if published is None or (published.publisher, published.sequence) != (publisher, said.sequence):
            if not payload.startswith(FOREIGN):
                self._verdict.violate("invented", f"the record of {self._channel} has {payload[:20]!r}")
            return
        self._heard[publisher].add(said.sequence)
        if self._unmarked_from is not None and published.called_at > self._unmarked_from:
            what = f"{said.sequence} of {publisher:x} at t={published.called_at:.3f}"
            self._verdict.violate("recorded unmarked", f"the record of {self._channel} has {what}")

    def _look_for(self, message: Published) -> None:
        """Checks that one of these holds: a message is in a record or in a gap, or between two numbers of a record; or
        a record that does not know its publisher reports an absence at that time; or every process that knew of it has
        ended."""
        heard = self._heard.get(message.publisher)
        seen = self._verdict.seen
        if heard and message.sequence in heard:
            return
        if any(_covers(gap, message) for gap in self._gaps):
            seen["record gap"] += 1
        elif heard and min(heard) < message.sequence < max(heard):
            seen["record hole"] += 1
        elif any(absence.hides(message) for absence in self._absences):
            seen["record absence"] += 1
        elif message.called_at <= self._unknown_until:
            seen["record unknown"] += 1
        else:
            what = f"{message.sequence} of {message.publisher:x} on {self._channel} at t={message.called_at:.3f}"
            self._verdict.violate("silent", f"no record has {what}, and none reports it as missing")


def _covers(gap: RecordedGap, message: Published) -> bool:
    ours = gap.stream != 0 and client_of(gap.stream) == message.publisher
    return ours and gap.first <= message.sequence and (not gap.last or message.sequence <= gap.last)


def run_seed(seed: int, rules: Rules = ALL_RULES, trace: bool = False, variant: Variant = COMMON) -> Outcome:
    """Runs one seed; the same seed always gives the same outcome."""
    return RecordingRun(seed, rules, trace, variant).execute()
