"""Reads the records of one server: which channels have one, and their entries. Blocking, without an event loop.

Owns the Redis commands, and the positions at which reading continues. The meaning of entries belongs to
`entry_decoder`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import hiredis
import msgspec

from shoal.errors import ConnectError, ProtocolError
from shoal.history.entry_decoder import Entries
from shoal.history.server_reader import PageSize, ServerReader, parse_info
from shoal.wire.envelope import ENDED
from shoal.wire.record_entry import (
    ARCHIVED_KEY,
    INDEX_KEY,
    NUMBER_MAX,
    STREAMS_FIELD,
    RecordedMessage,
    read_entry,
    record_key,
)

TAIL_ENTRIES: Final = 600
"""Number of newest entries that are sure to include one with the positions of all streams."""

TAIL_BYTES: Final = 16 << 20
"""After this much of the end of a record, reading stops at the first entry with the positions of all streams."""


class RecordPosition(msgspec.Struct, frozen=True, array_like=True):
    """The last entry that was read of a record: its id and its number."""

    entry: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,20}(-[0-9]{1,20})?$")] = "0-0"
    number: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """Sort key."""
        return entry_key(self.entry)


BEGINNING: Final = RecordPosition()


def entry_key(entry: str) -> tuple[int, int]:
    """An entry's id as a pair of numbers, for comparison."""
    milliseconds, _, count = entry.partition("-")
    return int(milliseconds), int(count or 0)


class RecordReader(ServerReader):
    """Reads the records of one server."""

    def channels(self) -> list[bytes]:
        """The channels that have a record on this server."""
        return sorted(self._ask(b"SMEMBERS", INDEX_KEY))

    def end(self, channel: bytes) -> RecordPosition:
        """The newest entry of a record."""
        reply = self._ask(b"XREVRANGE", record_key(channel), b"+", b"-", b"COUNT", 1)
        return _position(reply[0]) if reply else BEGINNING

    def holds_before(self, channel: bytes, entry: str) -> bool:
        """Whether a record still holds an entry older than `entry`, or is empty."""
        reply = self._ask(b"XRANGE", record_key(channel), b"-", b"+", b"COUNT", 1)
        return not reply or entry_key(bytes(reply[0][0]).decode()) < entry_key(entry)

    def pages(self, channel: bytes, after: str, count_max: int | None = None) -> Iterator[Entries]:
        """Entries after one, page by page, at most `count_max` in total."""
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
        """The next entries, and how many were requested. Requests fewer while the answer is too large."""
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
        """The last sequence number of each stream that this record mentions among its newest entries."""
        ends: dict[int, int] = {}
        for fields in self._tail(channel):
            try:
                _, content = read_entry(fields)
            except ProtocolError:
                continue
            if isinstance(content, RecordedMessage) and content.sequence <= NUMBER_MAX:
                ends[content.stream] = max(ends.get(content.stream, 0), content.sequence)
            elif isinstance(content, list):
                for stream, last in content:
                    ends[stream] = max(ends.get(stream, 0), last & ~ENDED)
        return ends

    def _tail(self, channel: bytes) -> Iterator[Any]:
        """The fields of the newest `TAIL_ENTRIES` entries, newest first. Beyond `TAIL_BYTES` it stops
        at an entry with the positions of all streams."""
        size, before, left, read = PageSize(), "+", TAIL_ENTRIES, 0
        while left > 0:
            page, asked = self._page(size, left, b"XREVRANGE", record_key(channel), before, b"-")
            yield from (fields for _, fields in page)
            read += sum(len(word) for _, fields in page for word in fields)
            has_positions = any(STREAMS_FIELD in fields[::2] for _, fields in page)
            if len(page) < asked or (has_positions and read > TAIL_BYTES):
                return
            before, left = f"({page[-1][0]}", left - len(page)

    def clock_ms(self) -> int:
        """The server's clock; 0 if the server does not report it."""
        return int(self._info().get("server_time_usec", 0)) // 1000

    def started_ms(self) -> int:
        """When the server was started, by its clock; now if the server does not report it."""
        info = self._info()
        now_ms = int(info.get("server_time_usec", 0)) // 1000 or int(self._runtime.wall() * 1000)
        return now_ms - 1000 * int(info.get("uptime_in_seconds", 0))

    def _info(self) -> dict[str, str]:
        return parse_info(bytes(self._ask(b"INFO", b"server")))

    def mark_archived(self, until_ms: int) -> bool:
        """Marks on the server that all entries written before `until_ms` (its clock) are archived; False if the server
        refuses the write."""
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
                f"server {self.server.id} refuses access to its records ({error})",
                do="log in as client or reader; restart a cluster that was started before Shoal could record",
            ) from error
        return reply if reply is not None else []


def last_position(page: Entries, before: RecordPosition) -> RecordPosition:
    """The position after a page. Its number is that of the last readable entry, else that of `before`."""
    for _, fields in reversed(page):
        with contextlib.suppress(ProtocolError):
            return RecordPosition(page[-1][0], read_entry(fields)[0])
    return RecordPosition(page[-1][0], before.number)


def _position(entry: Any) -> RecordPosition:
    return last_position([(bytes(entry[0]).decode(), entry[1])], BEGINNING)
