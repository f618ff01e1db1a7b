"""The exit point: it joins what matchers found, sends each client its letters, and knows what is delivered.

Owns the outgoing letters of its clients. A batch of the fan is complete when every matcher of *its* configuration has
spoken; batches go out in order. All that waits for a client goes in one letter. A batch is settled when servers have
confirmed every letter that carries a part of it, or of one before it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import msgspec

from shoal.engine import messages
from shoal.engine.configuration import Configuration
from shoal.engine.links import Batch, Changes, Events, Found, Mark, Part, Replies, Step
from shoal.engine.matcher import NUMBERS_MAX
from shoal.engine.messages import NUMBER_BYTES, Delivery, Event, FromEngine, InForce, Matched
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

    def __init__(self, name: str, configuration: Configuration, limits: Limits, rules: Rules = ALL_RULES) -> None:
        self._name = name
        self._configuration = configuration
        self._bytes_max = limits.engine_letter_bytes_max
        self._rules = rules
        self._batches: deque[tuple[Batch, tuple[str, ...]]] = deque()
        """Batches that are not complete, each with the matchers that must speak."""
        self._parts: dict[int, dict[str, Part]] = {}
        """By batch and matcher."""
        self._pieces: dict[tuple[int, str], list[Found]] = {}
        """Beginnings of parts that come in pieces."""
        self._waiting: dict[int, list[FromEngine]] = {}
        self._group = 0
        self._open: dict[int, int] = {}
        """Groups of letters that were posted together: how many are not confirmed."""
        self._ends: deque[tuple[int, int]] = deque()
        """Each group with the last batch in it, in order."""
        self._done = 0
        self.deliveries = 0

    @property
    def unconfirmed(self) -> int:
        """Letters that no server has confirmed."""
        return sum(self._open.values())

    # From access point and matchers

    def heard(self, batch: Batch) -> None:
        """The next batch of the fan."""
        body = batch.body
        awaited = self._configuration.matchers if type(body) is Events or type(body) is Changes else ()
        self._batches.append((batch, awaited))
        if type(body) is Mark and body.step == Step.SWITCH:
            self._configuration = body.configuration

    def received(self, part: Part) -> None:
        """A matcher has spoken."""
        place = (part.number, part.matcher)
        if part.more:
            self._pieces.setdefault(place, []).extend(part.found)
            return
        if place in self._pieces:
            part = msgspec.structs.replace(part, found=self._pieces.pop(place) + part.found)
        self._parts.setdefault(part.number, {})[part.matcher] = part

    def join(self) -> None:
        """Delivers all batches that are complete."""
        batches = self._batches
        while batches and self._deliver_if_complete(*batches[0]):
            batches.popleft()
        if IN_ORDER not in self._rules:
            self._batches = deque(one for one in batches if not self._deliver_if_complete(*one))

    def _deliver_if_complete(self, batch: Batch, awaited: tuple[str, ...]) -> bool:
        parts: list[Part] = []
        if awaited:
            if PARTS_OF_ITS_TIME not in self._rules:
                awaited = self._configuration.matchers
            heard = self._parts.get(batch.number)
            if heard is None or any(name not in heard for name in awaited):
                return False
            parts = [heard[name] for name in awaited]
            del self._parts[batch.number]
        self._deliver(batch, parts)
        self._done = batch.number
        return True

    def _deliver(self, batch: Batch, parts: list[Part]) -> None:
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
                if self._configuration.exit_of(client) == self._name:
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
        posts = [
            Post(client, payload, self._group)
            for client, items in self._waiting.items()
            for payload in self._letters(items)
        ]
        self._waiting.clear()
        self._ends.append((self._group, self._done))
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

    def settled(self) -> int:
        """The batch up to which all is delivered; 0 if that is unchanged."""
        batch = 0
        while self._ends and self._ends[0][0] not in self._open:
            batch = self._ends.popleft()[1]
        return batch
