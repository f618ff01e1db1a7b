"""Sizes of what clients and servers say to each other, as RESP3 bytes.

Owns: how many bytes a command or a frame takes on the wire. Never touches: what it means.
"""

from functools import lru_cache
from typing import Any


@lru_cache(maxsize=65_536)
def _bulk_overhead(length: int) -> int:
    """`$`, the length, two line ends."""
    return 5 + len(str(length))


def bulk_size(value: bytes) -> int:
    """Bytes of one bulk string."""
    length = len(value)
    return length + _bulk_overhead(length)


def item_size(item: Any) -> int:
    """Bytes of a command (a tuple of bytes) or of a frame that a server sends."""
    if isinstance(item, bytes):
        return bulk_size(item)
    if isinstance(item, (tuple, list)):
        return 3 + len(str(len(item))) + sum(map(item_size, item))
    if isinstance(item, dict):
        return 3 + len(str(len(item))) + sum(map(item_size, item)) + sum(map(item_size, item.values()))
    if item is None:
        return 3
    return 3 + len(str(item))
