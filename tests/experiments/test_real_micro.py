"""Experiments 1a and 1b, and the check of the flow simulator, on real servers: small, and what is made of figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.cluster.server_meter import ServerSecond
from shoal.experiments import Options, experiments
from shoal.experiments.real import check, micro
from shoal.experiments.real.micro import MICRO_A, MICRO_B, Point, mean_load_ratio, measure_sizes, middle, supported
from shoal.experiments.real.network import Network, may_limit, run_on_network
from shoal.experiments.real.rig import Link
from shoal.sim.flow import distance_model

NARROW = Link(bytes_per_s=30e3, wire_share=1.36)
WIDE = Link(bytes_per_s=4e6, wire_share=1.36)


def point(size: int, response_ms: float, undelivered: int = 0, load_ratio: float = 0.5) -> Point:
    return Point(size, response_ms, 1.0, 2.0, 100, undelivered, load_ratio, 0.5, 0.1, 0.2)


def test_all_experiments_of_the_paper_run_on_real_servers() -> None:
    assert {"dynamoth-1a", "dynamoth-1b", "dynamoth-2", "dynamoth-3", "flow-check"} <= experiments("real").keys()


def test_supported_is_where_the_straight_line_crosses_the_limit() -> None:
    assert supported([point(50, 100.0), point(100, 200.0)], limited=True) == pytest.approx(75.0)
    assert supported([point(50, 100.0), point(100, 149.0)], limited=True) == 100.0


def test_of_several_measurements_of_a_size_the_one_in_the_middle_counts() -> None:
    assert middle([point(50, 300.0), point(50, 80.0), point(50, 100.0)]).response_ms == 100.0
    lost = [point(50, 90.0, undelivered=1), point(50, 91.0, undelivered=2), point(50, 80.0)]
    assert middle(lost).undelivered


def test_a_size_that_was_not_delivered_is_not_supported() -> None:
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


@pytest.mark.parametrize("found", [MICRO_A, MICRO_B], ids=lambda micro: micro.name)
def test_an_experiment_on_wide_links_delivers_everything(found: micro.Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "SECONDS", 0.5)
    monkeypatch.setattr(micro, "REPORT_S", 0.1)
    monkeypatch.setattr(micro, "LATE_S", 20.0)
    small = replace(found, sizes={2: (5,)}, link=WIDE)

    async def work(network: Network) -> list[Point]:
        return await measure_sizes(small, 2, network, distance_model(), Options())

    (point,) = run_on_network(WIDE.limit if found is MICRO_A else None, work)
    assert point.undelivered == 0
    assert point.expected >= 4 * point.size
    assert point.response_ms > point.delay_p50_ms, "latency is missing"


def test_the_model_of_the_flow_simulator_slows_down_with_its_load() -> None:
    rates = [ratio * check.LINK.bytes_per_s / (check.SUBSCRIBERS * 255.0) for ratio in (0.2, 0.6, 0.9)]
    modelled = [check.modelled_ms(rate, 255.0, 3) for rate in rates]
    assert modelled == sorted(modelled)
    assert modelled[-1] > 3 * modelled[0]


if may_limit():  # as root, with ip, tc and nsenter

    def test_a_narrow_link_makes_messages_wait(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(micro, "SECONDS", 1.0)
        monkeypatch.setattr(micro, "LATE_S", 20.0)
        narrow = replace(MICRO_A, sizes={1: (20,)}, link=NARROW)

        async def work(network: Network) -> list[Point]:
            return await measure_sizes(narrow, 1, network, distance_model(), Options())

        (many,) = run_on_network(NARROW.limit, work)
        # 20 subscribers are sent 50 kB in a second, over a link of 30 kB a second: the last wait for half a second.
        assert many.delay_p99_ms > 300
        assert many.undelivered == 0
        assert many.link_share > 0.8

    def test_the_flow_simulator_is_compared_with_a_real_server(monkeypatch: pytest.MonkeyPatch) -> None:
        async def work(network: Network) -> list[check.Compared]:
            return await check.compare(network, (0.3,), 1, Options())

        (row,) = run_on_network(check.LINK.limit, work)
        assert row.undelivered == 0
        assert 0.1 < row.load_ratio < 0.9
        assert row.measured_ms > 0
        assert row.modelled_ms > 0
