"""The counters of a queue on one store: their names, and how the key `state` packs them.

Owns both. Only scripts write the key (`read_state` in `scripts/common.lua`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

STATE_FIELDS: Final = (
    "now", "wall", "counter", "messages", "bytes", "keys", "owned", "ready", "delayed", "ids", "ids_old", "generation",
    "generation_at", "buried", "puts", "put_bytes", "dones", "producers", "producers_at",
)  # fmt: skip
"""The numbers of a queue's state, in the order of the scripts."""
STATE_FORMAT: Final = 1
_PACKED: Final = struct.Struct(f">B{len(STATE_FIELDS)}d")


def pack_state(numbers: Sequence[float]) -> bytes:
    """The key `state` with these numbers."""
    return _PACKED.pack(STATE_FORMAT, *numbers)


def unpack_state(raw: bytes) -> tuple[int, ...]:
    """The numbers in the key `state`; ValueError if it is damaged or of another format."""
    if len(raw) != _PACKED.size or raw[0] != STATE_FORMAT:
        raise ValueError(f"a state of {len(raw)} bytes in an unknown format")
    try:
        return tuple(map(int, _PACKED.unpack(raw)[1:]))
    except OverflowError as error:
        raise ValueError("a state with an infinite number") from error
