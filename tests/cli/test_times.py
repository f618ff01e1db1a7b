"""Times on the command line: a date, or how long ago; anything else is refused with what to write."""

from __future__ import annotations

import pytest

from shoal.cli.times import read_time
from shoal.errors import ConfigError

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
