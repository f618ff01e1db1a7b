"""What applications receive: messages, and gaps where messages are known to be missing.

Owns the two values that a subscription yields. Knows nothing of servers, plans or the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

AttributeValue: TypeAlias = str | int | float | bool
Attributes: TypeAlias = Mapping[str, AttributeValue]
GivenAttributes: TypeAlias = Mapping[str, AttributeValue | None]
"""Attributes as a publisher hands them in: None is absence, and is not sent."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """One published message, delivered exactly once and in its publisher's order.

    `publisher` and `sequence` are 0 for a foreign message: one that was published by a plain Redis
    client, without Shoal's envelope, and that is therefore delivered as it came.
    """

    channel: str
    payload: bytes
    publisher: int = 0
    sequence: int = 0
    published_at_us: int = 0
    attributes: Attributes | None = None
    pattern: str | None = None

    @property
    def foreign(self) -> bool:
        """Whether a plain Redis client published it."""
        return self.publisher == 0


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Messages that are known to be missing, reported where they would have stood.

    `publisher` is None when nobody can say who published. `last` is None for an open gap: from
    `first` on, up to an end that nobody alive knows.
    """

    channel: str
    publisher: int | None
    first: int
    last: int | None
    reason: str
    pattern: str | None = None

    @property
    def count(self) -> int | None:
        """How many messages are missing; None if the gap is open."""
        return None if self.last is None else self.last - self.first + 1


Item: TypeAlias = Message | Gap
