"""The corners that a campaign of the scenario `balancer` must exercise, and the rules that it can break.

Owns the two lists and the names of the counters.
"""

from __future__ import annotations

from typing import Final

BREAKS: Final = (
    "fence",
    "drained",
    "one_at_a_time",
    "basis",
    "pinned",
    "once",
    "settle",
    "fresh_load",
    "guest",
    "state_first",
)
"""The rules that this scenario tests."""

_SAME: Final = (
    "plan",
    "moved for overload",
    "moved for replicate",
    "moved for merge",
    "moved for drain",
    "moved for lost",
    "moved for spread",
    "move hurried",
    "server added",
    "server drained",
    "server kept after all",
    "server left empty",
    "drained server with records",
    "server removed",
    "server died",
    "server died and came back empty",
    "returned server is a home again",
    "guest promoted",
    "channel pinned",
    "channel pinned at its home",
    "channel moved and pinned",
    "pin released",
    "pinned channel lost its server",
    "leader died with a plan under way",
    "leader paused with a plan under way",
    "leader cut off with a plan under way",
    "leader deposed with a plan under way",
    "leader stopped before a write",
    "deposed leader refused",
    "standby finished a plan",
    "move given up",
    "proposal asked for",
    "proposal applied on request",
    "stale proposal refused",
    "proposal refused that was applied already",
    "proposal refused while a plan is under way",
    "late telemetry",
    "early telemetry",
    "duplicate telemetry",
    "window with missing telemetry",
    "policy shoal",
    "policy dynamoth",
    "late joiner",
    "machine crash",
)
"""Corners that are named like their counters."""

CORNERS: Final = {
    **{name: name for name in _SAME},
    "agent died": "agent crash",
    "server crashed": "server crash",
    "coordinator died": "coordinator crash",
    "client died": "client crash",
    "client closes": "closed",
    "closing client lingers": "lingered",
    "move by hand": "move by hand",
    "hole healed": "router healed",
    "hand-over": "agent handovers",
    "partition": "partition",
    "pause": "pause",
    "power failure": "crash_power",
}
"""Every corner that a campaign must exercise, and its counter."""
