"""Forecasts follow the season and the level, and their error is measured with what was known then."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.balance.columns import Floats
from shoal.cli import main
from shoal.errors import PipelineError
from shoal.pipeline import generated_windows
from shoal.pipeline.forecast import (
    DAYS_MIN,
    FORECAST_SCHEMA,
    LOAD_SCHEMA,
    SLOTS,
    backtest,
    forecast_of,
    forecasts,
    gone_groups,
    group_of,
    loads_of,
    new_groups,
)
from shoal.pipeline.kept_windows import WindowKeeper

DAY_S = SLOTS * 10
SHAPE: Floats = 2.0 + np.sin(np.arange(SLOTS) / SLOTS * 2 * np.pi)


def table(days: list[Floats], group: str = "s") -> pa.Table:
    """Loads of whole days, a window a slot."""
    loads = np.concatenate(days)
    at_s = (np.arange(len(loads)) + 1) * 10
    return pa.table([[group] * len(loads), at_s, loads], schema=LOAD_SCHEMA)


def test_of_days_that_are_all_alike_the_next_one_is_like_them() -> None:
    made = forecasts(table([SHAPE] * 3), DAY_S)
    assert made.schema == FORECAST_SCHEMA
    np.testing.assert_allclose(made["bytes_out"].to_numpy(), SHAPE)
    np.testing.assert_allclose(made["bytes_out_day_before"].to_numpy(), SHAPE)
    assert made["at_s"][0].as_py() == 3 * DAY_S + 5
    test = backtest(table([SHAPE] * 4), DAY_S)[0]
    assert test.error == pytest.approx(0.0, abs=1e-12)
    assert test.error_day_before == 0.0


def test_the_level_of_the_last_hours_counts_and_fades() -> None:
    today = np.concatenate([SHAPE, 1.5 * SHAPE[: SLOTS // 2]])
    made = forecasts(table([SHAPE, today]), DAY_S)["bytes_out"].to_numpy()
    season = np.roll(SHAPE, -SLOTS // 2)
    assert made[0] > 1.3 * season[0]
    assert made[-1] / season[-1] < made[0] / season[0]


def test_a_level_that_is_off_makes_the_model_better_than_the_day_before() -> None:
    days = [level * SHAPE for level in (1.0, 1.2, 0.9, 1.1, 0.95, 1.15)]
    test = backtest(table(days), DAY_S)[0]
    assert test.better
    assert test.forecasts > 0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 5), min_size=DAYS_MIN, max_size=4), st.integers(0, 2**32 - 1))
def test_forecasts_are_finite_and_never_negative_whatever_the_past(levels: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    days = [level * SHAPE * rng.exponential(1.0, SLOTS) for level in levels]
    made = forecasts(table(days), DAY_S)["bytes_out"].to_numpy()
    assert np.isfinite(made).all()
    assert (made >= 0).all()


def test_a_hole_in_the_record_is_filled_by_the_day_before() -> None:
    whole = table([SHAPE] * 3)
    rows = np.ones(len(whole), np.bool_)
    rows[SLOTS + 7 : SLOTS + 30] = False
    np.testing.assert_allclose(forecasts(whole.filter(pa.array(rows)), DAY_S)["bytes_out"].to_numpy(), SHAPE)


def test_too_little_history_is_said() -> None:
    with pytest.raises(PipelineError, match=r"1\.0 days of load"):
        forecasts(table([SHAPE]), DAY_S)
    with pytest.raises(PipelineError, match="no load"):
        forecasts(LOAD_SCHEMA.empty_table(), DAY_S)


def test_groups_are_forecast_each_and_for_a_policy_together() -> None:
    both = pa.concat_tables([table([SHAPE] * 2, "eu"), table([2 * SHAPE] * 2, "us")])
    made = forecasts(both, DAY_S)
    np.testing.assert_allclose(forecast_of(made, "us").bytes_out, 2 * SHAPE)
    np.testing.assert_allclose(forecast_of(made).bytes_out, 3 * SHAPE)


@pytest.mark.parametrize(
    ("host", "group"), [("eu-1", "eu"), ("eu-12", "eu"), ("s7", "s"), ("17", "17"), ("one", "one"), ("a.b_3", "a.b")]
)
def test_the_group_of_a_server_is_its_name_without_the_number(host: str, group: str) -> None:
    assert group_of(host) == group


def test_the_command_says_what_the_forecast_is_worth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = generated_windows.HOUR_S // 6  # fewer windows than `--generate` makes, which the tutorial of the page tests
    with WindowKeeper(tmp_path / "w", day_s=generated_windows.DAY_S) as keeper:
        keeper.take(0, generated_windows.make_windows(3, 2, starts=range(0, 3 * generated_windows.DAY_S, every)))
    words = ["pipeline", "forecast", "--windows", str(tmp_path / "w")]
    assert main([*words, "--out", str(tmp_path / "out"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    group = facts["groups"][0]
    assert group["group"] == "s"
    assert 0 < group["backtest"]["error"] < 1
    assert 0 < group["backtest"]["error_day_before"] < 1
    assert 3 * generated_windows.DAY_S < group["peak_at_s"] < 4 * generated_windows.DAY_S
    assert {"forecast.parquet", "forecast.svg", "forecast.png"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_the_loads_of_windows_are_what_their_servers_sent() -> None:
    windows = generated_windows.make_windows(1, 1, starts=range(0, 6, 2))
    loads = loads_of(windows)
    assert loads["at_s"].to_pylist() == [2, 4, 6]
    sent = sum(row["bytes_out"] for row in windows[0].hosts.to_pylist())
    assert loads["bytes_out"][0].as_py() == pytest.approx(sent)


def test_groups_whose_record_ends_at_other_times_are_added_up_where_both_are_forecast() -> None:
    flat = np.full(SLOTS, 100.0)
    us = table([flat] * 3, "us").slice(0, 3 * SLOTS - 12)
    made = forecasts(pa.concat_tables([table([flat] * 3, "eu"), us]), DAY_S)
    both = forecast_of(made)
    np.testing.assert_allclose(both.bytes_out, 200.0)
    assert len(both.at_s) == SLOTS - 12
    assert both.at_s[0] == 3 * DAY_S + 5
    assert all(both.rise(at_s, DAY_S / 4) == 1.0 for at_s in range(3 * DAY_S - 300, 4 * DAY_S, 60))


def test_a_group_that_is_too_new_is_expected_to_stay_as_it_is() -> None:
    new = table([np.full(SLOTS, 50.0)], "new")
    new = new.set_column(1, "at_s", pa.array(new["at_s"].to_numpy() + 2 * DAY_S))
    loads = pa.concat_tables([table([SHAPE] * 3, "eu"), new])
    made = forecasts(loads, DAY_S)
    assert new_groups(loads, DAY_S) == {"new": 1.0}
    np.testing.assert_allclose(forecast_of(made).bytes_out, SHAPE + 50.0)
    assert forecast_of(made, "new").bytes_out.tolist() == [50.0] * SLOTS
    assert [test.forecasts > 0 for test in backtest(loads, DAY_S)] == [True, False]


def test_a_group_that_has_left_is_not_counted() -> None:
    loads = pa.concat_tables([table([SHAPE] * 4, "eu"), table([9 * SHAPE] * 2, "old")])
    made = forecasts(loads, DAY_S)
    assert gone_groups(made) == ["old"]
    np.testing.assert_allclose(forecast_of(made).bytes_out, SHAPE)


def test_a_table_without_numbers_is_no_forecast() -> None:
    with pytest.raises(PipelineError, match="has no number"):
        forecast_of(pa.table([["s"], [1.0], [float("nan")], [1.0]], schema=FORECAST_SCHEMA))
    assert not len(forecast_of(FORECAST_SCHEMA.empty_table()).at_s)
