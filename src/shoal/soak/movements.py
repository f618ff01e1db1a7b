"""What a round shows of its moves: what became of them, what they cost, what plain subscribers saw.

Owns the sums. It reads the lines that the run and the watching process wrote; latency and losses of Shoal's own
subscribers are judged in `checker.py`. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import msgspec

from shoal.sim.history import Published, SubscriberRecord
from shoal.soak import records
from shoal.soak.ledger import Fate, Ledger
from shoal.soak.shape import IDLE_PREFIX

SATURATED: Final = 0.9
"""From this share of all processors on they are the limit."""
ANSWERED: Final = ("hello", "hello to publish")
"""Words that an agent answers, so that they cost two messages."""


class Cost(msgspec.Struct):
    """Control messages of moves of one kind; `clients` is the sum over moves of the clients that took part."""

    moves: int = 0
    clients: int = 0
    words: dict[str, int] = {}

    @property
    def messages(self) -> int:
        """All messages, both ways."""
        return sum(count * (1 + (word in ANSWERED)) for word, count in self.words.items())

    @property
    def per_move_and_client(self) -> float | None:
        """The figure that is asked for; None if no move had a client."""
        return round(self.messages / self.clients, 2) if self.clients else None

    def add(self, other: Cost) -> None:
        """Adds the moves of another round."""
        self.moves += other.moves
        self.clients += other.clients
        self.words = dict(Counter(self.words) + Counter(other.words))


class Plain(msgspec.Struct):
    """What plain subscribers saw."""

    subscribers: int = 0
    messages: int = 0
    forwarded: int = 0
    lost: int = 0
    duplicates: int = 0
    reordered: int = 0

    def add(self, other: Plain) -> None:
        """Adds those of another round."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Foreign(msgspec.Struct):
    """What became of the messages of plain publishers, which stay on one server and send no header: they are to reach
    every subscriber at least once."""

    published: int = 0
    deliveries: int = 0
    lost: int = 0
    duplicates: int = 0

    def add(self, other: Foreign) -> None:
        """Adds those of another round."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Movements(msgspec.Struct):
    """All that a round shows of its moves."""

    asked: int = 0
    ended: int = 0
    replaced: int = 0
    aborted: int = 0
    open: list[str] = []
    settle_s: float | None = None
    lazy: Cost = msgspec.field(default_factory=Cost)
    eager: Cost = msgspec.field(default_factory=Cost)
    plain: Plain = msgspec.field(default_factory=Plain)
    foreign: Foreign = msgspec.field(default_factory=Foreign)
    subscriptions_closed: int = 0
    idle_notices: int = 0
    """Notices to clients about channels on which nobody speaks, and which move lazily."""
    busy_quiet: list[float] = []
    """How busy the machine was while no channel was in motion, at each look."""
    busy_moving: list[float] = []
    """The same while any channel was."""

    def add(self, other: Movements) -> None:
        """Adds another round; `settle_s` is that of the worst."""
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


class MoveReader:
    """Takes the lines about moves of a round, in the order of their logs, and sums them up."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.shut: list[str] = []
        self._stayed: list[str] = []
        self._busy: list[records.Busy] = []
        self._saturated: list[float] = []
        """When processors began to be the limit, ended to be it, and so on."""
        self._motions: dict[str | None, list[float]] = {}
        """When a channel's motion, or by None that of any, began, ended, began again, and so on."""
        self._told: list[records.Told] = []
        self._helloed: set[tuple[str, int]] = set()
        self.foreign = Foreign()
        self._foreign: list[records.PlainPublished] = []
        self._plain: dict[int, records.PlainSubscribed] = {}
        self._plain_got: defaultdict[int, list[records.PlainGot]] = defaultdict(list)

    def take(self, record: records.Record) -> None:
        """The next line."""
        match record:
            case records.Asked() | records.Phased() | records.Dropped():
                self.ledger.take(record)
            case records.Stayed(channel, why):
                self._stayed.append(f"{channel}: {why}")
            case records.Busy():
                self._busy.append(record)
            case records.Told():
                self._told.append(record)
            case records.PlainSubscribed():
                self._plain[record.subscription] = record
            case records.PlainGot():
                self._plain_got[record.subscription].append(record)
            case records.PlainPublished():
                self._foreign.append(record)
                self.foreign.published += 1
            case records.Shut(subscription, why):
                self.shut.append(f"subscription {subscription}: {why}")

    def begin_deliveries(self) -> None:
        """All lines about moves were taken: from now on it is known when anything was in motion."""
        for channel in (None, *{move.channel for move in self.ledger.moves}):
            self._motions[channel] = [at for motion in self.ledger.motions(channel) for at in motion]

        for before, busy in pairwise(self._busy):
            if busy.share >= SATURATED:
                self._saturated += (before.at, busy.at)

    def is_saturated(self, begin: float, end: float) -> bool:
        """Whether processors were the limit at any moment of a time."""
        first, last = bisect_right(self._saturated, begin), bisect_right(self._saturated, end)
        return first % 2 == 1 or first != last

    def in_motion(self, at: float, channel: str | None = None) -> bool:
        """Whether a channel, or any at all, was in motion then."""
        return bisect_right(self._motions.get(channel, ()), at) % 2 == 1

    def sum_up(self, messages: Iterable[Published]) -> Movements:
        """The sums; `messages` are all that were published."""
        fates = Counter(move.fate for move in self.ledger.moves)
        found = Movements(
            asked=len(self.ledger.moves),
            ended=fates[Fate.ENDED],
            replaced=fates[Fate.REPLACED],
            aborted=fates[Fate.ABORTED],
            open=self._stayed,
            settle_s=self.ledger.settle_s,
            subscriptions_closed=len(self.shut),
            foreign=self.foreign,
            idle_notices=sum(told.word == "notice" and told.channel.startswith(IDLE_PREFIX) for told in self._told),
        )
        for busy in self._busy:
            (found.busy_moving if self.in_motion(busy.at) else found.busy_quiet).append(busy.share)
        self._count_costs(found)
        self._judge_plain(found.plain, messages)
        return found

    def judge_foreign(self, sub: SubscriberRecord, seen: Counter[int]) -> int:
        """Counts what a subscription got of plain publishers; returns how many of their messages it misses."""
        self.foreign.deliveries += seen.total()
        self.foreign.duplicates += seen.total() - len(seen)
        if sub.in_force_at is None or sub.ended_at is not None:
            return 0
        since = sub.in_force_at
        lost = sum(one.at >= since and one.number not in seen and sub.wants(one.channel) for one in self._foreign)
        self.foreign.lost += lost
        return lost

    def corners(self) -> Counter[str]:
        """The pairs of placements between which channels have moved, and idle channels that have."""
        ended = [move for move in self.ledger.moves if move.fate is Fate.ENDED]
        found = Counter(f"move {move.pair}" for move in ended)
        found["idle channel moved"] = sum(move.channel.startswith(IDLE_PREFIX) for move in ended)
        return found

    def _count_costs(self, found: Movements) -> None:
        words: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
        clients: dict[bool, set[tuple[str, int, int]]] = {False: set(), True: set()}
        for told in self._told:
            if told.word == "hello to publish" and (told.channel, told.client) not in self._helloed:
                self._helloed.add((told.channel, told.client))
                continue
            move = self.ledger.behind(told.channel, told.revision)
            if move is not None:
                words[move.eager][told.word] += 1
                clients[move.eager].add((told.channel, move.version, told.client))
        for eager, cost in ((False, found.lazy), (True, found.eager)):
            cost.moves = sum(move.eager is eager and move.version > 0 for move in self.ledger.moves)
            cost.clients = len(clients[eager])
            cost.words = dict(words[eager])

    def _judge_plain(self, plain: Plain, messages: Iterable[Published]) -> None:
        """Everything published since a plain subscriber stood was to reach it, once and in order."""
        of_channel: defaultdict[str, list[Published]] = defaultdict(list)
        for message in messages:
            of_channel[message.channel].append(message)
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
