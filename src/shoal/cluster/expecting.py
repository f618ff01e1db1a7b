"""The forecast that a balancer goes by: a file that `shoal pipeline forecast` writes, read when it is new.

Owns the looking. A file that is missing or cannot be read is reported once, and the balancer goes on without a
forecast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.balance.forecast import Forecast
from shoal.logs import get_log
from shoal.pipeline.forecast import FORECAST_SCHEMA, forecast_of

_log: Final = get_log(__name__)


class ForecastFile:
    """A file of forecasts; an empty path is none."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._seen: tuple[int, int] | None = None
        self._forecast: Forecast | None = None
        self._trouble = ""

    def look(self) -> Forecast | None:
        """What the file says now: all groups of servers together."""
        if self._path is None:
            return None
        try:
            found = self._path.stat()
            seen = found.st_mtime_ns, found.st_size
            if seen != self._seen:
                self._seen, self._forecast = seen, None
                table = pq.read_table(self._path, schema=FORECAST_SCHEMA, use_threads=False)
                self._forecast = forecast_of(table)
                _log.info("goes by a forecast", file=str(self._path), points=len(self._forecast.at_s))
            self._trouble = ""
        except (OSError, pa.ArrowException) as error:
            self._forecast = None
            if not self._trouble:
                _log.warning("goes on without a forecast", file=str(self._path), why=str(error))
            self._trouble = str(error)
        return self._forecast
