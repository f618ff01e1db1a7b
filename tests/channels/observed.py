"""Makes the bytes that an observing connection carries, and counts them a second time in plain Python.

Owns the model that the scanner is compared with; it reads with hiredis and shares no code with the scanner.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from typing import Any

import hiredis

HEADER = struct.Struct("<HBBIQQQQ")
MAGIC, MAGIC_1 = 0x5BF5, 0x5AF5
ATTRIBUTES, BEACON, FORWARDED, FINAL, FOREIGN = 1, 2, 4, 8, 16
ENDED = 1 << 63
FRAME_BYTES_MAX = 1 << 20


def envelope(
    stream: int, sequence: int, payload: bytes = b"", flags: int = 0, words: int = 0, magic: int = MAGIC
) -> bytes:
    return HEADER.pack(magic, flags, words, 1, stream, sequence, 0, 0) + payload


def beacon(stream: int, sequence: int, words: int = 0) -> bytes:
    return envelope(stream, sequence, bytes(8 + 8 * words), BEACON, words)


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def push(*parts: bytes) -> bytes:
    return b">%d\r\n" % len(parts) + b"".join(map(bulk, parts))


def observed(channel: bytes, payload: bytes) -> bytes:
    return push(b"pmessage", b"*", channel, payload)


class Model:
    """What the scanner should have counted, from frames that hiredis read."""

    def __init__(self) -> None:
        self.lasts: dict[bytes, dict[int, int]] = defaultdict(dict)
        self.publishers: dict[bytes, set[int]] = defaultdict(set)
        self.counters: dict[bytes, Counter[str]] = defaultdict(Counter)
        self.internal = 0
        self.envelopes_1 = 0
        self.unknown_flags = 0

    def takes(self, frame: Any) -> bool:
        """Counts the frame if it is an observed or internal message."""
        is_push = isinstance(frame, hiredis.PushNotification)
        if not is_push or len(frame) != 4 or frame[:2] != [b"pmessage", b"*"]:
            return False
        channel, payload = frame[2], frame[3]
        if channel.startswith(b"__shoal:"):
            internal: bool = channel != b"__shoal:agent"
            self.internal += internal
            return internal
        self._count(channel, payload)
        return True

    def _count(self, channel: bytes, payload: bytes) -> None:
        counter = self.counters[channel]
        counter["bytes_in"] += len(payload)
        counter["frame_bytes"] += len(observed(channel, payload))
        kind = "foreign"
        self.envelopes_1 += len(payload) >= 31 and payload[:2] == b"\xf5\x5a"
        if len(payload) >= HEADER.size:
            magic, flags, words, _, stream, sequence, _, _ = HEADER.unpack_from(payload)
            body = len(payload) - HEADER.size - 8 * words
            if magic == MAGIC and body >= 0:
                kind = "beacons" if flags & BEACON else "forwarded" if flags & FORWARDED else "publications"
                self.unknown_flags += flags >= 32
                if flags < 32 and not flags & FOREIGN and (kind != "beacons" or body == 8):
                    ended = ENDED if flags & BEACON and flags & FINAL else 0
                    self.lasts[channel][stream] = max(sequence | ended, self.lasts[channel].get(stream, 0))
                if flags < 32 and kind == "publications" and not flags & FOREIGN:
                    self.publishers[channel].add(stream >> 16)
        counter[kind] += 1
        counter["publications"] += kind == "foreign"
