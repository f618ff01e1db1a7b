"""The keys of the plan in the coordinator.

Owns their names, and the encoding of a unit's name in a key. It never touches the coordinator.

    plan/format                   the format of everything below, as plain text: see `shoal.plan.format`
    plan/key                      the public key that verifies rings and entries
    plan/ring                     the signed ring
    plan/ring-rotation            the wanted generations of the agents' secret: see `shoal.plan.secret_rotation`
    plan/entries/<kind>/<unit>    the signed entry of one unit
    plan/recorded/<pattern>       a mark: channels that match the pattern are recorded
    moves/<kind>/<unit>           a requested move, until it has ended
    reports/<kind>/<host>         the report of the host's agent about moving units there
    refusals/<kind>               the last requests that the leader refused, with the reasons
    secrets/agents/<generation>   the secret that all agents share; clients cannot read it
    pool/<server>                 the server's state in the pool, if it is not a normal home: see `Mark`

Kinds are those of `shoal.plan.kinds`; the default is channels. A unit's name may contain any bytes, but a key is text
of limited length, so the name is encoded as base64url without padding: 683 characters for the longest channel name, 512
bytes.
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
ROTATION_KEY: Final = "plan/ring-rotation"
"""Begins as `RING_KEY` does, so that one listing has both."""
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
SECRETS_PREFIX: Final = "secrets/"
AGENT_SECRETS_PREFIX: Final = "secrets/agents/"


class Mark(enum.StrEnum):
    """The state of a server in the pool. One without a mark is a home and takes channels."""

    GUEST = "guest"
    """In the ring, but not a home: it holds only channels that entries place there."""
    FREEING = "freeing"
    """Still a home; nothing new is placed there, and its channels are moved elsewhere."""
    DRAIN = "drain"
    """A guest on which nothing new is placed: it is emptied, then removed from the ring."""
    OUT = "out"
    """Not in the ring, although its agent may run: it was drained, or is a spare."""
    LOST = "lost"
    """It died. It is kept out of the ring until no entry names it."""
    RETURNED = "returned"
    """A guest that was a home before it died: it becomes a home again when its share of the ring fits."""

    @property
    def is_guest(self) -> bool:
        """Whether the server is a guest if it is in the ring."""
        return self is not Mark.FREEING

    @property
    def is_outside(self) -> bool:
        """Whether the server is kept out of the ring."""
        return self in (Mark.OUT, Mark.LOST)


TAKES: Final = (None, Mark.GUEST, Mark.RETURNED)
"""The marks of servers that take channels."""


def entries_prefix(kind: str = CHANNEL) -> str:
    """The prefix of all entry keys of a kind."""
    return f"{ENTRIES_PREFIX}{kind}/"


def entry_key(unit: bytes, kind: str = CHANNEL) -> str:
    """The key of a unit's entry."""
    return entries_prefix(kind) + unit_text(unit)


def entry_unit(key: str, kind: str = CHANNEL) -> bytes | None:
    """The unit whose entry has this key; None if it is not an entry key of the kind."""
    return unit_of(key, entries_prefix(kind))


def recorded_key(pattern: bytes) -> str:
    """The key of the recording mark of a pattern."""
    return RECORDED_PREFIX + unit_text(pattern)


def recorded_pattern(key: str) -> bytes | None:
    """The pattern of a recording mark; None if the key is not one."""
    return unit_of(key, RECORDED_PREFIX) if key.startswith(RECORDED_PREFIX) else None


def moves_prefix(kind: str = CHANNEL) -> str:
    """The prefix of all request keys of a kind."""
    return f"{MOVES_PREFIX}{kind}/"


def move_key(unit: bytes, kind: str = CHANNEL) -> str:
    """The key of the request to move a unit."""
    return moves_prefix(kind) + unit_text(unit)


def move_unit(key: str, kind: str = CHANNEL) -> bytes | None:
    """The unit of the request with this key; None if it is not a request key of the kind."""
    return unit_of(key, moves_prefix(kind))


def reports_prefix(kind: str = CHANNEL) -> str:
    """The prefix of all report keys of a kind."""
    return f"{REPORTS_PREFIX}{kind}/"


def report_key(host: str, kind: str = CHANNEL) -> str:
    """The key of the report of a host's agent."""
    return reports_prefix(kind) + host


def refusals_key(kind: str = CHANNEL) -> str:
    """The key of the last refused requests of a kind."""
    return f"refusals/{kind}"


def pool_key(server: str) -> str:
    """The key of a server's mark."""
    return POOL_PREFIX + server


def pool_server(key: str) -> str:
    """The server of a pool key."""
    return key.removeprefix(POOL_PREFIX)


def agent_secret_key(generation: int) -> str:
    """The key of the agents' secret of a generation."""
    return f"{AGENT_SECRETS_PREFIX}{generation}"


def agent_secret_generation(key: str) -> int | None:
    """The generation of the agents' secret with this key; None if the key is not one."""
    text = key.removeprefix(AGENT_SECRETS_PREFIX)
    if not text.isdecimal() or agent_secret_key(int(text)) != key or not 0 < int(text) < 256:
        return None
    return int(text)


def read_mark(value: bytes) -> Mark:
    """The mark with this value. An unknown one is read as `GUEST`: the server is not a home."""
    try:
        return Mark(value.decode())
    except ValueError:
        return Mark.GUEST


def unit_text(unit: bytes) -> str:
    """The name of a unit, encoded for a key."""
    return base64.urlsafe_b64encode(unit).rstrip(b"=").decode()


def unit_of(key: str, prefix: str) -> bytes | None:
    """The unit of a key with this prefix; None if the key is not valid."""
    text = key.removeprefix(prefix)
    try:
        unit = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return unit if unit and prefix + unit_text(unit) == key else None
