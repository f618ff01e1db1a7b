"""Kinds of units and hosts that the plan knows.

Owns the names used in keys, entries, requests and reports. A unit is placed and moved (a channel); a host holds units
(a server). A new kind is a new name here, a planner, and a table of steps for `shoal.plan.conductor`.
"""

from __future__ import annotations

from typing import Final

CHANNEL: Final = "channel"
"""The unit: a named broadcast stream."""
SERVER: Final = "server"
"""The host of channels: a Redis server with its agent."""
QUEUE: Final = "queue"
"""The unit: an ordered work queue. Its shards are placed on stores."""
STORE: Final = "store"
"""The host of queue shards: a Redis server with an append-only file that is synced on every write."""
ENGINE: Final = "engine"
"""An engine that matches events: a unit whose numbers of operators change, and the kind of its processes."""
