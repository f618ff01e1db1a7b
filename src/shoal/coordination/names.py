"""What names, values and times the coordinator accepts: limits with units, checked before anything is sent.

Owns the limits and their error messages. It never touches a store; every implementation calls these
functions, so that what is refused is the same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from shoal.errors import CoordinatorError

NAME_BYTES_MAX: Final = 1024
"""Longest key, lease, member, holder or barrier name in UTF-8: the longest channel name fits with room."""

VALUE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest value of a key. The store is for plans and addresses, not for data."""

MEMBER_DATA_BYTES_MAX: Final = 64 * 1024
"""Largest data of one member; all members are read together."""

TTL_S_MIN: Final = 0.05
"""Shortest lease: below it a round trip to the store and back is no longer small beside it."""

TTL_S_MAX: Final = 86_400.0
"""Longest lease: a name held by a process that died must become free within a day."""

PARTIES_MAX: Final = 10_000
"""Most members that a barrier can wait for."""

_AREA = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_name(kind: str, name: str) -> str:
    """Any name that the store keeps as it is: not empty, encodable, not too long."""
    if not name:
        raise CoordinatorError(f"the {kind} is empty", do="give it a name")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise CoordinatorError(
            f"the {kind} {name!r} cannot be written in UTF-8", do="take out the lone surrogates"
        ) from error
    if size > NAME_BYTES_MAX:
        raise CoordinatorError(
            f"the {kind} {name[:40]!r}... has {size} bytes, the limit is {NAME_BYTES_MAX}", do="shorten it"
        )
    return name


def check_area(kind: str, area: str) -> str:
    """An area or a group: letters, digits, `_`, `.` and `-` only, because rights are given by it."""
    if _AREA.fullmatch(area) is None:
        raise CoordinatorError(
            f"the {kind} {area[:80]!r} is not 1 to 64 letters, digits, '_', '.' or '-'",
            do="choose a name like 'servers'",
        )
    return area


def check_path(kind: str, path: str) -> str:
    """A key or a lease: `area/name`."""
    check_name(kind, path)
    area, slash, rest = path.partition("/")
    if not slash or not rest:
        raise CoordinatorError(f"the {kind} {path[:80]!r} has no area", do="write it as area/name, like 'plan/ring'")
    check_area(f"area of the {kind}", area)
    return path


def check_prefix(prefix: str) -> str:
    """A prefix of keys or leases: the whole area, slash included, because listings are kept by area."""
    check_name("prefix", prefix)
    area, slash, _ = prefix.partition("/")
    if not slash:
        raise CoordinatorError(f"the prefix {prefix[:80]!r} has no area", do="write it as area/..., like 'plan/'")
    check_area("area of the prefix", area)
    return prefix


def check_different(kind: str, given: Sequence[str]) -> None:
    """Names of which none comes twice."""
    if len(set(given)) < len(given):
        twice = next(name for name in given if given.count(name) > 1)
        raise CoordinatorError(f"the {kind} {twice[:80]!r} is there twice", do="make the second write after the first")


def check_size(kind: str, value: bytes, bytes_max: int) -> bytes:
    """A value within its limit."""
    if len(value) > bytes_max:
        raise CoordinatorError(
            f"the {kind} has {len(value)} bytes, the limit is {bytes_max}", do="split it over several keys"
        )
    return value


def check_ttl(ttl_s: float) -> float:
    """A time to live within its limits (a NaN is in no limits)."""
    if not TTL_S_MIN <= ttl_s <= TTL_S_MAX:
        raise CoordinatorError(f"ttl_s is {ttl_s}", do=f"choose {TTL_S_MIN:g} to {TTL_S_MAX:g} seconds")
    return ttl_s


def check_parties(parties: int) -> int:
    """A number of members that a barrier can wait for."""
    if not 1 <= parties <= PARTIES_MAX:
        raise CoordinatorError(f"a barrier for {parties} parties", do=f"choose 1 to {PARTIES_MAX}")
    return parties
