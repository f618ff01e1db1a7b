"""The checking process: reads the logs of a round and judges them by the simulator's checkers.

Owns the way from logs to a history, and the report on it. Shares no code with the router: it knows only what
applications wrote down. One log of subscribers is in memory at a time.

    python -m shoal.soak.checker DIRECTORY calm|agents|servers        prints one `Report`
"""

from __future__ import annotations

import enum
import gc
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from shoal.message import Gap, Message
from shoal.sim.checkers import Expectations, Verdict, judge
from shoal.sim.history import Handed, History, Interval, PublisherRecord, SubscriberRecord, payload_of
from shoal.sim.history import Published as PublishedMessage
from shoal.soak import records
from shoal.soak.balance import Balance, BalanceReader
from shoal.soak.histogram import Histogram
from shoal.soak.movements import Movements, MoveReader
from shoal.soak.records import read_log

VIOLATIONS_MAX: Final = 50
"""Violations that a report spells out; the rest is counted."""


class Severity(enum.StrEnum):
    """What a round has suffered, and so what is allowed."""

    CALM = "calm"
    """Nothing: everything arrives, no gap is reported, and subscriptions begin exactly at their baseline."""
    AGENTS = "agents"
    """Agents or the coordinator died: everything arrives, no gap is reported."""
    SERVERS = "servers"
    """Servers died: what does not arrive is reported as a gap."""


class Report(msgspec.Struct):
    """What a round has shown."""

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
    """Times from publishing to delivery while no channel was in motion."""
    beside: Histogram = msgspec.field(default_factory=Histogram)
    """Those of deliveries on channels at rest, while others were in motion: processors are as busy as for those."""
    moved: Histogram = msgspec.field(default_factory=Histogram)
    """Those of deliveries on channels that were in motion themselves."""
    free_quiet: Histogram = msgspec.field(default_factory=Histogram)
    """Those of `quiet` during which processors were never the limit."""
    free_moving: Histogram = msgspec.field(default_factory=Histogram)
    """The same of `beside` and `moved`."""
    movements: Movements = msgspec.field(default_factory=Movements)
    balance: Balance = msgspec.field(default_factory=Balance)
    subscriptions: int = 0


class Checker:
    """Reads and judges one round."""

    def __init__(self, directory: Path, severity: Severity) -> None:
        self._directory = directory
        self._severity = severity
        self._history = History()
        self._counts: Counter[str] = Counter()
        self._violations: list[str] = []
        self._moves = MoveReader()
        self._balance = BalanceReader()
        self._quiet = Histogram()
        self._beside = Histogram()
        self._moved = Histogram()
        self._free_quiet = Histogram()
        self._free_moving = Histogram()
        self._verdicts: list[Verdict] = []
        self._subscriptions = 0

    def check(self) -> Report:
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
        return Expectations(healable=severity is not Severity.SERVERS, calm=severity is Severity.CALM)

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
                case records.Died(server, at):
                    deaths[server] = Interval(server, at)
                    self._history.unwatched.append(deaths[server])
                case records.Returned(server, at) if server in deaths:
                    deaths[server].ended_at = at

    def _read_moves(self) -> None:
        """The log of moves, and those of who watched them from outside, if the round has moves."""
        for name in ("moves.log", "watch-0.log"):
            if (self._directory / name).exists():
                for record in self._lines(self._directory / name):
                    self._moves.take(record)
                    self._balance.take(record)
        self._moves.begin_deliveries()

    def _read_publishers(self, path: Path) -> None:
        history = self._history
        unconfirmed: defaultdict[tuple[int, str], deque[PublishedMessage]] = defaultdict(deque)
        for record in self._lines(path):
            match record:
                case records.Published(number, channel, publisher, sequence, at):
                    channel = sys.intern(channel)
                    message = PublishedMessage(number, channel, publisher, sequence, at)
                    if number in history.messages:
                        self._violations.append(f"incomplete: message {number} is in the logs twice")
                    history.messages[number] = message
                    unconfirmed[publisher, channel].append(message)
                case records.Confirmed(publisher, channel, sequence, at):
                    waiting = unconfirmed[publisher, channel]
                    while waiting and waiting[0].sequence <= sequence:
                        waiting.popleft().confirmed_at = at
                case records.Opened(client):
                    history.publishers[client] = PublisherRecord(client)
                case records.Closed(client, at):
                    history.publishers[client].ended_at = at

    def _read_subscribers(self, path: Path) -> list[SubscriberRecord]:
        found: dict[int, SubscriberRecord] = {}
        slow: set[int] = set()
        foreign: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for record in self._lines(path):
            if isinstance(record, records.Subscribing):
                found[record.subscription] = SubscriberRecord(record.name, record.pattern, record.client, record.at)
                if record.slow:
                    slow.add(record.subscription)
            elif isinstance(record, records.Got | records.Missed | records.InForce | records.Left):
                sub = found.get(record.subscription)
                if sub is None:
                    self._violations.append(f"incomplete: {path.name} has no beginning of {record.subscription}")
                else:
                    self._add(sub, record.subscription in slow, record)
            elif isinstance(record, records.GotForeign):
                foreign[record.subscription][record.number] += 1
            elif isinstance(record, records.Shut):
                self._moves.take(record)
                self._violations.append(f"closed: {self._moves.shut[-1]} in {path.name} at t={record.at:.3f}")
        for number, sub in found.items():
            lost = self._moves.judge_foreign(sub, foreign[number])
            if lost and self._severity is Severity.CALM:
                self._violations.append(f"foreign: {sub.name} of {sub.client:x} misses {lost} of plain publishers")
        return list(found.values())

    def _add(
        self, sub: SubscriberRecord, slow: bool, record: records.Got | records.Missed | records.InForce | records.Left
    ) -> None:
        match record:
            case records.Got():
                channel = sys.intern(record.channel)
                message = Message(channel, payload_of(record.number, 0), record.publisher, record.sequence)
                sub.handed.append(Handed(record.at, message))
                published = self._history.messages.get(record.number)
                if published is not None and not slow and published.called_at >= sub.called_at:
                    self._time(channel, published.called_at, record.at)
            case records.Missed():
                gap = Gap(record.channel, record.publisher, record.first, record.last, record.reason)
                sub.handed.append(Handed(record.at, gap))
            case records.InForce():
                sub.in_force_at = record.at
            case records.Left():
                sub.ended_at = record.at

    def _time(self, channel: str, sent_at: float, at: float) -> None:
        """Files how long a message took."""
        moves = self._moves
        moving = moves.in_motion(at)
        histogram = self._quiet
        if moving:
            histogram = self._moved if moves.in_motion(at, channel) else self._beside
        histogram.add(at - sent_at)
        if not moves.is_saturated(sent_at, at):
            (self._free_moving if moving else self._free_quiet).add(at - sent_at)

    def _lines(self, path: Path) -> Iterator[records.Record]:
        """The lines of a log; what is not about messages is taken on the way."""
        complete = False
        for record in read_log(path) if path.exists() else ():
            match record:
                case records.Counted(corner, times):
                    self._counts[corner] += times
                case records.Wrong(text):
                    self._violations.append(text)
                case records.Ended():
                    complete = True
                case _:
                    yield record
        if not complete:
            self._violations.append(f"incomplete: {path.name} has no last line; its process did not come to its end")

    # Reporting

    def _report(self) -> Report:
        verdicts = self._verdicts
        for verdict in verdicts:
            self._counts.update(verdict.seen)
            self._violations += verdict.violations
        movements = self._moves.sum_up(self._history.messages.values())
        self._counts.update(self._moves.corners())
        self._violations += [f"stuck: a move is still open: {words}" for words in movements.open]
        if movements.idle_notices:
            self._violations.append(f"idle: {movements.idle_notices} notices about channels on which nobody speaks")
        if movements.aborted and self._severity is Severity.CALM:
            self._violations.append(
                f"aborted: {movements.aborted} moves were given up, though nothing was in their way"
            )
        gaps = sum(verdict.gaps_reported for verdict in verdicts)
        if gaps and self._severity is not Severity.SERVERS:
            self._violations.append(f"gaps: {gaps} were reported, though no server died")
        return Report(
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
        )


def main() -> None:
    """Judges the round in a directory."""
    gc.disable()  # millions of small objects and no cycles
    checker = Checker(Path(sys.argv[1]), Severity(sys.argv[2]))
    sys.stdout.buffer.write(msgspec.json.encode(checker.check()) + b"\n")


if __name__ == "__main__":
    main()
