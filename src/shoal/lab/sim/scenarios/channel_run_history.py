"""What really happened in a run with channels: beside what was published, who subscribed when, what each subscription
was handed, what plain Redis clients published, and when a server was not watched.

Owns the record that `channel_checkers` judges. It shares nothing with the router.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.lab.sim.history import History, Interval, Published, number_in
from shoal.message import Item, Message


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

    @property
    def label(self) -> str:
        """Names it in violations."""
        return f"{'pattern ' if self.pattern else ''}{self.name} of {self.client:x} from t={self.called_at:.3f}"

    def reads(self, unit: str) -> bool:
        """Whether the subscription covers a channel. Patterns of scenarios end in one star."""
        return unit.startswith(self.name[:-1]) if self.pattern else unit == self.name

    def wants(self, message: Published) -> bool:
        """Whether a message is owed to the subscription once it is in force."""
        return self.reads(message.unit)


@dataclass(slots=True)
class Foreign:
    """A message that a plain Redis client published on some server."""

    number: int
    channel: str
    server: str
    sent_at: float


class ChannelRunHistory(History):
    """The record of one run."""

    def __init__(self) -> None:
        super().__init__()
        self.subscribers: list[SubscriberRecord] = []
        self.unwatched: list[Interval] = []
        """Times at which a server may not have been watched: it died, its agent died, or it left the ring."""
        self.foreign: list[Foreign] = []
        self.splits: list[str] = []
        self.members: set[str] = set()

    def foreign_sent(self, server: str, channel: bytes, at: float) -> int:
        """A plain client publishes; returns the number to write into the payload."""
        self.foreign.append(Foreign(len(self.foreign) + 1, channel.decode(), server, at))
        return len(self.foreign)

    def sent(self, server: str, client: int, at: float) -> None:
        """A client sent a message to a server; that is wrong once the ring is without the server."""
        if self.members and server not in self.members:
            self.splits.append(f"client {client:x} published on {server} at t={at:.3f}, after the ring had left it")


def number_of(message: Message) -> int:
    """The number that a message carries; 0 if it is none of ours."""
    return number_in(message.payload)
