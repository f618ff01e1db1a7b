"""The records of servers, read without an event loop: which channels have one, and their entries.

Owns the questions, and the positions from which reading goes on. What entries mean is decided in `table`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import hiredis
import msgspec

from shoal.errors import ConnectError, ProtocolError
from shoal.history.plain import Entries
from shoal.history.servers import ServerReader
from shoal.wire.recorded import INDEX_KEY, NUMBER_MAX, RecordedMessage, read_entry, record_key

PAGE_ENTRIES: Final = 2000
"""Entries in one answer of a server."""

TAIL_ENTRIES: Final = 600
"""Entries at the end of a record among which one says how far each stream has come."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The last entry of a record that was read: its id and its number."""

    entry: str = "0-0"
    number: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """By which positions are compared."""
        return entry_key(self.entry)


BEGINNING: Final = Position()


def entry_key(entry: str) -> tuple[int, int]:
    """An entry's id as numbers."""
    milliseconds, _, count = entry.partition("-")
    return int(milliseconds), int(count or 0)


class RecordReader(ServerReader):
    """What one server has recorded."""

    def channels(self) -> list[bytes]:
        """The channels that have a record on this server."""
        return sorted(self._ask(b"SMEMBERS", INDEX_KEY))

    def end(self, channel: bytes) -> Position:
        """The newest entry of a record."""
        reply = self._ask(b"XREVRANGE", record_key(channel), b"+", b"-", b"COUNT", 1)
        return _position(reply[0]) if reply else BEGINNING

    def holds_before(self, channel: bytes, entry: str) -> bool:
        """Whether a record still has an entry from before another one, or never had any."""
        reply = self._ask(b"XRANGE", record_key(channel), b"-", b"+", b"COUNT", 1)
        return not reply or entry_key(bytes(reply[0][0]).decode()) < entry_key(entry)

    def pages(self, channel: bytes, after: str, count_max: int | None = None) -> Iterator[Entries]:
        """Entries behind one, page by page, at most `count_max` of them."""
        left = count_max
        while left is None or left > 0:
            count = PAGE_ENTRIES if left is None else min(PAGE_ENTRIES, left)
            reply = self._ask(b"XRANGE", record_key(channel), f"({after}", b"+", b"COUNT", count)
            page = [(bytes(id).decode(), fields) for id, fields in reply]
            if not page:
                return
            yield page
            after = page[-1][0]
            left = None if left is None else left - len(page)
            if len(page) < count:
                return

    def ends(self, channel: bytes) -> Mapping[int, int]:
        """How far each stream has come by this record, if it was heard of late."""
        ends: dict[int, int] = {}
        for _, fields in self._ask(b"XREVRANGE", record_key(channel), b"+", b"-", b"COUNT", TAIL_ENTRIES):
            try:
                _, said = read_entry(fields)
            except ProtocolError:
                continue
            if isinstance(said, RecordedMessage) and said.sequence <= NUMBER_MAX:
                ends[said.stream] = max(ends.get(said.stream, 0), said.sequence)
            elif isinstance(said, list):
                for stream, last in said:
                    ends[stream] = max(ends.get(stream, 0), last & ~(1 << 63))
        return ends

    def _ask(self, *args: bytes | str | int) -> Any:
        try:
            reply = self._asking.ask(*args)
        except hiredis.ReplyError as error:
            raise ConnectError(
                f"server {self.server.id} refuses to show its records ({error})",
                do="log in as client or reader; a cluster from before recording must be started anew",
            ) from error
        return reply if reply is not None else []


def last_position(page: Entries, before: Position) -> Position:
    """The position behind a page; an entry without a number leaves that as it was."""
    for entry, fields in reversed(page):
        try:
            return Position(page[-1][0], read_entry(fields)[0])
        except ProtocolError:
            del entry
    return Position(page[-1][0], before.number)


def _position(entry: Any) -> Position:
    try:
        return Position(bytes(entry[0]).decode(), read_entry(entry[1])[0])
    except ProtocolError:
        return Position(bytes(entry[0]).decode(), 0)
