"""Offsets: how far each stream of each server was read, as Spark writes them down.

Owns their form and their arithmetic. Never touches a socket.

    {"s1": {"telemetry": "1763240000000-0/3600", "~ahead_ms": -12}, ...}

For each stream the id of the last entry that was read, and how many entries the stream had had by then, which tells
exactly how many were dropped since (servers before Redis 7 do not count: there it is missing). `~ahead_ms` is how far
the server's clock was ahead of the reader's when the offset was made, so that a batch that is read again has the same
times. An offset is a value: whoever reads from one to the next gets the same entries each time.

Three more keys stand beside the streams where there is something to say. `~began` is for streams that this offset is
the first to hold: how many entries each had dropped when it was first seen, for nobody missed those. `~behind` is how
many entries of each stream were there and are not covered yet, so that a server that leaves with some is told of, and
one that has lost its data; before, it was a number for all streams of the server. `~latest` says that the server has
not answered yet and is to be read from where it is when it does.

Beside the servers, `~of` says what was asked for (kind, channel, filter): an offset means nothing for anything else.
Offsets from before do not have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import total_ordering
from itertools import pairwise
from typing import Any, Final

from shoal.errors import ConfigError

RESERVED: Final = "~"
"""Keys beside the streams of a server begin so. No stream is called so."""

AHEAD: Final = "~ahead_ms"
BEGAN: Final = "~began"
BEHIND: Final = "~behind"
WAITS: Final = "~latest"
OF: Final = "~of"

ANY: Final = ""
"""Stands for the streams of a server among those that are behind, where nobody noted which."""

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

    def count_to(self, end: Position) -> int | None:
        """How many entries are between here and another position of the stream; None: nobody knows."""
        if self.count is None or end.count is None or self.began_anew(end):
            return None
        return end.count - self.count

    def began_anew(self, end: Position) -> bool:
        """Whether a position that came after this one is one of another stream under the same name."""
        return end.id < self.id or (self.count is not None and end.count is not None and end.count < self.count)

    @classmethod
    def parse(cls, text: object) -> Position:
        """The position in a text; ConfigError if it is none."""
        match = _POSITION.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(f"{text!r} is no position in a stream", do="write it as 1763240000000-0")
        ms, sequence, count = match.groups()
        return cls(EntryId(int(ms), int(sequence)), None if count is None else int(count))


OLDEST: Final = Position(START, 0)
"""Before the first entry that a stream ever had: whatever was dropped since is missed."""


@dataclass(frozen=True, slots=True)
class ServerOffset:
    """How far the streams of one server were read."""

    streams: Mapping[str, Position]
    ahead_ms: int = 0
    unread: Mapping[str, int] = field(default_factory=dict)
    """Entries of each stream that were there when the offset was made and that it does not cover: at least so many."""
    began: Mapping[str, int] = field(default_factory=dict)
    """For streams that no offset before held: how many entries they had dropped when they were first seen."""
    waits: bool = False
    """Whether the server is to be read from where it is when it first answers."""

    @property
    def behind(self) -> int:
        """Entries that were there and that the offset does not cover."""
        return sum(self.unread.values())

    def to_json(self) -> dict[str, Any]:
        """As Spark writes it down."""
        found: dict[str, Any] = {name: str(self.streams[name]) for name in sorted(self.streams)}
        found[AHEAD] = self.ahead_ms
        if self.began:
            found[BEGAN] = {name: self.began[name] for name in sorted(self.began)}
        if self.unread:
            found[BEHIND] = {name: self.unread[name] for name in sorted(self.unread)}
        if self.waits:
            found[WAITS] = True
        return found

    @classmethod
    def from_json(cls, found: object) -> ServerOffset:
        """What Spark has written down, or a user has given; ConfigError if it is none."""
        if not isinstance(found, Mapping):
            raise ConfigError(f"{found!r} is no offset of a server", do='write it as {"telemetry": "1763240000000-0"}')
        streams = {name: Position.parse(text) for name, text in found.items() if not name.startswith(RESERVED)}
        behind = found.get(BEHIND, {})
        return cls(
            streams,
            _whole(AHEAD, found.get(AHEAD, 0)),
            _counts(BEHIND, {ANY: behind} if isinstance(behind, int) else behind),
            _counts(BEGAN, found.get(BEGAN, {})),
            found.get(WAITS) is True,
        )


def _counts(name: str, found: object) -> dict[str, int]:
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name} is {found!r}", do=f"leave {name} out")
    return {str(stream): _whole(name, count) for stream, count in found.items()}


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int):
        raise ConfigError(f"{name} is {value!r}", do=f"leave {name} out")
    return value


NOTHING: Final = ServerOffset({})


def read_offset(found: object, of: Mapping[str, str] | None = None) -> dict[str, ServerOffset]:
    """The offset in what JSON gives; ConfigError if it is none, or not one `of` what is asked for."""
    if not isinstance(found, Mapping):
        raise ConfigError(f"{found!r} is no offset", do='write it as {"s1": {"telemetry": "1763240000000-0"}}')
    before = found.get(OF)
    if of is not None and before is not None and before != of:
        raise ConfigError(
            f"the offset is one of {_words(before)}, and {_words(of)} is asked for",
            do="give another checkpointLocation (or startingOffsets), or ask for the same as before",
        )
    return {str(server): ServerOffset.from_json(of_server) for server, of_server in found.items() if server != OF}


def write_offset(offset: Mapping[str, ServerOffset], of: Mapping[str, str] | None = None) -> dict[str, Any]:
    """An offset as JSON takes it, with what it is `of`: equal offsets are equal texts."""
    found: dict[str, Any] = {server: offset[server].to_json() for server in sorted(offset)}
    return found if of is None else {**found, OF: {name: of[name] for name in sorted(of)}}


def _words(of: object) -> str:
    return ", ".join(f"{name} {of[name]!r}" for name in sorted(of)) if isinstance(of, Mapping) else repr(of)


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
    """What of a stream was lost between where a reader stands and what is there now; None if nothing was.

    A count tells it to the entry, also at the very start: `0-0/0` stands before the first entry there ever was, `0-0/7`
    before the eighth. Only `0-0` without a count begins with the oldest, whichever that is, and misses nothing.
    """
    if start.id == START and (start.count is None or info.added is None):
        return None
    if info.last < start.id:
        return Loss(None, reset=True)
    if start.count is not None and info.added is not None:
        dropped = info.added - info.length
        # Fewer were dropped than were read, so the last that was read must still be there, unless it is another stream.
        replaced = dropped < start.count and info.first is not None and info.first > start.id
        if info.added < start.count or replaced:
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
    count: int | None = None
    """How many entries that were; None: nobody knows."""


def slices(stream: str, start: Position, end: Position, first_ms: int, parts: int) -> list[Slice]:
    """What is between two positions, in parts of about equal time. `first_ms` is when the first entry in it was
    appended, or before."""
    after = START if start.began_anew(end) else start.id
    if after == end.id:
        return []
    from_ms = max(after.ms, first_ms)
    span_ms = end.id.ms - from_ms
    cuts = [EntryId(from_ms + span_ms * part // parts, SEQUENCE_MAX) for part in range(1, parts)]
    bounds = [after, *(cut for cut in cuts if after < cut < end.id), end.id]
    found = [Slice(stream, low, high) for low, high in pairwise(bounds) if low < high]
    return [Slice(stream, after, end.id, start.count_to(end))] if len(found) == 1 else found


def shares(pending: Mapping[str, int], rows_max: int) -> dict[str, int]:
    """How many rows each of some streams may give of `rows_max`: what few want goes to those who have more. Each that
    has any gives one at least, so that none waits for ever."""
    left, given = rows_max, dict.fromkeys(pending, 0)
    for place, name in enumerate(sorted(pending, key=lambda name: (pending[name], name))):
        share = max(1, left // (len(pending) - place))
        given[name] = min(pending[name], share)
        left = max(0, left - given[name])
    return given
