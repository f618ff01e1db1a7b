"""Takes back what an agent has refuted: messages and beacons that another client published under a publisher's name.

Owns what a subscription does about a false message. Subscribers cannot check tags; the agent of the server can, and
names the false ones in its heartbeat by channel, stream, number and mark. A mark belongs to one header, so a refutation
concerns one copy on one server, and never hits a true message.

    held behind a hole, or only a claim   forgotten: no hole, no gap
    delivered                             a `Retraction`; the number counts as not received. If another copy has come,
                                          it takes the place; else the publisher is asked
    the first that was heard of a stream  the stream begins where the others say, or is forgotten

If an agent had more to name than fits, it names the channel. The subscription then asks it how far the streams have
come (`Review`): what it had when it asked, from that server, above the answer, was false.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Final

from shoal.channels.client.context import Context
from shoal.channels.client.incoming_stream import ChannelIn, Origin, Request, StreamIn
from shoal.channels.client.receiver import Receiver
from shoal.channels.client.server_link import ServerLink
from shoal.channels.client.subscriber import Subscriber
from shoal.channels.client.subscription import Review, SubscribedServer, SubscriptionCore
from shoal.message import Retraction
from shoal.rules import rule
from shoal.wire import control
from shoal.wire.envelope import ENDED, WORDS, is_envelope

RETRACT: Final = rule("retract", "A subscriber takes back messages that an agent has refuted.")


RECALLED_MAX: Final = 4096
"""Numbers before the first one of a stream that a subscription can still miss when that one was false."""

LATE_SWEEP: Final = 0.3
"""The part of `publisher_idle_s` between two sweeps beyond which the client may have been suspended: agents may have
forgotten everything that came before the second."""

REVIEW_SPREAD_S: Final = 0.5
"""Subscribers of a channel ask its agent within this time, not all at once."""


class Refutations:
    """The refutations of all servers, for all subscriptions of a router."""

    def __init__(self, context: Context, subscriber: Subscriber, receiver: Receiver) -> None:
        self._context = context
        self._subscriber = subscriber
        self._receiver = receiver
        self._incarnations: dict[str, int] = {}
        self._swept_at = -math.inf
        self._generation = context.key.generation if context.key is not None else 0

    def heard(self, link: ServerLink) -> None:
        """The agent of a server has told its incarnation. If it is a new one, the agent may not have heard what came
        before: that it does not list it proves nothing, also to subscriptions that have left the server and may come
        back."""
        server = link.server
        if self._incarnations.get(server) != link.incarnation:
            self._incarnations[server] = link.incarnation
            for sub in self._subscriber:
                for _, stream in sub.all_streams():
                    stream.exempt[server] = max(stream.last, stream.next - 1)
                if any(source == server for _, _, source in (*sub.early, *sub.passed)):
                    sub.unheard.add(server)

    def told(self, link: ServerLink, heartbeat: control.Heartbeat, is_news: bool, now: float) -> None:
        """An agent names false messages on its server. What it has named stays false, so a heartbeat that is no news
        is as good: an agent may not have come to answer this client's Greet."""
        if RETRACT not in self._context.rules:
            return
        for channel, listed in heartbeat.refuted:
            for site in link.sites:
                if site.kept:
                    site.kept = [kept for kept in site.kept if not _is_listed(*kept, link.server, channel, listed)]
            for sub in self._subscriptions(channel):
                named = _named(sub, channel, listed, link.server)
                if self._rotated:
                    named = [copy for copy in named if not _is_unheard(sub, channel, copy)]
                self._refute(sub, channel, named, now)
        for channel in heartbeat.overflow if is_news else ():
            for site in list(link.sites):
                if not channel or site.sub.name == channel or (site.sub.pattern and channel in site.sub.channels):
                    spread_s = REVIEW_SPREAD_S * (self._context.client % 1000) / 1000
                    self._context.timers.set_if_absent(("review", site), now + spread_s)

    @property
    def _rotated(self) -> bool:
        """Whether the agents have got another secret since this client began."""
        key = self._context.key
        return key is not None and key.generation != self._generation

    def _subscriptions(self, channel: bytes) -> Iterator[SubscriptionCore]:
        yield from list(self._subscriber.by_channel.get(channel, ()))
        for subs in list(self._subscriber.by_pattern.values()):
            for sub in list(subs):
                if channel in sub.channels or not sub.in_force:
                    yield sub

    def _refute(self, sub: SubscriptionCore, channel: bytes, copies: list[tuple[int, int, Origin]], now: float) -> None:
        """Some copies of messages are false. All of them are dropped before one of the others takes a place."""
        if not copies:
            return
        if not sub.in_force:
            false = set(copies)
            sub.early = [early for early in sub.early if early[0] != channel or _copy(*early[1:]) not in false]
            for early in [early for early in sub.passed if early[0] == channel and _copy(*early[1:]) in false]:
                sub.passed.remove(early)
            return
        chan = sub.channels.get(channel)
        if chan is None:
            return
        for number, sequence, origin in copies:
            sub.take_rival((channel, number, sequence, origin))
        for number, sequence, origin in copies:
            stream = chan.streams.get(number)
            if stream is not None:
                self._refute_copy(sub, chan, stream, sequence, origin, now)

    def _refute_copy(
        self, sub: SubscriptionCore, chan: ChannelIn, stream: StreamIn, number: int, origin: Origin, now: float
    ) -> None:
        self._context.counters.refuted += 1
        held = stream.held.get(number)
        if held is not None and held[1] == origin:
            del stream.held[number]
        stream.disclaim(number, origin)
        seen = stream.origin_of(number)
        if seen is not None and seen[0] == origin:
            self._retract(sub, chan, stream, number, handed=seen[1])
        if stream.birth == (number, origin):
            if number:
                self._begin_again(sub, chan, stream)
            else:
                stream.birth = None
        if stream.past_by == (number, origin):
            stream.past_by = None
        if stream.ended_by == origin:
            stream.final, stream.ended_by = not stream.final, None
        if stream.server == origin.server:
            stream.server = stream.lane or stream.server
        stream.recount()
        if stream.is_baseless() and not sub.rivals_of(chan.name, stream.stream, stream.next):
            chan.streams.pop(stream.stream, None)
        if stream.stream in chan.streams:
            self._replace(sub, chan, stream, now)

    def denied(self, sub: SubscriptionCore, message: control.Healed, request: Request, now: float) -> None:
        """A publisher has not reached the number by which its stream was met, so another client invented that number.
        No agent may have named it: the agent may have been away."""
        chan = sub.channels.get(message.channel)
        stream = chan.streams.get(message.stream) if chan is not None else None
        if chan is None or stream is None or stream.birth is None or not self._receiver.is_withdrawn(message, request):
            return
        number, origin = stream.birth
        if message.assigned < number <= request.known:
            self._refute(sub, chan.name, [(stream.stream, number, origin)], now)
            if stream.stream in chan.streams:
                stream.knows(message.last)
                stream.deny(message.assigned, request)
                stream.asked = 0
                stream.doubted_at = None
                self._receiver.advance(sub, chan, stream, now)

    def _retract(self, sub: SubscriptionCore, chan: ChannelIn, stream: StreamIn, number: int, handed: bool) -> None:
        """A delivered message was false. If the stream has begun again before it, nothing is missing in its place."""
        if number < stream.next:
            stream.recall(number)
        else:
            stream.older.pop(number, None)
        if handed:
            self._context.counters.retracted += 1
            sub.inbox.report(Retraction(chan.text, stream.publisher, number, sub.pattern_text))
            self._receiver.notify(sub)

    def _begin_again(self, sub: SubscriptionCore, chan: ChannelIn, stream: StreamIn) -> None:
        """The first that was heard of a stream was false. The lowest number that was heard since is the first one. A
        subscription that cannot tell where a stream began still expects all numbers, and so does one that knows of it
        by an agent or its publisher only. What agents are asked now was asked about other numbers."""
        for site in sub.sites.values():
            if site.review is not None:
                site.review.known.pop(stream, None)
        stream.set_aside()
        delivered = [number for number in stream.older if stream.first <= number < stream.next]
        heard = [(number, stream.older[number][0]) for number in delivered]
        heard += [rival[2:] for rival in sub.rivals if rival[:2] == (chan.name, stream.stream)]
        heard += [(number, origin) for number, (_, origin) in stream.held.items()]
        heard += [(number, origin) for number, origins in stream.claims.items() for origin in origins]
        stream.birth = min(heard, default=None)
        stream.contested = 0
        if stream.birth is None and not stream.told:
            del chan.streams[stream.stream]
            return
        if stream.first == 1 and not sub.undivided:
            if stream.told:
                stream.birth = None
            return
        lowest = stream.birth[0] if stream.birth is not None else 1
        if delivered and stream.next - lowest <= RECALLED_MAX:
            stream.recalled.update(range(lowest, min(delivered)))
            stream.first = lowest
        else:
            stream.recalled.clear()
            stream.first = stream.next = lowest
            stream.sure = max(lowest - 1, stream.told)

    def _replace(self, sub: SubscriptionCore, chan: ChannelIn, stream: StreamIn, now: float) -> None:
        """Lets other copies take the place of false ones; what is still missing is asked for."""
        others = [rival for rival in sub.rivals if rival[:2] == (chan.name, stream.stream)]
        for rival in sorted(others, key=lambda rival: rival[2]):
            number, origin = rival[2], rival[3]
            if number >= stream.next or number in stream.recalled:
                message = sub.take_rival(rival)
                if message is not None:
                    stream.disclaim(number, origin)
                    self._receiver.take(sub, chan, stream, number, message, origin, now)
        self._receiver.advance(sub, chan, stream, now)

    # Reviews

    def swept(self, now: float) -> None:
        """Remembers how far each stream has come, every quarter of `publisher_idle_s`. Agents forget a quiet stream
        after that time, and list it with a low number if another client repeats an old message: that proves nothing
        about what came before the oldest of three sweeps. What came later is too young to be forgotten."""
        idle_s = self._context.limits.publisher_idle_s
        late = now - self._swept_at > LATE_SWEEP * idle_s
        self._swept_at = now
        for sub in self._subscriber:
            for _, stream in sub.all_streams():
                level = max(stream.last, stream.next - 1)
                stream.levels = (level, level, level) if late else (*stream.levels[1:], level)

    def review_due(self, site: SubscribedServer, now: float) -> None:
        """Asks an agent for the positions of the streams."""
        sub = site.sub
        if sub.closed or not site.link.open or not sub.in_force or sub.sites.get(site.server) is not site:
            return
        self._context.counters.rechecks += 1
        self._subscriber.drop_review(site)
        known = {
            stream: (stream.next, {(number, one) for number, of in stream.claims.items() for one in of})
            for _, stream in sub.all_streams()
        }
        for stream, (_, copies) in known.items():
            if stream.birth is not None:
                copies.add(stream.birth)
        for channel, number, sequence, origin in sub.rivals:
            chan = sub.channels.get(channel)
            if chan is not None and number in chan.streams:
                known[chan.streams[number]][1].add((sequence, origin))
        site.review = Review(self._context.next_number(), site.link.incarnation, known)
        self._subscriber.reviews[site.review.nonce] = site
        self._subscriber.say_hello(site, site.review.nonce)

    def reviewed(self, site: SubscribedServer, answer: control.Answer, now: float) -> None:
        """An agent has listed the positions of the streams: of every authentic one that it heard and has not
        forgotten."""
        review, site.review = site.review, None
        sub, server = site.sub, site.server
        if review is None:
            return
        if not answer.complete or answer.incarnation != review.incarnation:
            for chan, stream in sub.all_streams():
                if stream.contested:
                    self._receiver.doubt(sub, chan, stream, now)
            return
        lasts = {(channel, stream): last & ~ENDED for channel, stream, last, _ in answer.streams}
        for chan, stream in sub.all_streams():
            following, copies = review.known.get(stream, (0, set()))
            stream.contested = 0
            listed = lasts.get((chan.name, stream.stream), 0)
            last = max(listed, stream.exempt.get(server, 0), stream.levels[0])
            if following > last + 1:
                stream.set_aside()
                delivered = stream.older.items()
                copies = copies | {(number, origin) for number, (origin, _) in delivered if number < following}
            found = [(stream.stream, *copy) for copy in copies if copy[0] > last and copy[1].server == server]
            if found:
                self._refute(sub, chan.name, sorted(found), now)


def _named(
    sub: SubscriptionCore, channel: bytes, listed: list[tuple[int, int, int]], server: str
) -> list[tuple[int, int, Origin]]:
    """The copies from a server that a subscription knows and an agent names as false."""
    chan = sub.channels.get(channel)
    streams = chan.streams if chan is not None else {}
    known: dict[tuple[int, int], set[Origin]] = {
        (stream, number): streams[stream].origins(number) if stream in streams else set()
        for stream, number, _ in listed
    }
    for name, stream, number, origin in sub.rivals:
        if name == channel and (stream, number) in known:
            known[stream, number].add(origin)
    for name, blob, source in chain(sub.early, sub.passed):
        if name == channel and source == server and is_envelope(blob):
            _, stream, number, _, _ = WORDS.unpack_from(blob)
            if (stream, number) in known:
                known[stream, number].add(Origin.of(blob, source))
    return [
        (stream, number, origin)
        for stream, number, mark in listed
        for origin in sorted(known[stream, number])
        if origin.server == server and origin.mark(stream, number) == mark
    ]


def _is_unheard(sub: SubscriptionCore, channel: bytes, copy: tuple[int, int, Origin]) -> bool:
    """Whether a copy came before the agent of its server began to listen. An agent that knows only newer secrets names
    an old message as false if another client repeats it; it does not mean the true copy."""
    number, sequence, origin = copy
    chan = sub.channels.get(channel)
    stream = chan.streams.get(number) if chan is not None else None
    return stream is not None and sequence <= stream.exempt.get(origin.server, 0)


def _is_listed(name: bytes, blob: bytes, server: str, channel: bytes, listed: list[tuple[int, int, int]]) -> bool:
    """Whether an agent names a copy that waits for its answer."""
    if name != channel or (copy := _copy(blob, server)) is None:
        return False
    stream, number, origin = copy
    return any(named[:2] == (stream, number) and named[2] == origin.mark(stream, number) for named in listed)


def _copy(blob: bytes, server: str) -> tuple[int, int, Origin] | None:
    """Which copy a payload is; None if it has no header."""
    if not is_envelope(blob):
        return None
    _, stream, sequence, _, _ = WORDS.unpack_from(blob)
    return stream, sequence, Origin.of(blob, server)
