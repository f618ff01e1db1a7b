"""The corner cases that a soak must meet, depending on its faults: a case that was never met proves nothing.

Owns the list. The counts come from the load processes, their routers and the faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shoal.lab.soak.faults import FaultPlan
from shoal.plan.placement import Mode

HOLD_RUN_S_MIN: Final = 30.0
"""In a shorter soak, a server that is held down may not leave the ring."""
DEATH_RUN_S_MIN: Final = 20.0
"""A shorter soak may kill so few servers that no message is lost with them."""

_ALWAYS: Final = (
    "burst",
    "message on a quiet channel",
    "late joiner",
    "subscriber left",
    "publisher left",
    "pattern",
    "channel",
    "placement single",
    "placement all_subscribers",
    "placement all_publishers",
    "router beacons",
    "router late_joins",
    "router handshakes",
)


_PLAIN: Final = ("plain message", "plain publication")
_MOVES: Final = ("move asked lazily", "move asked eagerly", "moves at once", "idle channel moved")
MOVES_MIN: Final = 20
"""Fewer moves may all be lazy or all eager."""
PAIRS_MOVES_MIN: Final = 200
"""Fewer moves may miss one of the nine pairs of modes, or never overlap."""
_BURST: Final = ("pulse", "channel", "moves at once", "router handshakes")


def wanted_corners(faults: FaultPlan, seconds: float, moves: int = 0, burst: int = 0) -> Iterator[str]:
    """Every corner case that a soak with these faults and this number of moves can meet in that time."""
    yield from _BURST if burst else _ALWAYS
    if moves or burst:
        yield from _PLAIN
    if moves >= MOVES_MIN:
        yield from _MOVES
    if moves >= PAIRS_MOVES_MIN:
        yield "move during a move"
        yield from (f"move {before} to {after}" for before in Mode for after in Mode)
    if faults.kill_agents:
        yield from ("agent killed", "router resyncs")
    if faults.kill_servers:
        yield from ("server killed", "router reconnects", "router restarts_seen")
        if seconds >= DEATH_RUN_S_MIN:
            yield from ("router repeated", "router holes", "router healed")
    if faults.kill_coordinator:
        yield "coordinator killed"
    if faults.freeze:
        yield from ("server frozen", "server left ring", "server joined ring", "router ring_changes", "paced message")
    if (faults.kill_agents or faults.kill_servers) and seconds >= HOLD_RUN_S_MIN:
        yield from ("server left ring", "server joined ring", "router ring_changes")
