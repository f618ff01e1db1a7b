"""The exit point: it joins what matchers found, sends each client its letters, and knows what is delivered.

Owns the outgoing letters of its clients. A batch is complete when every matcher of *its* configuration has spoken;
batches go out in the order in which they were heard. All that waits for a client goes in one letter. A batch is settled
when servers have confirmed every letter that carries a part of it, or of one before it.

At the mark SWITCH clients may get another exit point. Access points name them before the mark; at the mark, the old
exit point ends its path to them (PathEnd), and the new one begins its own (PathBegin).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import msgspec

from shoal.engine import messages
from shoal.engine.configuration import Configuration
from shoal.engine.links import Batch, Changes, Events, Found, Mark, Part, Replies, Step
from shoal.engine.matcher import NUMBERS_MAX
from shoal.engine.messages import NUMBER_BYTES, Delivery, Event, FromEngine, InForce, Matched, PathBegin, PathEnd
from shoal.limits import Limits
from shoal.rules import ALL_RULES, Rules, rule

PARTS_OF_ITS_TIME: Final = rule("parts_of_its_time", "A batch waits for the matchers of its own configuration.")
IN_ORDER: Final = rule("in_order", "An exit point delivers batches in the order of the fan.")

DELIVERY_NUMBERS_MAX: Final = 192
"""Filters that are named in a delivery itself: the largest event has room for them in its letter."""
ITEM_BYTES: Final = 64
"""Bytes of an item besides attributes and payload, about."""
ITEM_NUMBER_BYTES: Final = 5
"""Bytes of a number that is not packed."""


class Post(NamedTuple):
    """A letter to a client; `group` is told back when a server has confirmed it."""

    client: int
    payload: bytes
    group: int


class ExitPoint:
    """One exit point of one instance."""

    def __init__(
        self, name: str, instance: int, configuration: Configuration, limits: Limits, rules: Rules = ALL_RULES
    ) -> None:
        self._name = name
        self._instance = instance
        self._configuration = configuration
        self._bytes_max = limits.engine_letter_bytes_max
        self._rules = rules
        self._batches: deque[tuple[Batch, Configuration, tuple[str, ...]] | tuple[Mark, dict[str, int]]] = deque()
        """Batches that are not complete, each with its configuration and the matchers that must speak; and marks, with
        their numbers by access point."""
        self._parts: dict[tuple[str, int], dict[str, Part]] = {}
        """By batch and matcher."""
        self._pieces: dict[tuple[str, int, str], list[Found]] = {}
        """Beginnings of parts that come in pieces."""
        self._leaving: list[tuple[int, bool]] = []
        """Clients that get another exit point at the next SWITCH, and whether they are here until then."""
        self._beginning: dict[int, PathBegin] = {}
        """Clients that this exit point has from now on, until they get their first letter."""
        self._waiting: dict[int, list[FromEngine]] = {}
        self._group = 0
        self._open: dict[int, int] = {}
        """Groups of letters that were posted together: how many are not confirmed."""
        self._ends: deque[tuple[int, dict[str, int], int]] = deque()
        """Each group with the last batches in it, in order, and the newest configuration that has begun in it."""
        self._done: dict[str, int] = {}
        """By access point: the last batch that was delivered, of those since the last group."""
        self._switched = self._drained = configuration.number
        self.deliveries = 0

    @property
    def unconfirmed(self) -> int:
        """Letters that no server has confirmed."""
        return sum(self._open.values())

    @property
    def part_instances(self) -> set[int]:
        """The instances of the parts that wait for others."""
        return {part.instance for parts in self._parts.values() for part in parts.values()}

    # From access point and matchers

    def heard(self, batch: Batch) -> None:
        """The next batch of an access point."""
        configuration = self._configuration
        speaks = self._name in configuration.exits and type(batch.body) in (Events, Changes)
        self._batches.append((batch, configuration, configuration.matchers if speaks else ()))

    def marked(self, mark: Mark, numbers: dict[str, int]) -> None:
        """A step of a change: all access points have marked it, in these batches."""
        self._batches.append((mark, numbers))
        if mark.step != Step.PREPARE:
            self._configuration = mark.configuration

    def received(self, part: Part) -> None:
        """A matcher has spoken."""
        place = (part.source, part.number, part.matcher)
        if part.more:
            self._pieces.setdefault(place, []).extend(part.found)
            return
        if place in self._pieces:
            part = msgspec.structs.replace(part, found=self._pieces.pop(place) + part.found)
        self._parts.setdefault((part.source, part.number), {})[part.matcher] = part

    def join(self) -> None:
        """Delivers all batches that are complete."""
        batches = self._batches
        while batches and self._deliver_if_complete(batches[0]):
            batches.popleft()
        if IN_ORDER not in self._rules:
            self._batches = deque(one for one in batches if not self._deliver_if_complete(one))

    def _deliver_if_complete(
        self, item: tuple[Batch, Configuration, tuple[str, ...]] | tuple[Mark, dict[str, int]]
    ) -> bool:
        if len(item) == 2:
            self._change(*item)
            return True
        batch, configuration, awaited = item
        parts: list[Part] = []
        if awaited:
            if PARTS_OF_ITS_TIME not in self._rules:
                awaited = self._configuration.matchers
            place = (batch.source, batch.number)
            heard = self._parts.get(place)
            if heard is None or any(name not in heard for name in awaited):
                return False
            parts = [heard[name] for name in awaited]
            del self._parts[place]
        self._deliver(batch, configuration, parts)
        self._done[batch.source] = batch.number
        return True

    def _change(self, mark: Mark, numbers: dict[str, int]) -> None:
        """Everything before a mark is delivered."""
        self._done |= numbers
        if mark.step == Step.SWITCH:
            number = mark.configuration.number
            self._switched = number
            leaving, self._leaving = self._leaving, []
            end, begin = PathEnd(self._instance, number), PathBegin(self._instance, number)
            for client, was_here in leaving:
                if mark.configuration.exit_of(client) == self._name:
                    if client in self._waiting:
                        self._waiting[client].append(begin)
                    else:
                        self._beginning[client] = begin
                elif was_here:
                    self._begin(client)  # the client must know that this end comes after another one
                    self._waiting.setdefault(client, []).append(end)

    def _begin(self, client: int) -> None:
        """Puts the beginning of a path before all else that waits for the client."""
        begin = self._beginning.pop(client, None)
        if begin is not None:
            self._waiting.setdefault(client, []).insert(0, begin)

    def _deliver(self, batch: Batch, configuration: Configuration, parts: list[Part]) -> None:
        body = batch.body
        if type(body) is Events:
            found = parts[0].found if len(parts) == 1 else self._merged(parts)
            for at, client, numbers in found:
                emitter, event = body.events[at]
                waiting = self._waiting.setdefault(client, [])
                if len(numbers) > DELIVERY_NUMBERS_MAX * NUMBER_BYTES:
                    numbers = self._told_ahead(waiting, emitter, event, numbers)
                waiting.append(Delivery(emitter, event.number, event.time_us, event.attributes, event.payload, numbers))
            self.deliveries += len(found)
        elif type(body) is Replies:
            for client, item in body.replies:
                is_here = configuration.exit_of(client) == self._name
                if type(item) is PathEnd:
                    self._leaving.append((client, is_here))
                elif is_here:
                    self._waiting.setdefault(client, []).append(item)
        for part in parts:
            for client, item in part.said:
                self._waiting.setdefault(client, []).append(item)

    def _told_ahead(self, waiting: list[FromEngine], emitter: int, event: Event, numbers: bytes) -> bytes:
        """Tells a client most of the filters that an event matches ahead of it; returns the others."""
        begin, step = DELIVERY_NUMBERS_MAX * NUMBER_BYTES, NUMBERS_MAX * NUMBER_BYTES
        for first in range(begin, len(numbers), step):
            waiting.append(Matched(emitter, event.number, numbers[first : first + step]))
        return numbers[:begin]

    def _merged(self, parts: list[Part]) -> list[Found]:
        """What several matchers found: a client is named once for an event. Matchers report different filters."""
        seats: dict[tuple[int, int], bytes] = {}
        for part in parts:
            for at, client, numbers in part.found:
                before = seats.get((at, client))
                seats[at, client] = numbers if before is None else before + numbers
        return [(at, client, seats[at, client]) for at, client in sorted(seats)]

    # Letters

    def flush(self) -> list[Post]:
        """The letters that go now. Call `confirmed` for each of them, then read `settled`."""
        self._group += 1
        if self._beginning:
            for client in self._waiting.keys() & self._beginning.keys():
                self._begin(client)
        posts = [
            Post(client, payload, self._group)
            for client, items in self._waiting.items()
            for payload in self._letters(items)
        ]
        self._waiting.clear()
        if posts or self._done:
            self._ends.append((self._group, self._done, self._switched))
            self._done = {}
        if posts:
            self._open[self._group] = len(posts)
        return posts

    def _letters(self, items: list[FromEngine]) -> list[bytes]:
        """Items in as many letters as their size needs."""
        letters: list[bytes] = []
        part: list[FromEngine] = []
        size = 0
        for item in items:
            more = ITEM_BYTES
            if isinstance(item, Delivery):
                more += len(item.attributes) + len(item.payload) + len(item.matched)
            elif isinstance(item, InForce):
                more += ITEM_NUMBER_BYTES * len(item.numbers)
            elif isinstance(item, Matched):
                more += len(item.matched)
            if part and size + more > self._bytes_max:
                letters.append(messages.encode(part))
                part, size = [], 0
            part.append(item)
            size += more
        letters.append(messages.encode(part))
        return letters

    def confirmed(self, group: int) -> None:
        """A server has confirmed a letter."""
        self._open[group] -= 1
        if not self._open[group]:
            del self._open[group]

    def settled(self) -> tuple[dict[str, int], int]:
        """By access point the batch up to which all is delivered, as far as it has changed; and the newest
        configuration before which all is delivered."""
        settled: dict[str, int] = {}
        while self._ends and self._ends[0][0] not in self._open:
            _, done, self._drained = self._ends.popleft()
            settled |= done
        return settled, self._drained
