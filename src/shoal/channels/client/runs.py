"""Runs: frames that are consecutive messages of one stream on one channel.

Owns the test whether frames are a run, with loops that run in C. The messages of a fast publisher arrive in runs, and
taking them one by one costs twice as much. The first and the last frame decide in nearly every case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from operator import countOf, getitem
from typing import Any, Final, NamedTuple, cast

from hiredis import PushNotification

from shoal.wire.envelope import HEADER_BYTES, WORDS, is_plain

RUN_MESSAGES_MIN: Final = 8
"""The smallest number of frames for which the test pays off."""

_unpack: Final = WORDS.unpack_from
_PAYLOAD: Final = slice(HEADER_BYTES, None)
_slice: Final = cast(Callable[[bytes, slice], bytes], getitem)


class Run(NamedTuple):
    """The messages of a run, in columns."""

    channel: bytes
    word: int
    stream: int
    sequences: tuple[int, ...]
    times_us: tuple[int, ...]
    tags: tuple[int, ...]
    blobs: tuple[bytes, ...]
    payload_bytes: int

    def payloads(self) -> Iterator[bytes]:
        """The payloads in their order."""
        return map(_slice, self.blobs, repeat(_PAYLOAD))


def as_run(frames: list[Any]) -> Run | None:
    """The frames as a run; None if they are anything else. There must be at least one frame."""
    first, last, count = frames[0], frames[-1], len(frames)
    if not (_may_be_plain(first) and _may_be_plain(last)):
        return None
    channel, blob = first[1], first[2]
    word, stream, sequence, _, _ = _unpack(blob)
    if not is_plain(word) or _unpack(last[2])[:3] != (word, stream, sequence + count - 1):
        return None
    if countOf(map(type, frames), PushNotification) != count or countOf(map(len, frames), 3) != count:
        return None
    kinds, channels, blobs = zip(*frames, strict=True)
    sizes = list(map(len, blobs))
    if kinds.count(b"message") != count or channels.count(channel) != count or min(sizes) < HEADER_BYTES:
        return None
    words, streams, sequences, times_us, tags = zip(*map(_unpack, blobs), strict=True)
    if words.count(word) != count or streams.count(stream) != count:
        return None
    if sequences != tuple(range(sequence, sequence + count)):
        return None
    return Run(channel, word, stream, sequences, times_us, tags, blobs, sum(sizes) - HEADER_BYTES * count)


def _may_be_plain(frame: Any) -> bool:
    return (
        type(frame) is PushNotification
        and len(frame) == 3
        and type(frame[2]) is bytes
        and len(frame[2]) >= HEADER_BYTES
    )
