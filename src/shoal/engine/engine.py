"""The process of an engine that has the access point, and possibly a matcher and an exit point.

Owns the order of work in a turn. Without I/O: the shell gives it what has come, posts its letters, and says which of
them servers have confirmed.

An instance may act only while it holds its lease. It looks at the clock after it has received something and before it
acts on it (`turn`): what was emitted after the lease was over cannot be taken, so an instance that was asleep does no
harm when it wakes up, whenever its last letters arrive.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from shoal.engine.access_point import AccessPoint
from shoal.engine.configuration import Configuration
from shoal.engine.event_waits import EventWaits
from shoal.engine.exit_point import Post
from shoal.engine.links import TURN_MAX, Batch, Events, Step, ToMember
from shoal.engine.measures import ACCESS, Meter
from shoal.engine.messages import Letter, Roll
from shoal.engine.operators import Operators
from shoal.limits import Limits
from shoal.rules import ALL_RULES, Rules, rule

LEASE_CHECKED: Final = rule("lease_checked", "An instance acts on what it has received only while it holds its lease.")


class EngineStatus(NamedTuple):
    """Counts of an engine."""

    instance: int
    clients: int
    filters: int
    """Filters of the matcher in this process."""
    in_flight: int
    roll_open: bool
    events: int
    deliveries: int
    """Deliveries by the exit point in this process."""
    choked: int
    """How often an event did not fit, because too many were in flight."""


class Engine:
    """One instance. `lease_until` is the time until which it may act, by the clock of `now`."""

    def __init__(
        self,
        instance: int,
        predecessor: int,
        limits: Limits,
        now: float,
        rules: Rules = ALL_RULES,
        name: str = "head",
        configuration: Configuration | None = None,
        meter: Meter | None = None,
    ) -> None:
        """Without a configuration, all operators are in this process."""
        self.instance = instance
        self.lease_until = now
        self._rules = rules
        self._received: list[tuple[int, Letter | None]] = []
        configuration = Configuration(1, (name,), (name,)) if configuration is None else configuration
        self.access_point = AccessPoint(instance, predecessor, configuration.exits, limits, now, rules)
        self.operators = Operators(name, instance, configuration, limits, rules, meter=meter)
        self.waits = EventWaits()
        self._has_others = bool(configuration.members - {name})
        """Whether the fan goes to other processes too."""
        self._batches: deque[Batch] = deque()
        """What the matcher and the exit point here have not had yet."""
        self.fan: list[Batch] = []
        """What goes to other processes."""
        self.events = 0

    def received(self, client: int, letter: Letter) -> None:
        """A letter of a client has come."""
        self._received.append((client, letter))

    def missed(self, client: int) -> None:
        """A part of what a client sent is lost."""
        self._received.append((client, None))

    def turn(self, now: float) -> list[Post]:
        """Works on what has come since the last turn, up to `TURN_MAX`. `now` was read after the last of it had come.
        Returns the letters to post; `take_links` has what goes to other processes."""
        received, self._received = self._received, []
        if now >= self.lease_until and LEASE_CHECKED in self._rules:
            return []
        access_point, operators, meter = self.access_point, self.operators, self.operators.meter
        self._settle()
        for client, letter in received:
            if letter is None:
                access_point.missed(client)
            else:
                access_point.received(client, letter, now)
        access_point.tick(now)
        self.waits.settled(access_point.settled_all, now)
        self._take(list(access_point.take_batches()), now)
        meter.lap(ACCESS)
        self._fan_out()
        operators.work()
        posts = operators.flush()
        self._settle()  # what needs no letter is delivered
        self.waits.settled(access_point.settled_all, now)
        return posts

    def _settle(self) -> None:
        settled = self.operators.settled()
        if settled:
            self.access_point.settled(self.operators.name, settled)

    def _take(self, batches: list[Batch], now: float) -> None:
        """What the access point puts into the fan in this turn."""
        self._batches += batches
        counts = [len(batch.body.events) for batch in batches if type(batch.body) is Events]
        if counts:
            self.operators.meter.batches += len(counts)
            self.operators.meter.taken += sum(counts)
            self.waits.taken(batches[-1].number, sum(counts), now)

    @property
    def has_backlog(self) -> bool:
        """Whether the last turn has left batches: then no more is taken."""
        return bool(self._batches)

    @property
    def is_busy(self) -> bool:
        """Whether a turn has left something for the next one."""
        return bool(self._batches) or self.operators.is_busy or self.access_point.has_news

    def _fan_out(self) -> None:
        left = TURN_MAX
        while self._batches and left > 0:
            batch = self._batches.popleft()
            left -= batch.work
            if type(batch.body) is Events:
                self.events += len(batch.body.events)
            self.operators.heard(batch)
            if self._has_others:
                self.fan.append(batch)

    def take_links(self) -> tuple[list[Batch], list[tuple[str, ToMember]]]:
        """What goes to all other processes, and to some."""
        fan, self.fan = self.fan, []
        links, self.operators.links = self.operators.links, []
        return fan, links

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

    def arrange(self, configuration: Configuration, following: Configuration | None) -> None:
        """The configuration in force, and the one to which the engine changes, if it does."""
        self.operators.arrange(configuration, following)
        members = configuration.members | (following.members if following is not None else frozenset())
        self._has_others = bool(members - {self.operators.name})

    def mark(self, step: Step, configuration: Configuration) -> None:
        """Marks a step of a change of configuration in the fan."""
        self.access_point.mark(step, configuration)

    @property
    def is_drained(self) -> bool:
        """Whether everything up to the last mark is delivered."""
        point = self.access_point
        return 0 < point.last_mark <= point.settled_all

    def confirmed(self, group: int) -> None:
        """A server has confirmed a letter."""
        assert self.operators.exit_point is not None
        self.operators.exit_point.confirmed(group)

    def roll(self) -> Roll:
        """What all clients are told, again and again."""
        return Roll(self.instance, self.access_point.roll_open)

    def status(self) -> EngineStatus:
        """The counts."""
        point, operators = self.access_point, self.operators
        return EngineStatus(
            self.instance,
            len(point),
            0 if operators.matcher is None else len(operators.matcher),
            point.in_flight,
            point.roll_open,
            self.events,
            0 if operators.exit_point is None else operators.exit_point.deliveries,
            point.choked,
        )
