"""One application subscription, to a channel or to a pattern, and its state on each server.

Owns the bookkeeping of one subscription. `receiver` judges what arrives, `subscriber` chooses the servers.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

import msgspec

from shoal.channels import states
from shoal.channels.client.inbox import Inbox
from shoal.channels.client.incoming_stream import ChannelIn, Origin, StreamIn
from shoal.channels.client.server_link import ServerLink
from shoal.message import Attributes, Gap, Message, Retraction
from shoal.wire import control

Wanted: TypeAlias = Callable[[Attributes], bool]
"""Whether the application wants a message with these attributes."""

Rival: TypeAlias = tuple[bytes, int, int, Origin]
"""A second copy of a number: channel, stream, number and origin."""

PASSED_MAX: Final = 256
"""Messages that did not fit `early` whose claims are remembered until the subscription is in force."""

LAPSED_CHANNELS_MAX: Final = 10_000
"""Channels of a pattern that are remembered only for their streams that were given up, about 5 MB."""

RIVALS_MAX: Final = 256
RIVAL_BYTES_MAX: Final = 1 << 20
"""Second copies that a subscription keeps, and their payloads; at least one. Publishers are asked for the others."""


class Review(NamedTuple):
    """A question to an agent how far its streams have come: what was known from its server about higher numbers when it
    was asked is false."""

    nonce: int
    incarnation: int
    known: dict[StreamIn, tuple[int, set[tuple[int, Origin]]]]
    """By stream: the next number, and the copies of later ones and of rivals, each with its number."""


class SubscribedServer:
    """A subscription on one server.

    `incarnation` is the agent's incarnation that was last heard of here, 0 before the first. `was_subscribed` is the
    revision of the channel's entry in the last Subscribed that the agent was sent. `known` is the version of the
    ring by which the subscription was elsewhere before, and `revision` that of the channel's entry when it came here, 0
    without one. `parts` are the parts of an Answer that have come so far.
    `review` is a question by which false messages are found, see `refutation`. `kept` are messages that came before
    the Answer to a subscription that is in force elsewhere, or was here before.
    `lost` says that the server has left the ring and its agent is still asked.
    """

    __slots__ = (
        "added_at",
        "attempts",
        "incarnation",
        "kept",
        "known",
        "link",
        "lost",
        "nonce",
        "parts",
        "review",
        "revision",
        "server",
        "state",
        "sub",
        "was_subscribed",
    )

    def __init__(self, sub: SubscriptionCore, link: ServerLink, known: int, revision: int, now: float) -> None:
        self.added_at = now
        """When the subscription came to belong here."""
        self.sub = sub
        self.link = link
        self.server = link.server
        self.state = states.SiteState.WAITING
        self.nonce = 0
        self.attempts = 0
        self.incarnation = 0
        self.was_subscribed = 0
        self.known = known
        self.revision = revision
        self.lost = False
        self.parts: list[control.Answer] = []
        self.review: Review | None = None
        self.kept: list[tuple[bytes, bytes]] = []

    def take_part(self, answer: control.Answer) -> control.Answer | None:
        """Takes a part of an Answer; returns the whole Answer when its last part has come."""
        if answer.part == 0:
            self.parts.clear()
        if answer.parts <= 1:
            return answer
        if answer.part == len(self.parts):
            self.parts.append(answer)
        if len(self.parts) < answer.parts:
            return None
        parts, self.parts = self.parts, []
        streams = [stream for part in parts for stream in part.streams]
        absent = [stream for part in parts for stream in part.absent]
        streams_finer = b"".join(part.streams_finer.ljust(len(part.streams), b"\0") for part in parts)
        absent_finer = b"".join(part.absent_finer.ljust(len(part.absent), b"\0") for part in parts)
        return msgspec.structs.replace(
            answer, streams=streams, absent=absent, streams_finer=streams_finer, absent_finer=absent_finer
        )

    def step(self, event: str) -> None:
        """Takes the transition that `states.SITE` gives for the event."""
        self.state = states.step(states.SITE, self.state, event)


class SubscriptionStatistics(msgspec.Struct, frozen=True):
    """The state of a subscription."""

    servers: dict[str, str]
    """Its state by server, see `states.SiteState`."""
    streams: int
    held_messages: int
    """Messages behind a hole."""
    early_messages: int
    """Messages that came before the subscription is in force."""


class SubscriptionCore:
    """A subscription of the application.

    `in_force` becomes true once, when the agents of all its servers have answered. Messages that arrive before wait in
    `early`. `whole` says that no connection has been lost since, and no lease was over: then the first message of a
    stream on a server is the first that it sent since the subscription came into force. What an agent heard before
    `owed_from` is not owed. Messages that are not `wanted` count as received, but are not delivered. `healing` is the
    number of streams that had missing messages when the inbox last had room again: they share the room. `rivals` are
    second copies of delivered numbers, with other tags: if an agent refutes the first copy, the second takes its place.
    `unlisted` are the servers whose agents had no room to list all streams, each with the time of that Answer.
    """

    __slots__ = (
        "away_since",
        "baseline",
        "channels",
        "closed",
        "early",
        "foreign_missed",
        "healing",
        "id",
        "in_force",
        "inbox",
        "name",
        "notified",
        "overflowed",
        "overflowed_at",
        "owed_from",
        "passed",
        "pattern",
        "pattern_text",
        "rival_bytes",
        "rivals",
        "sites",
        "streams",
        "text",
        "unheard",
        "unlisted",
        "wanted",
        "whole",
    )

    def __init__(self, number: int, name: bytes, pattern: bool, inbox: Inbox, wanted: Wanted | None = None) -> None:
        self.id = number
        self.wanted = wanted
        self.name = name
        self.text = name.decode("utf-8", "surrogateescape")
        self.pattern = pattern
        self.pattern_text = self.text if pattern else None
        self.inbox = inbox
        self.sites: dict[str, SubscribedServer] = {}
        self.channels: dict[bytes, ChannelIn] = {}
        self.early: list[tuple[bytes, bytes, str]] = []
        self.passed: deque[tuple[bytes, bytes, str]] = deque(maxlen=PASSED_MAX)
        self.baseline: dict[tuple[bytes, int], tuple[int, str]] = {}
        self.unlisted: dict[str, float] = {}
        self.unheard: set[str] = set()
        """Servers whose agent began another incarnation while messages from there waited in `early`."""
        self.in_force = False
        self.owed_from = -math.inf
        self.whole = True
        self.away_since: float | None = None
        """Until when it has certainly received everything, while it is not in force on one of its servers."""
        self.overflowed = False
        self.overflowed_at = 0.0
        self.healing = 0
        self.foreign_missed = False
        self.rivals: dict[Rival, Message] = {}
        self.rival_bytes = 0
        self.notified = False
        self.closed = False
        self.streams: dict[int, StreamIn] = {} if pattern else self.channel(name).streams

    def channel(self, name: bytes) -> ChannelIn:
        """The streams of one channel, created at the first use."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self.channels[name] = ChannelIn(name)
        return channel

    def drop_silent_channels(self) -> None:
        """Drops the channels of a pattern that have no streams, except the newest ones with streams that were given up:
        if one of these publishes again, what it had delivered is not delivered twice."""
        silent = [channel for channel in self.channels.values() if not channel.streams]
        given_up = [channel for channel in silent if channel.lapsed]
        for channel in (*(channel for channel in silent if not channel.lapsed), *given_up[:-LAPSED_CHANNELS_MAX]):
            del self.channels[channel.name]

    def all_streams(self) -> Iterator[tuple[ChannelIn, StreamIn]]:
        """Every stream with its channel. Streams may be added and removed during the iteration."""
        for channel in list(self.channels.values()):
            for stream in list(channel.streams.values()):
                yield channel, stream

    def uses(self, server: str) -> bool:
        """Whether the subscription is on a server, or is going there."""
        return server in self.sites

    def keep_rival(self, rival: Rival, message: Message) -> None:
        """Keeps a second copy of a number. The oldest ones make room for it."""
        if rival not in self.rivals:
            self.rivals[rival] = message
            self.rival_bytes += len(message.payload)
            while len(self.rivals) > RIVALS_MAX or (self.rival_bytes > RIVAL_BYTES_MAX and len(self.rivals) > 1):
                self.take_rival(next(iter(self.rivals)))

    def take_rival(self, rival: Rival) -> Message | None:
        """Takes a second copy out."""
        message = self.rivals.pop(rival, None)
        if message is not None:
            self.rival_bytes -= len(message.payload)
        return message

    def rivals_of(self, channel: bytes, stream: int, number: int) -> list[Rival]:
        """The second copies of a number, oldest first."""
        return [rival for rival in self.rivals if rival[:3] == (channel, stream, number)]

    def apply_filter(self, wanted: Wanted) -> None:
        """Delivers only `wanted` messages from now on; others that wait in the inbox are dropped."""
        self.wanted = wanted
        self.inbox.keep(lambda message: wanted(message.attributes or {}))

    def live_from(self) -> dict[int, int]:
        """For each known stream the first number that the subscription has received or expects. Gaps in the inbox count
        as received. Call it before the application has taken anything."""
        items: defaultdict[int, list[Message | Gap]] = defaultdict(list)
        for item in self.inbox.items:
            if item.publisher and not isinstance(item, Retraction):
                items[item.publisher].append(item)
        begins: dict[int, int] = {}
        for number, stream in sorted(self.streams.items(), reverse=True):
            received = items.get(stream.publisher, [])
            first = stream.next
            while received and _last(received[-1]) == first - 1:
                item = received.pop()
                first = item.sequence if isinstance(item, Message) else item.first
            begins[number] = first
        return begins

    def doubts(self) -> list[str]:
        """The messages that are missing, or may be: holes, and streams whose publisher has been asked how far it has
        come."""
        found = []
        for channel, stream in self.all_streams():
            if stream.has_hole():
                found.append(f"{channel.text} of {stream.stream:x} misses {stream.next} to {stream.last}")
            elif stream.doubted_at is not None:
                found.append(f"{channel.text} of {stream.stream:x} is in doubt after {stream.next - 1}")
        return found

    def statistics(self) -> SubscriptionStatistics:
        """The present state, for tests."""
        streams = [stream for _, stream in self.all_streams()]
        return SubscriptionStatistics(
            servers={server: site.state.value for server, site in self.sites.items()},
            streams=len(streams),
            held_messages=sum(len(stream.held) for stream in streams),
            early_messages=len(self.early),
        )

    @property
    def undivided(self) -> bool:
        """Whether all messages have come by one connection that was never lost."""
        return self.whole and len(self.sites) == 1

    @property
    def settled(self) -> bool:
        """Whether the subscription is in force on every server where it belongs now."""
        return self.in_force and all(
            site.lost or site.state in (states.SiteState.IN_FORCE, states.SiteState.LINGERING)
            for site in self.sites.values()
        )

    @property
    def asks_outside(self) -> bool:
        """Whether the agent of a server that left the ring is still asked what it knows."""
        return any(site.lost for site in self.sites.values())


def _last(item: Message | Gap) -> int | None:
    return item.last if isinstance(item, Gap) else item.sequence
