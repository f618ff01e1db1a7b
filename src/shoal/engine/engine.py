"""An engine of one access point, one matcher and one exit point, in one process: links are function calls.

Owns the order of work in a turn. Without I/O: the shell gives it what has come, posts its letters, and says which of
them servers have confirmed.

An instance may act only while it holds its lease. It looks at the clock after it has received something and before it
acts on it (`turn`): what was emitted after the lease was over cannot be taken, so an instance that was asleep does no
harm when it wakes up, whenever its last letters arrive.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from shoal.engine.access_point import AccessPoint, Change, Emitted, Fan, Gone
from shoal.engine.exit_point import ExitPoint, Post
from shoal.engine.matcher import Matcher, Rejection
from shoal.engine.messages import Letter, Rejected, Roll
from shoal.limits import Limits
from shoal.rules import ALL_RULES, Rules, rule

LEASE_CHECKED: Final = rule("lease_checked", "An instance acts on what it has received only while it holds its lease.")
BATCH_MAX: Final = 256
"""Events that are matched together."""
TURN_MAX: Final = 256
"""Work in one turn, in events. The lease is extended between turns."""
FILTERS_PER_EVENT: Final = 32
"""Filters that are added in the time in which an event is matched and sent, about."""


class EngineStatus(NamedTuple):
    """Counts of an engine."""

    instance: int
    clients: int
    filters: int
    in_flight: int
    roll_open: bool
    events: int
    deliveries: int
    choked: int
    """How often an event did not fit, because too many were in flight."""


class Engine:
    """One instance. `lease_until` is the time until which it may act, by the clock of `now`."""

    def __init__(self, instance: int, predecessor: int, limits: Limits, now: float, rules: Rules = ALL_RULES) -> None:
        self.instance = instance
        self.lease_until = now
        self._rules = rules
        self._received: list[tuple[int, Letter | None]] = []
        self._fan: deque[Fan] = deque()
        """Changes and events that the matcher has not had yet."""
        self.access_point = AccessPoint(instance, predecessor, limits, now, rules)
        self.matcher = Matcher(limits, rules)
        self.exit_point = ExitPoint(limits, rules)
        self.events = 0
        self.deliveries = 0

    def received(self, client: int, letter: Letter) -> None:
        """A letter of a client has come."""
        self._received.append((client, letter))

    def missed(self, client: int) -> None:
        """A part of what a client sent is lost."""
        self._received.append((client, None))

    def turn(self, now: float) -> list[Post]:
        """Works on what has come since the last turn, up to `TURN_MAX`. `now` was read after the last of it had come.
        Returns the letters to post."""
        received, self._received = self._received, []
        if now >= self.lease_until and LEASE_CHECKED in self._rules:
            return []
        access_point = self.access_point
        for client, letter in received:
            if letter is None:
                access_point.missed(client)
            else:
                access_point.received(client, letter, now)
        access_point.tick(now)
        self._settle()
        self._fan += access_point.fan
        access_point.fan = []
        self._match()
        self._reply()
        return self.exit_point.flush()

    @property
    def has_work(self) -> bool:
        """Whether a turn has left something for the next one."""
        return bool(self._fan)

    def begin_roll(self, now: float) -> None:
        """The lanes are subscribed: clients that are told of the roll can be heard."""
        self.access_point.begin_roll(now)

    @property
    def wants_to_serve(self) -> bool:
        """Whether the shell is to write down that this instance serves; then it calls `serve`."""
        return self.access_point.roll_over

    def serve(self) -> None:
        """It is written down that this instance serves: it matches events from now on."""
        self.access_point.serve()

    def confirmed(self, group: int) -> None:
        """A server has confirmed a letter."""
        self.exit_point.confirmed(group)

    def roll(self) -> Roll:
        """What all clients are told, again and again."""
        return Roll(self.instance, self.access_point.roll_open)

    def _settle(self) -> None:
        settled = self.exit_point.settled()
        if settled:
            self.access_point.settled(settled)

    def _match(self) -> None:
        """Gives the access point's changes and events to the matcher, in order, events in batches."""
        left = TURN_MAX
        batch: list[Emitted] = []
        while self._fan and left > 0:
            one = self._fan.popleft()
            left -= 1
            if isinstance(one, Emitted):
                batch.append(one)
                if len(batch) == BATCH_MAX:
                    self._match_batch(batch)
                    batch = []
                continue
            if batch:
                self._match_batch(batch)
                batch = []
            if isinstance(one, Change):
                left -= len(one.added) // FILTERS_PER_EVENT
                self._reply()  # Welcome goes first
                for item in self.matcher.change(one):
                    self.exit_point.say(one.client, item)
            elif isinstance(one, Gone):
                self.matcher.forget(one.client)
        if batch:
            self._match_batch(batch)

    def _match_batch(self, batch: list[Emitted]) -> None:
        self.events += len(batch)
        for found in self.matcher.match(batch):
            if isinstance(found, Rejection):
                number = found.emitted.event.number
                self.exit_point.say(found.emitted.emitter, Rejected(number, found.reason))
                self.exit_point.pass_over(found.emitted.position)
            else:
                self.deliveries += len(found.seats)
                self.exit_point.deliver(found)

    def _reply(self) -> None:
        replies, self.access_point.replies = self.access_point.replies, []
        for client, item in replies:
            self.exit_point.say(client, item)

    def status(self) -> EngineStatus:
        """The counts."""
        point = self.access_point
        return EngineStatus(
            self.instance,
            len(point),
            len(self.matcher),
            point.in_flight,
            point.roll_open,
            self.events,
            self.deliveries,
            point.choked,
        )
