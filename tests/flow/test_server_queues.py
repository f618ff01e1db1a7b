"""The queues of servers: waits, backlogs, failures."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.flow.flows import SERVER, Steady, models

from shoal.balance.columns import ALL_PUBLISHERS, ALL_SUBSCRIBERS, Placements
from shoal.errors import ConfigError
from shoal.flow import FlowSimulator, Series, ServerModel

ONE = Placements.single([0])


def run(
    rate: float, subscribers: int, seconds: int = 10, server: ServerModel = SERVER, publishers: int = 1000
) -> Series:
    workload = Steady([rate], [subscribers], seconds, publishers=publishers)
    return FlowSimulator(workload, None, models=models(1, server=server), placements=ONE).run()


def test_the_load_ratio_is_traffic_divided_by_capacity() -> None:
    series = run(50.0, 100)
    assert series.column("ratio_max") == pytest.approx(0.5)
    assert series.column("ratio_mean") == pytest.approx(0.5)
    assert series.column("messages_out") == pytest.approx(5000.0)


def test_the_wait_is_that_of_a_queue_with_random_arrivals() -> None:
    fan_out_s = 100 * 100 / SERVER.limit_bytes_per_s
    utilisation = 50 * fan_out_s
    wait_s = 50 * fan_out_s**2 / (2 * (1 - utilisation))
    expected_ms = 70 + 1000 * (wait_s + fan_out_s / 2)
    assert run(50.0, 100).column("response_ms")[-1] == pytest.approx(expected_ms, abs=0.1)


def test_response_times_grow_with_the_load() -> None:
    response = [run(rate, 100).column("response_ms")[-1] for rate in (10.0, 50.0, 90.0, 110.0)]
    assert response == sorted(response)
    assert response[-1] > response[0] + 10


def test_one_regular_publisher_does_not_wait_for_itself() -> None:
    alone = run(110.0, 100, publishers=1).column("response_ms")[-1]
    assert alone == pytest.approx(70 + 1000 * (10_000 / SERVER.limit_bytes_per_s + 101e-6) / 2, abs=0.01)


def test_up_to_the_fail_ratio_everything_is_delivered() -> None:
    series = run(114.9, 100, seconds=60)
    assert not series.column("undelivered").any()
    assert series.column("utilisation_max").max() < 1


def test_above_the_fail_ratio_a_backlog_grows_until_the_server_fails() -> None:
    series = run(140.0, 100, seconds=20)
    response = series.column("response_ms")
    assert response[1] > response[0] + 100
    failed_at = int(np.argmax(np.isinf(response)))
    # An excess of 250,000 bytes a second fills a buffer of a million bytes in four seconds.
    assert failed_at in (3, 4)
    assert series.column("undelivered")[failed_at:].all()


def test_a_backlog_shrinks_when_the_load_falls() -> None:
    workload = Steady([130.0], [100], 10, later={3: [50.0]})
    response = FlowSimulator(workload, None, models=models(1), placements=ONE).run().column("response_ms")
    assert response[2] > 200
    assert response[9] == pytest.approx(run(50.0, 100).column("response_ms")[0])


def test_a_failed_server_recovers_when_its_load_has_fallen() -> None:
    workload = Steady([200.0], [100], 30, later={10: [50.0]})
    series = FlowSimulator(workload, None, models=models(1), placements=ONE).run()
    undelivered = series.column("undelivered")
    assert undelivered[9] > 0
    assert not undelivered[-1]
    assert series.column("response_ms")[-1] < 150


def test_the_core_can_be_the_limit() -> None:
    slow = msgspec.structs.replace(SERVER, delivery_cpu_s=250e-6)
    assert not run(35.0, 100, server=slow).column("undelivered").any()
    series = run(45.0, 100, server=slow, seconds=30)
    assert series.column("ratio_max").max() < 0.5
    assert series.column("undelivered").any()


def test_one_connection_can_be_the_limit() -> None:
    narrow = msgspec.structs.replace(SERVER, connection_messages_per_s=1000.0, connection_buffer_bytes=100_000.0)
    assert not run(1000.0, 1, server=narrow, seconds=30).column("undelivered").any()
    series = run(1200.0, 1, server=narrow, seconds=30)
    # An excess of 200 messages a second fills a buffer of a thousand messages in five seconds.
    assert np.argmax(series.column("undelivered") > 0) in (4, 5)


@pytest.mark.parametrize("mode", [ALL_PUBLISHERS, ALL_SUBSCRIBERS])
def test_a_replicated_channel_costs_each_server_its_share(mode: int) -> None:
    workload = Steady([120.0], [4000], 3, publishers=1_000_000)
    big = msgspec.structs.replace(SERVER, capacity_bytes_per_s=40e6)
    placements = Placements.build([mode], [(0, 1, 2)])
    series = FlowSimulator(workload, None, models=models(3, server=big), placements=placements).run()
    assert series.column("ratio_mean") == pytest.approx(0.4)
    assert series.column("ratio_max")[-1] == pytest.approx(0.4, rel=0.05)


def test_all_publishers_shortens_the_fan_out_and_all_subscribers_does_not() -> None:
    workload = Steady([1.0], [10_000], 2)
    big = msgspec.structs.replace(SERVER, capacity_bytes_per_s=10e6)
    response = {
        mode: FlowSimulator(
            workload, None, models=models(3, server=big), placements=Placements.build([mode], [(0, 1, 2)])
        )
        .run()
        .column("response_ms")[-1]
        for mode in (ALL_PUBLISHERS, ALL_SUBSCRIBERS)
    }
    assert response[ALL_PUBLISHERS] < response[ALL_SUBSCRIBERS]


@pytest.mark.parametrize("change", [{"capacity_bytes_per_s": 0.0}, {"utilisation_max": 1.0}, {"recovery_s": -1.0}])
def test_an_impossible_model_is_rejected(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        run(1.0, 1, server=msgspec.structs.replace(SERVER, **change))
