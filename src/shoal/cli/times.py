"""Times on the command line: a date, or how long ago.

Owns how they are written.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from shoal.errors import ConfigError

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGE: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([smhd])")


def read_time(text: str, now_s: float) -> int:
    """A time in microseconds since 1970: a date and time (UTC unless it says otherwise), or an age like 15m.
    Before 1970 nothing was recorded: an earlier time is 0."""
    age = _AGE.fullmatch(text)
    if age is not None:
        return int(max(now_s - float(age[1]) * _UNITS[age[2]], 0.0) * 1_000_000)
    try:
        given = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time", do="write it as 2026-11-01T10:00, or as an age: 15m") from None
    if given.tzinfo is None:
        given = given.replace(tzinfo=dt.UTC)
    return max(round(given.timestamp() * 1_000_000), 0)
