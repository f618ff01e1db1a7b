"""The balancer's forecast: a file written by `shoal pipeline forecast`, read again after each change.

Owns reading it. If the file is missing, unreadable or for another day, that is logged once and the balancer works
without a forecast.
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
"""How long before its first point a forecast is accepted. Earlier it counts as one for another day."""

_log: Final = get_log(__name__)


class ForecastFile:
    """A forecast file; an empty path means no forecast. `clock` is that of the load windows."""

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        self._forecast: Forecast | None = None
        self._why = ""
        """Why the file that was read last has no usable forecast."""
        self._trouble = ""

    def look(self) -> Forecast | None:
        """The current forecast for all groups of servers together; None, with a warning, if there is none."""
        if self._path is None:
            return None
        self._read(self._path)
        trouble = self._why
        if self._forecast is not None and not trouble:
            trouble = _of_another_day(self._forecast, self._clock())
        if trouble and not self._trouble:
            _log.warning("no forecast in use", file=str(self._path), why=trouble)
        self._trouble = trouble
        return None if trouble else self._forecast

    def _read(self, path: Path) -> None:
        """Reads the file if it has changed."""
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
                self._why = "its groups have no point in time in common"
                return
            _log.info("forecast loaded", file=str(path), points=len(self._forecast.at_s), groups_gone=gone)
        except (OSError, pa.ArrowException, PipelineError) as error:
            self._forecast, self._why = None, str(error)
            if isinstance(error, OSError):
                self._seen = None  # the same file may become readable


def _of_another_day(forecast: Forecast, now_s: float) -> str:
    """Why a forecast does not apply now; empty if it does, or will within `EARLY_S_MAX`."""
    if now_s > forecast.at_s[-1]:
        return f"it ended {now_s - forecast.at_s[-1]:.0f} s ago: make a new one"
    if now_s < forecast.at_s[0] - EARLY_S_MAX:
        return f"it begins in {forecast.at_s[0] - now_s:.0f} s: it is for another day"
    return ""
