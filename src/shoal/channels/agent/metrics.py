"""An agent's metrics page: figures of the agent, its monitor and the last closed second, read at each scrape.

Owns the names of the agent's metrics. Counts nothing itself. Only the few busiest channels appear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ssl import SSLContext
from typing import TYPE_CHECKING, Final

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shoal.logs import get_log
from shoal.metrics import MetricsPage, TopK

if TYPE_CHECKING:
    from shoal.channels.agent.core import AgentCore
    from shoal.channels.agent.monitor import Monitor
    from shoal.channels.telemetry.analyzer import Second

TOP_CHANNELS: Final = 10

_SERVER_GAUGES: Final = {
    "bytes_out_per_s": (
        "shoal_server_out_bytes_per_second",
        "bytes sent by the server, without the agent's own copy",
    ),
    "max_out_bytes_per_s": (
        "shoal_server_out_bytes_per_second_max",
        "configured limit of the bytes sent by the server",
    ),
    "load_ratio": ("shoal_server_load_ratio", "bytes sent divided by the limit"),
    "cpu_share": ("shoal_server_cpu_ratio", "CPU used by the server, 1 is one core"),
    "connections": ("shoal_server_connections", "connections to the server"),
    "memory_bytes": ("shoal_server_memory_bytes", "memory used by the server"),
}
_log: Final = get_log(__name__)


class AgentMetrics(Collector):
    """The page of one agent until `close`, with TLS if `tls` gives contexts."""

    def __init__(
        self, server: str, port: int, tls: Callable[[], SSLContext] | None = None, host: str = "127.0.0.1"
    ) -> None:
        registry = CollectorRegistry()
        self._top = TopK(
            "shoal_channel_publications",
            "messages in the last second, busiest channels",
            k=TOP_CHANNELS,
            registry=registry,
        )
        self._core: AgentCore | None = None
        self._monitor: Monitor | None = None
        self._now: Callable[[], float] = float
        self._second: Second | None = None
        registry.register(self)
        if tls is not None:
            from shoal.wire.tls_expiry import EXPIRY

            registry.register(EXPIRY)
        self._page = MetricsPage(port, host=host, registry=registry, tls=tls)
        _log.info("metrics page", server=server, port=self._page.port)

    def watch(self, core: AgentCore, monitor: Monitor, now: Callable[[], float]) -> None:
        """Sets the agent whose metrics are shown, and its clock."""
        self._core, self._monitor, self._now = core, monitor, now
        monitor.closed = self._closed

    def close(self) -> None:
        """Ends the page."""
        self._page.close()

    def _closed(self, second: Second) -> None:
        self._second = second
        publications = second.channels["publications"]
        busiest = np.argsort(publications)[-TOP_CHANNELS:]
        for row in busiest[publications[busiest] > 0]:
            self._top.add(second.channels.unit(int(row)), float(publications[row]))
        self._top.roll()

    def collect(self) -> Iterable[Metric]:
        """The metrics of one scrape."""
        if self._core is None or self._monitor is None:
            return
        yield GaugeMetricFamily(
            "shoal_agent_lease_granted",
            "whether the agent holds the lease",
            self._core.lease.is_granted(self._now()),
        )
        yield GaugeMetricFamily(
            "shoal_agent_registered_clients",
            "clients with at least one subscription",
            len(self._core.register.clients),
        )
        yield GaugeMetricFamily(
            "shoal_agent_channels_moving",
            "moving channels that concern this server",
            self._core.dispatcher.moving,
        )
        yield GaugeMetricFamily(
            "shoal_agent_forward_buffer_bytes",
            "forwarded bytes that other servers have not replied to",
            self._core.dispatcher.forwards.held_bytes,
        )
        yield GaugeMetricFamily(
            "shoal_agent_records_open",
            "channels that are being recorded",
            self._core.recorder.records_open,
        )
        budget = self._core.recorder.budget
        yield GaugeMetricFamily("shoal_agent_records", "records on the server", budget.records)
        yield GaugeMetricFamily(
            "shoal_agent_record_share_bytes", "how large each record on the server may be", budget.share_bytes
        )
        for prefix, counters in (("agent", self._core.counters), ("monitor", self._monitor.counters)):
            for name in counters.__struct_fields__:
                yield CounterMetricFamily(
                    f"shoal_{prefix}_{name}",
                    f"{name.replace('_', ' ')} since the start of the agent",
                    getattr(counters, name),
                )
        yield GaugeMetricFamily(
            "shoal_server_foreign_patterns",
            "patterns on the server that no registered client uses",
            self._monitor.foreign_patterns,
        )
        if self._second is not None:
            row = self._second.server
            for column, (name, text) in _SERVER_GAUGES.items():
                value = row[column]
                if value is not None:
                    yield GaugeMetricFamily(name, text, value)
