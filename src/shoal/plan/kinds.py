"""Kinds of units and hosts: what the plan can place, and where.

Owns the names that keys, entries, requests and reports carry. A unit is what moves (a channel); a host is what holds it
(a server). A new kind is a new name here, a planner, and a table of steps for `shoal.plan.conductor`.
"""

from __future__ import annotations

from typing import Final

CHANNEL: Final = "channel"
"""The unit: a named broadcast stream."""
SERVER: Final = "server"
"""The host of channels: a Redis server with its agent."""
