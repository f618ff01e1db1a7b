"""The pace of a recorder's questions: pages of a record's end, and turns of publishers.

Owns the bounds on what may be in flight. The agent hears everything on its server by one connection, and a server cuts
connections that do not read as fast as it writes; so replies are kept small and few.
"""

from __future__ import annotations

from typing import Any, Final

from shoal.wire.commands import Command
from shoal.wire.record_entry import STREAMS_FIELD

TAIL_ENTRIES_MAX: Final = 1000
"""Entries at the end of a record that are read before it is continued, if none of them has stream positions."""

TAIL_PAGE_BYTES: Final = 16_384
"""The target size of a reply with entries; a single entry may be larger."""

PAGE_GROWTH: Final = 4
"""The largest ratio of a page's length to that of the page before."""

TURNS_MAX: Final = 4
"""Publishers that are asked at the same time for missed messages, on one server."""


class RecordTail:
    """The newest entries of a record, newest first, as they are read page by page."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self._count = 1
        self._bytes = 0

    def question(self, key: bytes) -> Command:
        """Asks for the next page."""
        before = b"(" + bytes(self.entries[-1][0]) if self.entries else b"+"
        return b"XREVRANGE", key, before, b"-", b"COUNT", b"%d" % self._count

    def takes_more(self, page: list[Any]) -> bool:
        """Takes a page; returns whether another page is needed. An entry with the position of each stream is enough."""
        self.entries += page
        self._bytes += sum(len(part) for entry in page for part in entry[1])
        ended = len(page) < self._count or len(self.entries) >= TAIL_ENTRIES_MAX
        if ended or any(STREAMS_FIELD in entry[1][::2] for entry in page):
            return False
        fit = TAIL_PAGE_BYTES * len(self.entries) // max(self._bytes, 1)
        self._count = max(1, min(fit, self._count * PAGE_GROWTH, TAIL_ENTRIES_MAX - len(self.entries)))
        return True


class Turns:
    """The publishers that are being asked. Streams without a turn try again later."""

    def __init__(self) -> None:
        self._taken: set[tuple[bytes, int]] = set()

    def take(self, key: tuple[bytes, int]) -> bool:
        """Takes a turn, or keeps the one it has; False if none is free."""
        if key not in self._taken and len(self._taken) >= TURNS_MAX:
            return False
        self._taken.add(key)
        return True

    def give(self, key: tuple[bytes, int]) -> None:
        """Gives a turn back, if there was one."""
        self._taken.discard(key)

    def clear(self) -> None:
        """Gives all turns back."""
        self._taken.clear()
