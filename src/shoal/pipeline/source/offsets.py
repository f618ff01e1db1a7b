"""Offsets of the Spark source: how far each stream of each server was read. Spark stores them in its checkpoint.

Owns their JSON format, their arithmetic, and the checks of offsets that a user gives. Never touches a socket.

    {"s1": {"telemetry": "1763240000000-0/3600", "~ahead_ms": -12}, "~of": {"kind": "telemetry"}, "~v": 2}
    {"s1": {"orders.eu": "0/3600", "orders.us": "523.4/120+17", "~ms": 1763240000000, "~ahead_ms": 0}, ...}

For each stream, by its name: the id of the last entry that was read, and after the slash the number of entries that the
stream had received by then. That count shows exactly how many entries were dropped since; servers before Redis 7 do not
report it. Of several streams of a server, the ids are short: milliseconds before `~ms`, and after a dot the second part
of the id if it is not 0. After a plus sign comes the number of entries that existed and that the offset does not cover;
they are reported if the server leaves or loses its data. After a circumflex, if no earlier offset has the stream, comes
the number of entries that it had dropped before it was first seen, which do not count as lost. `~ahead_ms` is how far
the server's clock was ahead of the reader's when the offset was made, so that a batch that is read again has the same
arrival times. Reading from one offset to another gives the same entries each time.

With `~latest` the server has not answered yet, and reading starts at its newest entry when it does. A name that begins
with `~` gets another `~`.

Beside the servers, `~of` names what was read (kind, channel, filter). An offset is rejected for anything else. `~v` is
the version. Offsets of version 1 have no `~v`, names of channels in base64url, complete ids, the entries that they do
not cover under `~behind` (for each stream, or in one number), and those dropped before under `~began`; some have no
`~of`. They are still read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import total_ordering
from itertools import pairwise
from typing import Any, Final, NamedTuple

from shoal.errors import ConfigError

RESERVED: Final = "~"
"""Prefix of all keys that are not names of streams."""

AHEAD: Final = "~ahead_ms"
AT: Final = "~ms"
BEGAN: Final = "~began"
BEHIND: Final = "~behind"
AT_LATEST: Final = "~latest"
OF: Final = "~of"
VERSION: Final = "~v"
NOW: Final = 2
"""The version that is written."""

ANY: Final = ""
"""Name in `unread` for all streams of a server together, as older offsets have it."""

SEQUENCE_MAX: Final = 2**64 - 1

NAMES_SHOWN_MAX: Final = 5
"""Number of existing names that an error lists."""

_WHOLE: Final = r"(\d{1,20})"
_POSITION: Final = re.compile(
    rf"(?:{_WHOLE}-{_WHOLE}|{_WHOLE}(?:\.{_WHOLE})?)(?:/{_WHOLE})?(?:\+{_WHOLE})?(?:\^{_WHOLE})?"
)


@total_ordering
@dataclass(frozen=True, slots=True)
class EntryId:
    """The id of an entry: when it was appended, by the server's clock, and a counter within the millisecond."""

    ms: int
    sequence: int

    def __lt__(self, other: EntryId) -> bool:
        return (self.ms, self.sequence) < (other.ms, other.sequence)

    def __str__(self) -> str:
        return f"{self.ms}-{self.sequence}"

    @classmethod
    def parse(cls, text: bytes | str) -> EntryId:
        """Reads an id; ValueError if the text is not one."""
        ms, _, sequence = (text.decode() if isinstance(text, bytes) else text).partition("-")
        return cls(int(ms), int(sequence))


START: Final = EntryId(0, 0)
"""Before every entry."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position after an entry of a stream. `count` is how many entries the stream had received by then; None if
    unknown."""

    id: EntryId
    count: int | None = None

    def __str__(self) -> str:
        return str(self.id) if self.count is None else f"{self.id}/{self.count}"

    def count_to(self, end: Position) -> int | None:
        """Number of entries from here to a later position of the stream; None if unknown."""
        if self.count is None or end.count is None or self.restarted(end):
            return None
        return end.count - self.count

    def restarted(self, end: Position) -> bool:
        """Whether the stream was restarted between here and the later position `end`."""
        return end.id < self.id or (self.count is not None and end.count is not None and end.count < self.count)


class _StreamOffset(NamedTuple):
    """What an offset has for one stream, in one string."""

    at: Position
    unread: int
    began: int | None

    def write(self, last_ms: int | None) -> str:
        """As text. A short id counts back from `last_ms`; None: the id is complete."""
        id, count = self.at.id, self.at.count
        if last_ms is None or id == START:
            text = str(id)
        else:
            text = f"{last_ms - id.ms}" + (f".{id.sequence}" if id.sequence else "")
        text += "" if count is None else f"/{count}"
        text += f"+{self.unread}" if self.unread else ""
        return text + ("" if self.began is None else f"^{self.began}")

    @classmethod
    def read(cls, text: object, last_ms: int | None) -> _StreamOffset:
        """The reverse of `write`; ConfigError if the text is not a position."""
        match = _POSITION.fullmatch(text) if isinstance(text, str) else None
        if match is None or (last_ms is None and match[3] is not None):
            raise ConfigError(f"{text!r} is not a position in a stream", do="write it as 1763240000000-0")
        numbers = [None if word is None else int(word) for word in match.groups()]
        ms, sequence, back_ms, short_sequence, count, unread, began = numbers
        if last_ms is not None and back_ms is not None:
            ms, sequence = last_ms - back_ms, short_sequence
        return cls(Position(EntryId(ms or 0, sequence or 0), count), unread or 0, began)


@dataclass(frozen=True, slots=True)
class ServerOffset:
    """How far the streams of one server were read."""

    streams: Mapping[str, Position]
    ahead_ms: int = 0
    unread: Mapping[str, int] = field(default_factory=dict)
    """By stream: a lower bound for the entries that existed when the offset was made and that it does not cover."""
    began: Mapping[str, int] = field(default_factory=dict)
    """For streams that no earlier offset contains: how many entries they had dropped before they were first seen."""
    at_latest: bool = False
    """Whether reading starts at the server's newest entry when it first answers."""

    @property
    def behind(self) -> int:
        """Number of entries that existed and that the offset does not cover."""
        return sum(self.unread.values())

    def to_json(self) -> dict[str, Any]:
        """The form that Spark stores."""
        last_ms = max(at.id.ms for at in self.streams.values()) if len(self.streams) > 1 else None
        found: dict[str, Any] = {}
        for name in sorted(self.streams):
            stream = _StreamOffset(self.streams[name], self.unread.get(name, 0), self.began.get(name))
            found[_key(name)] = stream.write(last_ms)
        if last_ms is not None:
            found[AT] = last_ms
        found[AHEAD] = self.ahead_ms
        for key, counts in ((BEGAN, self.began), (BEHIND, self.unread)):
            others = {name: counts[name] for name in sorted(counts) if name not in self.streams}
            if others:
                found[key] = others
        if self.at_latest:
            found[AT_LATEST] = True
        return found

    @classmethod
    def from_json(cls, found: object) -> ServerOffset:
        """Reads what Spark stored or a user gave; ConfigError if it is not an offset."""
        if not isinstance(found, Mapping):
            raise ConfigError(
                f"{found!r} is not the offset of a server", do='write it as {"telemetry": "1763240000000-0"}'
            )
        last_ms = None if AT not in found else _whole(AT, found[AT])
        streams = {
            name: _StreamOffset.read(text, last_ms) for key, text in found.items() if (name := _name(key)) is not None
        }
        behind = found.get(BEHIND, {})
        unread = {name: stream.unread for name, stream in streams.items() if stream.unread}
        began = {name: stream.began for name, stream in streams.items() if stream.began is not None}
        return cls(
            {name: stream.at for name, stream in streams.items()},
            _whole(AHEAD, found.get(AHEAD, 0)),
            unread | _counts(BEHIND, {ANY: behind} if isinstance(behind, int) else behind),
            began | _counts(BEGAN, found.get(BEGAN, {})),
            found.get(AT_LATEST) is True,
        )

    def renamed(self, new_name: Callable[[str], str]) -> ServerOffset:
        """The same with other names of streams."""
        return replace(
            self,
            streams={new_name(name): at for name, at in self.streams.items()},
            unread={name if name == ANY else new_name(name): count for name, count in self.unread.items()},
            began={new_name(name): count for name, count in self.began.items()},
        )


def _key(name: str) -> str:
    """The key of a stream."""
    return RESERVED + name if name.startswith(RESERVED) else name


def _name(key: str) -> str | None:
    """The name of a stream; None if the key is reserved."""
    if key.startswith(RESERVED * 2):
        return key[len(RESERVED) :]
    return None if key.startswith(RESERVED) else key


def _counts(name: str, found: object) -> dict[str, int]:
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name} is {found!r}", do=f"leave {name} out")
    return {str(stream): _whole(name, count) for stream, count in found.items()}


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int):
        raise ConfigError(f"{name} is {value!r}", do=f"leave {name} out")
    return value


NOTHING: Final = ServerOffset({})


def read_offset(
    found: object, of: Mapping[str, str] | None = None, new_name: Callable[[str], str] = str
) -> dict[str, ServerOffset]:
    """Reads an offset from decoded JSON; ConfigError if it is not one, or not one `of` these options. `new_name` gives
    the name of a stream from that in version 1."""
    if not isinstance(found, Mapping):
        raise ConfigError(f"{found!r} is not an offset", do='write it as {"s1": {"telemetry": "1763240000000-0"}}')
    before = found.get(OF)
    if of is not None and before is not None and before != of:
        raise ConfigError(
            f"the offset is for {_words(before)}, but the query reads {_words(of)}",
            do="give another checkpointLocation (or startingOffsets), or read the same as before",
        )
    if found.get(VERSION, NOW) != NOW:
        raise ConfigError(f"the offset has version {found[VERSION]!r}", do="read it with a newer version of Shoal")
    read = {str(server): found[server] for server in found if server not in (OF, VERSION)}
    offsets = {server: ServerOffset.from_json(of_server) for server, of_server in read.items()}
    if VERSION in found:
        return offsets
    return {  # a user's offset has names as they are, and no `~ahead_ms`
        server: offset.renamed(new_name) if AHEAD in read[server] else offset for server, offset in offsets.items()
    }


def write_offset(offset: Mapping[str, ServerOffset], of: Mapping[str, str] | None = None) -> dict[str, Any]:
    """An offset as a JSON value, with the options that it is `of`. Equal offsets give equal JSON texts."""
    found: dict[str, Any] = {server: offset[server].to_json() for server in sorted(offset)}
    return {**found, **({} if of is None else {OF: {name: of[name] for name in sorted(of)}}), VERSION: NOW}


def _words(of: object) -> str:
    return ", ".join(f"{name} {of[name]!r}" for name in sorted(of)) if isinstance(of, Mapping) else repr(of)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A server's information about a stream. `added` is how many entries it ever received; None if the server does not
    report it."""

    length: int
    last: EntryId
    first: EntryId | None
    added: int | None
    last_number: int | None = None
    """The number of its last entry, if entries are numbered without holes: then a number gives the place of its entry
    in the stream. None otherwise."""
    last_bytes: int = 0
    """The size of its last entry."""

    @property
    def end(self) -> Position:
        """The position after its last entry."""
        return Position(self.last, self.added)

    @property
    def dropped(self) -> int | None:
        """How many entries it no longer holds; None if unknown."""
        return None if self.added is None else self.added - self.length

    @property
    def oldest(self) -> Position:
        """The position before the oldest entry that it holds. Entries dropped later are lost."""
        return Position(START, self.dropped)


MISSING: Final = StreamInfo(0, START, None, 0)
"""A stream that does not exist."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Entries that can no longer be read. `count` is None if it is unknown: at least one."""

    count: int | None
    reset: bool
    """Whether the stream was restarted: its server lost its data, or the stream was deleted."""

    def __str__(self) -> str:
        if self.reset:
            return "was restarted since it was last read (its server lost its data, or the stream was deleted)"
        many = (
            "entries were" if self.count is None else "1 entry was" if self.count == 1 else f"{self.count} entries were"
        )
        return f"was trimmed: {many} dropped before they were read"


def loss(start: Position, info: StreamInfo) -> Loss | None:
    """The entries of a stream after `start` that are gone; None if there are none.

    With a count the loss is exact, also at the start: `0-0/0` is before the first entry that the stream ever had,
    `0-0/7` before the eighth. `0-0` without a count means the oldest entry that exists, so nothing is lost.
    """
    if start.id == START and (start.count is None or info.added is None):
        return None
    if info.last < start.id:
        return Loss(None, reset=True)
    if start.count is not None and info.added is not None:
        dropped = info.added - info.length
        # Fewer entries were dropped than read, so the last one read must still exist, unless the stream is a new one.
        replaced = dropped < start.count and info.first is not None and info.first > start.id
        if info.added < start.count or replaced:
            return Loss(None, reset=True)
        return Loss(dropped - start.count, reset=False) if dropped > start.count else None
    if info.last == start.id or (info.first is not None and info.first <= start.id):
        return None
    return Loss(None, reset=False)


@dataclass(frozen=True, slots=True)
class Slice:
    """Entries of a stream after `after`, up to and including `last`."""

    stream: str
    after: EntryId
    last: EntryId
    count: int | None = None
    """Number of entries; None if unknown."""


def slices(stream: str, start: Position, end: Position, first_ms: int, parts: int) -> list[Slice]:
    """Splits the entries between two positions into parts of about equal time. `first_ms` is a lower bound for the time
    of the first entry."""
    after = START if start.restarted(end) else start.id
    if after == end.id:
        return []
    from_ms = max(after.ms, first_ms)
    span_ms = end.id.ms - from_ms
    cuts = [EntryId(from_ms + span_ms * part // parts, SEQUENCE_MAX) for part in range(1, parts)]
    bounds = [after, *(cut for cut in cuts if after < cut < end.id), end.id]
    found = [Slice(stream, low, high) for low, high in pairwise(bounds) if low < high]
    return [Slice(stream, after, end.id, start.count_to(end))] if len(found) == 1 else found


def check_order(start: Mapping[str, ServerOffset], end: Mapping[str, ServerOffset]) -> None:
    """ConfigError if a batch would end before it starts."""
    for server, of_server in end.items():
        for name, last in of_server.streams.items():
            begin = start.get(server, NOTHING).streams.get(name)
            if begin is not None and begin.id > last.id:
                raise ConfigError(
                    f"the batch starts at {begin.id} in the stream {name} of {server}, after its end at {last.id}",
                    do="give startingOffsets that are not after endingOffsets, nor after the end of the stream",
                )


def check_known(
    option: str,
    given: Mapping[str, ServerOffset],
    servers: Collection[str],
    streams: Mapping[str, Collection[str]],
) -> None:
    """ConfigError if an offset names a server or a stream that does not exist. `streams` has the streams of each server
    that answers; those of other servers are not checked."""
    for server, of_server in given.items():
        if server not in servers:
            raise ConfigError(f"{option} names a server {server!r}, which does not exist", do=_instead(servers))
        existing = streams.get(server, of_server.streams)
        for name in of_server.streams:
            if name not in existing:
                raise ConfigError(
                    f"{option} names a stream {name!r}, which {server} does not have", do=_instead(existing)
                )


def _instead(names: Collection[str]) -> str:
    some = sorted(names)[:NAMES_SHOWN_MAX]
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return f"remove it, or name one of {', '.join(some)}{more}" if some else "remove it: there is none"
