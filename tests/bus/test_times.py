"""Times on the command line: a date or an age; anything else is rejected with the correct form."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from shoal.bus.times import read_time, time_us_of
from shoal.errors import ConfigError, SubscribeError

NOW_S = 1_793_534_400.0


@pytest.mark.parametrize(("text", "seconds"), [("15m", 900), ("2h", 7200), ("1.5d", 129_600), (".5s", 0.5), ("3.s", 3)])
def test_an_age_is_counted_from_now(text: str, seconds: float) -> None:
    assert read_time(text, NOW_S) == (NOW_S - seconds) * 1_000_000


def test_a_date_is_utc_unless_it_says_otherwise() -> None:
    assert read_time("2026-11-01T12:00", 0) == read_time("2026-11-01T14:00+02:00", 0) == NOW_S * 1_000_000


def test_before_1970_there_is_nothing() -> None:
    assert read_time("999999d", NOW_S) == read_time("9" * 400 + "d", NOW_S) == read_time("1066-10-14", NOW_S) == 0


@pytest.mark.parametrize("text", ["", "²h", "٣h", "1_0h", "-1h", ".h", "h", "1..5h", "nan", "infs", "yesterday"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time"):
        read_time(text, NOW_S)


def test_a_program_is_told_what_since_was() -> None:
    """It read: since is 'yesterday' is not a time."""
    with pytest.raises(SubscribeError, match=r"^since is 'yesterday', which is not a time: "):
        time_us_of("yesterday", NOW_S)


@pytest.mark.parametrize("text", ["-5m", "-1.5h"])
def test_an_age_with_a_sign_is_refused_with_the_same_without(text: str) -> None:
    with pytest.raises(ConfigError, match=f"an age has no sign: write {text[1:]}$"):
        read_time(text, NOW_S)


@pytest.mark.parametrize(
    "since",
    [600, 600.0, "10m", dt.timedelta(minutes=10), "2026-11-01T11:50", dt.datetime(2026, 11, 1, 11, 50, tzinfo=dt.UTC)],
)
def test_a_program_gives_a_time_an_age_or_a_text(since: dt.datetime | dt.timedelta | float | str) -> None:
    assert time_us_of(since, NOW_S) == (NOW_S - 600) * 1_000_000


@pytest.mark.parametrize("since", [1e18, dt.datetime(1066, 10, 14, tzinfo=dt.UTC), "999999d"])
def test_a_program_that_asks_for_all_there_is_gets_it(since: dt.datetime | float | str) -> None:
    assert time_us_of(since, NOW_S) == 0


@pytest.mark.parametrize("since", [dt.datetime(2099, 1, 1, tzinfo=dt.UTC), "2099-01-01", 0, dt.timedelta()])
def test_a_time_in_the_future_is_now(since: dt.datetime | dt.timedelta | float | str) -> None:
    assert time_us_of(since, NOW_S) == NOW_S * 1_000_000


@pytest.mark.parametrize(
    "since", [-5, float("nan"), float("inf"), True, dt.timedelta(minutes=-5), "-5m", "soon", b"10m", [60]]
)
def test_what_is_no_time_for_a_program_is_a_subscribe_error(since: Any) -> None:
    with pytest.raises(SubscribeError, match=r"since is .*(no|not a) time"):
        time_us_of(since, NOW_S)


def test_a_time_without_a_zone_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="without a zone"):
        time_us_of(dt.datetime(2026, 11, 1), NOW_S)
