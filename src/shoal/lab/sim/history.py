"""What really happened in a run: who published what when, who subscribed when, and what each subscriber was
handed.

Owns the record that the checkers judge. It shares nothing with the router: a message is known by a number
that the scenario writes into its payload, never by the envelope.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.message import Gap, Item, Message


@dataclass(slots=True)
class Published:
    """One message, as the application that published it knows it. Times are true (virtual) times."""

    number: int
    channel: str
    publisher: int
    sequence: int
    called_at: float
    confirmed_at: float | None = None


@dataclass(slots=True)
class PublisherRecord:
    """A client as a publisher; `ended_at` is when it crashed or closed. A client that gave up waiting for confirmations
    when it closed counts as crashed."""

    client: int
    ended_at: float | None = None
    crashed: bool = False


@dataclass(slots=True)
class Handed:
    """One item, as the application got it."""

    at: float
    item: Item


@dataclass(slots=True)
class SubscriberRecord:
    """One subscription of one application."""

    name: str
    pattern: bool
    client: int
    called_at: float
    in_force_at: float | None = None
    ended_at: float | None = None
    handed: list[Handed] = field(default_factory=list)

    def reads(self, channel: str) -> bool:
        """Whether the subscription covers a channel. Patterns of scenarios end in one star."""
        return channel.startswith(self.name[:-1]) if self.pattern else channel == self.name

    def wants(self, message: Published) -> bool:
        """Whether a message is owed to the subscription once it is in force."""
        return self.reads(message.channel)


@dataclass(slots=True)
class Foreign:
    """A message that a plain Redis client published on some server."""

    number: int
    channel: str
    server: str
    sent_at: float


@dataclass(slots=True)
class Interval:
    """Something that lasted, such as a server's death."""

    what: str
    began_at: float
    ended_at: float | None = None


class History:
    """The record of one run."""

    def __init__(self) -> None:
        self.messages: dict[int, Published] = {}
        self.publishers: dict[int, PublisherRecord] = {}
        self.subscribers: list[SubscriberRecord] = []
        self.unwatched: list[Interval] = []
        """Times at which nobody may have watched a server: it died, its agent died, or it left the ring."""
        self.foreign: list[Foreign] = []
        self.splits: list[str] = []
        self.members: set[str] = set()

    def publish(self, channel: str, client: int, sequence: int, at: float) -> int:
        """A message was accepted; the number to write into the payload must be `next_number`."""
        number = self.next_number
        self.messages[number] = Published(number, channel, client, sequence, at)
        return number

    @property
    def next_number(self) -> int:
        """The number of the next message."""
        return len(self.messages) + 1

    def confirmed(self, number: int, at: float) -> None:
        """The publisher was told that a server has the message."""
        self.messages[number].confirmed_at = at

    def foreign_sent(self, server: str, channel: bytes, at: float) -> int:
        """A plain client publishes; returns the number to write into the payload."""
        self.foreign.append(Foreign(len(self.foreign) + 1, channel.decode(), server, at))
        return len(self.foreign)

    def sent(self, server: str, client: int, at: float) -> None:
        """A client sent a message to a server; nobody may do that once the ring is without the server."""
        if self.members and server not in self.members:
            self.splits.append(f"client {client:x} published on {server} at t={at:.3f}, after the ring had left it")


def payload_of(number: int, size: int) -> bytes:
    """A payload that carries its number and, with padding, has at least `size` bytes."""
    return (b"%d;" % number).ljust(size, b".")


def number_in(payload: bytes) -> int:
    """The number that a payload carries; 0 if it is none of ours."""
    head = payload.split(b";", 1)[0]
    return int(head) if head.isdigit() else 0


def number_of(message: Message) -> int:
    """The number that a message carries; 0 if it is none of ours."""
    return number_in(message.payload)


__all__ = [
    "Foreign",
    "Gap",
    "Handed",
    "History",
    "Interval",
    "PublisherRecord",
    "SubscriberRecord",
    "number_in",
    "number_of",
    "payload_of",
]
