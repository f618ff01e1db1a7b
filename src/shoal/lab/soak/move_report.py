"""The report on a round's moves: their fates, their cost in control messages, and what plain clients received.

Owns the sums. It reads the lines that the soak and its plain clients logged. Latency and losses of Shoal's own
subscribers are judged in `checker`. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import msgspec

from shoal.lab.sim.history import Published
from shoal.lab.sim.scenarios.channel_run_history import SubscriberRecord
from shoal.lab.soak import round_log
from shoal.lab.soak.load_shape import IDLE_PREFIX
from shoal.lab.soak.move_ledger import Fate, Ledger
from shoal.lab.totals import Totals

SATURATED: Final = 0.9
"""Above this share of all processors, processors are the limit."""
ANSWERED: Final = ("hello", "hello to publish")
"""Control messages that an agent answers: they count twice."""


class ControlCost(msgspec.Struct):
    """Control messages of lazy or of eager moves; `clients` is the sum of the clients of each move."""

    moves: int = 0
    clients: int = 0
    by_message: dict[str, int] = {}

    @property
    def messages(self) -> int:
        """All messages, both ways."""
        return sum(count * (1 + (message in ANSWERED)) for message, count in self.by_message.items())

    @property
    def per_move_and_client(self) -> float | None:
        """Messages for each client of each move; None if no move had a client."""
        return round(self.messages / self.clients, 2) if self.clients else None

    def add(self, other: ControlCost) -> None:
        """Adds the moves of another round."""
        self.moves += other.moves
        self.clients += other.clients
        self.by_message = dict(Counter(self.by_message) + Counter(other.by_message))


class PlainTotals(Totals):
    """What plain subscribers received."""

    subscribers: int = 0
    messages: int = 0
    forwarded: int = 0
    lost: int = 0
    duplicates: int = 0
    reordered: int = 0


class ForeignTotals(Totals):
    """Messages of plain publishers, which stay on one server and send no header. They should reach every subscriber at
    least once."""

    published: int = 0
    deliveries: int = 0
    lost: int = 0
    duplicates: int = 0


class MoveSummary(msgspec.Struct):
    """The report on the moves of a round."""

    asked: int = 0
    ended: int = 0
    replaced: int = 0
    aborted: int = 0
    open: list[str] = []
    settle_s: float | None = None
    lazy: ControlCost = msgspec.field(default_factory=ControlCost)
    eager: ControlCost = msgspec.field(default_factory=ControlCost)
    plain: PlainTotals = msgspec.field(default_factory=PlainTotals)
    foreign: ForeignTotals = msgspec.field(default_factory=ForeignTotals)
    subscriptions_closed: int = 0
    idle_notices: int = 0
    """Notices to clients about channels without publishers that move lazily; there should be none."""
    busy_quiet: list[float] = []
    """Samples of the use of processors while no channel was moving."""
    busy_moving: list[float] = []
    """The same while a channel was moving."""

    def add(self, other: MoveSummary) -> None:
        """Adds another round; `settle_s` becomes the longer of both."""
        for name in ("asked", "ended", "replaced", "aborted", "subscriptions_closed", "idle_notices"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.open = self.open + other.open
        self.busy_quiet = self.busy_quiet + other.busy_quiet
        self.busy_moving = self.busy_moving + other.busy_moving
        self.settle_s = max((at for at in (self.settle_s, other.settle_s) if at is not None), default=None)
        self.lazy.add(other.lazy)
        self.eager.add(other.eager)
        self.plain.add(other.plain)
        self.foreign.add(other.foreign)


class MoveLogReader:
    """Takes the lines about the moves of a round, in the order of their logs, and sums them up."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.broken: list[str] = []
        self._unfinished: list[str] = []
        self._busy: list[round_log.CpuSample] = []
        self._saturated: list[float] = []
        """Times at which processors began and ceased to be the limit, alternating."""
        self._moving: dict[str | None, list[float]] = {}
        """Times at which a channel (None: any channel) began and ceased to move, alternating."""
        self._control: list[round_log.ControlSeen] = []
        self._hellos: set[tuple[str, int]] = set()
        self.foreign = ForeignTotals()
        self._foreign: list[round_log.PlainPublished] = []
        self._plain: dict[int, round_log.PlainSubscribed] = {}
        self._plain_got: defaultdict[int, list[round_log.PlainReceived]] = defaultdict(list)

    def take(self, record: round_log.Record) -> None:
        """The next line."""
        match record:
            case round_log.MoveRequested() | round_log.EntryChanged() | round_log.RequestRemoved():
                self.ledger.take(record)
            case round_log.MoveUnfinished(channel, why):
                self._unfinished.append(f"{channel}: {why}")
            case round_log.CpuSample():
                self._busy.append(record)
            case round_log.ControlSeen():
                self._control.append(record)
            case round_log.PlainSubscribed():
                self._plain[record.subscription] = record
            case round_log.PlainReceived():
                self._plain_got[record.subscription].append(record)
            case round_log.PlainPublished():
                self._foreign.append(record)
                self.foreign.published += 1
            case round_log.SubscriptionBroken(subscription, why):
                self.broken.append(f"subscription {subscription}: {why}")

    def end_moves(self) -> None:
        """Call this when all lines about moves were taken, and before `is_moving` and `is_saturated`."""
        for channel in (None, *{move.channel for move in self.ledger.moves}):
            self._moving[channel] = [at for interval in self.ledger.moving_times(channel) for at in interval]
        for before, busy in pairwise(self._busy):
            if busy.share >= SATURATED:
                self._saturated += (before.at, busy.at)

    def is_saturated(self, begin: float, end: float) -> bool:
        """Whether processors were the limit at any moment of an interval."""
        first, last = bisect_right(self._saturated, begin), bisect_right(self._saturated, end)
        return first % 2 == 1 or first != last

    def is_moving(self, at: float, channel: str | None = None) -> bool:
        """Whether a channel (None: any channel) was moving at a time."""
        return bisect_right(self._moving.get(channel, ()), at) % 2 == 1

    def sum_up(self, messages: Iterable[Published]) -> MoveSummary:
        """The report; `messages` are all messages that were published."""
        fates = Counter(move.fate for move in self.ledger.moves)
        found = MoveSummary(
            asked=len(self.ledger.moves),
            ended=fates[Fate.ENDED],
            replaced=fates[Fate.REPLACED],
            aborted=fates[Fate.ABORTED],
            open=self._unfinished,
            settle_s=self.ledger.settle_s,
            subscriptions_closed=len(self.broken),
            foreign=self.foreign,
            idle_notices=sum(
                seen.message == "notice" and seen.channel.startswith(IDLE_PREFIX) for seen in self._control
            ),
        )
        for busy in self._busy:
            (found.busy_moving if self.is_moving(busy.at) else found.busy_quiet).append(busy.share)
        self._count_costs(found)
        self._judge_plain(found.plain, messages)
        return found

    def judge_foreign(self, sub: SubscriberRecord, seen: Counter[int]) -> int:
        """Counts what a subscription received from plain publishers; returns how many of their messages it misses."""
        self.foreign.deliveries += seen.total()
        self.foreign.duplicates += seen.total() - len(seen)
        if sub.in_force_at is None or sub.ended_at is not None:
            return 0
        since = sub.in_force_at
        lost = sum(one.at >= since and one.number not in seen and sub.reads(one.channel) for one in self._foreign)
        self.foreign.lost += lost
        return lost

    def corners(self) -> Counter[str]:
        """Corner cases: pairs of modes between which channels have moved, and idle channels that have moved."""
        ended = [move for move in self.ledger.moves if move.fate is Fate.ENDED]
        found = Counter(f"move {move.pair}" for move in ended)
        found["idle channel moved"] = sum(move.channel.startswith(IDLE_PREFIX) for move in ended)
        return found

    def _count_costs(self, found: MoveSummary) -> None:
        messages: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        clients: dict[bool, set[tuple[str, int, int]]] = {False: set(), True: set()}
        for seen in self._control:
            if seen.message == "hello to publish" and (seen.channel, seen.client) not in self._hellos:
                self._hellos.add((seen.channel, seen.client))  # a client's first one is not about a move
                continue
            move = self.ledger.behind(seen.channel, seen.revision)
            if move is not None:
                messages[move.eager][seen.message] += 1
                clients[move.eager].add((seen.channel, move.version, seen.client))
        for eager, cost in ((False, found.lazy), (True, found.eager)):
            cost.moves = sum(move.eager is eager and move.version > 0 for move in self.ledger.moves)
            cost.clients = len(clients[eager])
            cost.by_message = dict(messages[eager])

    def _judge_plain(self, plain: PlainTotals, messages: Iterable[Published]) -> None:
        """Everything published since a plain subscriber subscribed should reach it once and in order."""
        of_channel: defaultdict[str, list[Published]] = defaultdict(list)
        for message in messages:
            of_channel[message.unit].append(message)
        for number, sub in self._plain.items():
            seen = Counter(got.number for got in self._plain_got[number])
            published = {message.number: message for message in of_channel[sub.channel]}
            plain.subscribers += 1
            plain.messages += seen.total()
            plain.forwarded += sum(got.forwarded for got in self._plain_got[number])
            plain.duplicates += seen.total() - len(seen)
            plain.lost += sum(
                message.called_at >= sub.at and message.number not in seen for message in published.values()
            )
            last: dict[int, int] = {}
            for got in self._plain_got[number]:
                if (sent := published.get(got.number)) is not None:
                    plain.reordered += sent.sequence < last.get(sent.publisher, 0)
                    last[sent.publisher] = max(sent.sequence, last.get(sent.publisher, 0))
