"""With a forecast a policy adds servers before the peak; without one it decides as before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.flow.flows import Steady, models

from shoal.balance.decision_record import record_situation, restore_situation
from shoal.balance.forecast import RISE_MAX, Forecast
from shoal.balance.policies import POLICIES, policy
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation
from shoal.balance.warm_up import overloaded as situation
from shoal.flow import FlowSimulator, Series

EVENT_S = 120
BEFORE, AFTER = 40.0, 100.0
"""Publications a second of each channel, at 20 channels with 10 subscribers each: 0.8 and 2 servers' worth."""


def forecast(points: dict[float, float]) -> Forecast:
    return Forecast(np.array(list(points), np.float64), np.array(list(points.values()), np.float64))


def run(expected: Forecast | None) -> Series:
    load = Steady([BEFORE] * 20, [10] * 20, 240, later={EVENT_S: [AFTER] * 20}, publishers=10)
    settings = BalanceSettings(forecast_s=40.0)
    return FlowSimulator(load, policy("shoal"), settings, models(2), seed=1, forecast=expected).run()


def test_with_a_forecast_servers_are_there_before_the_peak_and_nothing_is_overloaded() -> None:
    without = run(None)
    event = {0.0: BEFORE, EVENT_S - 1.0: BEFORE, float(EVENT_S): AFTER, 240.0: AFTER}
    with_one = run(forecast(event))
    assert without.column("servers")[EVENT_S] == 2
    assert with_one.column("servers")[EVENT_S] > 2
    assert without.column("ratio_max").max() > BalanceSettings().high_ratio
    assert with_one.column("ratio_max").max() <= BalanceSettings().high_ratio


def test_a_forecast_of_nothing_new_changes_nothing() -> None:
    plain, flat = run(None), run(forecast({0.0: 1.0, 240.0: 1.0}))
    assert plain.seconds == flat.seconds


def test_no_servers_are_freed_before_a_peak_that_is_forecast() -> None:
    load = Steady([20.0] * 20, [10] * 20, 200, publishers=10)
    freed = FlowSimulator(load, policy("shoal"), models=models(6), seed=1).run()
    soon = forecast({float(at): 1.0 if at % 50 < 40 else 3.0 for at in range(201)})
    kept = FlowSimulator(load, policy("shoal"), models=models(6), seed=1, forecast=soon).run()
    assert freed.column("servers")[-1] < 6
    assert kept.column("servers").min() == 6


@pytest.mark.parametrize("name", POLICIES)
def test_without_a_forecast_a_policy_decides_as_with_an_empty_one(name: str) -> None:
    given_one = replace(situation(), forecast=forecast({}))
    decided, again = (policy(name)(each, BalanceSettings()) for each in (situation(), given_one))
    assert decided.add == again.add
    assert decided.moves.tolist() == again.moves.tolist()


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20), st.floats(-10, 200), st.floats(0, 300))
def test_a_rise_is_between_1_and_its_maximum(loads: list[float], now_s: float, within_s: float) -> None:
    made = forecast({10.0 * place: load for place, load in enumerate(loads)})
    assert 1.0 <= made.rise(now_s, within_s) <= RISE_MAX


def test_a_rise_is_the_maximum_in_the_time_relative_to_the_forecasts_own_current_load() -> None:
    made = forecast({0.0: 10.0, 10.0: 10.0, 20.0: 20.0, 30.0: 5.0})
    assert made.rise(0.0, 5.0) == 1.0
    assert made.rise(5.0, 10.0) == pytest.approx(1.5)
    assert made.rise(5.0, 100.0) == pytest.approx(2.0)
    assert made.rise(25.0, 5.0) == 1.0
    assert made.rise(31.0, 5.0) == 1.0
    assert forecast({0.0: 0.0, 1.0: 5.0}).rise(0.0, 1.0) == 1.0


def test_a_forecast_is_recorded_with_the_decision() -> None:
    seen: Situation = replace(situation(), forecast=forecast({0.0: 1.0, 5.0: 2.0}))
    again = restore_situation(record_situation(seen))
    assert again.forecast is not None
    assert again.forecast.at_s.tolist() == [0.0, 5.0]
    assert again.forecast.bytes_out.tolist() == [1.0, 2.0]
    assert restore_situation(record_situation(situation())).forecast is None
