"""One publisher's stream, as the recorder of one server hears it: what was heard, and what is owed to the record.

Owns the window over sequence numbers by which copies are found. Never touches the record itself.

A recorder is no subscriber: numbers that it never hears may be on other servers, and it does not wait for them. Only
when it was away does it ask: what its publisher said meanwhile is owed, and the publisher is asked for it.
"""

from __future__ import annotations

from typing import Final

WINDOW: Final = 8192
"""Numbers behind the last one within which a copy is known to be one. An older one is recorded again; readers know."""


class RecordedStream:
    """What is known of one stream.

    `last` is the highest number heard or owed. `doubted` says that the recorder was away and that nobody has said since
    how far the stream came. `fresh` says that it was first heard after that, with the number `met`. While something is
    owed, it is the numbers from `owed` to `owed_last`, since `owed_since`.
    """

    __slots__ = ("_missing", "doubted", "ended", "first", "fresh", "last", "met", "owed", "owed_last", "owed_since")

    def __init__(self, last: int, *, fresh: bool = False) -> None:
        self.last = last
        self.first = self.met = last + 1
        self.fresh = fresh
        self.ended = False
        self.doubted = False
        self.owed = 0
        self.owed_last = 0
        self.owed_since = 0.0
        self._missing: set[int] = set()

    @property
    def complete(self) -> int:
        """The number up to which nothing is owed."""
        return self.owed - 1 if self.owed else self.last

    @property
    def owes(self) -> bool:
        """Whether its publisher is asked for something."""
        return self.owed != 0

    def hear(self, sequence: int) -> bool:
        """Takes a number; False if it is a copy of one that was heard."""
        if sequence > self.last:
            self._skip(self.last + 1, sequence)
            self.last = sequence
            return True
        if sequence <= self.last - WINDOW:
            return True
        if sequence < self.first:
            self._missing.update(range(sequence, self.first))
            self.first = sequence
        if sequence in self._missing:
            self._missing.discard(sequence)
            return True
        return False

    def _skip(self, first: int, end: int) -> None:
        """Numbers that have not been heard, within the window."""
        if end > first:
            self._missing.update(range(max(first, end - WINDOW), end))
        if len(self._missing) > WINDOW:
            self._missing = {number for number in self._missing if number > end - WINDOW}

    def owe(self, first: int, last: int, now: float) -> None:
        """Numbers that were published while the recorder was away."""
        self.doubted = False
        if last < first:
            return
        if last > self.last:
            self._skip(self.last + 1, last + 1)
            self.last = last
        if first < self.first:
            self._missing.update(range(max(first, self.first - WINDOW), self.first))
            self.first = first
        self.owed = min(self.owed, first) if self.owed else first
        self.owed_last = max(self.owed_last, last)
        self.owed_since = now

    def pay(self, sequence: int) -> None:
        """A number has come. They come in order; what does not is asked for again."""
        if sequence == self.owed:
            self.owed = sequence + 1 if sequence < self.owed_last else 0
            self.owed_last = self.owed_last if self.owed else 0

    def give_up(self, last: int) -> tuple[int, int] | None:
        """What is owed up to a number and will not come."""
        if not self.owed or last < self.owed:
            return None
        first, last = self.owed, min(last, self.owed_last)
        self.owed = last + 1 if last < self.owed_last else 0
        self.owed_last = self.owed_last if self.owed else 0
        return first, last
