"""Offsets: how far each stream of each server was read, as Spark writes them down.

Owns their form and their arithmetic. Never touches a socket.

    {"s1": {"telemetry": "1763240000000-0/3600", "~ahead_ms": -12}, ...}

For each stream the id of the last entry that was read, and how many entries the stream had had by then, which tells
exactly how many were dropped since (servers before Redis 7 do not count: there it is missing). `~ahead_ms` is how far
the server's clock was ahead of the reader's when the offset was made, so that a batch that is read again has the same
times. An offset is a value: whoever reads from one to the next gets the same entries each time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import total_ordering
from itertools import pairwise
from typing import Any, Final

from shoal.errors import ConfigError

AHEAD: Final = "~ahead_ms"
"""The key beside the streams of a server. No stream is called so."""

SEQUENCE_MAX: Final = 2**64 - 1

_POSITION: Final = re.compile(r"(\d{1,20})-(\d{1,20})(?:/(\d{1,20}))?")


@total_ordering
@dataclass(frozen=True, slots=True)
class EntryId:
    """The id of a stream's entry: when it was appended, by the server's clock, and a count within the millisecond."""

    ms: int
    sequence: int

    def __lt__(self, other: EntryId) -> bool:
        return (self.ms, self.sequence) < (other.ms, other.sequence)

    def __str__(self) -> str:
        return f"{self.ms}-{self.sequence}"

    @classmethod
    def parse(cls, text: bytes | str) -> EntryId:
        """The id in a text; ValueError if it is none."""
        ms, _, sequence = (text.decode() if isinstance(text, bytes) else text).partition("-")
        return cls(int(ms), int(sequence))


START: Final = EntryId(0, 0)
"""Before every entry."""


@dataclass(frozen=True, slots=True)
class Position:
    """Behind an entry of a stream. `count` is how many entries the stream had had by then; None: nobody knows."""

    id: EntryId
    count: int | None = None

    def __str__(self) -> str:
        return str(self.id) if self.count is None else f"{self.id}/{self.count}"

    @classmethod
    def parse(cls, text: object) -> Position:
        """The position in a text; ConfigError if it is none."""
        match = _POSITION.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(f"{text!r} is no position in a stream", do="write it as 1763240000000-0")
        ms, sequence, count = match.groups()
        return cls(EntryId(int(ms), int(sequence)), None if count is None else int(count))


OLDEST: Final = Position(START, 0)
"""Before the first entry that a stream ever had: reading from here begins with the oldest that is left."""


@dataclass(frozen=True, slots=True)
class ServerOffset:
    """How far the streams of one server were read."""

    streams: Mapping[str, Position]
    ahead_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """As Spark writes it down."""
        return {**{name: str(self.streams[name]) for name in sorted(self.streams)}, AHEAD: self.ahead_ms}

    @classmethod
    def from_json(cls, found: object) -> ServerOffset:
        """What Spark has written down, or a user has given; ConfigError if it is none."""
        if not isinstance(found, Mapping):
            raise ConfigError(f"{found!r} is no offset of a server", do='write it as {"telemetry": "1763240000000-0"}')
        streams = {name: Position.parse(text) for name, text in found.items() if name != AHEAD}
        return cls(streams, int(found.get(AHEAD, 0)))


NOTHING: Final = ServerOffset({})


def read_offset(found: object) -> dict[str, ServerOffset]:
    """The offset in what JSON gives; ConfigError if it is none."""
    if not isinstance(found, Mapping):
        raise ConfigError(f"{found!r} is no offset", do='write it as {"s1": {"telemetry": "1763240000000-0"}}')
    return {str(server): ServerOffset.from_json(of_server) for server, of_server in found.items()}


def write_offset(offset: Mapping[str, ServerOffset]) -> dict[str, Any]:
    """An offset as JSON takes it: equal offsets are equal texts."""
    return {server: offset[server].to_json() for server in sorted(offset)}


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """What a server says of a stream. `added` is how many entries it ever had; None: it does not count."""

    length: int
    last: EntryId
    first: EntryId | None
    added: int | None

    @property
    def end(self) -> Position:
        """Behind its last entry."""
        return Position(self.last, self.added)


MISSING: Final = StreamInfo(0, START, None, 0)
"""A stream that is not there."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Entries that cannot be read any more. `count` None: at least one, nobody knows how many."""

    count: int | None
    reset: bool
    """Whether the stream began anew: the server lost its data, or somebody deleted the stream."""

    def __str__(self) -> str:
        if self.reset:
            return "began anew since it was last read (its server was restarted, or the stream deleted)"
        many = (
            "entries were" if self.count is None else "1 entry was" if self.count == 1 else f"{self.count} entries were"
        )
        return f"was trimmed: {many} dropped before they were read"


def loss(start: Position, info: StreamInfo) -> Loss | None:
    """What of a stream was lost between where a reader stands and what is there now; None if nothing was."""
    if start.id == START and not start.count:
        return None  # whoever begins at the oldest misses nothing
    if info.last < start.id:
        return Loss(None, reset=True)
    if start.count is not None and info.added is not None:
        dropped = info.added - info.length
        if info.added < start.count or (not dropped and info.first is not None and info.first > start.id):
            return Loss(None, reset=True)
        return Loss(dropped - start.count, reset=False) if dropped > start.count else None
    if info.last == start.id or (info.first is not None and info.first <= start.id):
        return None
    return Loss(None, reset=False)


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a stream: the entries behind `after`, up to and with `last`."""

    stream: str
    after: EntryId
    last: EntryId


def slices(stream: str, start: Position, end: Position, first_ms: int, parts: int) -> list[Slice]:
    """What is between two positions, in parts of about equal time. `first_ms` is when the first entry in it was
    appended, or before."""
    after = start.id if start.id <= end.id else START  # a stream that began anew
    if after == end.id:
        return []
    from_ms = max(after.ms, first_ms)
    span_ms = end.id.ms - from_ms
    cuts = [EntryId(from_ms + span_ms * part // parts, SEQUENCE_MAX) for part in range(1, parts)]
    bounds = [after, *(cut for cut in cuts if after < cut < end.id), end.id]
    return [Slice(stream, low, high) for low, high in pairwise(bounds) if low < high]


def shares(pending: Mapping[str, int], rows_max: int) -> dict[str, int]:
    """How many rows each of some streams may give of `rows_max`: what few want goes to those who have more. Each that
    has any gives one at least, so that none waits for ever."""
    left, given = rows_max, dict.fromkeys(pending, 0)
    for place, name in enumerate(sorted(pending, key=lambda name: (pending[name], name))):
        share = max(1, left // (len(pending) - place))
        given[name] = min(pending[name], share)
        left = max(0, left - given[name])
    return given
