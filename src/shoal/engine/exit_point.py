"""The exit point: what goes to each client, and when the deliveries of an event are confirmed.

Owns the outgoing letters. All that waits for a client goes in one letter. A position is settled when the servers have
confirmed every letter that carries an event up to it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from shoal.engine import messages
from shoal.engine.matcher import Matched
from shoal.engine.messages import Delivery, FromEngine
from shoal.limits import Limits
from shoal.rules import ALL_RULES, Rules

ITEM_BYTES: Final = 64
"""Bytes of an item besides attributes and payload, about."""


class Post(NamedTuple):
    """A letter to a client; `group` is told back when a server has confirmed it."""

    client: int
    payload: bytes
    group: int


class ExitPoint:
    """The letters of one instance of an engine."""

    def __init__(self, limits: Limits, rules: Rules = ALL_RULES) -> None:
        self._bytes_max = limits.engine_letter_bytes_max
        self._rules = rules
        self._waiting: dict[int, list[FromEngine]] = {}
        self._group = 0
        self._open: dict[int, int] = {}
        """Groups of letters that were posted together: how many are not confirmed."""
        self._ends: deque[tuple[int, int]] = deque()
        """Each group with the last position in it, in order."""
        self._position = 0

    @property
    def unconfirmed(self) -> int:
        """Letters that no server has confirmed."""
        return sum(self._open.values())

    def say(self, client: int, item: FromEngine) -> None:
        """Tells a client something."""
        self._waiting.setdefault(client, []).append(item)

    def deliver(self, matched: Matched) -> None:
        """Sends an event to the clients whose filters it matches."""
        position, emitter, event = matched.emitted
        for client, numbers in matched.seats:
            delivery = Delivery(emitter, event.number, event.time_us, event.attributes, event.payload, numbers)
            self._waiting.setdefault(client, []).append(delivery)
        self._position = position

    def pass_over(self, position: int) -> None:
        """An event at a position goes to no client."""
        self._position = position

    def flush(self) -> list[Post]:
        """The letters that go now. Call `confirmed` for each of them, then read `settled`."""
        self._group += 1
        posts = [
            Post(client, payload, self._group)
            for client, items in self._waiting.items()
            for payload in self._letters(items)
        ]
        self._waiting.clear()
        self._ends.append((self._group, self._position))
        if posts:
            self._open[self._group] = len(posts)
        return posts

    def _letters(self, items: list[FromEngine]) -> list[bytes]:
        """Items in as many letters as their size needs."""
        letters: list[bytes] = []
        part: list[FromEngine] = []
        size = 0
        for item in items:
            if isinstance(item, Delivery):
                more = ITEM_BYTES + len(item.attributes) + len(item.payload) + 5 * len(item.matched)
            else:
                more = ITEM_BYTES
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
        """The position up to which all deliveries are confirmed; 0 if that is unchanged."""
        position = 0
        while self._ends and self._ends[0][0] not in self._open:
            position = self._ends.popleft()[1]
        return position
