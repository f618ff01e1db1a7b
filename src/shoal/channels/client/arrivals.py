"""The hot loop of a client: sorts the frames that arrive from a server.

Owns the plain cases, which are handled inline because they are nearly all of the traffic: a run of confirmations of one
lane, a message that is the next of its stream, and a run of such messages. All other frames go to `publisher`,
`receiver`, or to the router (control messages).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, repeat
from operator import countOf
from typing import Any, Final

from hiredis import PushNotification

from shoal.channels.client.context import CommandRefused, Context
from shoal.channels.client.incoming_stream import KEPT_MAX
from shoal.channels.client.outgoing_stream import Lane
from shoal.channels.client.publisher import Publisher
from shoal.channels.client.receiver import Receiver
from shoal.channels.client.runs import RUN_MESSAGES_MIN, as_run
from shoal.channels.client.server_link import AgentCommand, Listen, Ping, ServerLink
from shoal.channels.client.subscriber import Subscriber
from shoal.channels.client.subscription import SubscriptionCore
from shoal.message import Item, Message
from shoal.wire.envelope import HEADER_BYTES, HIDDEN_PREFIXES, WORDS

Internal = Callable[[ServerLink, bytes, bytes, float], None]
"""Takes a control message: link, channel, data, now."""

_unpack: Final = WORDS.unpack_from


class Arrivals:
    """Takes the frames of all servers."""

    def __init__(
        self,
        context: Context,
        publisher: Publisher,
        subscriber: Subscriber,
        receiver: Receiver,
        internal: Internal,
    ) -> None:
        self._links = context.links
        self._ready = context.ready
        self._counters = context.counters
        self._effects = context.effects
        self._keyed = context.key is not None
        self._publisher = publisher
        self._by_channel = subscriber.by_channel
        self._by_pattern = subscriber.by_pattern
        self._receiver = receiver
        self._internal = internal

    def received(self, server: str, frames: list[Any], now: float) -> None:
        """Frames from a server in wire order: pushes, and replies to commands."""
        link = self._links.get(server)
        if link is None or (len(frames) >= RUN_MESSAGES_MIN and self._take_run(link, frames, now)):
            return
        inflight, keyed = link.inflight, self._keyed
        lane: Lane | None = None
        confirmed = delivered = 0
        last_channel = b""
        last_time_us = 0
        subs: list[SubscriptionCore] | None = None
        sub: SubscriptionCore | None = None
        for frame in frames:
            if type(frame) is not PushNotification:
                if inflight:
                    expected = inflight.popleft()
                    if expected is not lane or type(frame) is not int:
                        confirmed = self._confirm(lane, confirmed, now)
                        if type(expected) is not Lane or type(frame) is not int:
                            self._reply(link, expected, frame, now)
                            continue
                        lane = expected
                    confirmed += 1
                continue
            if frame[0] != b"message":
                self._other_push(link, frame, now)
                continue
            _, channel, blob = frame
            if channel != last_channel:
                last_channel = channel
                subs = self._by_channel.get(channel)
                sub = subs[0] if subs and len(subs) == 1 and subs[0].in_force and subs[0].wanted is None else None
                if sub is not None:
                    streams, inbox, items, text = sub.streams, sub.inbox, sub.inbox.items, sub.text
                    messages_max, bytes_max = inbox.messages_max, inbox.bytes_max
            if sub is not None and len(blob) >= HEADER_BYTES:
                word, stream_id, sequence, time_us, tag = _unpack(blob)
                stream = streams.get(stream_id)
                if (
                    stream is not None
                    and stream.next == sequence
                    and stream.word == word
                    and stream.lane == server
                    and not stream.held
                    and len(items) < messages_max
                    and inbox.bytes < bytes_max
                ):
                    stream.next = sequence + 1
                    if keyed:
                        tags = stream.tags
                        tags.append(tag)
                        tags.append(time_us)
                        if len(tags) >= KEPT_MAX:
                            del tags[: KEPT_MAX // 2]
                    if time_us == last_time_us:
                        time_us = last_time_us  # one object for all messages of a burst
                    last_time_us = time_us
                    payload = blob[HEADER_BYTES:]
                    items.append(Message(text, payload, stream.publisher, sequence, time_us))
                    inbox.bytes += len(payload)
                    delivered += 1
                    if not sub.notified:
                        sub.notified = True
                        self._ready.append(sub)
                    continue
            if subs is None:
                confirmed = self._confirm(lane, confirmed, now)
                self._internal(link, channel, blob, now)
            else:
                self._message(subs, channel, blob, server, now)
        self._confirm(lane, confirmed, now)
        self._counters.delivered += delivered

    def _take_run(self, link: ServerLink, frames: list[Any], now: float) -> bool:
        """Takes frames that are one run of plain messages or of confirmations; returns False and does nothing if they
        are anything else."""
        if type(frames[0]) is int:
            return self._take_confirmations(link, frames, now)
        run = as_run(frames)
        subs = self._by_channel.get(run.channel) if run is not None else None
        if run is None or subs is None or len(subs) != 1 or not subs[0].in_force or subs[0].wanted is not None:
            return False
        sub = subs[0]
        stream = sub.streams.get(run.stream)
        if stream is None or stream.next != run.sequences[0] or stream.held:
            return False
        if stream.lane != link.server or stream.word != run.word:
            return False
        inbox = sub.inbox
        count = len(frames)
        if len(inbox.items) + count > inbox.messages_max or inbox.bytes + run.payload_bytes > inbox.bytes_max:
            return False
        stream.next += count
        if self._keyed:
            stream.tags.extend(run.tags)
            del stream.tags[:-KEPT_MAX]
        texts, publishers = repeat(sub.text), repeat(stream.publisher)
        messages: Iterator[Item] = map(Message, texts, run.payloads(), publishers, run.sequences, run.times_us)
        inbox.items.extend(messages)
        inbox.bytes += run.payload_bytes
        self._counters.delivered += count
        if not sub.notified:
            sub.notified = True
            self._ready.append(sub)
        return True

    def _take_confirmations(self, link: ServerLink, frames: list[Any], now: float) -> bool:
        """Takes frames that all confirm messages of one lane; returns False and does nothing otherwise."""
        inflight, count = link.inflight, len(frames)
        lane = inflight[0] if inflight else None
        if type(lane) is not Lane or countOf(islice(inflight, count), lane) != count:
            return False
        if countOf(map(type, frames), int) != count:
            return False
        if count == len(inflight):
            inflight.clear()
        else:
            for _ in frames:
                inflight.popleft()
        self._publisher.confirmed(lane, count, now)
        return True

    def _confirm(self, lane: Lane | None, count: int, now: float) -> int:
        """Takes a run of confirmations of one lane; returns 0, the length of the next run."""
        if count and lane is not None:
            self._publisher.confirmed(lane, count, now)
        return 0

    def _reply(
        self, link: ServerLink, expected: Lane | Ping | Listen | AgentCommand | None, reply: Any, now: float
    ) -> None:
        if expected is None:
            return
        if type(expected) is Ping:
            link.ponged(expected)
        elif isinstance(expected, Listen):
            self._effects.append(CommandRefused(link.server, expected.channel, str(reply)))
        elif isinstance(expected, AgentCommand):
            if isinstance(reply, Exception):
                self._effects.append(CommandRefused(link.server, None, str(reply)))
        elif isinstance(expected, Lane):
            if isinstance(reply, Exception):
                self._publisher.refused(expected, str(reply), now)
            else:
                self._publisher.confirmed(expected, 1, now)

    def _other_push(self, link: ServerLink, frame: list[bytes], now: float) -> None:
        """A message of a pattern, or the answer to a SUBSCRIBE or similar command."""
        if frame[0] == b"pmessage":
            _, pattern, channel, blob = frame
            if not channel.startswith(HIDDEN_PREFIXES):
                for sub in self._by_pattern.get(pattern, ()):
                    self._receiver.accept(sub, channel, blob, link.server, now)
        elif link.inflight and isinstance(link.inflight[0], Listen):
            link.inflight.popleft()

    def _message(self, subs: list[SubscriptionCore], channel: bytes, blob: bytes, server: str, now: float) -> None:
        for sub in subs:
            if not self._receiver.accept_next(sub, blob, server):
                self._receiver.accept(sub, channel, blob, server, now)
