"""Where the plan lies in the coordinator: the names of its keys.

Owns the names, and how a channel's name becomes part of one. Never touches the coordinator.

    plan/key                 the public key by which rings and entries are checked
    plan/ring                the signed ring
    plan/entries/<channel>   the signed entry of one channel
    plan/recorded/<pattern>  a mark: the channels that the pattern matches are recorded
    moves/<channel>          a move that was asked for, until it has ended
    reports/<server>         what the server's agent says of the channels that move there
    pool/<server>            how a server stands in the pool, if otherwise than a home that takes channels: see `Mark`

A channel's name may hold any bytes, a key only text of limited length, so the name is written in base64url
without padding: the longest name, 512 bytes, takes 683 characters.
"""

from __future__ import annotations

import base64
import binascii
import enum
from typing import Final

PLAN_PREFIX: Final = "plan/"
PUBLIC_KEY: Final = "plan/key"
RING_KEY: Final = "plan/ring"
KEEPER_LEASE: Final = "plan/keeper"
"""The lease of the one process that may write the plan."""
ENTRIES_PREFIX: Final = "plan/entries/"
RECORDED_PREFIX: Final = "plan/recorded/"
MOVES_PREFIX: Final = "moves/"
REPORTS_PREFIX: Final = "reports/"
POOL_PREFIX: Final = "pool/"


class Mark(enum.StrEnum):
    """How a server stands in the pool. One without a mark is a home and takes channels."""

    GUEST = "guest"
    """In the ring, but no channel's home: it takes what is placed there by entries."""
    FREEING = "freeing"
    """A home still; nothing is placed there any more, and its channels are moved elsewhere."""
    DRAIN = "drain"
    """A guest at which nothing is placed any more: it is to become empty, and then to leave."""
    OUT = "out"
    """Not in the ring, though its agent may run: it was drained, or is in reserve."""
    LOST = "lost"
    """It died. It may come back, as a guest, when no entry names it any more."""

    @property
    def is_guest(self) -> bool:
        """Whether the server is nobody's home, if it is in the ring at all."""
        return self is not Mark.FREEING

    @property
    def is_outside(self) -> bool:
        """Whether the server is kept out of the ring."""
        return self in (Mark.OUT, Mark.LOST)


def entry_key(channel: bytes) -> str:
    """The key of a channel's entry."""
    return ENTRIES_PREFIX + channel_text(channel)


def entry_channel(key: str) -> bytes | None:
    """The channel whose entry has this key; None if the key is not that of any channel's entry."""
    return channel_of(key, ENTRIES_PREFIX)


def recorded_key(pattern: bytes) -> str:
    """The key of the mark that the channels of a pattern are recorded."""
    return RECORDED_PREFIX + channel_text(pattern)


def recorded_pattern(key: str) -> bytes | None:
    """The pattern that is marked by this key; None if the key is no such mark."""
    return channel_of(key, RECORDED_PREFIX) if key.startswith(RECORDED_PREFIX) else None


def move_key(channel: bytes) -> str:
    """The key of the request to move a channel."""
    return MOVES_PREFIX + channel_text(channel)


def move_channel(key: str) -> bytes | None:
    """The channel whose move is asked for under this key; None if the key is not that of any channel's move."""
    return channel_of(key, MOVES_PREFIX)


def pool_key(server: str) -> str:
    """The key of a server's mark."""
    return POOL_PREFIX + server


def pool_server(key: str) -> str:
    """The server that a key of the pool is about."""
    return key.removeprefix(POOL_PREFIX)


def read_mark(value: bytes) -> Mark:
    """The mark that a value is; whatever is none keeps a server from being a home, and that is all."""
    try:
        return Mark(value.decode())
    except ValueError:
        return Mark.GUEST


def report_key(server: str) -> str:
    """The key of the report of a server's agent."""
    return REPORTS_PREFIX + server


def channel_text(channel: bytes) -> str:
    """A channel's name as part of a key."""
    return base64.urlsafe_b64encode(channel).rstrip(b"=").decode()


def channel_of(key: str, prefix: str) -> bytes | None:
    """The channel whose name makes a key with this prefix; None if none does."""
    text = key.removeprefix(prefix)
    try:
        channel = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return channel if channel and prefix + channel_text(channel) == key else None
