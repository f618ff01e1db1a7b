"""Judges what arrives for a subscription: delivers it, drops it as a duplicate, holds it behind a hole, heals the hole
or reports the gap.

Owns the promise "exactly once, in order, no silent loss" on the subscriber's side. Every wait ends on evidence (the
missing message, a beacon, a publisher's answer); `gap_timeout_s` is the last resort.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from shoal.channels.client.context import Context
from shoal.channels.client.incoming_stream import RESENT, ChannelIn, Origin, Request, StreamIn
from shoal.channels.client.server_link import ServerLink
from shoal.channels.client.subscription import SubscribedServer, SubscriptionCore
from shoal.channels.states import LinkState, SiteState
from shoal.channels.timers import patience
from shoal.errors import ProtocolError
from shoal.message import Gap, Message
from shoal.rules import rule
from shoal.wire import control
from shoal.wire.envelope import (
    ATTRIBUTES,
    BEACON,
    ENDED,
    FINAL,
    FOREIGN,
    HEADER,
    HEADER_BYTES,
    UNKNOWN_FLAGS,
    US_PER_S,
    WORDS,
    body_at,
    client_of,
    is_envelope,
    is_plain,
    settled_of,
    split_attributes,
)

DEDUPE: Final = rule("dedupe", "A sequence number below the next expected one is a duplicate and is dropped.")
ORDER: Final = rule("order", "A message after a hole waits until the hole is healed or reported.")
HEAL: Final = rule("heal", "A hole is requested from its publisher before it is reported.")
UNBROKEN: Final = rule("unbroken", "After a lapsed lease, an unknown stream is expected from its first number.")
AWAY: Final = rule("away", "A subscriber that was away, or had no room, takes what it missed only from the publishers.")
BASELINE: Final = rule("baseline", "A new subscription starts at the positions of the streams that the agent names.")


REQUESTS_MAX: Final = 4096
"""Requests to publishers whose answers are taken. Beyond it the oldest are forgotten, and asked again."""

ASKED_MAX: Final = 10_000
"""Streams whose last question is remembered."""
SHARED_SHARE: Final = 0.5
"""A question of another subscription counts for this share of `heal_retry_s`."""

FOREIGN_PUBLISHER: Final = 0
"""The publisher in gaps for messages of plain Redis clients."""


class Receiver:
    """The subscriber's half of the data path."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.streams_max = context.limits.streams_per_channel_max
        self._requests: dict[int, Request] = {}
        self._asked: dict[int, tuple[tuple[int, int, int] | None, float]] = {}
        """The last question about each stream: its numbers, and when it was sent."""

    # What arrives

    def accept_next(self, sub: SubscriptionCore, blob: bytes, server: str) -> bool:
        """Takes a plain message if it is the next of its stream and there is room; returns whether it was. `Arrivals`
        does the same inline where a channel has one subscription."""
        if len(blob) < HEADER_BYTES or not sub.in_force:
            return False
        word, stream_id, sequence, time_us, tag = WORDS.unpack_from(blob)
        stream = sub.streams.get(stream_id)
        if stream is None or stream.next != sequence or stream.held or sub.inbox.full:
            return False
        if stream.lane != server or stream.word != word:
            return False
        stream.next = sequence + 1
        handed = self.deliver(sub, Message(sub.text, blob[HEADER_BYTES:], stream.publisher, sequence, time_us))
        if self._context.key is not None:
            stream.note(sequence, Origin(server, word, time_us, tag), handed)
        return True

    def accept(
        self, sub: SubscriptionCore, channel: bytes, blob: bytes, server: str, now: float, resent: bool = False
    ) -> None:
        """Takes any payload from a channel, or a message that its publisher has sent again."""
        if not sub.in_force:
            self._keep_early(sub, channel, blob, server)
            return
        if not resent and self._keep_unanswered(sub, channel, blob, server, now):
            return
        if not is_envelope(blob):
            self._foreign(sub, sub.channel(channel), blob)
            return
        _, flags, version, stream_id, sequence, time_us = HEADER.unpack_from(blob)
        if flags & UNKNOWN_FLAGS:
            self._context.report_unknown_flags(channel, flags & UNKNOWN_FLAGS, now)
            return
        if flags & FOREIGN:
            self._foreign(sub, sub.channel(channel), blob[body_at(blob) :])
            return
        if not client_of(stream_id):
            self._context.counters.garbage += 1
            return
        chan = sub.channel(channel)
        origin: Origin | None = None
        lapsed = stream_id in chan.lapsed
        if self._context.key is not None:
            origin = RESENT if resent else Origin.of(blob, server)
        try:
            if flags & BEACON:
                settled = settled_of(blob)
                if settled > sequence:
                    raise ProtocolError("a peer sent a beacon that has confirmed more than it has published")
                known = chan.streams.get(stream_id)
                past = self._is_past(sub, time_us / US_PER_S, now)
                stream = known or self._meet(
                    sub, chan, stream_id, sequence + 1 if past else settled + 1, version, server, now, past
                )
                if known is None and not lapsed:
                    stream.born(sequence, origin, beacon=True)
                elif known is not None:
                    known.confirm_birth(origin)
                if past:
                    stream.past_by = sequence, origin
                self._beacon(sub, chan, stream, sequence, bool(flags & FINAL), origin, server, now)
                return
            if not sequence:
                raise ProtocolError("a peer sent a message with the number 0")
            at = body_at(blob)
            attributes, payload = split_attributes(blob, at) if flags & ATTRIBUTES else (None, blob[at:])
        except ProtocolError:
            self._context.counters.garbage += 1
            return
        message = Message(chan.text, payload, client_of(stream_id), sequence, time_us, attributes, sub.pattern_text)
        known = chan.streams.get(stream_id)
        stream = known or self._meet(sub, chan, stream_id, sequence, version, server, now)
        if known is None and not lapsed:
            stream.born(sequence, origin)
        stream.server = server
        expected = stream.next == sequence and not resent
        self.take(sub, chan, stream, sequence, message, origin, now)
        if expected and stream.next > sequence and not stream.has_hole():
            word, *_ = WORDS.unpack_from(blob)
            stream.take_lane(server if is_plain(word) else "", word)

    def _foreign(self, sub: SubscriptionCore, chan: ChannelIn, blob: bytes) -> None:
        """Takes a message of a plain Redis client. It cannot be sent again, so if it does not fit it becomes a gap."""
        self._context.counters.foreign += 1
        if not sub.inbox.full:
            sub.foreign_missed = False
            self.deliver(sub, Message(chan.text, blob, pattern=sub.pattern_text))
        elif not sub.foreign_missed:
            sub.foreign_missed = True
            self._report(sub, chan, FOREIGN_PUBLISHER, 0, None, "the inbox was full, and foreign messages are not kept")

    def _keep_early(self, sub: SubscriptionCore, channel: bytes, blob: bytes, server: str) -> None:
        """Keeps a message that came before the subscription is in force. Nothing is owed yet, so if there are too many,
        the subscription starts after the kept ones. Where their numbers may be false, it remembers the claims of the
        newest, and asks the publishers for those above the baseline."""
        if len(sub.early) >= self._context.limits.held_messages_max:
            for early in sub.early:
                if self._context.key is None:
                    self._start_after(sub, *early)
                else:
                    sub.passed.append(early)
            sub.early.clear()
        sub.early.append((channel, blob, server))

    def _keep_unanswered(self, sub: SubscriptionCore, channel: bytes, blob: bytes, server: str, now: float) -> bool:
        """Keeps a message from a server whose agent has not yet listed the positions of its streams; returns whether it
        does. If there are too many, the oldest are dropped and requested from their publishers: the agent may not have
        heard them when it answers."""
        site = sub.sites.get(server)
        if site is None or site.state is not SiteState.ASKING or self._context.key is None:
            return False
        if AWAY not in self._context.rules:
            return False
        site.kept.append((channel, blob))
        if len(site.kept) > self._context.limits.held_messages_max:
            self._claim_passed(sub, *site.kept.pop(0), server, now)
        return True

    def returned(self, sub: SubscriptionCore, site: SubscribedServer, listed: control.HeardList, now: float) -> None:
        """An agent has listed the positions of its streams at the time when the subscription came: numbers up to them
        are taken from resends only, higher ones as they arrive. If it did not list all streams, the other publishers
        have to announce theirs."""
        kept, site.kept = site.kept, []
        unlisted = site.server in sub.unlisted
        if self._context.key is not None and AWAY in self._context.rules:
            for _, stream in sub.all_streams() if unlisted else ():
                stream.barred.pop(site.server, None)
            for channel, number, last, _ in listed:
                chan = sub.channels.get(channel)
                known = chan.streams.get(number) if chan is not None else None
                if known is not None and (unlisted or known.next <= last & ~ENDED):
                    known.barred[site.server] = last & ~ENDED
        for channel, blob in kept:
            self.accept(sub, channel, blob, site.server, now)
        for chan, stream in sub.all_streams():
            if stream.attempts and (stream.has_hole() or stream.doubted_at is not None):
                stream.attempts = 0  # the questions may have been lost with the connection
                self._context.timers.set(("heal", sub, chan, stream), now + self._context.limits.heal_delay_s)

    @staticmethod
    def _start_after(sub: SubscriptionCore, channel: bytes, blob: bytes, server: str) -> None:
        """Raises the baseline of a message's stream to its number."""
        if not is_envelope(blob):
            return
        _, flags, _, stream_id, sequence, _ = HEADER.unpack_from(blob)
        if not flags & (UNKNOWN_FLAGS | FOREIGN):
            last = sequence | ENDED if flags & BEACON and flags & FINAL else sequence
            known, _ = sub.baseline.get((channel, stream_id), (0, ""))
            sub.baseline[channel, stream_id] = max(known, last), server

    def _meet(
        self,
        sub: SubscriptionCore,
        chan: ChannelIn,
        stream_id: int,
        heard: int,
        version: int,
        server: str,
        now: float,
        past: bool | None = None,
    ) -> StreamIn:
        """A stream that no agent listed. If a message introduces it on one unbroken connection to a server that was
        always in the ring, by a placement that this client uses, the first number `heard` here is the first that is
        owed; also if a beacon tells that its messages until now are `past`. Otherwise it may have begun elsewhere after
        the subscription did, and everything from 1 is owed: a publisher that is behind may have used another server."""
        link = self._context.links.get(server)
        lapsed = link is not None and link.lapsed(now) and UNBROKEN in self._context.rules
        unbroken = sub.undivided and not lapsed
        placements = self._context.book.subscribed(chan.name)
        if past is None:
            past = unbroken and any(version == known.version for known in placements)
        first = chan.begins(stream_id, heard if past else 1, heard)
        stream = chan.streams[stream_id] = StreamIn(stream_id, first, server, now)
        return stream

    def take(
        self,
        sub: SubscriptionCore,
        chan: ChannelIn,
        stream: StreamIn,
        sequence: int,
        message: Message,
        origin: Origin | None,
        now: float,
    ) -> None:
        """Takes a message of a known stream."""
        counters, rules = self._context.counters, self._context.rules
        stream.touched = now
        if sequence < stream.next and sequence not in stream.recalled:
            counters.duplicates += 1
            if origin is not None:
                self._keep_rival(sub, chan, stream, sequence, message, origin, now)
            if DEDUPE not in rules:
                self.deliver(sub, message)
        elif AWAY in rules and self._is_copy(sub, stream, sequence, origin):
            counters.barred += 1
            stream.claim(sequence, origin)
            self.hole(sub, chan, stream, now)
        elif sub.inbox.full:
            stream.drop(sequence, origin)
            if sequence == stream.next:
                stream.hole_since = now
            self._overflow(sub, now)
        elif sequence < stream.next:
            stream.recalled.discard(sequence)
            stream.older[sequence] = origin or RESENT, self.deliver(sub, message)
            stream.hole_since = now
            self.advance(sub, chan, stream, now)
        elif sequence == stream.next:
            held = stream.held.pop(sequence, None)
            if held is not None and origin is not None and held[1] != origin:
                sub.keep_rival((chan.name, stream.stream, sequence, held[1]), held[0])
            stream.next += 1
            stream.hole_since = now
            stream.last = max(stream.last, sequence)
            if origin is None or origin is RESENT:
                stream.knows(sequence)
            stream.note(sequence, origin, self.deliver(sub, message))
            self.advance(sub, chan, stream, now)
        elif ORDER not in rules:
            stream.skip_to(sequence + 1)
            self.deliver(sub, message)
        else:
            stream.claim(sequence, origin)
            held = stream.held.get(sequence)
            if held is not None and origin is not None and held[1] != origin:
                sub.keep_rival((chan.name, stream.stream, sequence, origin), message)
            elif held is None and len(stream.held) < self._context.limits.held_messages_max:
                stream.held[sequence] = message, origin or RESENT
                counters.held += 1
            self.hole(sub, chan, stream, now)

    @staticmethod
    def _is_copy(sub: SubscriptionCore, stream: StreamIn, sequence: int, origin: Origin | None) -> bool:
        """Whether a message may be a copy of one that was published on its server before the subscription came."""
        if origin is None or origin is RESENT:
            return False
        return stream.is_copy(sequence, origin, origin.server in sub.unlisted)

    def _keep_rival(
        self,
        sub: SubscriptionCore,
        chan: ChannelIn,
        stream: StreamIn,
        sequence: int,
        message: Message,
        origin: Origin,
        now: float,
    ) -> None:
        """A number comes again. If the tag is another one, or the number is below one by which the stream was met, the
        first copy may be false; the publisher is asked if no agent can tell. One that has come before, when there was
        no room, is not kept: it may be altered."""
        if AWAY in self._context.rules and stream.is_claimed(sequence, origin):
            return
        seen = stream.origin_of(sequence)
        if seen[0] != origin if seen is not None else stream.birth is not None and sequence < stream.first:
            self._context.counters.rivals += 1
            sub.keep_rival((chan.name, stream.stream, sequence, origin), message)
            if seen is None and stream.birth is not None:
                self._contest(sub, chan, stream, sequence, stream.birth[1].server, now)

    def _contest(
        self, sub: SubscriptionCore, chan: ChannelIn, stream: StreamIn, sequence: int, server: str, now: float
    ) -> None:
        """A number is below the one by which the stream was met on a server. One of them is false, or the lower one is
        repeated: the agent there is asked, or the publisher if the agent cannot tell."""
        stream.contested = min(stream.contested or sequence, sequence)
        site = sub.sites.get(server)
        if site is None or stream.is_birth_unheard():
            self.doubt(sub, chan, stream, now)
        else:
            self._context.timers.set_if_absent(("review", site), now)

    def _beacon(
        self,
        sub: SubscriptionCore,
        chan: ChannelIn,
        stream: StreamIn,
        last: int,
        final: bool,
        origin: Origin | None,
        server: str,
        now: float,
    ) -> None:
        """Takes a beacon: the position of a stream."""
        stream.server = server
        stream.touched = now
        if final and not stream.final:
            stream.final, stream.end, stream.ended_by = True, last, origin
        elif stream.final and not final and last > stream.end:
            stream.final, stream.ended_by = False, origin
        stream.claim(last, origin)
        if stream.has_hole():
            self.hole(sub, chan, stream, now)

    def deliver(self, sub: SubscriptionCore, message: Message) -> bool:
        """Hands a message to the application; returns False if the application does not want it."""
        if sub.wanted is not None and not sub.wanted(message.attributes or {}):
            self._context.counters.unwanted += 1
            return False
        sub.inbox.put(message)
        self._context.counters.delivered += 1
        self.notify(sub)
        return True

    def notify(self, sub: SubscriptionCore) -> None:
        """The application has new items in its inbox."""
        if not sub.notified:
            sub.notified = True
            self._context.ready.append(sub)

    def _overflow(self, sub: SubscriptionCore, now: float) -> None:
        if not sub.overflowed:
            sub.overflowed = True
            sub.overflowed_at = now
            sub.inbox.overflows += 1
            self._context.counters.overflows += 1

    def advance(self, sub: SubscriptionCore, chan: ChannelIn, stream: StreamIn, now: float) -> None:
        """Delivers the messages held behind a filled hole, as many as fit, and checks for another hole."""
        while stream.next in stream.held:
            if sub.inbox.full:
                self._overflow(sub, now)
                return
            number = stream.next
            message, origin = stream.held.pop(number)
            handed = self.deliver(sub, message)
            stream.next = number + 1
            if self._context.key is not None:
                stream.note(number, origin, handed)
        if stream.has_hole():
            self.hole(sub, chan, stream, now)
        else:
            stream.settle()

    # Baselines and evidence

    def start(self, sub: SubscriptionCore, now: float) -> None:
        """The subscription is in force: every stream starts at its baseline, then early messages are judged."""
        sub.in_force = True
        sub.owed_from = now
        if BASELINE in self._context.rules:
            for (channel, stream_id), (last, server) in sub.baseline.items():
                chan = sub.channel(channel)
                stream = chan.streams[stream_id] = StreamIn(stream_id, (last & ~ENDED) + 1, server, now)
                stream.final, stream.end = bool(last & ENDED), last & ~ENDED
                if server in sub.unlisted:
                    stream.barred[server] = last & ~ENDED
            self._context.counters.late_joins += bool(sub.baseline)
        sub.baseline.clear()
        for channel, blob, server in sub.passed:
            self._claim_passed(sub, channel, blob, server, now)
        sub.passed.clear()
        early, sub.early = sub.early, []
        for channel, blob, server in early:
            self.accept(sub, channel, blob, server, now)
        for server in sub.unheard:
            for _, stream in sub.all_streams():
                stream.exempt[server] = max(stream.last, stream.next - 1)
        sub.unheard.clear()
        self.notify(sub)

    def _claim_passed(self, sub: SubscriptionCore, channel: bytes, blob: bytes, server: str, now: float) -> None:
        """Takes the claim of a message that was not kept until an agent had answered. A copy of it that comes later may
        have another payload, so its publisher is asked for it, also if its stream is not known yet."""
        if is_envelope(blob):
            _, flags, version, stream_id, sequence, _ = HEADER.unpack_from(blob)
            chan = sub.channel(channel)
            stream = chan.streams.get(stream_id)
            if flags & (UNKNOWN_FLAGS | FOREIGN) or not client_of(stream_id) or (stream is None and flags & BEACON):
                return
            origin = Origin.of(blob, server)
            if stream is None:
                stream = self._meet(sub, chan, stream_id, sequence, version, server, now)
                stream.born(sequence, origin)
            stream.claim(sequence, origin)
            if stream.has_hole():
                self.hole(sub, chan, stream, now)

    def evidence(self, sub: SubscriptionCore, listed: control.Heard, server: str, now: float) -> None:
        """An agent reports the position of a stream after a time in which the subscription was not listening there, and
        for how long the stream has been quiet. Messages that an agent heard before `owed_from` are not owed."""
        channel, stream_id, last, quiet_s = listed
        end = (last & ~ENDED) + 1
        past = self._is_past(sub, quiet_s, now)
        chan = sub.channel(channel)
        stream = chan.streams.get(stream_id)
        if stream is None:
            if end <= chan.lapsed.get(stream_id, 0):
                return
            first = chan.begins(stream_id, end if past else 1, end)
            stream = chan.streams[stream_id] = StreamIn(stream_id, first, server, now)
        elif past and not stream.has_hole():
            stream.skip_to(end)
            stream.sure = max(stream.sure, end - 1)
        if end > stream.last + 1:
            stream.touched = now
        stream.knows(end - 1)
        if last & ENDED:
            stream.final, stream.end, stream.ended_by = True, end - 1, None
            stream.doubted_at = None
        if stream.has_hole():
            self.hole(sub, chan, stream, now)
        if end > stream.last and (stream.has_hole() or server in self._context.book.placement(channel).servers):
            stream.server = server  # its agent can vouch for the stream if another server is lost

    def _is_past(self, sub: SubscriptionCore, age_s: float, now: float) -> bool:
        """Whether an event whose age another process measured as `age_s` happened before the subscription began."""
        drift = self._context.limits.clock_drift_max
        return age_s * (1 - drift) > (now - sub.owed_from) * (1 + drift)

    def vouched(self, sub: SubscriptionCore, heard: set[tuple[bytes, int]], server: str) -> None:
        """The agent of a server has listed these streams: those last heard there are not in doubt any more, unless
        it is open by which claim they were met."""
        for chan, stream in sub.all_streams():
            if stream.server == server and (chan.name, stream.stream) in heard and not stream.contested:
                stream.doubted_at = None

    def doubt(self, sub: SubscriptionCore, chan: ChannelIn, stream: StreamIn, now: float) -> None:
        """A stream was not heard for a while; its publisher is asked for its position. Messages on the channel do not
        answer that: another client may repeat them."""
        if not stream.has_ended() and stream.doubted_at is None:
            stream.doubted_at = stream.next
            self._context.timers.set(("doubt", sub, chan, stream), now + self._context.limits.gap_timeout_s)
            self._context.timers.set_if_absent(("heal", sub, chan, stream), now + self._context.limits.heal_delay_s)

    def doubt_due(self, sub: SubscriptionCore, chan: ChannelIn, stream: StreamIn, now: float) -> None:
        """The publisher has not answered: its possible last messages are reported as an open gap. While its stream
        continues, it has more time."""
        if stream.doubted_at is None or sub.closed or chan.streams.get(stream.stream) is not stream:
            return
        goes_on = stream.doubted_at != stream.next
        if goes_on or stream.has_ended():
            stream.doubted_at = None
            self.doubt(sub, chan, stream, now)
            return
        reason = "no agent heard it for a while, and its publisher does not answer"
        self._report(sub, chan, client_of(stream.stream), stream.contested or stream.next, None, reason)
        for number in sorted(stream.held):
            self.deliver(sub, stream.held[number][0])
            stream.next = number + 1
        chan.lapse(stream)

    def report_unwatched(self, sub: SubscriptionCore, server: str) -> None:
        """No agent watched a server while this subscription was away: a publisher that began and died meanwhile is
        unknown."""
        reason = f"no agent watched server {server} for a while; publishers that began and died then are unknown"
        self._report_unknown(sub, reason)

    def report_unlisted(self, sub: SubscriptionCore, server: str) -> None:
        """An agent cannot list all publishers of its server: one that died while this subscription was away is
        unknown."""
        self._report_unknown(sub, f"the agent of server {server} has no room for all publishers; some are unknown")

    def report_forgotten(self, sub: SubscriptionCore) -> None:
        """This client was away for longer than agents remember streams."""
        self._report_unknown(sub, "this client was away for longer than agents remember publishers; some are unknown")

    def _report_unknown(self, sub: SubscriptionCore, reason: str) -> None:
        self._context.counters.open_gaps += 1
        sub.inbox.report(Gap(sub.text, None, 0, None, reason, sub.pattern_text))
        self.notify(sub)

    # Holes

    def hole(self, sub: SubscriptionCore, chan: ChannelIn, stream: StreamIn, now: float) -> None:
        """A stream has a hole: its publisher will be asked."""
        if stream.hole_since is None:
            stream.hole_since = now
            self._context.counters.holes += 1
        self._context.timers.set_if_absent(("heal", sub, chan, stream), now + self._context.limits.heal_delay_s)

    def heal_due(self, sub: SubscriptionCore, chan: ChannelIn, stream: StreamIn, now: float) -> None:
        """Asks the publisher for the first hole, or for its position, until it answers or the time is over."""
        limits = self._context.limits
        if sub.closed or sub.overflowed or chan.streams.get(stream.stream) is not stream:
            return
        if not stream.has_hole():
            stream.hole_since = None
            if stream.doubted_at is None:
                return
        elif stream.hole_since is None:
            stream.hole_since = now
        elif now - stream.hole_since >= limits.gap_timeout_s and not self._review_claims(sub, stream, now):
            last = stream.hole_end()
            if stream.is_past(last):
                stream.disclaim_past()
                self._skip(sub, chan, stream, min(last, stream.last), now)
            else:
                self._give_up(sub, chan, stream, last, "its publisher did not answer", now)
            if stream.doubted_at is not None:
                stream.attempts = 0
                self._context.timers.set(("heal", sub, chan, stream), now + limits.heal_delay_s)
            return
        if HEAL in self._context.rules:
            self._ask(sub, chan, stream, now)
        self._context.timers.set(("heal", sub, chan, stream), now + patience(limits.heal_retry_s, stream.attempts))
        stream.attempts += 1

    def _review_claims(self, sub: SubscriptionCore, stream: StreamIn, now: float) -> bool:
        """Before a hole for which messages are the only evidence becomes a gap, asks the agents once more; returns
        whether it does."""
        if self._context.key is None or stream.sure >= stream.hole_end() or stream.reviewed_at == stream.hole_begin():
            return False
        stream.reviewed_at = stream.hole_begin()
        for site in sub.sites.values():
            self._context.timers.set(("review", site), now)
        return True

    def _ask(self, sub: SubscriptionCore, chan: ChannelIn, stream: StreamIn, now: float) -> None:
        """Asks where the stream was last heard; without an answer, every other time on the other servers of the
        subscription in turn. The first attempt may go into getting the publisher's key."""
        links = [site.link for site in sub.sites.values() if site.link.open]
        if not links:
            return
        links.sort(key=lambda link: link.server != stream.server)
        elsewhere = len(links) > 1 and stream.attempts and not stream.attempts % 2
        link = links[1 + stream.attempts // 2 % (len(links) - 1)] if elsewhere else links[0]
        if self._context.peers.lacks(client_of(stream.stream)):
            self._introduce(link, client_of(stream.stream), ("heal", sub, chan, stream))
            return
        stream.asked = begin = stream.hole_begin()
        room = max(1, (sub.inbox.messages_max - len(sub.inbox.items)) // max(1, sub.healing))
        hole_end = stream.hole_end() if stream.has_hole() else begin
        last = min(hole_end, begin + min(room, self._context.limits.heal_page_messages) - 1)
        if self._was_asked(stream, (begin, last, hole_end), now):
            self._context.counters.heals_shared += 1
            return
        self._context.counters.heals_asked += 1
        nonce = self._context.next_number()
        numbers = (*stream.held, *stream.claims)
        self._requests[nonce] = Request(stream.stream, stream.last, stream.sure, numbers, now)
        if len(self._requests) > REQUESTS_MAX:
            del self._requests[next(iter(self._requests))]
        request = control.Heal(chan.name, stream.stream, begin, last, hole_end)
        self._context.ask_peer(link, client_of(stream.stream), request, nonce, repeated=stream.attempts > 0)

    def _introduce(self, link: ServerLink, publisher: int, timer: Hashable) -> None:
        """Asks an agent for the key of a publisher; the publisher is asked for messages when the key has arrived."""
        usable = [other for other in self._context.links.values() if other.state is LinkState.USABLE]
        if link.state is not LinkState.USABLE and usable:
            link = usable[0]
        nonce = self._context.next_number()
        self._context.counters.introductions += 1
        self._context.peers.asked(nonce, publisher, timer)
        self._context.tell_agent(link, control.Introduce(nonce, publisher))

    def introduced(self, nonce: int, message: control.Introduced, now: float) -> None:
        """An agent has sent the key of a publisher."""
        for timer in self._context.peers.introduced(nonce, message, self._context.generation):
            self._context.timers.set(timer, now)

    def request(self, nonce: int, publisher: int) -> Request | None:
        """The request that an answer names; None if this publisher was not asked, or has answered already."""
        request = self._requests.get(nonce)
        return request if request is not None and client_of(request.stream) == publisher else None

    def answered(self, nonce: int) -> None:
        """A publisher has answered a request completely."""
        self._requests.pop(nonce, None)

    def _was_asked(self, stream: StreamIn, question: tuple[int, int, int], now: float) -> bool:
        """Whether another subscription of this client has just asked for the same messages: all of its subscriptions
        take the resent messages."""
        known, at = self._asked.pop(stream.stream, (None, 0.0))
        fresh = known == question and now < at + SHARED_SHARE * self._context.limits.heal_retry_s
        self._asked[stream.stream] = question, at if fresh else now
        if len(self._asked) > ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        return fresh

    def resent(self, sub: SubscriptionCore, message: control.Resend, server: str, now: float) -> None:
        """A message that its publisher sent again; only those that were asked for are taken."""
        if not is_envelope(message.blob):
            self._context.counters.garbage += 1
            return
        _, flags, _, stream_id, sequence, _ = HEADER.unpack_from(message.blob)
        chan = sub.channels.get(message.channel)
        stream = chan.streams.get(stream_id) if chan else None
        if stream is None or not stream.asked or flags & BEACON:
            return
        if not stream.next <= sequence <= stream.last and sequence not in stream.recalled:
            return
        before = stream.next, len(stream.held), len(stream.recalled)
        self.accept(sub, message.channel, message.blob, server, now, resent=True)
        if (stream.next, len(stream.held), len(stream.recalled)) != before:
            self._context.counters.healed += 1
            stream.hole_since = now if stream.has_hole() else None
            stream.attempts = 0

    def healed(self, sub: SubscriptionCore, message: control.Healed, now: float, request: Request | None) -> None:
        """The end of a page: messages that the publisher no longer has are a gap; the rest of the hole is asked for
        next.

        Only the answer to the last question does that. Questions are repeated, and a client may have several
        subscriptions to a channel, so answers come more than once; if each answer led to a question, their number would
        never shrink.
        """
        chan = sub.channels.get(message.channel)
        stream = chan.streams.get(message.stream) if chan else None
        if chan is None or stream is None or not stream.asked:
            return
        stream.doubted_at = None
        stream.contested = 0
        stream.touched = now
        stream.knows(message.last)
        if request is not None and request.stream == message.stream:
            self._bound(sub, stream, message.assigned, request)
        if request is not None and self.is_withdrawn(message, request):
            self._context.counters.evidence_withdrawn += 1
            stream.deny(message.assigned, request)
        if stream.has_hole() and message.first != stream.asked:
            return
        stream.asked = 0
        if not stream.has_hole():
            stream.attempts = 0
            sub.healing = max(0, sub.healing - 1)
            if not message.floor and stream.next == 1 and not stream.last:  # never begun: another client made it up
                chan.streams.pop(stream.stream)
            return
        if stream.hole_begin() > message.first:
            stream.hole_since = now
            stream.attempts = 0
        if stream.hole_begin() < message.floor:
            lost_to = min(stream.hole_end(), message.floor - 1)
            if lost_to <= message.until and self._is_past(sub, message.age_ms / 1000, now):
                self._skip(sub, chan, stream, lost_to, now)
            else:
                self._give_up(sub, chan, stream, lost_to, "its publisher no longer has them", now)
        if stream.has_hole() and stream.hole_begin() > message.first:
            self._context.timers.set(("heal", sub, chan, stream), now)

    @staticmethod
    def _bound(sub: SubscriptionCore, stream: StreamIn, assigned: int, request: Request) -> None:
        """A publisher has announced its position. If it was asked after an agent had answered without listing the
        stream, the stream had come no further at that time: higher numbers are new there."""
        for server, answered_at in sub.unlisted.items():
            if request.sent_at > answered_at:
                stream.barred.setdefault(server, assigned)

    def is_withdrawn(self, message: control.Healed, request: Request) -> bool:
        """Whether the publisher has not used all the numbers that were known to exist when it was asked. Only with
        authentic messages: otherwise any client could claim it."""
        if self._context.key is None or request.stream != message.stream:
            return False
        return message.assigned < request.known

    def _give_up(
        self, sub: SubscriptionCore, chan: ChannelIn, stream: StreamIn, last: int, reason: str, now: float
    ) -> None:
        """Reports a hole. The time limit for the next one runs from the last sign of life of its publisher."""
        self._report(sub, chan, client_of(stream.stream), stream.hole_begin(), last, reason)
        self._skip(sub, chan, stream, last, now)

    def _skip(self, sub: SubscriptionCore, chan: ChannelIn, stream: StreamIn, last: int, now: float) -> None:
        """Continues behind `last`: missing messages up to it were reported, or are not owed."""
        stream.skip_to(last + 1)
        stream.hole_since = now if stream.hole_since is None else max(stream.hole_since, stream.touched)
        self.advance(sub, chan, stream, now)
        if stream.doubted_at is not None:
            stream.doubted_at = stream.next

    def _report(
        self, sub: SubscriptionCore, chan: ChannelIn, publisher: int, first: int, last: int | None, reason: str
    ) -> None:
        self._context.counters.gaps += 1
        self._context.counters.open_gaps += last is None
        sub.inbox.report(Gap(chan.text, publisher, first, last, reason, sub.pattern_text))
        self.notify(sub)

    # Room and memory

    def made_room(self, sub: SubscriptionCore, now: float) -> None:
        """The application has caught up: messages that did not fit are asked for again. The time without room does not
        count against a publisher."""
        if sub.overflowed and sub.inbox.roomy:
            sub.overflowed = False
            sub.healing = 0
            for chan, stream in sub.all_streams():
                self.advance(sub, chan, stream, now)
                if stream.has_hole():
                    known_s = sub.overflowed_at - stream.hole_since if stream.hole_since is not None else 0.0
                    stream.hole_since = now - max(0.0, known_s)
                    self._context.timers.set(("heal", sub, chan, stream), now)
                    sub.healing += 1
                elif stream.doubted_at is not None:
                    self._context.timers.set(("heal", sub, chan, stream), now)

    def forget_idle(self, sub: SubscriptionCore, now: float) -> None:
        """Drops streams that have been idle so long that they have ended and no agent lists them any more (see
        `publisher_idle_s`), and the longest idle ones of a channel that has too many."""
        limits = self._context.limits
        for chan, stream in sub.all_streams():
            if stream.next != stream.marked and not stream.has_hole():
                stream.marked, stream.touched = stream.next, now
            idle = now - stream.touched > 2 * limits.publisher_idle_s
            if idle and not stream.has_hole() and stream.doubted_at is None:
                if stream.final:
                    del chan.streams[stream.stream]
                else:  # its publisher may be cut off, with messages that no server has confirmed
                    chan.lapse(stream)
        for chan in list(sub.channels.values()):
            chan.bound(limits.streams_per_channel_max)
        if sub.pattern:
            sub.drop_silent_channels()
