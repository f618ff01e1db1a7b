"""The forecast that a balancer goes by: a file that `shoal pipeline forecast` writes, read when it is new.

Owns the looking. A file that is missing, cannot be read or is of another day is reported once, and the balancer
goes on without a forecast.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.balance.forecast import Forecast
from shoal.errors import PipelineError
from shoal.logs import get_log
from shoal.pipeline.forecast import FORECAST_SCHEMA, forecast_of, gone_groups

EARLY_S_MAX: Final = 86400.0
"""How long before its first point a file is taken for one that is still to come, and not for one of another day."""

_log: Final = get_log(__name__)


class ForecastFile:
    """A file of forecasts; an empty path is none. `clock` is that of the load windows."""

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        self._forecast: Forecast | None = None
        self._why = ""
        """Why there is none in the file that was seen."""
        self._trouble = ""

    def look(self) -> Forecast | None:
        """What the file says now: all groups of servers together. None, and a line in the log, if that is nothing."""
        if self._path is None:
            return None
        self._read(self._path)
        trouble = self._why
        if self._forecast is not None and not trouble:
            trouble = _of_another_day(self._forecast, self._clock())
        if trouble and not self._trouble:
            _log.warning("goes on without a forecast", file=str(self._path), why=trouble)
        self._trouble = trouble
        return None if trouble else self._forecast

    def _read(self, path: Path) -> None:
        """Reads the file if it is another one than before."""
        try:
            found = path.stat()
            seen = found.st_mtime_ns, found.st_size
            if seen == self._seen:
                return
            self._seen, self._forecast, self._why, self._trouble = seen, None, "", ""
            table = pq.read_table(path, schema=FORECAST_SCHEMA, use_threads=False)
            gone = gone_groups(table)
            self._forecast = forecast_of(table)
            if not len(self._forecast.at_s):
                self._why = "there is no time for which all its groups are forecast"
                return
            _log.info("goes by a forecast", file=str(path), points=len(self._forecast.at_s), groups_gone=gone)
        except (OSError, pa.ArrowException, PipelineError) as error:
            self._forecast, self._why = None, str(error)
            if isinstance(error, OSError):
                self._seen = None  # the same file may be readable by and by


def _of_another_day(forecast: Forecast, now_s: float) -> str:
    """Why a forecast says nothing of now; empty if it does, or will soon."""
    if now_s > forecast.at_s[-1]:
        return f"it ended {now_s - forecast.at_s[-1]:.0f} s ago: make a new one"
    if now_s < forecast.at_s[0] - EARLY_S_MAX:
        return f"it begins in {forecast.at_s[0] - now_s:.0f} s only: it is of another day"
    return ""
