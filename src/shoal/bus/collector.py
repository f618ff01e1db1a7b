"""All buses of this process as metrics: summed when somebody looks, so that a message costs nothing.

Owns the names `shoal_bus_*`. A bus that closes leaves its counts behind, so that totals never shrink.
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

from shoal.channels.client.context import Counters
from shoal.metrics import REGISTRY

if TYPE_CHECKING:
    from shoal.bus.client import Bus, BusStatistics

COUNTED: Final = ("published", *Counters.__struct_fields__)

_lock: Final = threading.Lock()
_open: Final[WeakSet[Bus]] = WeakSet()
"""A bus that was dropped without being closed does not stay because of its metrics."""
_left: Final[Counter[str]] = Counter()
_registered = False


def add(bus: Bus) -> None:
    """A bus has opened."""
    global _registered
    with _lock:
        _open.add(bus)
        if not _registered:
            REGISTRY.register(_Collector())
            _registered = True


def remove(bus: Bus) -> None:
    """A bus closes; its counts stay."""
    with _lock:
        if bus in _open:
            _open.discard(bus)
            _left.update(_counts(bus.statistics()))


class _Collector(Collector):
    """What a scrape sees; it runs in a thread of its own, so it only reads numbers."""

    def collect(self) -> Iterator[Metric]:
        """The sums over all buses, open and gone."""
        with _lock:
            totals = Counter(_left)
            pending = 0
            for bus in list(_open):
                statistics = bus.statistics()
                totals.update(_counts(statistics))
                pending += statistics.pending_messages
            count = len(_open)
        yield GaugeMetricFamily("shoal_bus_open", "Buses that are open in this process.", value=count)
        yield GaugeMetricFamily(
            "shoal_bus_pending_messages", "Messages accepted and not confirmed by a server.", value=pending
        )
        for name in COUNTED:
            yield CounterMetricFamily(
                f"shoal_bus_{name}", f"Buses of this process: {name.replace('_', ' ')}.", value=totals[name]
            )


def _counts(statistics: BusStatistics) -> dict[str, int]:
    return {**statistics.counters, "published": statistics.published}
