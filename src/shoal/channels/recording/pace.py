"""How fast a recorder asks: pages of a record's end, and turns of publishers.

Owns the bounds on what may be under way. The agent hears everything on its server by one connection, and a server cuts
off who does not read as fast as it answers; so answers are kept small, and few at a time.
"""

from __future__ import annotations

from typing import Any, Final

from shoal.channels.client.server_link import Command
from shoal.wire.record_entry import STREAMS_FIELD

TAIL_ENTRIES_MAX: Final = 1000
"""Entries at the end of a record that are read before it is continued, if none of them says how far streams came."""

TAIL_PAGE_BYTES: Final = 16_384
"""What an answer with entries should hold; a single entry may be larger."""

PAGE_GROWTH: Final = 4
"""By how much a page may be longer than the one before."""

TURNS_MAX: Final = 4
"""Publishers that are asked at the same time for what the recorder missed, on one server."""


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
        """Takes a page; whether there is another one to be asked for. An entry that says how far each stream had come
        is enough."""
        self.entries += page
        self._bytes += sum(len(word) for entry in page for word in entry[1])
        ended = len(page) < self._count or len(self.entries) >= TAIL_ENTRIES_MAX
        if ended or any(STREAMS_FIELD in entry[1][::2] for entry in page):
            return False
        fit = TAIL_PAGE_BYTES * len(self.entries) // max(self._bytes, 1)
        self._count = max(1, min(fit, self._count * PAGE_GROWTH, TAIL_ENTRIES_MAX - len(self.entries)))
        return True


class Turns:
    """Who is asked now. Whoever has no turn tries again later."""

    def __init__(self) -> None:
        self._taken: set[tuple[bytes, int]] = set()

    def take(self, key: tuple[bytes, int]) -> bool:
        """Takes a turn, or keeps the one that is had; False if there is none."""
        if key not in self._taken and len(self._taken) >= TURNS_MAX:
            return False
        self._taken.add(key)
        return True

    def give(self, key: tuple[bytes, int]) -> None:
        """Gives a turn back, if there was one."""
        self._taken.discard(key)

    def clear(self) -> None:
        """Nobody is asked any more."""
        self._taken.clear()
