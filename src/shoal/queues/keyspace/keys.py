"""The keys of the model of Redis, and the commands on strings and streams.

Owns: the keys of one server process. Never touches: connections and rights. Lists, hashes, sorted sets and sets are in
`shoal.queues.keyspace.collections`.
"""

from typing import Any, Final

from hiredis import ReplyError

from shoal.queues.keyspace.collections import (
    COLLECTION_COMMANDS,
    WRONG_TYPE,
    Stream,
    Values,
    run_collection_command,
)

__all__ = ["Keys", "Stream"]

_BAD_ID: Final = "ERR Invalid stream ID specified as stream command argument"

StreamId = tuple[int, int]


class Keys:
    """Values by key. A trim with `~` is done exactly, which Redis may but need not do."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: Values = {}

    def execute(self, command: tuple[bytes, ...], now: float) -> Any:
        """The reply to one command whose number of arguments is right."""
        name = command[0].lower()
        if name in COLLECTION_COMMANDS:
            return run_collection_command(self.values, command)
        if name == b"xread":
            return self._read(command)
        if name == b"xinfo":
            return self._stream_info(command)
        value = self.values.get(command[1])
        if name == b"set":
            if len(command) != 3:
                return ReplyError("ERR syntax error")
            self.values[command[1]] = command[2]
            return b"OK"
        if name == b"get":
            return value if value is None or isinstance(value, bytes) else ReplyError(WRONG_TYPE)
        if name == b"del":
            return sum(self.values.pop(key, None) is not None for key in command[1:])
        if value is not None and not isinstance(value, Stream):
            return ReplyError(WRONG_TYPE)
        if name == b"xlen":
            return 0 if value is None else len(value.entries)
        if name == b"xrevrange":
            return _newest(command, value)
        return self._add(command, value, now)

    def _read(self, command: tuple[bytes, ...]) -> Any:
        """XREAD [COUNT count] STREAMS key ... id ...: the model does not block, and knows no `$`."""
        words = [word.lower() for word in command]
        if b"streams" not in words:
            return ReplyError("ERR syntax error")
        at = words.index(b"streams") + 1
        if (len(words) - at) % 2 or len(words) == at:
            return ReplyError(
                "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified."
            )
        count = int(words[words.index(b"count") + 1]) if b"count" in words[:at] else None
        names = command[at : at + (len(words) - at) // 2]
        found: dict[bytes, Any] = {}
        for key, text in zip(names, command[at + len(names) :], strict=True):
            stream = self.values.get(key)
            if stream is not None and not isinstance(stream, Stream):
                return ReplyError(WRONG_TYPE)
            first, dash, second = text.partition(b"-")
            if not first.isdigit() or (dash and not second.isdigit()):
                return ReplyError(_BAD_ID)
            after = int(first), int(second or b"0")
            entries = [entry for entry in stream.entries if entry[0] > after] if stream else []
            if entries:
                found[key] = [[b"%d-%d" % number, list(fields)] for number, fields in entries[:count]]
        return found or None

    def _stream_info(self, command: tuple[bytes, ...]) -> Any:
        """XINFO STREAM key: only the length and the last id, which readers of streams need."""
        stream = self.values.get(command[2])
        if stream is None:
            return ReplyError("ERR no such key")
        if not isinstance(stream, Stream):
            return ReplyError(WRONG_TYPE)
        return {b"length": len(stream.entries), b"last-generated-id": b"%d-%d" % stream.last}

    def _add(self, command: tuple[bytes, ...], stream: Stream | None, now: float) -> Any:
        """XADD key [MAXLEN [=|~] count] id field value ..."""
        at = 2
        length_max: int | None = None
        if command[at].lower() == b"maxlen":
            at += 2 if command[at + 1] in (b"=", b"~") else 1
            if not command[at].isdigit():
                return ReplyError("ERR value is not an integer or out of range")
            length_max = int(command[at])
            at += 1
        fields = command[at + 1 :]
        if not fields or len(fields) % 2:
            return ReplyError("ERR wrong number of arguments for 'xadd' command")
        last = stream.last if stream is not None else (0, 0)
        number = _entry_id(command[at], last, now)
        if isinstance(number, ReplyError):
            return number
        if stream is None:
            stream = Stream()
            self.values[command[1]] = stream
        stream.last = number
        stream.entries.append((number, fields))
        if length_max is not None:
            del stream.entries[: max(0, len(stream.entries) - length_max)]
        return b"%d-%d" % number


def _entry_id(text: bytes, last: StreamId, now: float) -> StreamId | ReplyError:
    """The id of a new entry: `*` is now, but never at or before the last one."""
    if text == b"*":
        milliseconds = int(now * 1000)
        return (milliseconds, 0) if milliseconds > last[0] else (last[0], last[1] + 1)
    first, dash, second = text.partition(b"-")
    if not first.isdigit() or (dash and not second.isdigit()):
        return ReplyError(_BAD_ID)
    number = int(first), int(second or b"0")
    if number == (0, 0):
        return ReplyError("ERR The ID specified in XADD must be greater than 0-0")
    if number <= last:
        return ReplyError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    return number


def _newest(command: tuple[bytes, ...], stream: Stream | None) -> Any:
    """XREVRANGE key + - [COUNT count], and `(id` in the place of `+`: the model has no other ranges."""
    end: StreamId | None = None
    if command[2].startswith(b"("):
        first, _, second = command[2][1:].partition(b"-")
        end = int(first), int(second or b"0")
    elif command[2] != b"+" or command[3] != b"-":
        return ReplyError(_BAD_ID)
    if len(command) not in (4, 6) or (len(command) == 6 and command[4].lower() != b"count"):
        return ReplyError("ERR syntax error")
    entries = [entry for entry in reversed(stream.entries) if end is None or entry[0] < end] if stream else []
    count = int(command[5]) if len(command) == 6 else len(entries)
    return [[b"%d-%d" % number, list(fields)] for number, fields in entries[:count]]
