"""Publishing: resolving a channel before its first message, confirmation, repeats, beacons, and resends to subscribers
that missed messages.

Owns every stream of this client. A message is accepted at once and sent when its lane is live.
"""

from __future__ import annotations

from typing import Final

from shoal.channels import states
from shoal.channels.client.context import Abandoned, Confirmed, Context, PublishRefused
from shoal.channels.client.heal_meter import HealMeter
from shoal.channels.client.outgoing_stream import Lane, Outgoing
from shoal.channels.client.server_link import ServerLink
from shoal.channels.states import ANNOUNCE
from shoal.channels.timers import patience
from shoal.rules import rule
from shoal.wire import control, envelope
from shoal.wire.envelope import SUFFIX, UNTAGGED

REPEAT: Final = rule("repeat", "Unconfirmed messages are repeated after the connection is lost.")


_pack = SUFFIX.pack
_pack_untagged = UNTAGGED.pack


CHUNK_MESSAGES: Final = 64
CHUNK_BYTES: Final = 1 << 18
"""The size of a chunk when a lane has fallen behind."""

PACES_QUIET: Final = 2.0
"""A stream with a steady pace counts as quiet after this many paces without a message."""

BEGUN_MAX: Final = 4096
"""Streams whose channel a publisher remembers. It does not answer questions about older ones that have ended."""


class Publisher:
    """All outgoing channels of one router.

    `published` and `published_bytes` only grow. Confirmations raise `full_at` and `full_at_bytes`, which they may not
    pass, so that a message moves two counters and not four."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.published = 0
        """Messages that were accepted."""
        self.published_bytes = 0
        """Their size, with envelopes."""
        self._freed_bytes = 0
        """The size of those that are in no resend window any more."""
        self.full_at = context.limits.publish_buffer_messages_max
        self.full_at_bytes = context.limits.publish_buffer_bytes_max
        """Where the publish buffer is full: all that is confirmed or was abandoned, and what fits the buffer."""
        self._outs: dict[bytes, Outgoing] = {}
        self._epoch = 0
        self._begun: dict[int, bytes] = {}
        """The channels of the streams that began last, by epoch."""
        self._meter = HealMeter(context.limits)
        self.asked: dict[int, Lane] = {}
        self.turn_s_max = 0.0
        """How much later than its time a message may have been published, at most; see `Router.turn_took`."""

    @property
    def pending_messages(self) -> int:
        """Messages that are not confirmed yet."""
        return self.published - self.full_at + self._context.limits.publish_buffer_messages_max

    @property
    def pending_bytes(self) -> int:
        """Their size, with envelopes."""
        return self.published_bytes - self.full_at_bytes + self._context.limits.publish_buffer_bytes_max

    @property
    def resend_bytes(self) -> int:
        """The size of all resend windows."""
        return self.published_bytes - self._freed_bytes

    # The application publishes

    def publish(self, channel: bytes, payload: bytes, attributes: bytes, time_us: int, now: float) -> Outgoing | None:
        """Accepts a message with its encoded attributes; it is sent as soon as its servers may be used. Returns its
        stream, whose newest message it is; None while the publish buffer is full. The caller has checked name and
        size."""
        if self.published >= self.full_at or self.published_bytes >= self.full_at_bytes:
            return None
        out = self._outs.get(channel)
        if out is None:
            out = self._open(channel, now)
        out.seq = seq = out.seq + 1
        prefix = out.prefix
        if attributes:
            prefix = envelope.prefix(envelope.ATTRIBUTES, out.placement.version, out.stream)
            payload = attributes + payload
        if out.tags is None:
            blob = prefix + _pack(seq, time_us) + payload
        else:
            head = _pack_untagged(prefix, seq, time_us)
            tag = out.tags.copy()
            tag.update(head)
            blob = head + tag.digest() + payload
        size = len(blob)
        out.window.append(blob)
        out.sizes.append(size)
        out.resend_bytes += size
        if out.turn_at != now:
            self._begin_turn(out, now)
        self.published += 1
        self.published_bytes += size
        lane = out.bursting
        if lane is not None:
            lane.sent = seq
            lane.link.burst.append(blob)
        else:
            self._send(out, blob, now)
        return out

    def _send(self, out: Outgoing, blob: bytes, now: float) -> None:
        """Sends the newest message of a stream if its only lane may be used now and has sent all others. The messages
        of the same turn that follow it go into the same burst."""
        lane = out.solo
        if lane is not None and lane.sent == out.seq - 1 and now < lane.link.usable_until:
            lane.sent = out.seq
            lane.link.carry(lane, blob)
            self._context.touch(lane.link)
            out.bursting = lane
            return
        for lane in out.lanes:
            if lane.state is states.LaneState.LIVE:
                self._pump(lane, now)

    def _begin_turn(self, out: Outgoing, now: float) -> None:
        """The first message at this time: a shell gives all messages of one turn of its loop the same time."""
        if not out.beacon_armed:
            self._arm_beacon(out, now)
        if now >= out.mark_due:
            out.mark(now)
        out.turn_at = out.published_at = now
        out.bursting = None  # the lease is checked again

    def await_confirm(self, out: Outgoing, seq: int, token: object) -> bool:
        """Asks for a `Confirmed` effect with the token; returns False if the message is confirmed already."""
        if out.confirmed >= seq:
            return False
        out.waiters[seq] = token
        return True

    def uses(self, channel: bytes) -> bool:
        """Whether this client has a stream on the channel."""
        return channel in self._outs

    def _open(self, channel: bytes, now: float) -> Outgoing:
        self._epoch += 1
        self._begun[self._epoch] = channel
        if len(self._begun) > BEGUN_MAX:
            del self._begun[next(iter(self._begun))]
        stream = envelope.stream_id(self._context.client, self._epoch)
        out = self._outs[channel] = Outgoing(channel, stream, self._context.book.placement(channel), now)
        self._lay_lanes(out, now)
        return out

    # Where messages go

    def place(self, out: Outgoing, now: float) -> None:
        """Applies the plan to the lanes of a channel."""
        placement = self._context.book.placement(out.name)
        if placement != out.placement:
            out.use(placement)
            self._lay_lanes(out, now)

    def place_all(self, now: float) -> None:
        """Applies a new ring to every channel."""
        for out in list(self._outs.values()):
            self.place(out, now)

    def place_channel(self, channel: bytes, now: float) -> None:
        """Applies a new entry to a channel, if this client publishes on it."""
        out = self._outs.get(channel)
        if out is not None:
            self.place(out, now)

    def _lay_lanes(self, out: Outgoing, now: float) -> None:
        wanted = out.placement.publish_servers(self._context.client)
        for lane in [lane for lane in out.lanes if lane.link.server not in wanted]:
            lane.step("moved away")
            out.lanes.remove(lane)
            lane.link.lanes.pop(lane, None)
            self._send_left(lane.link, out)
        present = {lane.link.server for lane in out.lanes}
        for server in wanted:
            if server not in present:
                lane = Lane(out, self._context.links[server], out.confirmed)
                out.lanes.append(lane)
                lane.link.lanes[lane] = None
                self._context.want(lane.link, now)
                if lane.link.state is states.LinkState.USABLE:
                    self._ask(lane, now)
        self._settle(out)
        out.find_solo()

    def repeat_left(self, link: ServerLink, channel: bytes) -> None:
        """The agent of a server seems not to know that this client has left: sends Left again."""
        out = self._outs.get(channel)
        if out is not None and all(lane.link is not link for lane in out.lanes):
            self._send_left(link, out)

    def _send_left(self, link: ServerLink, out: Outgoing) -> None:
        """Sends Left to the agent of a server, so that it does not wait for this stream any more."""
        revision = self._context.book.revision(out.name)
        if revision and link.open and self._context.knows_incarnation(link):
            self._context.tell_agent(link, control.Left(out.name, out.stream, revision, link.incarnation))

    def _ask(self, lane: Lane, now: float) -> None:
        """Resolves the channel at the server's agent before anything is sent there."""
        lane.step("link usable")
        nonce = self._context.next_number()
        self.asked[nonce] = lane
        self._hello(lane, nonce, 0, now)

    def _hello(self, lane: Lane, nonce: int, attempts: int, now: float) -> None:
        """Sends Hello, or waits for its turn if the agent is busy."""
        if lane.link.is_busy(now):
            at = self._context.queue(lane.link, now)
            self._context.timers.set(("resolve turn", lane, nonce, attempts), at)
        else:
            self._send_hello(lane, nonce, attempts, now)

    def resolve_turn(self, lane: Lane, nonce: int, attempts: int, now: float) -> None:
        """A Hello has waited for its turn, which may have been postponed meanwhile."""
        if self.asked.get(nonce) is not lane:
            return
        if lane.state is not states.LaneState.ASKING or not lane.link.open:
            del self.asked[nonce]
        elif now < lane.link.busy_until:
            self._hello(lane, nonce, attempts, now)
        else:
            self._send_hello(lane, nonce, attempts, now)

    def _send_hello(self, lane: Lane, nonce: int, attempts: int, now: float) -> None:
        out = lane.out
        book = self._context.book
        self._context.tell_agent(
            lane.link,
            control.Hello(
                nonce, out.name, False, False, book.revision(out.name), book.version, out.stream, lane.confirmed
            ),
        )
        wait_s = patience(self._context.limits.hello_retry_s, attempts)
        self._context.timers.set(("resolve", lane, nonce, attempts + 1), now + wait_s)

    def resolve_due(self, lane: Lane, nonce: int, attempts: int, now: float) -> None:
        """No answer yet: asks again, unless the lane does not need it any more."""
        if self.asked.get(nonce) is not lane:
            return
        if lane.state is states.LaneState.ASKING and lane.link.open:
            self._hello(lane, nonce, attempts, now)
        else:
            del self.asked[nonce]

    def answered(self, lane: Lane, now: float) -> None:
        """The agent knows the publisher: sends a beacon, then the unconfirmed messages."""
        if lane.state is not states.LaneState.ASKING or not self._may_use(lane.link, now):
            return
        lane.step("answered")
        out, counters = lane.out, self._context.counters
        if out.seq and ANNOUNCE in self._context.rules:
            counters.announces += 1
            lane.link.publish(out.name, lane.tagged(out.beacon(lane.confirmed, now - self.turn_s_max)))
            self._context.touch(lane.link)
        if REPEAT in self._context.rules:
            counters.repeated += lane.sent - lane.confirmed
            lane.sent = lane.confirmed
        self._pump(lane, now)

    def _may_use(self, link: ServerLink, now: float) -> bool:
        """Whether the lease is still valid. It may have run out before its timer fires."""
        if now < link.usable_until:
            return True
        self._context.lease_over(link, now)
        return False

    def _pump(self, lane: Lane, now: float) -> None:
        """Sends what the lane has not sent, if the server may be used now: a chunk, and the next one when the server
        has confirmed most of it. A flood could overflow the output buffer of a client that hears its own messages."""
        out, link = lane.out, lane.link
        allowance = CHUNK_MESSAGES - (lane.sent - lane.confirmed)
        if allowance <= 0 or not self._may_use(link, now):
            return
        blobs = out.page(lane.sent + 1, out.seq, allowance, CHUNK_BYTES)
        for blob in blobs:
            link.carry(lane, lane.tagged(blob))
        lane.sent += len(blobs)
        self._context.touch(link)

    # Links and replies

    def link_usable(self, link: ServerLink, now: float) -> None:
        """The server may be used (again)."""
        for lane in sorted(link.lanes, key=lambda lane: lane.out.stream):
            if lane.state is states.LaneState.WAITING:
                self._ask(lane, now)
            elif lane.state is states.LaneState.HELD:
                lane.step("link usable")
                self._pump(lane, now)

    def link_stale(self, link: ServerLink) -> None:
        """The server may not be used until the next heartbeat."""
        for lane in list(link.lanes):
            if lane.state in (states.LaneState.LIVE, states.LaneState.ASKING):
                lane.step("link stale")

    def link_lost(self, link: ServerLink) -> None:
        """The connection is lost; unconfirmed messages will be repeated."""
        for lane in link.lanes:
            if lane.state is not states.LaneState.WAITING:
                lane.step("link lost")

    def key_changed(self, link: ServerLink) -> None:
        """Another key of this client is used at a server."""
        for lane in link.lanes:
            lane.use_key()
            lane.out.find_solo()

    def abandon(self) -> Abandoned:
        """Ends every stream at once, because the client has another id. Unconfirmed messages may have arrived, so they
        are not sent again in another stream."""
        outs = list(self._outs.values())
        for out in outs:
            self._context.timers.cancel(("beacon", out))
            for lane in out.lanes:
                lane.link.lanes.pop(lane, None)
                lane.step("moved away")
        self._outs.clear()
        self.asked.clear()
        self.full_at += self.pending_messages
        self.full_at_bytes += self.pending_bytes
        self._freed_bytes = self.published_bytes
        tokens = [token for out in outs for token in out.waiters.values()]
        return Abandoned(tokens, max(0, sum(out.seq - out.confirmed for out in outs) - len(tokens)))

    def confirmed(self, lane: Lane, count: int, now: float) -> None:
        """A server has confirmed the lane's `count` oldest outstanding messages."""
        if lane.state is states.LaneState.DROPPED:
            return
        out = lane.out
        lane.confirmed += count
        if len(out.lanes) == 1:
            out.confirmed += count
            self.full_at += count
            self.full_at_bytes += out.take_sizes(count)
            if out.waiters:
                self._wake(out, count)
        else:
            self._settle(out)
        if (
            lane.sent < out.seq
            and lane.state is states.LaneState.LIVE
            and lane.sent - lane.confirmed <= CHUNK_MESSAGES // 2
        ):
            self._pump(lane, now)
        limits = self._context.limits
        if len(out.window) > limits.resend_messages_max or out.resend_bytes > limits.resend_bytes_max:
            self._freed_bytes += out.trim(limits.resend_messages_max, limits.resend_bytes_max)
        elif self.resend_bytes > limits.resend_total_bytes_max:
            self._freed_bytes += out.trim(0, 0)

    def _settle(self, out: Outgoing) -> None:
        """Moves the confirmed mark of a channel to what all of its lanes have confirmed."""
        count, size = out.confirm()
        self.full_at += count
        self.full_at_bytes += size
        self._wake(out, count)

    def _wake(self, out: Outgoing, count: int) -> None:
        """Reports the last `count` confirmed messages to the callers that wait for them."""
        pop, confirmed = out.waiters.pop, out.confirmed
        if count == 1:
            tokens = [pop(confirmed)] if confirmed in out.waiters else []
        else:
            numbers = range(confirmed - count + 1, confirmed + 1)
            tokens = [token for number in numbers if (token := pop(number, None)) is not None]
        if tokens:
            self._context.effects.append(Confirmed(tokens))

    def refused(self, lane: Lane, error: str, now: float) -> None:
        """A server refused a message (missing rights, or no memory): reports it to the application."""
        self._context.counters.refused += 1
        token = lane.out.waiters.pop(lane.confirmed + 1, None)
        self._context.effects.append(PublishRefused(lane.out.name, error, token))
        self.confirmed(lane, 1, now)

    # Beacons and the end of a stream

    def _arm_beacon(self, out: Outgoing, now: float) -> None:
        """A burst begins. In a stream with a steady pace the next message replaces the beacon, so the beacon waits
        longer than the pace; otherwise each message would have its own."""
        limits = self._context.limits
        pause = now - out.published_at
        steady = pause < limits.beacon_delay_s_max
        patience = min(PACES_QUIET * pause, limits.beacon_delay_s_max) if steady else 0.0
        out.beacon_delay = max(limits.beacon_delay_s, patience)
        out.beacon_armed = True
        self._context.timers.set(("beacon", out), now + out.beacon_delay)

    def beacon_due(self, out: Outgoing, now: float) -> None:
        """A burst is over: sends a beacon, in case the last message was lost."""
        delay = out.beacon_delay
        quiet_at = out.published_at + delay
        if now < quiet_at or not out.settled or any(lane.state is not states.LaneState.LIVE for lane in out.lanes):
            self._context.timers.set(("beacon", out), max(quiet_at, now + delay / 2))
            return
        out.beacon_armed = False
        out.turn_at = float("-inf")
        if ANNOUNCE in self._context.rules:
            self._send_beacons(out, now)
        self._context.timers.set(("idle", out), now + self._context.limits.publisher_idle_s / 2)

    def _send_beacons(self, out: Outgoing, now: float, final: bool = False) -> None:
        for lane in out.lanes:
            if lane.state is states.LaneState.LIVE and now < lane.link.usable_until:
                self._context.counters.beacons += 1
                lane.link.publish(out.name, lane.tagged(out.beacon(out.seq, now - self.turn_s_max, final)))
                self._context.touch(lane.link)

    def idle_due(self, out: Outgoing, now: float) -> None:
        """An idle stream ends; the next message on the channel begins another."""
        deadline = out.published_at + self._context.limits.publisher_idle_s / 2
        if out.beacon_armed or self._outs.get(out.name) is not out:
            return
        if now < deadline:
            self._context.timers.set(("idle", out), deadline)
        elif out.settled:
            self._end(out, now)

    def _end(self, out: Outgoing, now: float) -> None:
        if ANNOUNCE in self._context.rules:
            self._send_beacons(out, now, final=True)
        del self._outs[out.name]
        self._freed_bytes += out.resend_bytes
        for lane in out.lanes:
            lane.link.lanes.pop(lane, None)
            lane.step("moved away")

    def close(self, now: float) -> None:
        """Ends every stream with a last beacon. The caller has drained."""
        for out in list(self._outs.values()):
            self._end(out, now)

    # Answers to subscribers

    def heal(self, link: ServerLink, client: int, nonce: int, request: control.Heal, now: float) -> None:
        """A subscriber missed messages: sends it a page of them, on the server that it asked on. A stream that this
        client has never begun on the channel has no messages."""
        out = self._outs.get(request.channel)
        if out is None or out.stream != request.stream or request.first > request.last:
            epoch = envelope.epoch_of(request.stream)
            if self._epoch < epoch or self._begun.get(epoch, request.channel) != request.channel:
                never = control.Healed(request.channel, request.stream, 0, 0, 0, request.first)
                self._context.answer_peer(link, client, never, nonce)
            return
        asked = request.first, request.last
        if not self._meter.allow(client, out.stream, asked, now):
            self._context.counters.heals_over_quota += 1
            return
        limits = self._context.limits
        page = out.page(request.first, request.last, limits.heal_page_messages, limits.heal_page_bytes)
        for blob in page:
            self._context.answer_peer(link, client, control.Resend(out.name, blob), nonce)
        until = max(request.last, request.until)
        age_ms = int(1000 * out.age_s(min(until, out.base - 1), now - self.turn_s_max))
        answer = control.Healed(out.name, out.stream, out.base, out.confirmed, out.seq, request.first, age_ms, until)
        self._context.answer_peer(link, client, answer, nonce)
        self._meter.sent(client, out.stream, asked, page, now)
        self._context.counters.heals_answered += 1
        self._context.counters.resent += len(page)

    def present(self, link: ServerLink) -> control.StreamList:
        """How far this client's streams on a server are confirmed, for the agent's resync."""
        return [(lane.out.name, lane.out.stream, lane.confirmed) for lane in link.lanes if lane.out.seq]
