"""Metrics: names that Prometheus expects, bounded label sets, a page on the loopback interface."""

from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from tests.support.tls_files import TlsFiles

from shoal import metrics
from shoal.errors import ConfigError, PortInUseError, TlsError
from shoal.wire.tls import TlsSettings, page_context


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_the_three_kinds(registry: CollectorRegistry) -> None:
    metrics.counter("shoal_messages_total", "Messages.", ["server"], registry=registry).labels("s1").inc(2)
    metrics.gauge("shoal_inbox_bytes", "Bytes.", registry=registry).set(3)
    metrics.histogram("shoal_delivery_seconds", "Seconds.", registry=registry).observe(0.2)
    page = generate_latest(registry).decode()
    assert 'shoal_messages_total{server="s1"} 2.0' in page
    assert "shoal_inbox_bytes 3.0" in page
    assert 'shoal_delivery_seconds_bucket{le="0.25"} 1.0' in page


@pytest.mark.parametrize(
    ("make", "name", "labels", "says"),
    [
        (metrics.counter, "shoal_messages", [], "does not end in _total"),
        (metrics.counter, "messages_total", [], "does not start with shoal_"),
        (metrics.counter, "shoal_wait_ms_total", [], "not in a base unit"),
        (metrics.gauge, "shoal_messages_total", [], "which is for counters"),
        (metrics.gauge, "shoal_load_percent", [], "not in a base unit"),
        (metrics.histogram, "shoal_delivery", [], "does not end in _seconds or _bytes"),
        (metrics.counter, "shoal_messages_total", ["channel"], "use TopK for channels"),
    ],
)
def test_a_name_or_a_label_against_the_rules_is_refused(
    make: type, name: str, labels: list[str], says: str, registry: CollectorRegistry
) -> None:
    with pytest.raises(ConfigError, match=says):
        make(name, "Help.", labels, registry=registry)


def make_top(k: int, capacity: int) -> metrics.TopK:
    return metrics.TopK("shoal_busiest_channels", "Help.", k=k, capacity=capacity, registry=None)


def test_only_the_busiest_channels_of_the_last_interval_are_exposed(registry: CollectorRegistry) -> None:
    top = metrics.TopK("shoal_busiest_channels_messages", "Messages.", k=2, registry=registry)
    for channel, count in ((b"a", 1), (b"b", 3), (b"c", 2)):
        top.add(channel, count)
    assert top.top() == ()
    top.roll()
    assert top.top() == ((b"b", 3), (b"c", 2))
    page = generate_latest(registry).decode()
    assert 'shoal_busiest_channels_messages{channel="b"} 3.0' in page
    assert 'channel="a"' not in page
    top.roll()
    assert top.top() == ()


def test_names_that_are_no_text_are_exposed_without_doubles(registry: CollectorRegistry) -> None:
    top = metrics.TopK("shoal_busiest_channels", "Help.", k=2, registry=registry)
    top.add(b"\xff")
    top.add(b"\\xff")
    top.roll()
    page = generate_latest(registry).decode()
    assert page.count("shoal_busiest_channels{") == 1
    assert page.rstrip().endswith("2.0")


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=300))
def test_counts_are_never_too_large_and_too_small_by_a_known_amount(adds: list[tuple[int, int]]) -> None:
    top = make_top(k=3, capacity=5)
    true: dict[bytes, int] = {}
    for number, amount in adds:
        channel = b"%d" % number
        top.add(channel, amount)
        true[channel] = true.get(channel, 0) + amount
        assert len(top._open) <= 10
    top.roll()
    for channel, count in top.top():
        assert true[channel] - top.undercount_max <= count <= true[channel]
    if len(true) <= 10:
        assert [count for _, count in top.top()] == sorted(true.values(), reverse=True)[:3]


@pytest.mark.parametrize(("k", "capacity"), [(0, 5), (6, 5)])
def test_a_table_that_cannot_hold_its_k_is_refused(k: int, capacity: int) -> None:
    with pytest.raises(ConfigError, match="use 1 <= k <= capacity"):
        make_top(k, capacity)


def test_the_page_is_served_on_loopback_until_closed(registry: CollectorRegistry) -> None:
    metrics.gauge("shoal_up", "Up.", registry=registry).set(1)
    with metrics.MetricsPage(0, registry=registry) as page:
        with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics") as answer:
            assert b"shoal_up 1.0" in answer.read()
        with pytest.raises(PortInUseError, match=f"port {page.port} for metrics is in use"):
            metrics.MetricsPage(page.port, registry=registry)
    metrics.MetricsPage(page.port, registry=registry).close()


def test_the_page_listens_where_it_is_told(registry: CollectorRegistry) -> None:
    with (
        metrics.MetricsPage(0, host="127.0.0.2", registry=registry) as page,
        urllib.request.urlopen(f"http://127.0.0.2:{page.port}/metrics") as answer,
    ):
        assert answer.status == 200
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.9: .*set metrics_host to an address"):
        metrics.MetricsPage(0, host="203.0.113.9", registry=registry)


def test_the_page_uses_tls_and_renewed_certificates(registry: CollectorRegistry, tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    served = TlsSettings(cert=files.settings("server").cert)
    trusting = ssl.create_default_context(cafile=files.settings().ca)

    def read(port: int) -> bytes:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=trusting) as answer:
            text: bytes = answer.read()
            return text

    metrics.gauge("shoal_up", "Up.", registry=registry).set(1)
    with (
        metrics.MetricsPage(0, registry=registry, tls=page_context(served)) as page,
        socket.create_connection(("127.0.0.1", page.port)),  # says nothing, and holds nobody up
    ):
        assert b"shoal_up 1.0" in read(page.port)
        files.issue_server(valid_s=-1)
        with pytest.raises(urllib.error.URLError, match="certificate has expired"):
            read(page.port)
        files.issue_server()
        assert b"shoal_up 1.0" in read(page.port)
        with pytest.raises(OSError, match=r".*"):
            urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics")


def test_a_page_whose_certificate_is_missing_is_not_served(registry: CollectorRegistry) -> None:
    with pytest.raises(TlsError, match=r"cannot read the TLS file /missing\.pem"):
        metrics.MetricsPage(0, registry=registry, tls=page_context(TlsSettings(cert="/missing.pem")))
    assert page_context(None) is None
    assert page_context(TlsSettings()) is None
