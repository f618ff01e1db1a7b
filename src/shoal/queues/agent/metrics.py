"""The metrics page of a store's agent.

Owns the names of its metrics. Counts nothing itself: figures are read at each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ssl import SSLContext
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.metrics import MetricsPage
from shoal.queues.agent.core import StoreAgentCore
from shoal.queues.agent.meter import QueueFigures

QUEUES_MAX: Final = 50
"""Queues that have metrics of their own, those with most messages first. The others are in the sums of `_OTHERS`."""
_OTHERS: Final = "other"
_GAUGES: Final = {
    "messages": ("shoal_queue_messages", "messages in the queue: waiting, delayed and in flight"),
    "oldest_s": ("shoal_queue_oldest_seconds", "age of the message that is next"),
    "held": ("shoal_queue_held_keys", "keys that consumers hold"),
    "ready": ("shoal_queue_ready_keys", "keys that wait for a consumer"),
    "halted": ("shoal_queue_halted_keys", "keys that wait for an operator"),
    "consumers": ("shoal_queue_consumers", "consumers of the queue on this store"),
    "dead": ("shoal_queue_dead_letters", "dead letters"),
}
_COUNTERS: Final = {
    "puts_total": ("shoal_queue_puts", "messages that were put"),
    "dones_total": ("shoal_queue_dones", "messages that were done"),
}


class StoreMetrics(Collector):
    """The page of one agent until `close`, with TLS if `tls` gives contexts. `core` returns the agent's core, None
    before it has one; `figures` the figures of its queues in the last second."""

    def __init__(
        self,
        core: Callable[[], StoreAgentCore | None],
        figures: Callable[[], Mapping[bytes, QueueFigures]],
        port: int,
        tls: Callable[[], SSLContext] | None,
        host: str,
    ) -> None:
        registry = CollectorRegistry()
        self._core = core
        self._figures = figures
        registry.register(self)
        if tls is not None:
            from shoal.wire.tls_expiry import EXPIRY

            registry.register(EXPIRY)
        self._page = MetricsPage(port, host=host, registry=registry, tls=tls)

    def close(self) -> None:
        """Ends the page."""
        self._page.close()

    def collect(self) -> Iterable[Metric]:
        """The metrics of one scrape."""
        core = self._core()
        if core is None:
            return
        statuses = core.statuses.values()
        yield GaugeMetricFamily("shoal_store_ready", "whether the store answers and has the scripts", core.ready)
        yield GaugeMetricFamily("shoal_store_queues", "queues whose entries name the store", len(statuses))
        troubled = sum(bool(status.trouble) for status in statuses)
        yield GaugeMetricFamily("shoal_store_queues_in_trouble", "queues that the store cannot provide", troubled)
        yield from queue_metrics(self._figures())


def queue_metrics(figures: Mapping[bytes, QueueFigures]) -> Iterable[Metric]:
    """The metrics of queues on one store. Names of queues are labels, so only some have their own."""
    ranked = sorted(figures.items(), key=lambda pair: (-pair[1].messages, pair[0]))
    shown = [(queue.decode(), found) for queue, found in ranked[:QUEUES_MAX]]
    others = [found for _, found in ranked[QUEUES_MAX:]]
    for field, (name, help) in _GAUGES.items():
        gauge = GaugeMetricFamily(name, help, labels=["queue"])
        for queue, found in shown:
            gauge.add_metric([queue], getattr(found, field))
        if others:
            values = [getattr(found, field) for found in others]
            gauge.add_metric([_OTHERS], max(values) if field == "oldest_s" else sum(values))
        yield gauge
    for field, (name, help) in _COUNTERS.items():
        counter = CounterMetricFamily(name, help, labels=["queue"])
        for queue, found in shown:
            counter.add_metric([queue], getattr(found, field))
        yield counter
