"""The shared state of a router's parts: its id, limits and rules, its links, timers and outputs, and the sending of
control messages.

Owns no decisions. `effects`, the outboxes of the `dirty` links and `ready` are the router's outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from shoal.channels import states
from shoal.channels.client.peer_keys import PeerKeys
from shoal.channels.client.server_link import ServerLink
from shoal.channels.timers import Timers
from shoal.limits import Limits
from shoal.plan.book import PlanBook
from shoal.plan.ring import ServerAddress
from shoal.rules import Rules
from shoal.wire import control
from shoal.wire.envelope import peer_channel
from shoal.wire.identity import ClientKey

if TYPE_CHECKING:
    from shoal.channels.client.subscription import SubscriptionCore


class Connect(msgspec.Struct, frozen=True):
    """Open a connection to a server; answer with `opened` or `lost`."""

    address: ServerAddress

    @property
    def server(self) -> str:
        """The id of the server."""
        return self.address.id


class Disconnect(msgspec.Struct, frozen=True):
    """Drop the connection to a server; answer with `lost`."""

    server: str


class FetchRing(msgspec.Struct, frozen=True):
    """Ask the coordinator for the newest ring; answer with `ring` when there is an answer."""


class Confirmed(msgspec.Struct, frozen=True):
    """Messages were confirmed whose confirmation is awaited; `tokens` are the arguments of `await_confirm`, in their
    order."""

    tokens: list[object]


class PublishRefused(msgspec.Struct, frozen=True):
    """A server refused a publish; the message did not go out there. `token` is that of `await_confirm`, if the
    confirmation is awaited."""

    channel: bytes
    error: str
    token: object = None


class AgentRefused(msgspec.Struct, frozen=True):
    """An agent refuses this client's control messages; `code` and versions as in `control.Refused`."""

    server: str
    code: str
    version_min: int
    version_max: int
    text: str


class CommandRefused(msgspec.Struct, frozen=True):
    """A server refused a command that a call waits for: to subscribe to `channel`, or to tell its agent (None)."""

    server: str
    channel: bytes | None
    error: str


class Unreachable(msgspec.Struct, frozen=True):
    """A server that is wanted could not be used for `seconds`: the calls that wait for it are told. It is repeated
    while that lasts."""

    server: str
    seconds: float


class Enrol(msgspec.Struct, frozen=True):
    """The agents have a newer secret than that of this client's key: ask one of them for another key, as long as
    `wants_key` says so, and answer with `enrolled`."""


class Abandoned(msgspec.Struct, frozen=True):
    """The client has another id, and its streams have ended with unconfirmed messages. `tokens` are the arguments of
    `await_confirm` for them; `unawaited` have none."""

    tokens: list[object]
    unawaited: int


class QueueAnswered(msgspec.Struct, frozen=True):
    """An agent has answered a request for a queue; `code` is one of `control.QUEUE_*`, `token` that of the request."""

    token: object
    code: str
    text: str


class UnknownFlags(msgspec.Struct, frozen=True):
    """A message was not delivered because it carries flags of a newer version."""

    channel: bytes
    flags: int


Effect: TypeAlias = (
    Connect
    | Disconnect
    | FetchRing
    | Confirmed
    | PublishRefused
    | AgentRefused
    | CommandRefused
    | Unreachable
    | UnknownFlags
    | Enrol
    | Abandoned
    | QueueAnswered
)

LEASES_UNREACHABLE: Final = 3
"""A server counts as unreachable after this many leases at the earliest: a failover takes less."""

QUEUED_SHARE: Final = 0.5
"""Questions that have waited take this share of what the agent allows; the rest is for others."""

REPORT_EVERY_S: Final = 60.0
"""Messages with unknown flags are reported at most once in this time."""


class ClientCounters(msgspec.Struct):
    """Event counts, for metrics and for `exercised` of the simulator."""

    repeated: int = 0
    refused: int = 0
    delivered: int = 0
    unwanted: int = 0
    duplicates: int = 0
    held: int = 0
    holes: int = 0
    heals_asked: int = 0
    heals_answered: int = 0
    heals_over_quota: int = 0
    heals_shared: int = 0
    """Requests that were left out because another subscription of this client had asked for the same messages."""
    resent: int = 0
    healed: int = 0
    gaps: int = 0
    open_gaps: int = 0
    refuted: int = 0
    retracted: int = 0
    rivals: int = 0
    rechecks: int = 0
    barred: int = 0
    overflows: int = 0
    beacons: int = 0
    announces: int = 0
    foreign: int = 0
    garbage: int = 0
    unknown_flags: int = 0
    forged: int = 0
    unauthentic: int = 0
    outdated: int = 0
    introductions: int = 0
    renewals: int = 0
    """Servers at which a newer key of this client came into use."""
    identities: int = 0
    """New ids, because the agents' secret of the one before was revoked."""
    evidence_withdrawn: int = 0
    stale_entries: int = 0
    reconnects: int = 0
    stale_links: int = 0
    ring_changes: int = 0
    entries: int = 0
    notices: int = 0
    resyncs: int = 0
    handshakes: int = 0
    late_joins: int = 0
    restarts_seen: int = 0
    busy: int = 0
    """Refusals of agents that asked this client to wait."""
    questions_queued: int = 0
    """Questions that waited for that reason."""


class Context:
    """The shared state of one router."""

    __slots__ = (
        "_unknown_flags_at",
        "book",
        "client",
        "closing",
        "counters",
        "dirty",
        "effects",
        "expired",
        "generation",
        "key",
        "keys",
        "lease_over",
        "limits",
        "links",
        "number",
        "peers",
        "ready",
        "rules",
        "timers",
    )

    def __init__(
        self,
        client: int,
        book: PlanBook,
        limits: Limits,
        rules: Rules,
        first_number: int,
        key: ClientKey | None = None,
    ) -> None:
        self.client = client
        self.key = key
        """The client's newest key; None with scheme 0."""
        self.keys = {key.generation: key} if key is not None else {}
        """The client's keys by generation of the agents' secret."""
        self.generation = 0
        """The generation of the control message that is handled now."""
        self.expired = False
        """Whether the agents' secret of the client's key was revoked: it cannot speak before it has another id."""
        self.peers = PeerKeys(self.keys)
        self.book = book
        self.limits = limits
        self.rules = rules
        self.timers = Timers()
        self.links: dict[str, ServerLink] = {}
        self.effects: list[Effect] = []
        self.dirty: list[ServerLink] = []
        self.ready: list[SubscriptionCore] = []
        self.counters = ClientCounters()
        self.closing = False
        self.number = first_number
        """The number of the last message or question, see `next_number`."""
        self._unknown_flags_at = float("-inf")
        self.lease_over: Callable[[ServerLink, float], None] = lambda link, now: None

    def next_number(self) -> int:
        """A number above those of all earlier messages and questions of this router."""
        self.number += 1
        return self.number

    @property
    def lease_s(self) -> float:
        """The cluster's lease, as the signed ring says."""
        ring = self.book.ring
        return ring.lease_ms / 1000 if ring is not None and ring.lease_ms else self.limits.server_lease_s

    @property
    def unreachable_s(self) -> float:
        """How long a server may be unusable before the calls that wait for it are told."""
        return max(self.limits.unreachable_s, LEASES_UNREACHABLE * self.lease_s)

    def is_member(self, link: ServerLink) -> bool:
        """Whether a server is in the ring."""
        return self.book.address(link.server) is not None

    def unusable(self, link: ServerLink, now: float) -> None:
        """A server of the ring that is wanted may not be used, or not yet."""
        if link.unusable_since is None and self.is_member(link):
            link.unusable_since = now
            self.timers.set(("unreachable", link), now + self.unreachable_s)

    def want(self, link: ServerLink, now: float) -> None:
        """Opens a link, unless it is open or opening. A server outside the ring is only asked what it knows."""
        if link.state is not states.LinkState.USABLE:
            self.unusable(link, now)
        if (
            link.state is states.LinkState.DOWN
            and (self.is_member(link) or link.sites)
            and not (self.closing or self.expired)
        ):
            link.step("wanted")
            self.effects.append(Connect(link.address))

    def drop(self, link: ServerLink) -> None:
        """Drops the connection of a link, if it has one."""
        if link.state is not states.LinkState.DOWN:
            self.effects.append(Disconnect(link.server))

    def touch(self, link: ServerLink) -> None:
        """Marks a link as having something to send."""
        if not link.dirty:
            link.dirty = True
            self.dirty.append(link)

    def tell_agent(self, link: ServerLink, message: control.ToAgent, seal: control.KeySeal | None = None) -> None:
        """Queues a control message to a server's agent, with the key that is used there unless another is given."""
        link.tell_agent(control.encode(message, self.client, self.next_number(), seal or link.to_agent))
        self.touch(link)

    def knows_incarnation(self, link: ServerLink) -> bool:
        """Whether an agent would take messages that must name its incarnation. With scheme 0 it takes any."""
        return self.key is None or link.incarnation != 0

    def ask_peer(
        self, link: ServerLink, publisher: int, message: control.Heal, number: int, repeated: bool = False
    ) -> None:
        """Queues a request to a publisher, by way of a server; a `repeated` one for each key that it may have."""
        for seal in self.peers.seals(publisher, repeated):
            self._tell_peer(link, publisher, message, number, seal)

    def answer_peer(self, link: ServerLink, asker: int, message: control.Resend | control.Healed, number: int) -> None:
        """Queues an answer to a subscriber, on its own peer channel and in the generation of its request."""
        key = self.keys.get(self.generation, self.key)
        seal = control.replying(key.peer(asker), key.generation) if key is not None else None
        self._tell_peer(link, asker, message, number, seal)

    def _tell_peer(
        self, link: ServerLink, client: int, message: control.ToPeer, number: int, seal: control.Seal | None
    ) -> None:
        link.publish(peer_channel(client), control.encode(message, self.client, number, seal))
        self.touch(link)

    def queue(self, link: ServerLink, now: float) -> float:
        """The agent of a server has asked this client to wait: when the next question may be sent."""
        self.counters.questions_queued += 1
        return link.queue(QUEUED_SHARE * self.limits.control_per_s_max, now)

    def say_bye(self, link: ServerLink, pattern: bool, name: bytes) -> None:
        """Queues a Bye. Without a connection, or if this one is lost with it, it is sent on the next one; before the
        agent's incarnation is known, when it is."""
        link.byes[pattern, name] = None
        if link.open and self.knows_incarnation(link):
            link.byes[pattern, name] = False
            self.tell_agent(link, control.Bye(name, pattern, link.incarnation))

    def repeat_byes(self, link: ServerLink) -> None:
        """After a reconnect: repeats the Byes that may have been lost, unless the client listens there again."""
        self._send_byes(link, list(link.byes))

    def incarnation_known(self, link: ServerLink) -> None:
        """The agent has told its incarnation: sends the Byes that have waited for it."""
        if link.byes:
            self._send_byes(link, [key for key, sent in link.byes.items() if sent is None])

    def _send_byes(self, link: ServerLink, left: list[tuple[bool, bytes]]) -> None:
        for pattern, name in left:
            if (pattern, name) in link.listening:
                del link.byes[pattern, name]
            else:
                self.say_bye(link, pattern, name)

    def report_unknown_flags(self, channel: bytes, flags: int, now: float) -> None:
        """Counts a message with flags of a newer version, and reports it at most once a minute."""
        self.counters.unknown_flags += 1
        if now >= self._unknown_flags_at + REPORT_EVERY_S:
            self._unknown_flags_at = now
            self.effects.append(UnknownFlags(channel, flags))
