"""The receiving side of one publisher's stream: duplicates, order and holes.

Owns the window over sequence numbers. Below `next` everything has been delivered or reported; `held` has what arrived
past a hole; `last` is the highest number known to exist, by whatever evidence. There is a hole while `next <= last`.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.message import Message
from shoal.wire.envelope import client_of


class StreamIn:
    """One stream on one channel, as one subscription sees it."""

    __slots__ = (
        "asked",
        "attempts",
        "doubted_at",
        "final",
        "held",
        "hole_since",
        "lapsed",
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
        self.asked = False
        self.attempts = 0
        self.doubted_at: int | None = None
        self.lapsed = False
        self.final = False
        self.touched = now
        self.marked = next_sequence

    def has_hole(self) -> bool:
        """Whether something is known to exist that has not arrived."""
        return self.next <= self.last

    def hole_end(self) -> int:
        """The last missing number of the first hole. Call only while there is one."""
        return min(self.held) - 1 if self.held else self.last

    def release(self) -> Iterator[Message]:
        """What was held and is now in order."""
        held = self.held
        while held and self.next in held:
            message = held.pop(self.next)
            self.next += 1
            yield message

    def skip_to(self, sequence: int) -> None:
        """Moves past a hole that has been reported, or that is not owed."""
        for number in [number for number in self.held if number < sequence]:
            del self.held[number]
        self.next = max(self.next, sequence)
        self.last = max(self.last, self.next - 1)

    def knows(self, last: int) -> None:
        """Takes evidence that the stream has come as far as `last`."""
        self.last = max(self.last, last)


class ChannelIn:
    """The streams of one channel within one subscription."""

    __slots__ = ("name", "streams", "text")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.text = name.decode("utf-8", "surrogateescape")
        self.streams: dict[int, StreamIn] = {}
