"""Joins a live subscription to a history, which ends before the first live message of each stream or earlier.

Owns the join. A core without I/O: it takes a subscription from which the application has read nothing yet, and moves
its streams to the end of the history. From then on `receiver` judges duplicates, holes and gaps as usual.

    history   1 2 3 4 5 6            live from 5 on: the history is cut before 5
    history   1 2 3                  live from 5 on: 4 is a hole, its publisher is asked for it
    history   1 2 3                  not heard live yet: 4 is expected, and a copy of 3 is one
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from shoal.channels.client.incoming_stream import RESENT, StreamIn
from shoal.channels.client.receiver import Receiver
from shoal.channels.client.subscription import SubscriptionCore
from shoal.message import Item, Message


def go_on(
    receiver: Receiver, sub: SubscriptionCore, begins: Mapping[int, int], reached: Mapping[int, int], now: float
) -> None:
    """Continues each stream after the last number of the history. A stream that only the history knows is expected to
    continue there too."""
    sub.owed_from = -math.inf
    chan = sub.channel(sub.name)
    for number, last in reached.items():
        stream = chan.streams.get(number)
        if stream is None:
            chan.streams[number] = StreamIn(number, last + 1, "", now)
        elif last + 1 < begins.get(number, 0):
            _rewind(receiver, sub, stream, begins[number], last, now)
    chan.bound(receiver.streams_max)


def _rewind(receiver: Receiver, sub: SubscriptionCore, stream: StreamIn, begin: int, last: int, now: float) -> None:
    """Messages between the history and the first live one are missing: live messages are held behind the hole."""
    received = stream.next - 1
    stream.set_aside()
    kept: list[Item] = []
    for item in sub.inbox.items:
        if isinstance(item, Message) and item.publisher == stream.publisher and begin <= item.sequence <= received:
            origin, _ = stream.older.pop(item.sequence, (RESENT, True))
            stream.held[item.sequence] = item, origin
            sub.inbox.bytes -= len(item.payload)
        else:
            kept.append(item)
    sub.inbox.items.clear()
    sub.inbox.items.extend(kept)
    stream.next = last + 1
    receiver.evidence(sub, (sub.name, stream.stream, max(received, begin - 1), 0), stream.server, now)
