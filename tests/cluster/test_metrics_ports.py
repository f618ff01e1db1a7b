"""The ports of a local cluster's metrics pages: one setting for all processes, and a taken port is named."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator

import pytest

from shoal.cli import main
from shoal.cluster.local import metered
from shoal.cluster.metrics_ports import MetricsPorts
from shoal.cluster.parts import shoal_agent, with_metrics
from shoal.cluster.servers import free_port
from shoal.errors import PortInUseError
from shoal.plan.ring import ServerAddress


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program uses."""
    with socket.socket() as other:
        for _ in range(20):  # other tests choose ports too
            with contextlib.suppress(OSError):
                other.bind(("127.0.0.1", free_port(20)))
                break
        other.listen()
        yield other.getsockname()[1]


def test_every_process_has_a_port_of_its_own() -> None:
    ports = MetricsPorts(9100)
    names = [*metered(balancers=3, servers=60, stores=80), "agent-s999"]
    found = [ports.of(name) for name in names]
    assert found[:3] == [9100, 9101, 9102]
    assert [ports.of(name) for name in ("agent-s1", "agent-q1")] == [9111, 10111]
    assert len({*found}) == len(names)
    assert {*found} <= ports.reserved()
    assert [ports.of(name) for name in ("s1", "coordinator", "load-windows")] == [0, 0, 0]


def test_without_the_setting_there_are_no_pages() -> None:
    assert MetricsPorts().of("balancer-1") == 0
    assert MetricsPorts().reserved() == set()
    assert with_metrics(shoal_agent, MetricsPorts()) is shoal_agent


def test_a_taken_port_is_named_with_its_process(taken: int) -> None:
    ports = MetricsPorts(taken - 12)
    with pytest.raises(
        PortInUseError, match=rf"port {taken}, for the metrics of agent-s2, is in use: set metrics_port"
    ):
        ports.check(metered(balancers=2, servers=3))
    assert ports.free("agent-s2") == 0  # a server that is added later goes without a page


def test_up_names_a_taken_port_before_it_starts_anything(
    taken: int, tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It took 92 s, and the error did not name the port."""
    monkeypatch.setenv("SHOAL_METRICS_PORT", str(taken - 1))
    assert main(["up", "--state-dir", f"{tmp_path}/state"]) == 1
    output, errors = capsys.readouterr()
    assert f"port {taken}, for the metrics of balancer-2, is in use" in errors
    assert "starting" not in errors
    assert output == ""


def test_agents_and_balancers_get_their_port_as_a_flag() -> None:
    """So that none of them uses the environment's, which is the same for all."""
    port = free_port(20)
    words = with_metrics(shoal_agent, MetricsPorts(port))(ServerAddress("s3", "h", 1))
    assert list(words[-2:]) == ["--metrics-port", str(port + 13)]


def test_prometheus_finds_the_pages() -> None:
    pages = json.loads(MetricsPorts(9100, "10.0.0.5").targets(["agent-s1", "balancer-1"]))
    assert pages == [
        {"targets": ["10.0.0.5:9111"], "labels": {"process": "agent-s1"}},
        {"targets": ["10.0.0.5:9100"], "labels": {"process": "balancer-1"}},
    ]
    assert re.fullmatch(rb"(?s)\[\n.*\]\n", MetricsPorts(9100).targets(["agent-s1"]))
