"""Values that applications receive: messages, gaps where messages are missing, and retractions of false messages.

Owns the types that a subscription yields. It does not depend on servers, plans or the wire format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

AttributeScalar: TypeAlias = str | int | float | bool
AttributeValue: TypeAlias = AttributeScalar | Sequence[AttributeScalar]
"""The value of an attribute: one value, or an array of them."""
Attributes: TypeAlias = Mapping[str, AttributeValue]
GivenAttributes: TypeAlias = Mapping[str, AttributeScalar | Sequence[AttributeScalar | None] | None]
"""Attributes as passed to `publish`: None means absent and is not sent."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """One published message, delivered exactly once and in its publisher's order.

    `publisher` and `sequence` are 0 for a foreign message, which a plain Redis client published without Shoal's
    envelope. It is delivered as it arrived.
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


class Match(Message, frozen=True, gc=False):
    """An event that was emitted without a channel, and the names of the reader's filters that it matches. `publisher`
    is its emitter; the numbers of an emitter grow, but a reader gets only those that match."""

    matched: tuple[str, ...] = ()


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Missing messages, reported at their position in the stream.

    `publisher` is None if it is unknown. `last` is None for an open gap: it starts at `first`, and its end is unknown.
    """

    channel: str
    publisher: int | None
    first: int
    last: int | None
    reason: str
    pattern: str | None = None

    @property
    def count(self) -> int | None:
        """The number of missing messages; None if the gap is open."""
        return None if self.last is None else self.last - self.first + 1


class Retraction(msgspec.Struct, frozen=True, gc=False):
    """A message that was delivered is false: another client has published it under this publisher's name.

    It names the message by channel, publisher and sequence number. If the publisher has published a message with this
    number, that one follows, perhaps after later ones. If the false message was the first of its publisher, earlier
    ones may follow too.
    """

    channel: str
    publisher: int
    sequence: int
    pattern: str | None = None


Item: TypeAlias = Message | Gap | Retraction
