"""Workloads: traffic over time."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.flow import FlowSimulator, distance_model
from shoal.flow.workloads import Curve, Zipf, ZipfChannels, ramp

LATENCIES = distance_model()


def test_a_ramp_goes_from_one_value_to_the_other() -> None:
    curve = ramp(100, 200, each_s=2.0, hold_s=10)
    assert curve.seconds == 60
    assert curve.at([0, 25, 50, 60]).tolist() == [100, 150, 200, 200]
    assert ramp(200, 100, each_s=1.0).at([50]).tolist() == [150]


def test_zipf_loads_follow_their_ranks_and_their_curve() -> None:
    channels = ZipfChannels(Zipf(1000, 5000.0, exponent=1.0), Curve(((0, 1.0), (10, 0.5))), LATENCIES, seed=1)
    rates = np.sort(channels.at(0).publications)[::-1]
    assert rates.sum() == pytest.approx(5000.0)
    assert rates[0] / rates[9] == pytest.approx(10.0)
    assert channels.at(5).publications.sum() == pytest.approx(3750.0)


def test_many_channels_run() -> None:
    channels = ZipfChannels(Zipf(20_000, 1e5), Curve(((0, 1.0), (5, 1.0))), LATENCIES, seed=1)
    series = FlowSimulator(channels, None).run()
    assert series.column("messages_out") == pytest.approx(1e6)
