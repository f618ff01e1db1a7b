"""Forecasts: from the load of past days to that of the next one, by group of servers, and how far off that is.

Owns the model and its backtest, as plain functions from tables to tables. Reads and writes nothing.

The model is a simple one. A day is cut into `SLOTS` slots. The season is the mean of the past days, slot by slot, the
latest day counting most. The level is how much more or less than the season the last slots were; it fades, so that at
the end of the forecast the season alone is left:

    forecast(t) = season(t) * (1 + (level - 1) * exp(-(t - now) / fade))

Whether it is any good is measured, not believed: the backtest makes forecasts from moments of the past, each with
nothing but what was known then, and compares both them and "the same as a day before" with what came.

A group of servers is all whose ids differ in the number at their end only: `eu-1` and `eu-2` are `eu`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.balance.columns import Floats
from shoal.balance.forecast import Forecast
from shoal.balance.window import LoadWindow
from shoal.errors import PipelineError

SLOTS: Final = 288
"""Of a day: five minutes each, if the day is the world's. Fewer if windows are longer than a slot."""
LATEST_WEIGHT: Final = 0.5
"""What the latest day counts in the season; each day before it counts the same part of the rest."""
LEVEL_DAYS: Final = 1 / 48
"""Part of a day that the level is seen from: half an hour."""
LEVEL_MAX: Final = 3.0
"""How far off the season the level may be; what is beyond is not believed."""
FADE_DAYS: Final = 1 / 6
"""Part of a day after which a third of the level is left: four hours."""
DAYS_MIN: Final = 2
"""Whole days that a forecast needs."""
BACKTEST_ORIGINS: Final = 8
"""Moments of each past day from which forecasts are made."""
BACKTEST_DAYS: Final = 1 / 4
"""How far each of them looks, as part of a day."""

LOAD_SCHEMA: Final = pa.schema([("group", pa.string()), ("at_s", pa.int64()), ("bytes_out", pa.float64())])
"""What goes in: the load of each group in each window, by the window's end."""

FORECAST_SCHEMA: Final = pa.schema(
    [
        ("group", pa.string()),
        ("at_s", pa.float64()),  # the middle of a slot
        ("bytes_out", pa.float64()),  # a second
        ("bytes_out_day_before", pa.float64()),  # what "the same as a day before" says
    ]
)
"""What comes out: a day from the last slot of the history on."""

_NUMBER: Final = re.compile(r"[-_.]?\d+$")


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    """How far off forecasts of the past were, for one group. Errors are sums of distances by the sum of loads."""

    group: str
    forecasts: int
    """How many points were compared."""
    error: float
    error_day_before: float
    """Of "the same as a day before", at the same points."""

    @property
    def better(self) -> bool:
        """Whether the model is the better one of both."""
        return self.error < self.error_day_before


def group_of(host: str) -> str:
    """The group of a server."""
    return _NUMBER.sub("", host) or host


def loads_of(windows: Iterable[LoadWindow]) -> pa.Table:
    """The load of each group of servers, window by window."""
    groups: list[str] = []
    moments: list[int] = []
    loads: list[float] = []
    for window in windows:
        hosts = window.hosts
        sent = pc.coalesce(hosts["bandwidth_bytes_per_s"], hosts["bytes_out"]).to_pylist()
        by_group: dict[str, float] = {}
        for host, load in zip(hosts["host"].to_pylist(), sent, strict=True):
            by_group[group_of(host)] = by_group.get(group_of(host), 0.0) + load
        groups += by_group
        moments += [window.end_s] * len(by_group)
        loads += by_group.values()
    return pa.table([groups, moments, loads], schema=LOAD_SCHEMA)


def forecasts(loads: pa.Table, day_s: int) -> pa.Table:
    """The next day of every group."""
    parts = []
    for past in _slotted(loads, day_s):
        at_s = (past.first + len(past.loads) + np.arange(past.slots) + 0.5) * day_s / past.slots
        names = pa.array([past.group] * past.slots)
        columns = [names, at_s, _ahead(past.loads, past.slots, past.slots), past.loads[-past.slots :]]
        parts.append(pa.table(columns, schema=FORECAST_SCHEMA))
    return pa.concat_tables(parts)


def backtest(loads: pa.Table, day_s: int) -> list[Backtest]:
    """What the forecasts of the past were worth, group by group."""
    return [_backtest(past) for past in _slotted(loads, day_s)]


def forecast_of(table: pa.Table, group: str | None = None) -> Forecast:
    """The forecast for a policy, of one group or of all together."""
    if group is not None:
        table = table.filter(pc.equal(table["group"], group))
    summed = table.group_by("at_s").aggregate([("bytes_out", "sum")]).sort_by("at_s")
    return Forecast(summed["at_s"].to_numpy(), summed["bytes_out_sum"].to_numpy())


@dataclass(frozen=True, slots=True)
class _Past:
    """The load of one group, slot by slot."""

    group: str
    slots: int
    """Of a day."""
    first: int
    """The number of the first slot."""
    loads: Floats


def _slotted(loads: pa.Table, day_s: int) -> list[_Past]:
    """The past of every group. A slot of which nothing is known is like the one a day before, or the last known."""
    found = []
    for group in sorted(set(loads["group"].to_pylist())):
        rows = loads.filter(pc.equal(loads["group"], group)).sort_by("at_s")
        at_s = rows["at_s"].to_numpy()
        window_s = float(np.median(np.diff(at_s))) if len(at_s) > 1 else 1.0
        slots = int(min(SLOTS, max(1.0, day_s // max(window_s, 1.0))))
        # A window that ends with a slot belongs to it.
        numbers = np.ceil(at_s * slots / day_s - 1e-9).astype(np.int64) - 1
        first, count = int(numbers[0]), int(numbers[-1] - numbers[0]) + 1
        if count < DAYS_MIN * slots:
            raise PipelineError(
                f"group {group!r} has {count / slots:.1f} days of load, a forecast needs {DAYS_MIN}",
                do="record for longer",
            )
        seen = np.bincount(numbers - first, minlength=count)
        total = np.bincount(numbers - first, rows["bytes_out"].to_numpy(), count)
        means = np.divide(total, seen, out=np.full(count, np.nan), where=seen > 0)
        for gap in np.flatnonzero(seen == 0):
            means[gap] = means[gap - slots] if gap >= slots else means[gap - 1]
        found.append(_Past(group, slots, first, means))
    if not found:
        raise PipelineError("there is no load to make forecasts from", do="record load windows first")
    return found


def _ahead(loads: Floats, slots: int, count: int) -> Floats:
    """The next slots, from all that is known."""
    recent = max(1, round(slots * LEVEL_DAYS))
    season = _season(loads, slots)
    before = _season(loads[:-recent], slots) if len(loads) - recent >= slots else season
    expected = float(before[:recent].sum())
    level = float(loads[-recent:].sum()) / expected if expected > 0 else 1.0
    level = min(max(level, 1.0 / LEVEL_MAX), LEVEL_MAX)
    steps = np.arange(count)
    fading = 1.0 + (level - 1.0) * np.exp(-(steps + 1.0) / (slots * FADE_DAYS))
    return np.asarray(season[steps % slots] * fading, np.float64)


def _season(loads: Floats, slots: int) -> Floats:
    """The mean of the past days, slot by slot, beginning with the slot that comes next."""
    days = len(loads) // slots
    table = loads[len(loads) - days * slots :].reshape(days, slots)
    weights = LATEST_WEIGHT ** np.arange(days - 1, -1, -1)
    return np.asarray(weights @ table / weights.sum(), np.float64)


def _backtest(past: _Past) -> Backtest:
    loads, slots = past.loads, past.slots
    off = off_before = total = 0.0
    points, reach = 0, max(1, round(slots * BACKTEST_DAYS))
    for origin in range(DAYS_MIN * slots, len(loads) - reach + 1, max(1, slots // BACKTEST_ORIGINS)):
        came = loads[origin : origin + reach]
        off += float(np.abs(_ahead(loads[:origin], slots, reach) - came).sum())
        off_before += float(np.abs(loads[origin - slots : origin - slots + reach] - came).sum())
        total += float(came.sum())
        points += reach
    if not points:
        return Backtest(group=past.group, forecasts=0, error=float("nan"), error_day_before=float("nan"))
    total = total or 1.0
    return Backtest(group=past.group, forecasts=points, error=off / total, error_day_before=off_before / total)
