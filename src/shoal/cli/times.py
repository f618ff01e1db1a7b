"""Times on the command line: a date, or how long ago.

Owns how they are written.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from shoal.errors import ConfigError

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def read_time(text: str, now_s: float) -> int:
    """A time in microseconds since 1970: a date and time (UTC unless it says otherwise), or an age like 15m."""
    if text[-1:] in _UNITS and text[:-1].replace(".", "", 1).isdigit():
        return int((now_s - float(text[:-1]) * _UNITS[text[-1]]) * 1_000_000)
    try:
        given = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time", do="write it as 2026-11-01T10:00, or as an age: 15m") from None
    if given.tzinfo is None:
        given = given.replace(tzinfo=dt.UTC)
    return round(given.timestamp() * 1_000_000)
