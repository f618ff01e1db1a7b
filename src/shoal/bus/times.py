"""Parses times in the past: a date, or an age.

Owns their syntax, for the command line and for `subscribe(since=...)`. It never reads a clock; the caller passes the
current time.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import Final

from shoal.errors import ConfigError, SubscribeError

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGE: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([smhd])")
_ADVICE: Final = "write it as 2026-11-01T10:00, or as an age: 15m"


def read_time(text: str, now_s: float) -> int:
    """Return a time in microseconds since 1970: a date and time (UTC unless a zone is given), or an age like 15m.

    Times before 1970 become 0, because nothing was recorded then.
    """
    age = _AGE.fullmatch(text)
    if age is not None:
        return int(max(now_s - float(age[1]) * _UNITS[age[2]], 0.0) * 1_000_000)
    if _AGE.fullmatch(text.removeprefix("-")) is not None:
        raise ConfigError(f"{text!r} is not a time", do=f"an age has no sign: write {text.removeprefix('-')}")
    try:
        given = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time", do=_ADVICE) from None
    if given.tzinfo is None:
        given = given.replace(tzinfo=dt.UTC)
    return max(round(given.timestamp() * 1_000_000), 0)


def time_us_of(since: dt.datetime | dt.timedelta | float | str, now_s: float) -> int:
    """Return the time of a program's argument: a datetime with a zone, an age (seconds or a timedelta), or a text for
    `read_time`.

    A time in the future becomes now: clocks differ, and nothing is recorded after now. Raises SubscribeError for an
    invalid time.
    """
    return min(_time_us_of(since, now_s), int(now_s * 1_000_000))


def _time_us_of(since: object, now_s: float) -> int:
    if isinstance(since, dt.datetime):
        if since.tzinfo is None:
            raise ValueError("since is a datetime without a zone: use datetime(..., tzinfo=datetime.UTC)")
        return max(round(since.timestamp() * 1_000_000), 0)
    if isinstance(since, str):
        try:
            return read_time(since, now_s)
        except ConfigError as error:
            raise SubscribeError(f"since is {since!r}, which is not a time", do=error.do) from None
    age_s = since.total_seconds() if isinstance(since, dt.timedelta) else since
    if isinstance(age_s, bool) or not isinstance(age_s, int | float) or not math.isfinite(age_s) or age_s < 0:
        raise SubscribeError(
            f"since is {since!r}, which is not a time",
            do="use seconds ago, a timedelta, a datetime with a zone, or a text like 15m",
        )
    return int(max(now_s - age_s, 0.0) * 1_000_000)
