"""The records of servers, read without an event loop: which channels have one, and their entries.

Owns the questions, and the positions from which reading goes on. What entries mean is decided in `table`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import hiredis
import msgspec

from shoal.errors import ConnectError, ProtocolError
from shoal.history.plain import Entries
from shoal.history.servers import PageSize, ServerReader
from shoal.wire.envelope import ENDED
from shoal.wire.recorded import (
    ARCHIVED_KEY,
    INDEX_KEY,
    NUMBER_MAX,
    STREAMS_FIELD,
    RecordedMessage,
    read_entry,
    record_key,
)

TAIL_ENTRIES: Final = 600
"""Entries at the end of a record among which one says how far each stream has come."""

TAIL_BYTES: Final = 16 << 20
"""What is read of the end of a record before the first entry that says so is enough."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The last entry of a record that was read: its id and its number."""

    entry: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,20}(-[0-9]{1,20})?$")] = "0-0"
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
        size = PageSize()
        left = count_max
        while left is None or left > 0:
            page, asked = self._page(size, left, b"XRANGE", record_key(channel), f"({after}", b"+")
            if page:
                yield page
                after = page[-1][0]
                left = None if left is None else left - len(page)
            if len(page) < asked:
                return

    def _page(self, size: PageSize, left: int | None, *question: bytes | str) -> tuple[Entries, int]:
        """The next entries, and how many were asked for: fewer and fewer while the answer is too large."""
        while True:
            asked = size.count if left is None else min(size.count, left)
            try:
                reply = self._ask(*question, b"COUNT", asked)
            except ProtocolError:
                if asked == 1 or not size.shrink():
                    raise
                self.reconnect()
                continue
            page = [(bytes(id).decode(), fields) for id, fields in reply]
            if page:
                size.learn(len(page), sum(len(word) for _, fields in page for word in fields))
            return page, asked

    def ends(self, channel: bytes) -> Mapping[int, int]:
        """How far each stream has come by this record, if it was heard of late."""
        ends: dict[int, int] = {}
        for fields in self._tail(channel):
            try:
                _, said = read_entry(fields)
            except ProtocolError:
                continue
            if isinstance(said, RecordedMessage) and said.sequence <= NUMBER_MAX:
                ends[said.stream] = max(ends.get(said.stream, 0), said.sequence)
            elif isinstance(said, list):
                for stream, last in said:
                    ends[stream] = max(ends.get(stream, 0), last & ~ENDED)
        return ends

    def _tail(self, channel: bytes) -> Iterator[Any]:
        """The fields of the newest entries, newest first: `TAIL_ENTRIES`, or, if those are large, down to one that says
        how far all streams have come."""
        size, before, left, read = PageSize(), "+", TAIL_ENTRIES, 0
        while left > 0:
            page, asked = self._page(size, left, b"XREVRANGE", record_key(channel), before, b"-")
            yield from (fields for _, fields in page)
            read += sum(len(word) for _, fields in page for word in fields)
            told = any(STREAMS_FIELD in fields[::2] for _, fields in page)
            if len(page) < asked or (told and read > TAIL_BYTES):
                return
            before, left = f"({page[-1][0]}", left - len(page)

    def clock_ms(self) -> int:
        """The server's clock; 0 if it does not say it."""
        return int(self._info().get("server_time_usec", 0)) // 1000

    def started_ms(self) -> int:
        """When the server was started, by its clock; now, if it does not say it."""
        info = self._info()
        now_ms = int(info.get("server_time_usec", 0)) // 1000 or int(time.time() * 1000)
        return now_ms - 1000 * int(info.get("uptime_in_seconds", 0))

    def _info(self) -> dict[str, str]:
        """What the server says of itself."""
        lines = bytes(self._ask(b"INFO", b"server")).decode().splitlines()
        return {name: value for name, _, value in (line.partition(":") for line in lines)}

    def tell_archived(self, until_ms: int) -> bool:
        """Marks on the server that all records are archived which were written before a time of its clock; False if it
        refuses that."""
        try:
            self._asking.ask(b"SET", ARCHIVED_KEY, until_ms)
        except hiredis.ReplyError:
            return False
        return True

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
