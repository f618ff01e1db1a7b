"""The record of a run with channels: in addition to the publications, the subscriptions and what each received, the
messages of plain Redis clients, and the times at which no agent watched a server.

Owns the record that `channel_checkers` judges. It shares no code with the router.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.lab.sim.history import History, Interval, Published, number_in
from shoal.message import Item, Message


@dataclass(slots=True)
class Handed:
    """One message or gap, as the application received it. For a gap, `witnesses` are the live participants that knew
    then what its publisher had published."""

    at: float
    item: Item
    witnesses: tuple[str, ...] = ()


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


@dataclass(slots=True)
class Lie:
    """A message or a beacon that a stranger published under the name of a client. `altered` has the tag of a true
    message on the same server."""

    payload: bytes
    channel: str
    publisher: int
    sequence: int
    server: str
    sent_at: float
    altered: bool = False


class ChannelRunHistory(History):
    """The record of one run."""

    def __init__(self) -> None:
        super().__init__()
        self.subscribers: list[SubscriberRecord] = []
        self.unwatched: list[Interval] = []
        """Times at which no agent may have watched a server: it crashed, its agent crashed, or it left the ring."""
        self.foreign: list[Foreign] = []
        self.lies: dict[bytes, Lie] = {}
        """False messages by payload."""
        self.claims: list[Lie] = []
        """False messages and beacons."""
        self.links_ended: list[tuple[str, int | None, float]] = []
        """Ends of connections to a server: of a client, or of its agent (None)."""
        self.splits: list[str] = []
        self.members: set[str] = set()

    def link_ended(self, server: str, client: int | None, at: float) -> None:
        """Records that a connection to a server has ended."""
        self.links_ended.append((server, client, at))

    def lie_told(self, lie: Lie, delivered: bool) -> None:
        """Records a lie, which may be delivered (a message) or only be a claim."""
        self.claims.append(lie)
        if delivered:
            self.lies[lie.payload] = lie

    def foreign_sent(self, server: str, channel: bytes, at: float) -> int:
        """Records a message of a plain client; returns the number to write into the payload."""
        self.foreign.append(Foreign(len(self.foreign) + 1, channel.decode(), server, at))
        return len(self.foreign)

    def sent(self, server: str, client: int, at: float) -> None:
        """Records a message that a client sent to a server; a violation if the server is not in the ring."""
        if self.members and server not in self.members:
            self.splits.append(f"client {client:x} published on {server} at t={at:.3f}, after it had left the ring")


def number_of(message: Message) -> int:
    """The number in the payload of a message; 0 if there is none."""
    return number_in(message.payload)
