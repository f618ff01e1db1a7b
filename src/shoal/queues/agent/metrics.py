"""The metrics page of a store's agent.

Owns the names of its metrics. Counts nothing itself: figures are read at each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ssl import SSLContext

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.metrics import MetricsPage
from shoal.queues.agent.core import StoreAgentCore


class StoreMetrics(Collector):
    """The page of one agent until `close`, with TLS if `tls` gives contexts. `core` returns the agent's core, None
    before it has one."""

    def __init__(
        self, core: Callable[[], StoreAgentCore | None], port: int, tls: Callable[[], SSLContext] | None, host: str
    ) -> None:
        registry = CollectorRegistry()
        self._core = core
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
