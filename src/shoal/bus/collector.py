"""Metrics of all buses of this process, summed at scrape time so that messages cost nothing.

Owns the names `shoal_bus_*`. The counts of a closed bus are kept, so totals never shrink.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shoal.channels.client.context import ClientCounters
from shoal.metrics import REGISTRY

if TYPE_CHECKING:
    from shoal.bus.client import Bus, BusStatistics

COUNTED: Final = ("published", *ClientCounters.__struct_fields__)

_lock: Final = threading.Lock()
_open: Final[WeakSet[Bus]] = WeakSet()
"""Weak references: a bus that was dropped without being closed can be collected."""
_closed_counts: Final[Counter[str]] = Counter()
_registered = False


def add(bus: Bus) -> None:
    """Add an opened bus."""
    global _registered
    with _lock:
        _open.add(bus)
        if not _registered:
            REGISTRY.register(_Collector())
            _registered = True


def remove(bus: Bus) -> None:
    """Remove a closing bus and keep its counts."""
    with _lock:
        if bus in _open:
            _open.discard(bus)
            _closed_counts.update(_counts(bus.statistics()))


class _Collector(Collector):
    """Collects on scrape. It runs in another thread, so it only reads numbers."""

    def collect(self) -> Iterator[Metric]:
        """Yield the sums over all buses, open and closed."""
        with _lock:
            totals = Counter(_closed_counts)
            pending = 0
            for bus in list(_open):
                statistics = bus.statistics()
                totals.update(_counts(statistics))
                pending += statistics.pending_messages
            count = len(_open)
        yield GaugeMetricFamily("shoal_bus_open", "Open buses in this process.", value=count)
        yield GaugeMetricFamily(
            "shoal_bus_pending_messages", "Messages accepted and not yet confirmed by a server.", value=pending
        )
        for name in COUNTED:
            yield CounterMetricFamily(
                f"shoal_bus_{name}", f"Buses of this process: {name.replace('_', ' ')}.", value=totals[name]
            )


def _counts(statistics: BusStatistics) -> dict[str, int]:
    return {**statistics.counters, "published": statistics.published}
