"""The operators of one process in one instance of an engine: an access point, a matcher, an exit point, or some.

Owns how they are linked: inside a process by function calls, between processes by messages. Without I/O: the shell
gives it what has come, posts its letters, and says which of them servers have confirmed.

Each access point has a fan of its own, and the fans reach each process at different times. A step of a change is marked
in all of them. A process that has heard a mark in one fan does not go on with it before it has heard the mark in the
others (an aligned cut). So all operators change their configuration at the same place of every fan.

An access point may act only while the instance holds its lease. It looks at the clock after it has received something
and before it acts on it (`turn`): what was emitted after the lease was over cannot be taken, so a process that was
asleep does no harm when it wakes up, whenever its last letters arrive.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from shoal.engine.access_point import AccessPoint
from shoal.engine.configuration import Configuration
from shoal.engine.event_waits import EventWaits
from shoal.engine.exit_point import ExitPoint, Post
from shoal.engine.links import (
    TURN_MAX,
    Batch,
    Changes,
    Events,
    Handover,
    Mark,
    Orders,
    Part,
    Settled,
    Stage,
    Status,
    Step,
    ToMember,
    is_first,
)
from shoal.engine.matcher import Matcher
from shoal.engine.measures import ACCESS, MATCHING, MERGING, Meter
from shoal.engine.messages import Letter
from shoal.filters.index.background import THREADS, Background
from shoal.limits import Limits
from shoal.rules import ALL_RULES, Rules, rule

LEASE_CHECKED: Final = rule("lease_checked", "An instance acts on what it has received only while it holds its lease.")
FENCE_INSTANCES: Final = rule("fence_instances", "What a process of another instance says is ignored.")
MARKS_ALIGNED: Final = rule(
    "marks_aligned", "A process goes on after a mark when it has heard it from all access points."
)


_FALSE: Final = -1
"""In place of the number of a letter: another client has sent it."""


class _Fan:
    """What was heard from one access point."""

    __slots__ = ("mark", "next", "waiting")

    def __init__(self) -> None:
        self.next = 0
        """The number of the next batch; 0 until one was heard."""
        self.mark: Mark | None = None
        """The mark at which the fan waits for the others."""
        self.waiting: deque[Batch] = deque()
        """What was heard after it."""


class Operators:
    """What runs in the process `name`. `fan`, `links`, `settled` and the letters of `turn` are the outputs."""

    def __init__(
        self,
        name: str,
        orders: Orders,
        limits: Limits,
        now: float,
        rules: Rules = ALL_RULES,
        meter: Meter | None = None,
        background: Background = THREADS,
    ) -> None:
        self.name = name
        self._background = background
        self.meter = meter or Meter()
        self.waits = EventWaits()
        self.instance = orders.instance
        self.lease_until = now
        """The time until which the instance holds its lease at least, by the clock of `now`."""
        self._limits = limits
        self._rules = rules
        self._configuration = orders.configuration
        """The configuration at the present place of the fans."""
        self.access_point: AccessPoint | None = None
        self.matcher: Matcher | None = None
        self.exit_point: ExitPoint | None = None
        self._point_of: Configuration | None = None
        """The change with which the access point came."""
        self._orders = orders
        self._fans: dict[str, _Fan] = {}
        self._received: list[tuple[int, Letter | None, int]] = []
        self._own: deque[Batch] = deque()
        """What operators here have not had yet of the fan of this process."""
        self._settled: dict[str, int] = {}
        self._newly_settled: dict[str, int] = {}
        """By access point: what the exit point here has delivered, in all and since it was last told."""
        self._drained = 0
        self._hole = ""
        self.has_others = False
        """Whether the fan goes to other processes too."""
        self.fan: list[Batch] = []
        """What goes to other processes."""
        self.links: list[tuple[str, ToMember]] = []
        """What goes to some of them."""
        self.arrange(orders, now)

    def arrange(self, orders: Orders, now: float) -> None:
        """Begins and ends operators, as the head has ordered. What access points mark follows in the next turn."""
        self._orders = orders
        configurations = [one for one in (orders.configuration, orders.next) if one is not None]
        self.has_others = any(one.members - {self.name} for one in configurations)
        stays, following = self.name in orders.configuration.access_points, orders.next
        if not any(self.name in one.access_points for one in configurations):
            self.access_point = None
        elif self.access_point is None or not (stays or self._point_of == following):
            # One that does not stay begins with a change; orders between two changes may not have arrived.
            self._point_of = following
            self.access_point = AccessPoint(
                *(self.name, self.instance, orders.predecessor, orders.configuration, self._limits, now, self._rules)
            )
        if not any(self.name in one.matchers for one in configurations):
            self.matcher = None
        elif self.matcher is None:
            self.matcher = Matcher(
                *(self.name, self.instance, orders.configuration, self._limits, self._rules, self._background)
            )
        if not any(self.name in one.exits for one in configurations):
            self.exit_point = None
        elif self.exit_point is None:
            self.exit_point = ExitPoint(self.name, self.instance, orders.configuration, self._limits, self._rules)

    def is_of_this(self, instance: int) -> bool:
        """Whether something was said in the instance of these operators."""
        return instance == self.instance or FENCE_INSTANCES not in self._rules

    @property
    def lanes(self) -> frozenset[int]:
        """The lanes whose letters are to be read now."""
        is_early = self._orders.stage == Stage.JOIN  # other processes may not hear the fan yet
        if self.access_point is None or is_early or self._own or self._received:
            return frozenset()
        return self.access_point.lanes

    @property
    def failed(self) -> str:
        """Why this process cannot go on with this instance."""
        return self._hole or ("" if self.matcher is None else self.matcher.failed)

    @property
    def is_busy(self) -> bool:
        """Whether there is more to do than to wait for messages."""
        has_news = self.access_point is not None and self.access_point.has_news
        return bool(self._own) or has_news or (self.matcher is not None and self.matcher.is_busy)

    @property
    def is_waiting(self) -> bool:
        """Whether there may be something to do soon that nothing announces."""
        return self.matcher is not None and self.matcher.is_waiting

    @property
    def progress(self) -> tuple[int, int, int, bool]:
        """What the head waits for: configurations that are ready, drained and prepared here; and whether the roll is
        over."""
        point = self.access_point
        ready = 0 if self.matcher is None else self.matcher.ready
        drained = self._configuration.number if self.exit_point is None else self._drained
        if point is not None and point.awaits_lanes:  # from processes that may leave after this change
            drained = min(drained, self._configuration.number - 1)
        return ready, drained, 0 if point is None else point.prepared, point is not None and point.roll_over

    @property
    def sources(self) -> list[str]:
        """The access points whose fans are to be read now. One that waits at a mark for the others is not."""
        orders = self._orders
        names = dict.fromkeys(orders.configuration.access_points)
        if orders.next is not None:
            names |= dict.fromkeys(orders.next.access_points)
        names.pop(self.name, None)
        return [name for name in names if name not in self._fans or self._fans[name].mark is None]

    def status(self, joined: int, stamp: float, cpu_s: float, failed: str = "") -> Status:
        """How this process is. `joined` is the configuration for which it hears all that it must."""
        point, matcher, exit_point = self.access_point, self.matcher, self.exit_point
        ready, drained, prepared, roll_over = self.progress
        return Status(
            name=self.name,
            instance=self.instance,
            joined=joined,
            ready=ready,
            settled=self._settled,
            drained=drained,
            prepared=prepared,
            roll_over=roll_over,
            failed=self.failed or failed,
            stamp=stamp,
            clients=0 if point is None else len(point),
            filters=0 if matcher is None else len(matcher),
            in_flight=0 if point is None else point.in_flight,
            events=0 if point is None else point.events,
            deliveries=0 if exit_point is None else exit_point.deliveries,
            choked=0 if point is None else point.choked,
            cpu_s=cpu_s,
            measures=self.meter.read(),
            waits=[] if point is None else self.waits.counts,
        )

    # What has come

    def received(self, client: int, letter: Letter, sequence: int = 0) -> None:
        """A letter of a client has come, the message `sequence` of its lane."""
        self._received.append((client, letter, sequence))

    def missed_letter(self, client: int) -> None:
        """A part of what a client sent is lost."""
        self._received.append((client, None, 0))

    def false_letter(self, client: int) -> None:
        """A letter was not of the client that it named."""
        self._received.append((client, None, _FALSE))

    def told(self, message: ToMember) -> None:
        """A message of another process has come, or one of the matcher here."""
        if isinstance(message, Part):
            if self.exit_point is not None:
                self.exit_point.received(message)
        elif isinstance(message, Handover):
            if self.access_point is not None:
                self.access_point.take_over(message)
        elif self.matcher is not None:
            self.matcher.received(message)
            self._route()

    def has_settled(self, settled: Settled | Status) -> None:
        """An exit point has delivered something."""
        number = settled.settled.get(self.name, 0)
        if self.access_point is not None and number and self.is_of_this(settled.instance):
            self.access_point.settled(settled.name, number)

    def missed(self, what: str) -> None:
        """A part of what this process was told by others is lost."""
        self._hole = what

    def heard(self, batch: Batch) -> None:
        """The next batch of an access point."""
        fan = self._fans.get(batch.source)
        if fan is None:
            fan = self._fans[batch.source] = _Fan()
        if fan.next and batch.number != fan.next and not (batch.number > fan.next and is_first(batch.number)):
            self._hole = f"batch {batch.number} of {batch.source} came in place of {fan.next}"
        fan.next = batch.number + 1
        if fan.mark is None:
            self._go_on(fan, batch)
        else:
            fan.waiting.append(batch)

    def _go_on(self, fan: _Fan, batch: Batch) -> None:
        body = batch.body
        if type(body) is Mark and body.configuration.number > self._configuration.number:
            fan.mark = body
            self._pass_mark(body)
            return
        if self.exit_point is not None:
            self.exit_point.heard(batch)
        if self.matcher is not None:
            self.matcher.heard(batch)
            self._route()
            self._count(batch)
            self.meter.lap(MATCHING)

    def _count(self, batch: Batch) -> None:
        body = batch.body
        if type(body) is Events:
            self.meter.matched += len(body.events)
        elif type(body) is Changes:
            self.meter.changed += sum(len(change.added) + len(change.removed) for change in body.changes)

    def _pass_mark(self, mark: Mark) -> None:
        """Goes on after a mark, if it was heard from all access points."""
        sources = set(self._configuration.access_points)
        if mark.step == Step.SWITCH:
            sources.update(mark.configuration.access_points)
        stopped = {
            name: fan for name in sorted(sources) if (fan := self._fans.get(name)) is not None and fan.mark == mark
        }
        if len(stopped) < len(sources) and MARKS_ALIGNED in self._rules:
            return
        if mark.step != Step.PREPARE:
            self._configuration = mark.configuration
        if self.exit_point is not None:
            numbers = {name: fan.next - 1 - len(fan.waiting) for name, fan in stopped.items()}
            self.exit_point.marked(mark, numbers)
        if self.matcher is not None:
            self.matcher.marked(mark)
            self._route()
        for fan in stopped.values():
            fan.mark = None
        for fan in stopped.values():
            while fan.waiting and fan.mark is None:
                self._go_on(fan, fan.waiting.popleft())

    # Work

    def turn(self, now: float) -> list[Post]:
        """Works on what has come since the last turn, up to `TURN_MAX`. `now` was read after the last of it had come.
        Returns the letters to post; `take_links` and `take_settled` have what goes to other processes."""
        self._settle()
        point, meter = self.access_point, self.meter
        if point is not None:
            self.waits.settled(point.settled_all, now)
            if now < self.lease_until or LEASE_CHECKED not in self._rules:
                self._take_letters(point, now)
            meter.lap(ACCESS)
        self._hear_own()
        if self.matcher is not None and (self.matcher.is_busy or self.matcher.is_waiting):
            self.matcher.work()
            self._route()
            meter.lap(MATCHING)
        if self.exit_point is None:
            return []
        before = self.exit_point.deliveries
        self.exit_point.join()
        posts = self.exit_point.flush()
        self._settle()  # what no filter matches is delivered
        meter.delivered += self.exit_point.deliveries - before
        meter.lap(MERGING)
        return posts

    def _take_letters(self, point: AccessPoint, now: float) -> None:
        received, self._received = self._received, []
        for client, letter, sequence in received:
            if letter is None and sequence == _FALSE:
                point.distrust(client, now)
            elif letter is None:
                point.missed(client)
            else:
                point.received(client, letter, now, sequence)
        point.tick(now)
        point.obey(self._orders, now)  # after the letters: those that were read belong before a mark
        self.links += point.handovers
        point.handovers = []
        taken = 0
        for batch in point.take_batches():
            self._own.append(batch)
            if self.has_others:
                self.fan.append(batch)
            if type(batch.body) is Events:
                self.meter.batches += 1
                taken += len(batch.body.events)
        if taken:
            self.meter.taken += taken
            self.waits.taken(self._own[-1].number, taken, now)

    def _hear_own(self) -> None:
        left = TURN_MAX
        while self._own and left > 0:
            batch = self._own.popleft()
            left -= batch.work
            self.heard(batch)

    def _route(self) -> None:
        assert self.matcher is not None
        out, self.matcher.out = self.matcher.out, []
        for name, message in out:
            if name == self.name and self.exit_point is not None:
                assert isinstance(message, Part), "a matcher sends itself no state"
                self.exit_point.received(message)
            else:
                self.links.append((name, message))

    def take_links(self) -> tuple[list[Batch], list[tuple[str, ToMember]]]:
        """What goes to all other processes, and to some."""
        fan, self.fan = self.fan, []
        links, self.links = self.links, []
        return fan, links

    def _settle(self) -> None:
        """Looks what the exit point has delivered, and tells the access point here."""
        if self.exit_point is None:
            return
        settled, self._drained = self.exit_point.settled()
        if settled:
            self._settled = self._settled | settled
            self._newly_settled |= settled
            self.has_settled(Settled(self.name, self.instance, settled))

    def take_settled(self) -> Settled | None:
        """What the exit point here has delivered since the last call."""
        settled, self._newly_settled = self._newly_settled, {}
        return Settled(self.name, self.instance, settled) if settled else None

    def confirmed(self, group: int) -> None:
        """A server has confirmed a letter."""
        if self.exit_point is not None:
            self.exit_point.confirmed(group)
