"""The checking process: reads the logs of a round and judges them by the simulator's checkers.

Owns the way from logs to a history, and the report on it. Shares no code with the router: it knows only what
applications wrote down. One log of subscribers is in memory at a time.

    python -m shoal.soak.checker DIRECTORY calm|agents|servers        prints one `Report`
"""

from __future__ import annotations

import enum
import gc
import sys
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from shoal.message import Gap, Message
from shoal.sim.checkers import Expectations, Verdict, judge
from shoal.sim.history import Handed, History, Interval, PublisherRecord, SubscriberRecord, payload_of
from shoal.sim.history import Published as PublishedMessage
from shoal.soak import records
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
    latency_ms: dict[str, float] = {}
    subscriptions: int = 0


class Checker:
    """Reads and judges one round."""

    def __init__(self, directory: Path, severity: Severity) -> None:
        self._directory = directory
        self._severity = severity
        self._history = History()
        self._counts: Counter[str] = Counter()
        self._violations: list[str] = []
        self._latencies = array("d")
        self._verdicts: list[Verdict] = []
        self._subscriptions = 0

    def check(self) -> Report:
        """Reads every log and judges every subscription."""
        self._read_faults()
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
                    self._latencies.append(record.at - published.called_at)
            case records.Missed():
                gap = Gap(record.channel, record.publisher, record.first, record.last, record.reason)
                sub.handed.append(Handed(record.at, gap))
            case records.InForce():
                sub.in_force_at = record.at
            case records.Left():
                sub.ended_at = record.at

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
            latency_ms=self._latency(),
            subscriptions=self._subscriptions,
        )

    def _latency(self) -> dict[str, float]:
        if not self._latencies:
            return {}
        shares = {"p50": 50.0, "p99": 99.0, "max": 100.0}
        values = np.percentile(np.frombuffer(self._latencies), list(shares.values()))
        return {name: round(float(value) * 1000, 3) for name, value in zip(shares, values, strict=True)}


def main() -> None:
    """Judges the round in a directory."""
    gc.disable()  # millions of small objects and no cycles
    checker = Checker(Path(sys.argv[1]), Severity(sys.argv[2]))
    sys.stdout.buffer.write(msgspec.json.encode(checker.check()) + b"\n")


if __name__ == "__main__":
    main()
