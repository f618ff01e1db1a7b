"""The checking process: reads the logs of a round and judges them with the simulator's checkers.

Owns the way from logs to a history, and the report on it. It shares no code with the router and uses only the
applications' logs. One log of subscribers is in memory at a time. Runs as `python -m shoal.lab.soak.checker`, a
process of `shoal.lab.harness`.
"""

from __future__ import annotations

import enum
import gc
import sys
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from shoal.lab.harness import Parent, run_worker
from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.history import Interval, PublisherRecord, payload_of
from shoal.lab.sim.history import Published as PublishedMessage
from shoal.lab.sim.scenarios.channel_checkers import GAPS_FALSE_MAX, Expectations, judge
from shoal.lab.sim.scenarios.channel_run_history import ChannelRunHistory, Handed, SubscriberRecord
from shoal.lab.soak import round_log
from shoal.lab.soak.balance import Balance, BalanceLogReader
from shoal.lab.soak.histogram import Histogram
from shoal.lab.soak.load_shape import PROBE_PREFIX
from shoal.lab.soak.move_report import MoveLogReader, MoveSummary
from shoal.lab.soak.pauses import PauseMeter, Pauses
from shoal.lab.soak.round_log import read_log
from shoal.message import Gap, Message

VIOLATIONS_MAX: Final = 50
"""Violations that a report lists; the rest are only counted."""


class Severity(enum.StrEnum):
    """The faults of a round, which decide what is allowed in it."""

    CALM = "calm"
    """No faults: everything arrives, no gap is reported, and subscriptions begin exactly at their baseline."""
    AGENTS = "agents"
    """Agents or the coordinator were killed: everything arrives, and no gap is reported."""
    SERVERS = "servers"
    """Servers were killed: messages that do not arrive are reported as a gap."""
    FREEZES = "freezes"
    """Servers and agents were frozen until they had left the ring, but none died: messages that do not arrive are
    reported as a gap, and a gap without such a message is false."""


class CheckLogs(msgspec.Struct, frozen=True):
    """The order to the checking process, answered with a `RoundReport`."""

    directory: str
    severity: Severity


class RoundReport(msgspec.Struct):
    """The verdict on a round."""

    messages: int = 0
    deliveries: int = 0
    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    gaps_reported: int = 0
    violation_count: int = 0
    violations: list[str] = []
    exercised: dict[str, int] = {}
    quiet: Histogram = msgspec.field(default_factory=Histogram)
    """Latencies while no channel was moving."""
    beside: Histogram = msgspec.field(default_factory=Histogram)
    """Latencies on channels at rest while others were moving: processors are as busy as for those."""
    moved: Histogram = msgspec.field(default_factory=Histogram)
    """Latencies on channels that were moving themselves."""
    free_quiet: Histogram = msgspec.field(default_factory=Histogram)
    """Those of `quiet` during which processors were never the limit."""
    free_moving: Histogram = msgspec.field(default_factory=Histogram)
    """Those of `beside` and `moved` during which processors were never the limit."""
    movements: MoveSummary = msgspec.field(default_factory=MoveSummary)
    balance: Balance = msgspec.field(default_factory=Balance)
    subscriptions: int = 0
    gaps_false: int = 0
    """Gaps that cover no message that was owed and is missing."""
    pauses: Pauses = msgspec.field(default_factory=Pauses)
    harmless: Histogram = msgspec.field(default_factory=Histogram)
    """Latencies during harmless traffic beside the load, except in phases that cut connections."""
    hostile: Histogram = msgspec.field(default_factory=Histogram)
    """Latencies during attacks."""
    attacks: dict[str, Histogram] = {}
    """Both by phase: "harmless" or "hostile", and the attack."""


SubscriptionLine: TypeAlias = (
    round_log.MessageReceived | round_log.GapReceived | round_log.SubscribeReturned | round_log.Unsubscribed
)

ORDERS: Final = msgspec.json.Decoder(CheckLogs)
REPORTS: Final = msgspec.json.Decoder(RoundReport)


class Checker:
    """Reads and judges one round."""

    def __init__(self, directory: Path, severity: Severity) -> None:
        self._directory = directory
        self._severity = severity
        self._history = ChannelRunHistory()
        self._counts: Counter[str] = Counter()
        self._violations: list[str] = []
        self._moves = MoveLogReader()
        self._balance = BalanceLogReader()
        self._quiet = Histogram()
        self._beside = Histogram()
        self._moved = Histogram()
        self._free_quiet = Histogram()
        self._free_moving = Histogram()
        self._verdicts: list[Verdict] = []
        self._subscriptions = 0
        self._pauses = PauseMeter()
        self._phases: list[round_log.PhaseBegan] = []
        self._phase_times: list[float] = []
        self._harmless = Histogram()
        self._hostile = Histogram()
        self._attacks: dict[str, Histogram] = {}

    def check(self) -> RoundReport:
        """Reads every log and judges every subscription."""
        self._read_faults()
        self._read_moves()
        for path in self._logs("publish"):
            self._read_publishers(path)
        for path in self._logs("subscribe"):
            self._history.subscribers = self._read_subscribers(path)
            self._subscriptions += len(self._history.subscribers)
            self._verdicts.append(judge(self._history, self._expectations))
            self._history.subscribers = []
        return self._report()

    @property
    def _expectations(self) -> Expectations:
        severity = self._severity
        healable = severity not in (Severity.SERVERS, Severity.FREEZES)
        return Expectations(healable=healable, calm=severity is Severity.CALM)

    def _logs(self, role: str) -> list[Path]:
        found = sorted(self._directory.glob(f"{role}-*.log"))
        if not found:
            self._violations.append(f"incomplete: no log of processes that {role}")
        return found

    # Reading

    def _read_faults(self) -> None:
        deaths: dict[str, Interval] = {}
        for record in self._lines(self._directory / "faults.log"):
            match record:
                case round_log.ServerKilled(server, at):
                    deaths[server] = Interval(server, at)
                    self._history.unwatched.append(deaths[server])
                case round_log.ServerBack(server, at) if server in deaths:
                    deaths[server].ended_at = at
                case round_log.ServerFrozen(server, at):
                    self._history.unwatched.append(Interval(server, at))
                case round_log.PhaseBegan():
                    self._phases.append(record)
                    self._phase_times.append(record.at)
            self._pauses.take_fault(record)

    def _read_moves(self) -> None:
        """The log of moves and that of the plain clients, if the round has moves."""
        for name in ("moves.log", "watch-0.log"):
            if (self._directory / name).exists():
                for record in self._lines(self._directory / name):
                    self._moves.take(record)
                    self._balance.take(record)
        self._moves.end_moves()

    def _read_publishers(self, path: Path) -> None:
        history = self._history
        unconfirmed: defaultdict[tuple[int, str], deque[PublishedMessage]] = defaultdict(deque)
        for record in self._lines(path):
            match record:
                case round_log.MessagePublished(number, channel, publisher, sequence, at):
                    channel = sys.intern(channel)
                    message = PublishedMessage(number, channel, publisher, sequence, at)
                    if number in history.messages:
                        self._violations.append(f"incomplete: message {number} is in the logs twice")
                    history.messages[number] = message
                    unconfirmed[publisher, channel].append(message)
                case round_log.MessageConfirmed(publisher, channel, sequence, at):
                    waiting = unconfirmed[publisher, channel]
                    while waiting and waiting[0].sequence <= sequence:
                        waiting.popleft().confirmed_at = at
                case round_log.ClientOpened(client):
                    history.publishers[client] = PublisherRecord(client)
                case round_log.ClientClosed(client, at):
                    history.publishers[client].ended_at = at

    def _read_subscribers(self, path: Path) -> list[SubscriberRecord]:
        found: dict[int, SubscriberRecord] = {}
        slow: set[int] = set()
        foreign: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for record in self._lines(path):
            if isinstance(record, round_log.SubscribeCalled):
                found[record.subscription] = SubscriberRecord(record.name, record.pattern, record.client, record.at)
                if record.slow:
                    slow.add(record.subscription)
            elif isinstance(record, SubscriptionLine):
                sub = found.get(record.subscription)
                if sub is None:
                    self._violations.append(f"incomplete: {path.name} has no beginning of {record.subscription}")
                else:
                    self._add(sub, record.subscription in slow, record)
            elif isinstance(record, round_log.ForeignReceived):
                foreign[record.subscription][record.number] += 1
            elif isinstance(record, round_log.SubscriptionBroken):
                self._moves.take(record)
                self._violations.append(f"closed: {self._moves.broken[-1]} in {path.name} at t={record.at:.3f}")
        for number, sub in found.items():
            lost = self._moves.judge_foreign(sub, foreign[number])
            if lost and self._severity is Severity.CALM:
                self._violations.append(
                    f"foreign: {sub.name} of {sub.client:x} misses {lost} messages of plain publishers"
                )
        for sub in found.values():
            if sub.name.startswith(PROBE_PREFIX):
                self._pauses.take_deliveries([one.at for one in sub.handed if isinstance(one.item, Message)])
        return list(found.values())

    def _add(self, sub: SubscriberRecord, slow: bool, record: SubscriptionLine) -> None:
        match record:
            case round_log.MessageReceived():
                channel = sys.intern(record.channel)
                message = Message(channel, payload_of(record.number, 0), record.publisher, record.sequence)
                sub.handed.append(Handed(record.at, message))
                published = self._history.messages.get(record.number)
                if published is not None and not slow and published.called_at >= sub.called_at:
                    self._time(channel, published.called_at, record.at)
            case round_log.GapReceived():
                gap = Gap(record.channel, record.publisher, record.first, record.last, record.reason)
                known_to = ("live processes",) if self._severity is Severity.FREEZES else ()
                sub.handed.append(Handed(record.at, gap, known_to))
            case round_log.SubscribeReturned():
                sub.in_force_at = record.at
            case round_log.Unsubscribed():
                sub.ended_at = record.at

    def _time(self, channel: str, sent_at: float, at: float) -> None:
        """Adds the latency of a message to its histograms."""
        moves = self._moves
        moving = moves.is_moving(at)
        histogram = self._quiet
        if moving:
            histogram = self._moved if moves.is_moving(at, channel) else self._beside
        histogram.add(at - sent_at)
        if self._phases:
            self._time_phase(at - sent_at, sent_at)
        if not moves.is_saturated(sent_at, at):
            (self._free_moving if moving else self._free_quiet).add(at - sent_at)

    def _time_phase(self, latency_s: float, sent_at: float) -> None:
        """Adds a latency to the phase in which its message was published."""
        place = bisect_right(self._phase_times, sent_at) - 1
        phase = self._phases[place] if place >= 0 else None
        if phase is not None and phase.attack:
            kind, total = ("hostile", self._hostile) if phase.hostile else ("harmless", self._harmless)
            if not phase.cut:
                total.add(latency_s)
            self._attacks.setdefault(f"{kind} {phase.attack}", Histogram()).add(latency_s)

    def _lines(self, path: Path) -> Iterator[round_log.Record]:
        """The lines of a log, except corner cases, problems and the end, which are counted here."""
        complete = False
        for record in read_log(path) if path.exists() else ():
            match record:
                case round_log.CornerMet(corner, times):
                    self._counts[corner] += times
                case round_log.Problem(text):
                    self._violations.append(text)
                case round_log.LogEnd():
                    complete = True
                case _:
                    yield record
        if not complete:
            self._violations.append(f"incomplete: {path.name} has no last line; its process did not finish")

    # Reporting

    def _report(self) -> RoundReport:
        verdicts = self._verdicts
        for verdict in verdicts:
            self._counts.update(verdict.seen)
            self._violations += verdict.violations
            if len(verdict.gaps_false) <= GAPS_FALSE_MAX:  # more are among the violations
                self._violations += [f"false gap: {text}" for text in verdict.gaps_false]
        movements = self._moves.sum_up(self._history.messages.values())
        self._counts.update(self._moves.corners())
        self._violations += [f"stuck: a move is still open: {text}" for text in movements.open]
        if movements.idle_notices:
            self._violations.append(f"idle: {movements.idle_notices} notices about channels without publishers")
        if movements.aborted and self._severity is Severity.CALM:
            self._violations.append(f"aborted: {movements.aborted} moves were given up in a round without faults")
        gaps = sum(verdict.gaps_reported for verdict in verdicts)
        if gaps and self._severity not in (Severity.SERVERS, Severity.FREEZES):
            self._violations.append(f"gaps: {gaps} were reported, though no server was killed")
        return RoundReport(
            messages=len(self._history.messages),
            deliveries=sum(verdict.deliveries for verdict in verdicts),
            lost=sum(verdict.lost for verdict in verdicts),
            duplicated=sum(verdict.duplicated for verdict in verdicts),
            reordered=sum(verdict.reordered for verdict in verdicts),
            gaps_reported=gaps,
            violation_count=len(self._violations),
            violations=self._violations[:VIOLATIONS_MAX],
            exercised=dict(self._counts),
            quiet=self._quiet,
            beside=self._beside,
            moved=self._moved,
            free_quiet=self._free_quiet,
            free_moving=self._free_moving,
            movements=movements,
            balance=self._balance.sum_up(),
            subscriptions=self._subscriptions,
            gaps_false=sum(violation.startswith("false gap") for violation in self._violations),
            pauses=self._pauses.sum_up(),
            harmless=self._harmless,
            hostile=self._hostile,
            attacks=self._attacks,
        )


async def work(parent: Parent[CheckLogs]) -> None:
    """Judges one round."""
    order = await parent.order()
    if order is not None:
        gc.disable()  # millions of small objects and no cycles
        parent.tell(Checker(Path(order.directory), order.severity).check())


if __name__ == "__main__":
    run_worker(ORDERS, work)
