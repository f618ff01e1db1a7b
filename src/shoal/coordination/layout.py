"""Layout of the coordinator's state in Redis: key names, stored records, the notification channel.

Owns the names and the encodings. `redis.py` and `acl.py` both import them from here, so that permissions and use stay
consistent. It never touches a connection.

    shoal:<area>/<name>               a key: version and value
    shoal:@lease/<area>/<name>        a lease, expired by Redis
    shoal:@member/<group>/<member>    a membership, expired by Redis
    shoal:@barrier/<name>             set of the members that have arrived
    shoal:@windows/spark              stream of the latest load windows folded by Spark
    shoal:@windows/alive              the job that writes them, expired by Redis
    shoal:@index/<area>               sorted set: the names of the area's keys, all scores 0
    shoal:@index/@lease/<area>        sorted set: the names of its leases; the score is the expiry without renewal,
    shoal:@index/@member/<group>      in ms of the server's clock (used for cleanup only)
    shoal:@counter/<as @index>        counter: issues versions and tokens, incremented by every change of a key
    shoal:changed                     the channel; a message is one path (the key without "shoal:"), or several paths
                                      as a MessagePack array: no path starts with the first byte of an array

Paths without "@" belong to users of the coordinator. An area cannot start with "@", so the two never collide.
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
    """Record of a key."""

    version: int
    value: bytes


class StoredGrant(msgspec.Struct, array_like=True, tag="grant", frozen=True):
    """Record of a lease or a membership; the token identifies the acquisition."""

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
    """Decode the record of a key. Raises GarbageError if it is not Shoal's."""
    try:
        stored = _value_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise GarbageError(str(error)) from error
    if stored.version < 1:
        raise GarbageError(f"version {stored.version}")
    return stored


def decode_grant(raw: bytes) -> StoredGrant:
    """Decode the record of a lease or membership. Raises GarbageError if it is not Shoal's."""
    try:
        stored = _grant_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise GarbageError(str(error)) from error
    if stored.token < 1:
        raise GarbageError(f"token {stored.token}")
    return stored


def encode_paths(paths: list[str]) -> bytes:
    """Encode the notification for changed paths."""
    return paths[0].encode() if len(paths) == 1 else encode(paths)


def decode_paths(message: bytes) -> list[str]:
    """Decode the paths of a notification; empty if it is not Shoal's."""
    if message[:1].isascii():
        return [message.decode(errors="replace")]
    try:
        return _paths_decoder.decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []


def redis_key(path: str) -> str:
    """Return the Redis key of a path."""
    return PREFIX + path


def _area_of(path: str) -> str:
    """Return the name that the index and the counter of a path share: its area, after its kind if it has one."""
    kind = next((kind for kind in (LEASE, MEMBER) if path.startswith(kind)), "")
    return kind + path.removeprefix(kind).partition("/")[0]


def index_key(path: str) -> str:
    """Return the key of the sorted set that lists the names in this path's area."""
    return f"{PREFIX}@index/{_area_of(path)}"


def counter_key(path: str) -> str:
    """Return the key of the counter that issues versions and tokens in this path's area."""
    return f"{PREFIX}@counter/{_area_of(path)}"
