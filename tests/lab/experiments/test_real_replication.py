"""Experiments 1a and 1b, and the check of the flow simulator, on real servers, in small; and how figures are judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.cluster.server_meter import ServerSecond
from shoal.flow import distance_model
from shoal.lab.experiments import ExperimentOptions, experiments
from shoal.lab.experiments.real import flow_check, replication
from shoal.lab.experiments.real.limited_cluster import LinkLimit
from shoal.lab.experiments.real.network import ExperimentNetwork, may_limit, run_on_network
from shoal.lab.experiments.real.observation import mean_load_ratio
from shoal.lab.experiments.real.replication import (
    SETUP_A,
    SETUP_B,
    ReplicationSetup,
    SizePoint,
    measure_sizes,
    median_point,
    supported,
)

NARROW = LinkLimit(bytes_per_s=30e3, wire_share=1.36)
WIDE = LinkLimit(bytes_per_s=4e6, wire_share=1.36)


def point(size: int, response_ms: float, undelivered: int = 0, load_ratio: float = 0.5) -> SizePoint:
    return SizePoint(size, response_ms, 1.0, 2.0, 100, undelivered, load_ratio, 0.5, 0.1, 0.2)


def test_all_experiments_of_the_paper_run_on_real_servers() -> None:
    assert {"dynamoth-1a", "dynamoth-1b", "dynamoth-2", "dynamoth-3", "flow-check"} <= experiments("real").keys()


def test_the_supported_size_is_interpolated_between_two_sizes() -> None:
    assert supported([point(50, 100.0), point(100, 200.0)], limited=True) == pytest.approx(75.0)
    assert supported([point(50, 100.0), point(100, 149.0)], limited=True) == 100.0


def test_the_median_measurement_of_a_size_counts() -> None:
    assert median_point([point(50, 300.0), point(50, 80.0), point(50, 100.0)]).response_ms == 100.0
    lost = [point(50, 90.0, undelivered=1), point(50, 91.0, undelivered=2), point(50, 80.0)]
    assert median_point(lost).undelivered


def test_a_size_with_undelivered_messages_is_not_supported() -> None:
    assert supported([point(50, 100.0), point(100, 110.0, undelivered=1)], limited=True) == 50.0
    assert supported([point(50, 100.0, undelivered=1)], limited=True) == 0.0


def test_without_limited_links_a_server_above_its_capacity_supports_nothing() -> None:
    points = [point(50, 100.0), point(100, 100.0, load_ratio=1.2)]
    assert supported(points, limited=False) == 50.0
    assert supported(points, limited=True) == 100.0


def test_the_load_ratio_is_that_of_the_busiest_server_in_whole_seconds() -> None:
    def second(server: str, at: int, ratio: float) -> ServerSecond:
        return ServerSecond(server, at, ratio, 0.0, 0, 0.0, 0)

    seconds = [second("s1", 9, 5.0), second("s1", 10, 0.2), second("s1", 11, 0.4), second("s2", 11, 0.1)]
    assert mean_load_ratio(seconds, 9.5, 12.0) == pytest.approx(0.3)
    assert mean_load_ratio(seconds, 10.5, 11.5) == 0.0


@pytest.mark.parametrize("found", [SETUP_A, SETUP_B], ids=lambda setup: setup.name)
def test_an_experiment_on_wide_links_delivers_everything(
    found: ReplicationSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "SECONDS", 0.5)
    monkeypatch.setattr(replication, "REPORT_S", 0.1)
    monkeypatch.setattr(replication, "LATE_S", 20.0)
    small = replace(found, sizes={2: (5,)}, link=WIDE)

    async def work(network: ExperimentNetwork) -> list[SizePoint]:
        return await measure_sizes(small, 2, network, distance_model(), ExperimentOptions())

    (point,) = run_on_network(WIDE.limit if found is SETUP_A else None, work)
    assert point.undelivered == 0
    assert point.expected >= 4 * point.size
    assert point.response_ms > point.delay_p50_ms, "latency is missing"


def test_the_model_of_the_flow_simulator_slows_down_with_its_load() -> None:
    rates = [ratio * flow_check.LINK.bytes_per_s / (flow_check.SUBSCRIBERS * 255.0) for ratio in (0.2, 0.6, 0.9)]
    modelled = [flow_check.modelled_ms(rate, 255.0, 3) for rate in rates]
    assert modelled == sorted(modelled)
    assert modelled[-1] > 3 * modelled[0]


if may_limit():  # as root, with ip, tc and nsenter

    def test_a_narrow_link_makes_messages_wait(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(replication, "SECONDS", 1.0)
        monkeypatch.setattr(replication, "LATE_S", 20.0)
        narrow = replace(SETUP_A, sizes={1: (20,)}, link=NARROW)

        async def work(network: ExperimentNetwork) -> list[SizePoint]:
            return await measure_sizes(narrow, 1, network, distance_model(), ExperimentOptions())

        (many,) = run_on_network(NARROW.limit, work)
        # 20 subscribers are sent 50 kB in a second, over a link of 30 kB a second: the last wait for half a second.
        assert many.delay_p99_ms > 300
        assert many.undelivered == 0
        assert many.link_share > 0.8

    def test_the_flow_simulator_is_compared_with_a_real_server(monkeypatch: pytest.MonkeyPatch) -> None:
        async def work(network: ExperimentNetwork) -> list[flow_check.LoadComparison]:
            return await flow_check.compare(network, (0.3,), 1, ExperimentOptions())

        (row,) = run_on_network(flow_check.LINK.limit, work)
        assert row.undelivered == 0
        assert 0.1 < row.load_ratio < 0.9
        assert row.measured_ms > 0
        assert row.modelled_ms > 0
