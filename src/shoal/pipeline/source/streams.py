"""The streams of one server, asked for without an event loop: what there is, and the entries of a slice.

Owns the questions and the reading of their answers. What entries mean is decided in `kinds`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import hiredis

from shoal.errors import ConnectError, PipelineError, ProtocolError, ShoalError
from shoal.history.servers import PAGE_ENTRIES, PageSize, ServerReader
from shoal.pipeline.source.kinds import Entry
from shoal.pipeline.source.offsets import MISSING, EntryId, Slice, StreamInfo

CLOCK_STEP_MS: Final = 10.0
"""How old the time may be that a server tells: it looks at its clock once for many commands."""
NOT_YET: Final = ("LOADING", "BUSY ", "MASTERDOWN")
"""How a server refuses that will answer later: one that has just started reads its data first."""


class ServerStreams(ServerReader):
    """The streams of one server."""

    def ask(self, *args: bytes | str | int) -> Any:
        """The reply to one command; PipelineError if the server refuses it, ConnectError if it cannot answer yet."""
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
        """What there is of a stream."""
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
            raise ProtocolError(f"an answer to XINFO that is none: {error}") from error

    def entry_bytes(self, key: bytes, id: EntryId) -> int:
        """How large an entry of a stream is; 0 if it is not there."""
        reply = self.ask(b"XRANGE", key, str(id), str(id))
        return sum(len(value) for _, fields in reply for value in fields)

    def ahead_ms(self) -> int:
        """How far the server's clock is ahead of ours, about; 0 where both may be the same, for all that the length of
        the question tells: a machine that is busy must not make one second look like another."""
        before_ms = time.time() * 1000
        text = self.ask(b"INFO", b"server")
        after_ms = time.time() * 1000
        for line in (text.decode() if isinstance(text, bytes) else str(text)).splitlines():
            if line.startswith("server_time_usec:"):
                there_ms = int(line.partition(":")[2]) / 1000
                same = before_ms - CLOCK_STEP_MS <= there_ms <= after_ms
                return 0 if same else round(there_ms - (before_ms + after_ms) / 2)
        return 0

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
        """The id of the `count`-th entry behind one, or of the last (up to `last`) if there are fewer, and how many
        those are."""
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
            raise ProtocolError(f"an answer to XRANGE that is none: {error}") from error
