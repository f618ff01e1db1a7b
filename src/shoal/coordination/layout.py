"""How the coordinator's state lies in Redis: key names, stored records, the notification channel.

Owns the names and the bytes; `redis.py` and `acl.py` both take them from here, so that rights and use cannot
drift apart. It never touches a connection.

    shoal:<area>/<name>               a key: version and value
    shoal:@lease/<area>/<name>        a lease, with Redis's own expiry
    shoal:@member/<group>/<member>    a membership, with Redis's own expiry
    shoal:@barrier/<name>             a set of the members that arrived
    shoal:@windows/spark              a stream: load windows that Spark has folded, the last ones
    shoal:@windows/alive              the job that writes them, with Redis's own expiry
    shoal:@index/<area>               sorted set: the names of the area's keys, all scores 0
    shoal:@index/@lease/<area>        sorted set: the names of its leases; the score is when they end if not
    shoal:@index/@member/<group>      renewed, in ms of the server's clock (a hint for cleaning up only)
    shoal:@counter/<as @index>        a counter: gives versions and tokens, grows with every change of a key
    shoal:changed                     the channel; a message is the path (the key without "shoal:"), or several paths
                                      as a MessagePack array: no path begins with a byte that an array begins with

A path without "@" belongs to applications of the coordinator; an area cannot begin with "@", so they never
meet.
"""

from __future__ import annotations

from typing import Final

import msgspec

PREFIX: Final = "shoal:"
CHANNEL: Final = "shoal:changed"
LEASE: Final = "@lease/"
MEMBER: Final = "@member/"
BARRIER: Final = "@barrier/"
WINDOWS: Final = "@windows/"


class StoredValue(msgspec.Struct, array_like=True, tag="value", frozen=True):
    """What a key holds."""

    version: int
    value: bytes


class StoredGrant(msgspec.Struct, array_like=True, tag="grant", frozen=True):
    """What a lease or a membership holds; the token is the version of its holder."""

    token: int
    holder: str
    data: bytes


encode = msgspec.msgpack.Encoder().encode
_paths_decoder = msgspec.msgpack.Decoder(list[str])
_value_decoder = msgspec.msgpack.Decoder(StoredValue)
_grant_decoder = msgspec.msgpack.Decoder(StoredGrant)


class GarbageError(ValueError):
    """Stored bytes that this module did not write."""


def decode_value(raw: bytes) -> StoredValue:
    """Read what a key holds; GarbageError when it is not ours."""
    try:
        stored = _value_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise GarbageError(str(error)) from error
    if stored.version < 1:
        raise GarbageError(f"version {stored.version}")
    return stored


def decode_grant(raw: bytes) -> StoredGrant:
    """Read what a lease or a membership holds; GarbageError when it is not ours."""
    try:
        stored = _grant_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise GarbageError(str(error)) from error
    if stored.token < 1:
        raise GarbageError(f"token {stored.token}")
    return stored


def encode_paths(paths: list[str]) -> bytes:
    """The notification that paths have changed."""
    return paths[0].encode() if len(paths) == 1 else encode(paths)


def decode_paths(message: bytes) -> list[str]:
    """The paths that a notification names; none when it is not ours."""
    if message[:1].isascii():
        return [message.decode(errors="replace")]
    try:
        return _paths_decoder.decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []


def redis_key(path: str) -> str:
    """The key in Redis of a path."""
    return PREFIX + path


def shelf_of(path: str) -> str:
    """What index and counter of a path are named after: its area, with the kind before it if it has one."""
    kind = next((kind for kind in (LEASE, MEMBER) if path.startswith(kind)), "")
    return kind + path.removeprefix(kind).partition("/")[0]


def index_key(path: str) -> str:
    """The sorted set that lists the names beside this path."""
    return f"{PREFIX}@index/{shelf_of(path)}"


def counter_key(path: str) -> str:
    """The counter that gives versions and tokens to this path and its neighbours."""
    return f"{PREFIX}@counter/{shelf_of(path)}"
