"""Records as agents write them, on real servers, without agents."""

from __future__ import annotations

from typing import Any

import redis as redis_py
from tests.support.redis_server import RedisServer

from shoal.limits import DEFAULT_LIMITS
from shoal.message import Attributes, Message
from shoal.wire.envelope import ATTRIBUTES, HEADER, MAGIC, encode_attributes, stream_id
from shoal.wire.record_entry import INDEX_KEY, gap_fields, message_fields, record_key

DAY_US = 86_400_000_000
NOON_US = 1_793_534_400_000_000
"""2026-11-01T12:00."""
BOB = 0xB0B
STREAM = stream_id(BOB, 1)


class Recording:
    """The record of one channel on one server."""

    def __init__(self, server: RedisServer, channel: bytes = b"orders.eu") -> None:
        self.redis = redis_py.Redis(host=server.host, port=server.port)
        self.channel = channel
        self.number = 0

    def _add(self, fields: tuple[bytes, ...], at_us: int | None) -> None:
        entry = "*" if at_us is None else f"{at_us // 1000}-*"
        pairs: dict[Any, Any] = dict(zip(fields[::2], fields[1::2], strict=True))
        self.redis.xadd(record_key(self.channel), pairs, id=entry)

    def write(
        self,
        *numbers: int,
        stream: int = STREAM,
        from_us: int = NOON_US,
        at: bool = True,
        attributes: Attributes | None = None,
    ) -> None:
        """Messages with these sequence numbers, a second apart, recorded when they were published."""
        body = b"" if attributes is None else encode_attributes(attributes, DEFAULT_LIMITS)
        flags = 0 if attributes is None else ATTRIBUTES
        self.redis.sadd(INDEX_KEY, self.channel)
        for sequence in numbers:
            self.number += 1
            time_us = from_us + sequence * 1_000_000
            blob = HEADER.pack(MAGIC, flags, 1, stream, sequence, time_us) + body + b"m%d" % sequence
            self._add(message_fields(self.number, blob), time_us if at else None)

    def gap(self, gap: Any, at_us: int) -> None:
        self.number += 1
        self._add(gap_fields(self.number, gap), at_us)

    def garbage(self) -> None:
        self.number += 1
        self.redis.xadd(record_key(self.channel), {b"x": b"garbage"})


def sequences(items: Any) -> list[int]:
    return [item.sequence for item in items if isinstance(item, Message)]
