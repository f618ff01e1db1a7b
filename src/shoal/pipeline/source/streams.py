"""Redis commands on the streams of one server: their state, and the entries of a slice. Blocking.

Owns the commands and the parsing of their replies. The meaning of entries belongs to `kinds`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import hiredis

from shoal.errors import ConnectError, PipelineError, ProtocolError, ShoalError
from shoal.history.server_reader import PageSize, ServerReader, parse_info
from shoal.pipeline.source.kinds import Entry
from shoal.pipeline.source.offsets import MISSING, EntryId, Slice, StreamInfo
from shoal.wire.commands import Request

CLOCK_STEP_MS: Final = 10.0
"""How old a server's reported time may be; it reads its clock once for many commands."""
PIPELINED_MAX: Final = 256
"""How many commands are sent together."""
NOT_YET: Final = ("LOADING", "BUSY ", "MASTERDOWN")
"""Prefixes of temporary errors, for example while a restarted server loads its data."""


Number = Callable[[Sequence[bytes]], int | None]
"""Reads the number of an entry; None if it has none."""


class ServerStreams(ServerReader):
    """The streams of one server."""

    def ask(self, *args: bytes | str | int) -> Any:
        """The reply to one command; PipelineError if the server rejects it, ConnectError if it cannot answer yet."""
        try:
            return self._asking.ask(*args)
        except hiredis.ReplyError as error:
            raise self._refused(args[0], error) from error

    def _refused(self, command: bytes | str | int, error: hiredis.ReplyError) -> ShoalError:
        name = command.decode() if isinstance(command, bytes) else str(command)
        if str(error).startswith(NOT_YET):
            return ConnectError(f"{self._asking.where} cannot answer yet: {error}")
        advice = "log in as the role reader or pipeline" if "NOPERM" in str(error) else None
        return PipelineError(f"{self.server.id} ({self._asking.where}) refused {name}: {error}", do=advice)

    def info(self, key: bytes, number: Number | None = None) -> StreamInfo:
        """The state of a stream. `number` reads the number of an entry; None: numbers do not matter."""
        try:
            reply = self._asking.ask(*_info_request(key))
        except hiredis.ReplyError as error:
            if "no such key" in str(error) or str(error).startswith("WRONGTYPE"):
                return MISSING  # no stream: a client of queues can put anything there, which hides no other stream
            raise self._refused(b"XINFO", error) from error
        return _read_info(reply, number)

    def infos(self, keys: Sequence[bytes], number: Number) -> list[StreamInfo]:
        """The state of some streams. `number` reads the number of an entry."""
        found: list[StreamInfo] = []
        for first in range(0, len(keys), PIPELINED_MAX):
            some = keys[first : first + PIPELINED_MAX]
            try:
                replies = self._asking.ask_all([_info_request(key) for key in some])
            except hiredis.ReplyError:  # some do not exist
                found += [self.info(key, number) for key in some]
            else:
                found += [_read_info(reply, number) for reply in replies]
        return found

    def last_entries(self, asked: Sequence[tuple[bytes, EntryId]]) -> list[Entry | None]:
        """For each key and id: the last entry up to the id."""
        found: list[Entry | None] = []
        for first in range(0, len(asked), PIPELINED_MAX):
            some = asked[first : first + PIPELINED_MAX]
            requests: list[Request] = [(b"XREVRANGE", key, str(last), b"-", b"COUNT", 1) for key, last in some]
            try:
                replies = self._asking.ask_all(requests)
            except hiredis.ReplyError as error:
                raise self._refused(b"XREVRANGE", error) from error
            found += [reply[0] if reply else None for reply in replies]
        return found

    def ahead_ms(self) -> int:
        """About how far the server's clock is ahead of ours; 0 if the two may agree within the duration of the query,
        so that delays on a busy machine do not count as clock differences."""
        before_ms = time.time() * 1000
        info = parse_info(bytes(self.ask(b"INFO", b"server")))
        after_ms = time.time() * 1000
        if "server_time_usec" not in info:
            return 0
        server_ms = int(info["server_time_usec"]) / 1000
        same = before_ms - CLOCK_STEP_MS <= server_ms <= after_ms
        return 0 if same else round(server_ms - (before_ms + after_ms) / 2)

    def entries(self, key: bytes, slice: Slice) -> Iterator[list[Entry]]:
        """The entries of a slice, in pages."""
        after, size = slice.after, PageSize()
        while after < slice.last:
            asked = size.count
            page = self._page(key, after, slice.last, asked)
            if page:
                yield page
            if len(page) < asked:
                return
            after = EntryId.parse(page[-1][0])
            size.learn(len(page), sum(map(len, chain.from_iterable(fields for _, fields in page))))

    def _page(self, key: bytes, after: EntryId, last: EntryId, count: int) -> list[Entry]:
        page: list[Entry] = self.ask(b"XRANGE", key, f"({after}", str(last), b"COUNT", count)
        return page


def _info_request(key: bytes) -> Request:
    return b"XINFO", b"STREAM", key


def _read_info(reply: Any, number: Number | None) -> StreamInfo:
    try:
        length, first, last = int(reply[b"length"]), reply[b"first-entry"], reply[b"last-entry"]
        return StreamInfo(
            length=length,
            last=EntryId.parse(reply[b"last-generated-id"]),
            first=None if first is None else EntryId.parse(first[0]),
            added=None if (added := reply.get(b"entries-added")) is None else int(added),
            last_number=_last_number(length, first, last, number),
            last_bytes=0 if last is None else sum(map(len, last[1])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"invalid reply to XINFO: {error}") from error


def _last_number(length: int, first: Any, last: Any, number: Number | None) -> int | None:
    """The number of the last entry; None if the numbers of the stream have holes."""
    if first is None or last is None or number is None:
        return None
    first_number, last_number = (number(fields) for _, fields in (first, last))
    if first_number is None or last_number is None or last_number - first_number != length - 1:
        return None
    return last_number
