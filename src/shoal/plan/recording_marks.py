"""Recording marks: the patterns of recorded channels, stored with the plan.

Owns how a mark is set, removed and read. Agents watch the marks with the plan; clients may read them.
"""

from __future__ import annotations

from shoal.coordination.interface import Coordinator
from shoal.errors import ChannelNameError
from shoal.plan.keys import RECORDED_PREFIX, recorded_key, recorded_pattern
from shoal.wire.envelope import HIDDEN_PREFIXES

_ON = b"on"


async def set_recorded(coordinator: Coordinator, pattern: bytes, on: bool) -> bool:
    """Sets or removes the mark of a pattern; returns whether that changed anything."""
    if pattern.startswith(HIDDEN_PREFIXES):
        raise ChannelNameError(f"{pattern.decode()} is an internal channel of Shoal and cannot be recorded")
    known = await coordinator.get(recorded_key(pattern))
    if (known is not None) == on:
        return False
    if on:
        await coordinator.put(recorded_key(pattern), _ON)
    else:
        await coordinator.delete(recorded_key(pattern))
    return True


async def recorded_patterns(coordinator: Coordinator) -> list[bytes]:
    """The patterns whose channels are recorded, in order."""
    marks = await coordinator.list(RECORDED_PREFIX)
    return sorted(pattern for key in marks if (pattern := recorded_pattern(key)) is not None)
