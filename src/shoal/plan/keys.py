"""Where the plan lies in the coordinator: the names of its keys.

Owns the names, and how a channel's name becomes part of one. Never touches the coordinator.

    plan/key                 the public key by which rings and entries are checked
    plan/ring                the signed ring
    plan/entries/<channel>   the signed entry of one channel
    moves/<channel>          a move that was asked for, until it has ended
    reports/<server>         what the server's agent says of the channels that move there
    pool/<server>            that a server is a guest of the ring: new, or being drained

A channel's name may hold any bytes, a key only text of limited length, so the name is written in base64url
without padding: the longest name, 512 bytes, takes 683 characters.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

PLAN_PREFIX: Final = "plan/"
PUBLIC_KEY: Final = "plan/key"
RING_KEY: Final = "plan/ring"
KEEPER_LEASE: Final = "plan/keeper"
"""The lease of the one process that may write the plan."""
ENTRIES_PREFIX: Final = "plan/entries/"
MOVES_PREFIX: Final = "moves/"
REPORTS_PREFIX: Final = "reports/"
POOL_PREFIX: Final = "pool/"


def entry_key(channel: bytes) -> str:
    """The key of a channel's entry."""
    return ENTRIES_PREFIX + _text(channel)


def entry_channel(key: str) -> bytes | None:
    """The channel whose entry has this key; None if the key is not that of any channel's entry."""
    return _channel(key, ENTRIES_PREFIX)


def move_key(channel: bytes) -> str:
    """The key of the request to move a channel."""
    return MOVES_PREFIX + _text(channel)


def move_channel(key: str) -> bytes | None:
    """The channel whose move is asked for under this key; None if the key is not that of any channel's move."""
    return _channel(key, MOVES_PREFIX)


def report_key(server: str) -> str:
    """The key of the report of a server's agent."""
    return REPORTS_PREFIX + server


def pool_key(server: str) -> str:
    """The key that says that a server is a guest of the ring."""
    return POOL_PREFIX + server


def pool_server(key: str) -> str:
    """The server that a key of the pool is about."""
    return key.removeprefix(POOL_PREFIX)


def _text(channel: bytes) -> str:
    return base64.urlsafe_b64encode(channel).rstrip(b"=").decode()


def _channel(key: str, prefix: str) -> bytes | None:
    text = key.removeprefix(prefix)
    try:
        channel = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return channel if channel and prefix + _text(channel) == key else None
