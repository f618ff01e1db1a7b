"""One publisher's stream, as the recorder of one server hears it: the numbers heard, and those owed to the record.

Owns the window over sequence numbers that finds copies. Never touches the record itself.

A recorder is not a subscriber: numbers that it does not hear may be on other servers, and it does not wait for them.
Only after an absence the messages sent meanwhile are owed, and their publisher is asked for them.
"""

from __future__ import annotations

from typing import Final

WINDOW: Final = 8192
"""Numbers behind the last one within which copies are found. Older copies are recorded again; readers drop them."""


class RecordedStream:
    """The state of one stream.

    `last` is the highest number heard or owed. `doubted` says that the recorder was away and has not learnt since how
    far the stream came. `fresh` says that it was first heard after that, with the number `met`. Owed numbers are those
    from `owed` to `owed_last`, since `owed_since`.
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
        """Whether messages are owed."""
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
        """Notes numbers that have not been heard, within the window."""
        if end > first:
            self._missing.update(range(max(first, end - WINDOW), end))
        if len(self._missing) > WINDOW:
            self._missing = {number for number in self._missing if number > end - WINDOW}

    def owe(self, first: int, last: int, now: float) -> None:
        """Notes numbers that were published while the recorder was away."""
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
        """An owed number has come. They come in order; others are asked for again."""
        if sequence == self.owed:
            self.owed = sequence + 1 if sequence < self.owed_last else 0
            self.owed_last = self.owed_last if self.owed else 0

    def give_up(self, last: int) -> tuple[int, int] | None:
        """Gives up the owed numbers up to `last`; returns their range, None if there are none."""
        if not self.owed or last < self.owed:
            return None
        first, last = self.owed, min(last, self.owed_last)
        self.owed = last + 1 if last < self.owed_last else 0
        self.owed_last = self.owed_last if self.owed else 0
        return first, last
