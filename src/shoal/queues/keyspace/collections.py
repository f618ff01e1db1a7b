"""The commands on lists, hashes, sorted sets and sets in the model of Redis, and the rest of those on streams.

Owns: what the commands that the scripts of queues use do to keys and what they reply. Never touches: connections,
rights and scripts (`shoal.queues.keyspace.scripts`). Checked against a real server by the same random operations
(`tests/lab/sim/test_model_scripts.py`).

A collection that becomes empty is removed, as in Redis; a stream is not. Commands and options that scripts of queues do
not use are left out.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any, Final

from hiredis import ReplyError

WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
_NOT_INTEGER: Final = "ERR value is not an integer or out of range"
_SYNTAX: Final = "ERR syntax error"

Command = tuple[bytes, ...]


class Stream:
    """An append-only list of entries; `last` survives trimming."""

    __slots__ = ("entries", "last")

    def __init__(self) -> None:
        self.entries: list[tuple[tuple[int, int], tuple[bytes, ...]]] = []
        self.last: tuple[int, int] = (0, 0)


class Hash:
    """Values by field, in the order of their first writing."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self.fields)


class SortedSet:
    """Members by score, then by their bytes."""

    __slots__ = ("ordered", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.ordered: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self.scores)

    def add(self, score: float, member: bytes) -> bool:
        """Set the score of a member; return whether it is new."""
        new = not self.remove(member)
        self.scores[member] = score
        insort(self.ordered, (score, member))
        return new

    def remove(self, member: bytes) -> bool:
        """Remove a member; return whether it was there."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.ordered[bisect_left(self.ordered, (score, member))]
        return True


Value = bytes | Stream | dict[bytes, None] | list[bytes] | Hash | SortedSet
"""A string, a stream, a set (a dictionary without values), a list, a hash or a sorted set."""
Values = dict[bytes, Value]


class _WrongTypeError(Exception):
    """The key holds another type."""


def run_collection_command(values: Values, command: Command) -> Any:
    """The reply to a command of `COLLECTION_COMMANDS` whose number of arguments is right."""
    try:
        return COLLECTION_COMMANDS[command[0].lower()](values, command)
    except _WrongTypeError:
        return ReplyError(WRONG_TYPE)
    except ValueError:
        return ReplyError(_NOT_INTEGER)


def score_text(score: float) -> bytes:
    """A score as Redis prints it."""
    return b"%d" % int(score) if score == int(score) else b"%.17g" % score


def _of(values: Values, key: bytes, kind: type[Any]) -> Any:
    """The collection at a key, or an empty one that is not stored yet."""
    value = values.get(key)
    if value is None:
        return kind()
    if type(value) is not kind:
        raise _WrongTypeError
    return value


def _keep(values: Values, key: bytes, value: Any) -> None:
    """Store a collection, or remove it if it is empty."""
    if len(value):
        values[key] = value
    else:
        values.pop(key, None)


def _push(values: Values, command: Command) -> int:
    found: list[bytes] = _of(values, command[1], list)
    for element in command[2:]:
        if command[0].lower() == b"lpush":
            found.insert(0, element)
        else:
            found.append(element)
    _keep(values, command[1], found)
    return len(found)


def _pop(values: Values, command: Command) -> Any:
    count = int(command[2]) if len(command) > 2 else 1
    if count < 0:
        return ReplyError("ERR value is out of range, must be positive")
    found: list[bytes] = _of(values, command[1], list)
    if not found:
        return None
    taken = found[:count]
    del found[:count]
    _keep(values, command[1], found)
    return taken if len(command) > 2 else taken[0]


def _span(length: int, first: bytes, last: bytes) -> slice:
    start, stop = int(first), int(last)
    start = max(start + length, 0) if start < 0 else start
    stop = stop + length if stop < 0 else stop
    return slice(start, max(stop + 1, 0))


def _range(values: Values, command: Command) -> list[bytes]:
    found: list[bytes] = _of(values, command[1], list)
    return found[_span(len(found), command[2], command[3])]


def _trim(values: Values, command: Command) -> bytes:
    found: list[bytes] = _of(values, command[1], list)
    _keep(values, command[1], found[_span(len(found), command[2], command[3])])
    return b"OK"


def _index(values: Values, command: Command) -> bytes | None:
    found: list[bytes] = _of(values, command[1], list)
    at = int(command[2])
    return found[at] if -len(found) <= at < len(found) else None


def _remove_elements(values: Values, command: Command) -> Any:
    """LREM key 0 element: the model has no other count."""
    found: list[bytes] = _of(values, command[1], list)
    if int(command[2]) != 0:
        return ReplyError(_SYNTAX)
    left = [element for element in found if element != command[3]]
    removed = len(found) - len(left)
    if removed:
        _keep(values, command[1], left)
    return removed


def _set_fields(values: Values, command: Command) -> Any:
    if len(command) % 2:
        return ReplyError("ERR wrong number of arguments for 'hset' command")
    found: Hash = _of(values, command[1], Hash)
    before = len(found)
    found.fields.update(zip(command[2::2], command[3::2], strict=True))
    _keep(values, command[1], found)
    return len(found) - before


def _delete_fields(values: Values, command: Command) -> int:
    found: Hash = _of(values, command[1], Hash)
    removed = sum(found.fields.pop(field, None) is not None for field in command[2:])
    _keep(values, command[1], found)
    return removed


def _add_to_field(values: Values, command: Command) -> int:
    found: Hash = _of(values, command[1], Hash)
    total = int(found.fields.get(command[2], b"0")) + int(command[3])
    found.fields[command[2]] = b"%d" % total
    _keep(values, command[1], found)
    return total


def _pairs(values: Values, command: Command) -> list[bytes]:
    fields = _of(values, command[1], Hash).fields
    return [part for pair in fields.items() for part in pair]


def _scan(values: Values, command: Command) -> Any:
    """HSCAN key 0 COUNT count: all fields at once, as Redis does with a small hash."""
    if command[2] != b"0" or len(command) != 5 or command[3].lower() != b"count" or int(command[4]) < 1:
        return ReplyError(_SYNTAX)
    return [b"0", _pairs(values, command)]


def _add_scores(values: Values, command: Command) -> Any:
    if len(command) % 2:
        return ReplyError(_SYNTAX)
    found: SortedSet = _of(values, command[1], SortedSet)
    try:
        scores = [float(score) for score in command[2::2]]
    except ValueError:
        return ReplyError("ERR value is not a valid float")
    added = sum(found.add(score, member) for score, member in zip(scores, command[3::2], strict=True))
    _keep(values, command[1], found)
    return added


def _remove_scores(values: Values, command: Command) -> int:
    found: SortedSet = _of(values, command[1], SortedSet)
    removed = sum(found.remove(member) for member in command[2:])
    _keep(values, command[1], found)
    return removed


def _score(values: Values, command: Command) -> bytes | None:
    score = _of(values, command[1], SortedSet).scores.get(command[2])
    return None if score is None else score_text(score)


def _ranked(values: Values, command: Command) -> Any:
    """ZRANGE key start stop [WITHSCORES]"""
    found: SortedSet = _of(values, command[1], SortedSet)
    chosen = found.ordered[_span(len(found), command[2], command[3])]
    if len(command) == 4:
        return [member for _, member in chosen]
    if len(command) == 5 and command[4].lower() == b"withscores":
        return [part for score, member in chosen for part in (member, score_text(score))]
    return ReplyError(_SYNTAX)


def _by_score(values: Values, command: Command) -> Any:
    """ZRANGEBYSCORE key -inf max LIMIT offset count"""
    found: SortedSet = _of(values, command[1], SortedSet)
    if command[2] != b"-inf" or len(command) != 7 or command[4].lower() != b"limit":
        return ReplyError(_SYNTAX)
    offset, count = int(command[5]), int(command[6])
    chosen = [member for score, member in found.ordered if score <= float(command[3])][offset:]
    return chosen if count < 0 else chosen[:count]


def _add_members(values: Values, command: Command) -> int:
    found: dict[bytes, None] = _of(values, command[1], dict)
    before = len(found)
    found.update(dict.fromkeys(command[2:]))
    _keep(values, command[1], found)
    return len(found) - before


def _remove_members(values: Values, command: Command) -> int:
    found: dict[bytes, None] = _of(values, command[1], dict)
    before = len(found)
    for member in command[2:]:
        found.pop(member, None)
    _keep(values, command[1], found)
    return before - len(found)


def _entries(values: Values, command: Command) -> Any:
    """XRANGE key start end [COUNT count], where start is `-`, an id or `(id`, and end is `+` or an id."""
    found: Stream = _of(values, command[1], Stream)
    low = (0, 0) if command[2] == b"-" else _entry_id(command[2].removeprefix(b"("))
    high = None if command[3] == b"+" else _entry_id(command[3])
    chosen = [
        [b"%d-%d" % number, list(fields)]
        for number, fields in found.entries
        if (number > low if command[2].startswith(b"(") else number >= low) and (high is None or number <= high)
    ]
    return chosen[: int(command[5])] if len(command) == 6 else chosen


def _delete_entries(values: Values, command: Command) -> int:
    found: Stream = _of(values, command[1], Stream)
    gone = {_entry_id(text) for text in command[2:]}
    before = len(found.entries)
    found.entries[:] = [entry for entry in found.entries if entry[0] not in gone]
    return before - len(found.entries)


def _entry_id(text: bytes) -> tuple[int, int]:
    first, _, second = text.partition(b"-")
    return int(first), int(second or b"0")


COLLECTION_COMMANDS: Final[dict[bytes, Callable[[Values, Command], Any]]] = {
    b"lpush": _push,
    b"rpush": _push,
    b"lpop": _pop,
    b"llen": lambda values, command: len(_of(values, command[1], list)),
    b"lrange": _range,
    b"ltrim": _trim,
    b"lindex": _index,
    b"lrem": _remove_elements,
    b"hset": _set_fields,
    b"hget": lambda values, command: _of(values, command[1], Hash).fields.get(command[2]),
    b"hmget": lambda values, command: [_of(values, command[1], Hash).fields.get(field) for field in command[2:]],
    b"hdel": _delete_fields,
    b"hincrby": _add_to_field,
    b"hlen": lambda values, command: len(_of(values, command[1], Hash)),
    b"hgetall": _pairs,
    b"hscan": _scan,
    b"hkeys": lambda values, command: list(_of(values, command[1], Hash).fields),
    b"zadd": _add_scores,
    b"zrem": _remove_scores,
    b"zscore": _score,
    b"zcard": lambda values, command: len(_of(values, command[1], SortedSet)),
    b"zrange": _ranked,
    b"zrangebyscore": _by_score,
    b"sadd": _add_members,
    b"srem": _remove_members,
    b"sismember": lambda values, command: int(command[2] in _of(values, command[1], dict)),
    b"scard": lambda values, command: len(_of(values, command[1], dict)),
    b"smembers": lambda values, command: list(_of(values, command[1], dict)),
    b"xrange": _entries,
    b"xdel": _delete_entries,
    b"unlink": lambda values, command: sum(values.pop(key, None) is not None for key in command[1:]),
    b"exists": lambda values, command: sum(key in values for key in command[1:]),
}
"""The commands by name."""
