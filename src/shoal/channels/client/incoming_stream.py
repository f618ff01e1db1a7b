"""The receiving side of one publisher's stream: duplicates, order and holes.

Owns the window over sequence numbers. All numbers below `next` have been delivered or reported; `held` has the messages
behind a hole; `last` is the highest number known to exist. There is a hole while `next <= last`.
"""

from __future__ import annotations

from typing import Final

from shoal.message import Message
from shoal.wire.envelope import client_of

LAPSED_MAX: Final = 1000
"""Given-up streams of a channel that are remembered."""


class StreamIn:
    """One stream on one channel, as one subscription sees it.

    `asked` is the first number of the question to its publisher whose answer is awaited, 0 if none is.
    """

    __slots__ = (
        "asked",
        "attempts",
        "doubted_at",
        "final",
        "held",
        "hole_since",
        "last",
        "marked",
        "next",
        "publisher",
        "server",
        "stream",
        "touched",
    )

    def __init__(self, stream: int, next_sequence: int, server: str, now: float) -> None:
        self.stream = stream
        self.publisher = client_of(stream)
        self.next = next_sequence
        self.last = next_sequence - 1
        self.held: dict[int, Message] = {}
        self.server = server
        self.hole_since: float | None = None
        self.asked = 0
        self.attempts = 0
        self.doubted_at: int | None = None
        self.final = False
        self.touched = now
        self.marked = next_sequence

    def has_hole(self) -> bool:
        """Whether a number is known to exist that has not arrived."""
        return self.next <= self.last

    def hole_end(self) -> int:
        """The last missing number of the first hole. Call only while there is one."""
        return min(self.held) - 1 if self.held else self.last

    def skip_to(self, sequence: int) -> None:
        """Moves past a hole that was reported, or is not owed."""
        for number in [number for number in self.held if number < sequence]:
            del self.held[number]
        self.next = max(self.next, sequence)
        self.last = max(self.last, self.next - 1)

    def knows(self, last: int) -> None:
        """Takes evidence that the stream has come as far as `last`."""
        self.last = max(self.last, last)


class ChannelIn:
    """The streams of one channel within one subscription.

    `lapsed` are streams that were given up with an open gap, each with its first number that was not delivered: if one
    publishes again, it continues from there, because the gap covers only what was published before it was reported.
    `forgets` says that there have been too many streams to remember: an unknown stream may have been heard before.
    """

    __slots__ = ("forgets", "lapsed", "name", "streams", "text")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.text = name.decode("utf-8", "surrogateescape")
        self.streams: dict[int, StreamIn] = {}
        self.lapsed: dict[int, int] = {}
        self.forgets = False

    def lapse(self, stream: StreamIn) -> None:
        """Gives a stream up; a bounded number of these is remembered."""
        del self.streams[stream.stream]
        self.lapsed[stream.stream] = stream.next
        if len(self.lapsed) > LAPSED_MAX:
            del self.lapsed[next(iter(self.lapsed))]

    def begins(self, stream: int, owed: int, heard: int) -> int:
        """The first owed number of an unknown stream: `owed`; or if it was given up before, its first undelivered
        number; or if it may have been forgotten, `heard`, its number now."""
        undelivered = self.lapsed.pop(stream, None)
        if undelivered is not None:
            return undelivered
        return heard if self.forgets else owed

    def bound(self, streams_max: int) -> None:
        """Forgets the longest idle streams beyond a limit, but none with a hole or in doubt."""
        excess = len(self.streams) - streams_max
        if excess > 0:
            self.forgets = True
            settled = [
                stream for stream in self.streams.values() if not stream.has_hole() and stream.doubted_at is None
            ]
            for stream in sorted(settled, key=lambda stream: stream.touched)[:excess]:
                del self.streams[stream.stream]
