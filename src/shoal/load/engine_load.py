"""The load of an engine: what its processes use and how long its events wait, over a few seconds.

Owns the records. The engine measures them (`shoal.engine.load_meter`) and reports them; the planner reads them
(`shoal.balance.engine_planner`).
"""

from __future__ import annotations

import msgspec


class ProcessLoad(msgspec.Struct, frozen=True):
    """The use of one process, in cores: all its CPU, and the parts that its operators took."""

    name: str
    cpu: float = 0.0
    access: float = 0.0
    """The access point: taking events and changes of filters, and numbering them."""
    matching: float = 0.0
    """The matcher: matching events and applying changes."""
    merging: float = 0.0
    """The exit point: joining what matchers found, and sending letters."""
    slowdown: float = 1.0
    """Seconds that its work took for each second of CPU: above 1 if others use the same cores."""

    @property
    def rest(self) -> float:
        """What belongs to no operator: connections, and decoding what other processes say."""
        return max(0.0, self.cpu - self.access - self.matching - self.merging)


class EngineLoad(msgspec.Struct, frozen=True):
    """The load of an engine since its configuration last changed, over the last seconds."""

    window_s: float = 0.0
    """The time that was measured; 0 if nothing was."""
    steady_s: float = 0.0
    """How long the configuration has been in force."""
    events_per_s: float = 0.0
    """Events that were taken."""
    batches_per_s: float = 0.0
    deliveries_per_s: float = 0.0
    changes_per_s: float = 0.0
    """Filters that came and went."""
    wait_ms_p50: float = 0.0
    wait_ms_p99: float = 0.0
    """How long events took from being taken until servers had confirmed their deliveries."""
    processes: tuple[ProcessLoad, ...] = ()
    """All processes that live: first the one with the access point."""
