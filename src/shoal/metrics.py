"""Metrics for Prometheus: one registry per process, checked names, and no label per channel.

Owns the registry, the naming rules (prefix `shoal_`, base units, `_total` for counters), `TopK` and the page. It counts
nothing itself; other modules create their metrics here at import.

A label value per channel would create one time series per channel. `TopK` exposes only the k busiest channels of the
last interval, from a table of bounded size.
"""

from __future__ import annotations

import errno
import heapq
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shoal.errors import ConfigError, PortInUseError

PREFIX: Final = "shoal_"
REGISTRY: Final = CollectorRegistry()
"""The registry of this process. Prometheus's default registry is left to the application."""

FORBIDDEN_LABELS: Final = frozenset({"channel", "client", "publisher", "subscriber", "pattern"})
"""Labels with an unbounded number of values; only `TopK` may use "channel"."""

_BAD_UNITS: Final = (
    "_ms",
    "_us",
    "_ns",
    "_millis",
    "_minutes",
    "_hours",
    "_kb",
    "_mb",
    "_kib",
    "_mib",
    "_percent",
)

_NO_SUCH_HOST: Final = (socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL)
"""Errors of the name resolution."""

LATENCY_BUCKETS_S: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    1.0,
    5.0,
)


def counter(name: str, help: str, labels: Sequence[str] = (), *, registry: CollectorRegistry = REGISTRY) -> Counter:
    """Create a counter; its name ends in `_total`."""
    if not name.endswith("_total"):
        raise ConfigError(f"the counter {name} does not end in _total")
    return Counter(_checked(name, labels), help, labels, registry=registry)


def gauge(name: str, help: str, labels: Sequence[str] = (), *, registry: CollectorRegistry = REGISTRY) -> Gauge:
    """Create a gauge."""
    if name.endswith("_total"):
        raise ConfigError(f"the gauge {name} ends in _total, which is for counters")
    return Gauge(_checked(name, labels), help, labels, registry=registry)


def histogram(
    name: str,
    help: str,
    labels: Sequence[str] = (),
    *,
    buckets: Sequence[float] = LATENCY_BUCKETS_S,
    registry: CollectorRegistry = REGISTRY,
) -> Histogram:
    """Create a histogram of seconds or bytes; its name ends in the unit."""
    if not name.endswith(("_seconds", "_bytes")):
        raise ConfigError(f"the histogram {name} does not end in _seconds or _bytes")
    return Histogram(_checked(name, labels), help, labels, buckets=buckets, registry=registry)


def _checked(name: str, labels: Iterable[str]) -> str:
    """Return the name if it and its labels follow the rules."""
    if not name.startswith(PREFIX):
        raise ConfigError(f"the metric {name} does not start with {PREFIX}")
    if name.removesuffix("_total").endswith(_BAD_UNITS):
        raise ConfigError(f"the metric {name} is not in a base unit", do="use seconds, bytes or a ratio")
    if forbidden := FORBIDDEN_LABELS.intersection(labels):
        raise ConfigError(f"the metric {name} has the label {min(forbidden)}", do="use TopK for channels")
    return name


class TopK(Collector):
    """The k busiest channels of the last closed interval, as a gauge with the label "channel".

    `add` counts into the open interval; `roll` closes it (call it once per interval; the agent does so every second).
    The table grows to at most twice `capacity` channels and is then pruned to the busiest `capacity`. A channel that
    was pruned and came back is undercounted by at most `undercount_max`. With fewer than `2 * capacity` channels in an
    interval, every count is exact. Safe to scrape from another thread.
    """

    def __init__(
        self,
        name: str,
        help: str,
        *,
        k: int = 10,
        capacity: int = 1000,
        registry: CollectorRegistry | None = REGISTRY,
    ) -> None:
        if not 1 <= k <= capacity:
            raise ConfigError(f"k is {k} and capacity {capacity}", do="use 1 <= k <= capacity")
        self._name = _checked(name, ())
        self._help = help
        self._k = k
        self._capacity = capacity
        self._open: dict[bytes, float] = {}
        self._open_undercount_max = 0.0
        self._closed: tuple[tuple[bytes, float], ...] = ()
        self.undercount_max = 0.0
        """Largest possible undercount in the last closed interval."""
        if registry is not None:
            registry.register(self)

    def add(self, channel: bytes, amount: float = 1) -> None:
        """Count into the open interval."""
        table = self._open
        table[channel] = table.get(channel, 0.0) + amount
        if len(table) > 2 * self._capacity:
            self._prune()

    def roll(self) -> None:
        """Close the interval: `top` and the metrics page show its counts until the next call."""
        self._closed = tuple(heapq.nlargest(self._k, self._open.items(), key=_by_count))
        self.undercount_max = self._open_undercount_max
        self._open = {}
        self._open_undercount_max = 0.0

    def top(self) -> tuple[tuple[bytes, float], ...]:
        """Return the busiest channels of the last closed interval with their counts, busiest first."""
        return self._closed

    def collect(self) -> Iterable[Metric]:
        """Yield at most k samples."""
        family = GaugeMetricFamily(self._name, self._help, labels=["channel"])
        samples: dict[str, float] = {}
        for channel, count in self._closed:  # two names may be equal after decoding
            text = channel.decode("utf-8", "backslashreplace")
            samples[text] = samples.get(text, 0.0) + count
        for text, count in samples.items():
            family.add_metric([text], count)
        yield family

    def _prune(self) -> None:
        ordered = sorted(self._open.items(), key=_by_count, reverse=True)
        self._open_undercount_max += ordered[self._capacity][1]
        self._open = dict(ordered[: self._capacity])


def _by_count(item: tuple[bytes, float]) -> float:
    return item[1]


class MetricsPage:
    """The registry over HTTP, until `close`; on the loopback interface unless `host` says otherwise. Port 0 chooses a
    free port. With `tls`, which gives the context for the next connection, it is over HTTPS."""

    def __init__(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        registry: CollectorRegistry = REGISTRY,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        if tls is not None:
            tls()  # raises if the certificate is unusable
        self._server: WSGIServer
        self._thread: threading.Thread
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, *_NO_SUCH_HOST):
                raise ConfigError(
                    f"the metrics page cannot listen on {host}: {error.strerror}",
                    do="set metrics_host to an address of this machine",
                ) from None
            if error.errno != errno.EADDRINUSE:
                raise
            raise PortInUseError(
                f"port {port} for metrics is in use", do="set metrics_port to a free port, or to 0 for no metrics page"
            ) from None
        if tls is not None:
            self._encrypt(tls)
        self.port: int = self._server.server_port
        """The actual port."""

    def _encrypt(self, tls: Callable[[], ssl.SSLContext]) -> None:
        """Put TLS on each connection. The handshake happens in the connection's own thread, at its first read."""
        listener = self._server.socket

        def get_request() -> tuple[ssl.SSLSocket, Any]:
            connection, peer = listener.accept()
            try:
                return tls().wrap_socket(connection, server_side=True, do_handshake_on_connect=False), peer
            except BaseException:
                connection.close()
                raise

        self._server.get_request = get_request  # type: ignore[method-assign]

    def close(self) -> None:
        """Stop listening. Returns when the port is free again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
