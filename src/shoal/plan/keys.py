"""Where the plan lies in the coordinator: the names of its keys.

Owns the names, and how a channel's name becomes part of one. Never touches the coordinator.

    plan/key                 the public key by which rings and entries are checked
    plan/ring                the signed ring
    plan/entries/<channel>   the signed entry of one channel

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
ENTRIES_PREFIX: Final = "plan/entries/"


def entry_key(channel: bytes) -> str:
    """The key of a channel's entry."""
    return ENTRIES_PREFIX + base64.urlsafe_b64encode(channel).rstrip(b"=").decode()


def entry_channel(key: str) -> bytes | None:
    """The channel whose entry has this key; None if the key is not that of any channel's entry."""
    text = key.removeprefix(ENTRIES_PREFIX)
    try:
        channel = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return channel if channel and entry_key(channel) == key else None
