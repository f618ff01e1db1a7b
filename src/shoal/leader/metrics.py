"""The balancer's metrics: decisions, moves, servers.

Owns their names. They are counted in `shoal.leader.balancer_shell`.
"""

from __future__ import annotations

from typing import Final

from shoal.metrics import counter, gauge

LEADING: Final = gauge("shoal_balancer_leading", "1 while this process leads")
WINDOWS: Final = counter("shoal_balancer_windows_total", "load windows that were closed")
FROM_SPARK: Final = gauge(
    "shoal_balancer_windows_from_spark", "1 while load windows come from Spark, 0 while in process"
)
FALLBACKS: Final = counter(
    "shoal_balancer_windows_fallbacks_total", "fall-backs from Spark to load windows folded in process"
)
DECISIONS: Final = counter("shoal_balancer_decisions_total", "decisions, by whether they wanted changes", ["wanted"])
MOVES: Final = counter("shoal_balancer_moves_total", "requested moves")
MOVES_HURRIED: Final = counter(
    "shoal_balancer_moves_hurried_total",
    "lazy moves whose clients were notified immediately, because a server waited for their end",
)
MOVES_ENDED: Final = counter("shoal_balancer_moves_ended_total", "moves that ended, by how", ["how"])
MOVES_WAITING: Final = gauge("shoal_balancer_moves_waiting", "moves of the plan under way that have not ended")
SERVERS_ADDED: Final = counter("shoal_balancer_servers_added_total", "servers that the provider started to add")
SERVERS_REMOVED: Final = counter("shoal_balancer_servers_removed_total", "servers that were removed")
REFUSALS: Final = counter("shoal_balancer_refusals_total", "proposals and requests to the provider that were refused")
MAX_RATIO: Final = gauge("shoal_balancer_max_load_ratio", "load ratio of the busiest server, by the last decision")
