"""Where the plan lies in the coordinator: the names of its keys.

Owns the names, and how the name of a unit becomes part of one. Never touches the coordinator.

    plan/format                   the format of everything below, in clear: see `shoal.plan.format`
    plan/key                      the public key by which rings and entries are checked
    plan/ring                     the signed ring
    plan/entries/<kind>/<unit>    the signed entry of one unit
    plan/recorded/<pattern>       a mark: the channels that the pattern matches are recorded
    moves/<kind>/<unit>           a move that was asked for, until it has ended
    reports/<kind>/<host>         what the host's agent says of the units that move there
    pool/<server>                 the server's state in the pool, unless it is a home that takes channels: see `Mark`

Kinds are those of `shoal.plan.kinds`; functions without one are about channels. The name of a unit may hold any bytes,
a key only text of limited length, so the name is written in base64url without padding: the longest name of a channel,
512 bytes, takes 683 characters.
"""

from __future__ import annotations

import base64
import binascii
import enum
from typing import Final

from shoal.plan.kinds import CHANNEL

PLAN_PREFIX: Final = "plan/"
FORMAT_KEY: Final = "plan/format"
PUBLIC_KEY: Final = "plan/key"
RING_KEY: Final = "plan/ring"
KEEPER_LEASE: Final = "plan/keeper"
"""The lease of the one process that may write the plan."""
ENTRIES_PREFIX: Final = "plan/entries/"
"""The entries of all kinds."""
RECORDED_PREFIX: Final = "plan/recorded/"
MOVES_PREFIX: Final = "moves/"
"""The requests of all kinds."""
REPORTS_PREFIX: Final = "reports/"
"""The reports of all kinds."""
POOL_PREFIX: Final = "pool/"


class Mark(enum.StrEnum):
    """The state of a server in the pool. One without a mark is a home and takes channels."""

    GUEST = "guest"
    """In the ring, but no channel's home: it takes what is placed there by entries."""
    FREEING = "freeing"
    """Still a home; nothing new is placed there, and its channels are moved elsewhere."""
    DRAIN = "drain"
    """A guest on which nothing new is placed: it is emptied, then it leaves."""
    OUT = "out"
    """Not in the ring, though its agent may run: it was drained, or is a spare."""
    LOST = "lost"
    """It died. It may come back, as a guest, once no entry names it."""

    @property
    def is_guest(self) -> bool:
        """Whether the server is no home, if it is in the ring at all."""
        return self is not Mark.FREEING

    @property
    def is_outside(self) -> bool:
        """Whether the server is kept out of the ring."""
        return self in (Mark.OUT, Mark.LOST)


def entries_prefix(kind: str = CHANNEL) -> str:
    """What the keys of all entries of a kind begin with."""
    return f"{ENTRIES_PREFIX}{kind}/"


def entry_key(unit: bytes, kind: str = CHANNEL) -> str:
    """The key of a unit's entry."""
    return entries_prefix(kind) + unit_text(unit)


def entry_unit(key: str, kind: str = CHANNEL) -> bytes | None:
    """The unit whose entry has this key; None if the key is not that of any entry of the kind."""
    return unit_of(key, entries_prefix(kind))


def recorded_key(pattern: bytes) -> str:
    """The key of the mark that the channels of a pattern are recorded."""
    return RECORDED_PREFIX + unit_text(pattern)


def recorded_pattern(key: str) -> bytes | None:
    """The pattern that is marked by this key; None if the key is no such mark."""
    return unit_of(key, RECORDED_PREFIX) if key.startswith(RECORDED_PREFIX) else None


def moves_prefix(kind: str = CHANNEL) -> str:
    """What the keys of all requests of a kind begin with."""
    return f"{MOVES_PREFIX}{kind}/"


def move_key(unit: bytes, kind: str = CHANNEL) -> str:
    """The key of the request to move a unit."""
    return moves_prefix(kind) + unit_text(unit)


def move_unit(key: str, kind: str = CHANNEL) -> bytes | None:
    """The unit whose move is asked for under this key; None if the key is not that of any request of the kind."""
    return unit_of(key, moves_prefix(kind))


def reports_prefix(kind: str = CHANNEL) -> str:
    """What the keys of all reports about a kind begin with."""
    return f"{REPORTS_PREFIX}{kind}/"


def report_key(host: str, kind: str = CHANNEL) -> str:
    """The key of the report of a host's agent."""
    return reports_prefix(kind) + host


def pool_key(server: str) -> str:
    """The key of a server's mark."""
    return POOL_PREFIX + server


def pool_server(key: str) -> str:
    """The server that a key of the pool is about."""
    return key.removeprefix(POOL_PREFIX)


def read_mark(value: bytes) -> Mark:
    """The mark that a value stands for. An unknown one is read as `GUEST`: the server is no home, nothing more."""
    try:
        return Mark(value.decode())
    except ValueError:
        return Mark.GUEST


def unit_text(unit: bytes) -> str:
    """The name of a unit as part of a key."""
    return base64.urlsafe_b64encode(unit).rstrip(b"=").decode()


def unit_of(key: str, prefix: str) -> bytes | None:
    """The unit whose name makes a key with this prefix; None if none does."""
    text = key.removeprefix(prefix)
    try:
        unit = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return unit if unit and prefix + unit_text(unit) == key else None
