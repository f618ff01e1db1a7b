"""Redis commands on the streams of one server: their state, and the entries of a slice. Blocking.

Owns the commands and the parsing of their replies. The meaning of entries belongs to `kinds`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import hiredis

from shoal.errors import ConnectError, PipelineError, ProtocolError, ShoalError
from shoal.history.server_reader import PAGE_ENTRIES, PageSize, ServerReader, parse_info
from shoal.pipeline.source.kinds import Entry
from shoal.pipeline.source.offsets import MISSING, EntryId, Slice, StreamInfo

CLOCK_STEP_MS: Final = 10.0
"""How old a server's reported time may be; it reads its clock once for many commands."""
NOT_YET: Final = ("LOADING", "BUSY ", "MASTERDOWN")
"""Prefixes of temporary errors, for example while a restarted server loads its data."""


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

    def info(self, key: bytes) -> StreamInfo:
        """The state of a stream."""
        try:
            reply = self._asking.ask(b"XINFO", b"STREAM", key)
        except hiredis.ReplyError as error:
            if "no such key" in str(error):
                return MISSING
            raise self._refused(b"XINFO", error) from error
        try:
            first = reply[b"first-entry"]
            return StreamInfo(
                length=int(reply[b"length"]),
                last=EntryId.parse(reply[b"last-generated-id"]),
                first=None if first is None else EntryId.parse(first[0]),
                added=None if (added := reply.get(b"entries-added")) is None else int(added),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"invalid reply to XINFO: {error}") from error

    def entry_bytes(self, key: bytes, id: EntryId) -> int:
        """The size of an entry; 0 if it does not exist."""
        reply = self.ask(b"XRANGE", key, str(id), str(id))
        return sum(len(value) for _, fields in reply for value in fields)

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
            after = page[-1][0]
            size.learn(len(page), sum(len(value) for _, fields in page for value in fields.values()))

    def nth_id(self, key: bytes, after: EntryId, count: int, last: EntryId | None = None) -> tuple[EntryId, int]:
        """The id of the `count`-th entry after one, or of the last entry (up to `last`) if there are fewer; and how
        many entries that is."""
        found = 0
        while found < count:
            page = self._page(key, after, last, min(count - found, PAGE_ENTRIES))
            if not page:
                break
            found += len(page)
            after = page[-1][0]
        return after, found

    def _page(self, key: bytes, after: EntryId, last: EntryId | None, count: int) -> list[Entry]:
        reply = self.ask(b"XRANGE", key, f"({after}", "+" if last is None else str(last), b"COUNT", count)
        try:
            return [
                (EntryId.parse(id), dict(zip(fields[::2], fields[1::2], strict=True)))
                for id, fields in reply
                if fields is not None
            ]
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"invalid reply to XRANGE: {error}") from error
