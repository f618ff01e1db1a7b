"""The bounded inbox between the router and one application subscription.

Owns the limit on waiting items. At the limit nothing is lost silently: the router treats messages that do not fit as
not received, and asks their publishers for them once the application has made room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from shoal.message import Gap, Item, Message, Retraction


class InboxStatistics(msgspec.Struct, frozen=True):
    """How full an inbox is, and how often it was full."""

    messages: int
    bytes: int
    messages_max: int
    bytes_max: int
    overflows: int


class Inbox:
    """Messages, gaps and retractions in the order in which the application will see them."""

    __slots__ = ("bytes", "bytes_max", "items", "messages_max", "overflows")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.items: deque[Item] = deque()
        self.bytes = 0
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.overflows = 0

    @property
    def full(self) -> bool:
        """Whether there is no room for another message."""
        return len(self.items) >= self.messages_max or self.bytes >= self.bytes_max

    @property
    def roomy(self) -> bool:
        """Whether at least half of the inbox is free again."""
        return len(self.items) * 2 <= self.messages_max and self.bytes * 2 <= self.bytes_max

    def put(self, message: Message) -> None:
        """Adds a message. The caller has checked `full`."""
        self.items.append(message)
        self.bytes += len(message.payload)

    def report(self, item: Gap | Retraction) -> None:
        """Adds a gap or a retraction. They always fit: gaps replace messages, and retractions follow them."""
        self.items.append(item)

    def take(self) -> Item:
        """The oldest item; IndexError when there is none."""
        item = self.items.popleft()
        if type(item) is Message:
            self.bytes -= len(item.payload)
        return item

    def take_many(self, n_max: int) -> list[Item]:
        """The oldest items, at most `n_max`."""
        pop = self.items.popleft
        taken = [pop() for _ in range(min(n_max, len(self.items)))]
        self.bytes -= sum([len(item.payload) for item in taken if type(item) is Message])
        return taken

    def keep(self, wanted: Callable[[Message], bool]) -> None:
        """Drops the messages that are not wanted; gaps and retractions stay."""
        kept = [item for item in self.items if type(item) is not Message or wanted(item)]
        self.items.clear()
        self.items.extend(kept)
        self.bytes = sum([len(item.payload) for item in kept if type(item) is Message])

    def statistics(self) -> InboxStatistics:
        """The present state, for metrics."""
        return InboxStatistics(len(self.items), self.bytes, self.messages_max, self.bytes_max, self.overflows)
