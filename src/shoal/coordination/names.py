"""Names, values and times that the coordinator accepts: limits with units, checked before anything is sent.

Owns the limits and their error messages. It never touches a store. Every implementation calls these functions, so all
of them reject the same input.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from shoal.errors import CoordinatorError

NAME_BYTES_MAX: Final = 1024
"""Longest key, lease, member, holder or barrier name in UTF-8; leaves room for the longest channel name."""

VALUE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest value of a key. The store is meant for plans and addresses, not for data."""

MEMBER_DATA_BYTES_MAX: Final = 64 * 1024
"""Largest data of one member. All members of a group are read together."""

TTL_S_MIN: Final = 0.05
"""Shortest lease; with a shorter one, the round trip to the store would no longer be negligible."""

TTL_S_MAX: Final = 86_400.0
"""Longest lease; a name held by a crashed process becomes free within a day."""

PARTIES_MAX: Final = 10_000
"""Most members that a barrier can wait for."""

_AREA = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_name(kind: str, name: str) -> str:
    """Check that a name is not empty, can be encoded and is not too long."""
    if not name:
        raise CoordinatorError(f"the {kind} is empty", do="choose a name")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise CoordinatorError(
            f"the {kind} {name!r} cannot be encoded as UTF-8", do="remove the lone surrogates"
        ) from error
    if size > NAME_BYTES_MAX:
        raise CoordinatorError(
            f"the {kind} {name[:40]!r}... has {size} bytes, the limit is {NAME_BYTES_MAX}", do="shorten it"
        )
    return name


def check_area(kind: str, area: str) -> str:
    """Check an area or group: only letters, digits, `_`, `.` and `-`, because permissions are granted by area."""
    if _AREA.fullmatch(area) is None:
        raise CoordinatorError(
            f"the {kind} {area[:80]!r} is not 1 to 64 letters, digits, '_', '.' or '-'",
            do="choose a name like 'servers'",
        )
    return area


def check_path(kind: str, path: str) -> str:
    """Check a key or lease: `area/name`."""
    check_name(kind, path)
    area, slash, rest = path.partition("/")
    if not slash or not rest:
        raise CoordinatorError(f"the {kind} {path[:80]!r} has no area", do="write it as area/name, like 'plan/ring'")
    check_area(f"area of the {kind}", area)
    return path


def check_prefix(prefix: str) -> str:
    """Check a prefix of keys or leases: at least the area with its slash, because listings are kept by area."""
    check_name("prefix", prefix)
    area, slash, _ = prefix.partition("/")
    if not slash:
        raise CoordinatorError(f"the prefix {prefix[:80]!r} has no area", do="write it as area/..., like 'plan/'")
    check_area("area of the prefix", area)
    return prefix


def check_different(kind: str, given: Sequence[str]) -> None:
    """Check that no name occurs twice."""
    if len(set(given)) < len(given):
        twice = next(name for name in given if given.count(name) > 1)
        raise CoordinatorError(f"the {kind} {twice[:80]!r} occurs twice", do="do the second write after the first")


def check_size(kind: str, value: bytes, bytes_max: int) -> bytes:
    """Check that a value is within its limit."""
    if len(value) > bytes_max:
        raise CoordinatorError(
            f"the {kind} has {len(value)} bytes, the limit is {bytes_max}", do="split it over several keys"
        )
    return value


def check_ttl(ttl_s: float) -> float:
    """Check that a time to live is within its limits (NaN never is)."""
    if not TTL_S_MIN <= ttl_s <= TTL_S_MAX:
        raise CoordinatorError(f"ttl_s is {ttl_s}", do=f"choose {TTL_S_MIN:g} to {TTL_S_MAX:g} seconds")
    return ttl_s


def check_parties(parties: int) -> int:
    """Check the number of members that a barrier waits for."""
    if not 1 <= parties <= PARTIES_MAX:
        raise CoordinatorError(f"a barrier for {parties} parties", do=f"choose 1 to {PARTIES_MAX}")
    return parties
