"""Runs: frames that are consecutive messages of one stream on one channel.

Owns the test whether frames are a run, with loops that run in C. The messages of a fast publisher arrive in runs, and
taking them one by one costs twice as much. The first and the last frame decide in nearly every case.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from itertools import repeat
from operator import countOf, getitem
from typing import Any, Final, NamedTuple, cast

from hiredis import PushNotification

from shoal.wire.envelope import HEADER_BYTES, WORDS, is_plain

RUN_MESSAGES_MIN: Final = 8
"""The smallest number of frames for which the test pays off."""

_unpack: Final = WORDS.unpack_from
_WORDS: Final = HEADER_BYTES // 8
_HEADER: Final = slice(HEADER_BYTES)
_PAYLOAD: Final = slice(HEADER_BYTES, None)
_slice: Final = cast(Callable[[bytes, slice], bytes], getitem)


class MessageRun(NamedTuple):
    """The messages of a run, in columns."""

    channel: bytes
    word: int
    stream: int
    sequences: list[int]
    times_us: list[int]
    tags: array[int]
    """Tag and time of each message, as `StreamIn.tags` has them."""
    blobs: tuple[bytes, ...]
    payload_bytes: int

    def payloads(self) -> Iterator[bytes]:
        """The payloads in their order."""
        return map(_slice, self.blobs, repeat(_PAYLOAD))


def as_run(frames: list[Any]) -> MessageRun | None:
    """The frames as a run; None if they are anything else. There must be at least one frame."""
    first, last, count = frames[0], frames[-1], len(frames)
    if not (_may_be_plain(first) and _may_be_plain(last)):
        return None
    channel, blob = first[1], first[2]
    word, stream, sequence, _, _ = _unpack(blob)
    if not is_plain(word) or _unpack(last[2])[:3] != (word, stream, sequence + count - 1):
        return None
    if countOf(map(type, frames), PushNotification) != count:
        return None
    try:
        kinds, channels, blobs = zip(*frames, strict=True)
    except ValueError:  # a push of another length, such as a message of a pattern
        return None
    if kinds.count(b"message") != count or channels.count(channel) != count:
        return None
    joined = b"".join(map(_slice, blobs, repeat(_HEADER)))
    if len(joined) != HEADER_BYTES * count:
        return None
    headers = _as_words(joined)
    if headers[0::_WORDS] != array("Q", (word,)) * count or headers[1::_WORDS] != array("Q", (stream,)) * count:
        return None
    sequences, times = headers[2::_WORDS].tolist(), headers[3::_WORDS]
    if sequences != list(range(sequence, sequence + count)):
        return None
    tags = array("Q", bytes(16 * count))
    tags[::2], tags[1::2] = headers[4::_WORDS], times
    payload_bytes = sum(map(len, blobs)) - len(joined)
    return MessageRun(channel, word, stream, sequences, times.tolist(), tags, blobs, payload_bytes)


def _as_words(headers: bytes) -> array[int]:
    """The words of all headers, one header after the other: one array is read faster than each header by itself."""
    words = array("Q", headers)
    if sys.byteorder == "big":
        words.byteswap()
    return words


def _may_be_plain(frame: Any) -> bool:
    return (
        type(frame) is PushNotification
        and len(frame) == 3
        and type(frame[2]) is bytes
        and len(frame[2]) >= HEADER_BYTES
    )
