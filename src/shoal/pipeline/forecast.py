"""Forecasts: from the load of past days to that of the next one, by group of servers, and how far off that is.

Owns the model and its backtest, as plain functions from tables to tables. Reads and writes nothing.

The model is a simple one. A day is cut into `SLOTS` slots. The season is the mean of the past days, slot by slot, the
latest day counting most. The level is how much more or less than the season the last slots were; it fades, so that at
the end of the forecast the season alone is left:

    forecast(t) = season(t) * (1 + (level - 1) * exp(-(t - now) / fade))

Whether it is any good is measured, not believed: the backtest makes forecasts from moments of the past, each with
nothing but what was known then, and compares both them and "the same as a day before" with what came.

A group of servers is all whose ids differ in the number at their end only: `eu-1` and `eu-2` are `eu`. A group that is
too new for a forecast is expected to go on as it is, so that the rise of the others does not count for its load too.
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
        ("bytes_out_day_before", pa.float64()),  # what "the same as a day before" says; null for a new group
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
    """The next day of every group. PipelineError if none of them is known for long enough."""
    pasts = _slotted(loads, day_s)
    if all(past.is_new for past in pasts):
        past = max(pasts, key=lambda each: each.days)
        raise PipelineError(
            f"group {past.group!r} has {past.days:.1f} days of load, a forecast needs {DAYS_MIN}",
            do="record for longer",
        )
    return pa.concat_tables([_next_day(past, day_s) for past in pasts])


def new_groups(loads: pa.Table, day_s: int) -> dict[str, float]:
    """The groups that are too new for a forecast, and how many days are known of each."""
    return {past.group: past.days for past in _slotted(loads, day_s) if past.is_new}


def backtest(loads: pa.Table, day_s: int) -> list[Backtest]:
    """What the forecasts of the past were worth, group by group."""
    return [_backtest(past) for past in _slotted(loads, day_s)]


def forecast_of(table: pa.Table, group: str | None = None) -> Forecast:
    """The forecast for a policy, of one group or of all together.

    Groups are added up over the time that all of them are forecast for: where one is missing, the sum would fall or
    rise by its load. Those of `gone_groups` do not count. PipelineError if the table is no forecast.
    """
    parts = _by_group(table)
    if group is None:
        parts = {name: part for name, part in parts.items() if name not in _gone(parts)}
    else:
        parts = {name: part for name, part in parts.items() if name == group}
    if not parts:
        return Forecast(np.zeros(0), np.zeros(0))
    first, last = max(part.at_s[0] for part in parts.values()), min(part.at_s[-1] for part in parts.values())
    points = np.unique(np.concatenate([part.at_s for part in parts.values()]))
    points = points[(points >= first) & (points <= last)]
    total = sum((np.interp(points, part.at_s, part.bytes_out) for part in parts.values()), np.zeros(len(points)))
    return Forecast(points, total)


def gone_groups(table: pa.Table) -> list[str]:
    """The groups whose forecast ends before another one begins: they have sent nothing for a day."""
    return _gone(_by_group(table))


def _by_group(table: pa.Table) -> dict[str, Forecast]:
    """The forecast of each group by itself."""
    if table["group"].null_count:
        raise PipelineError("the table has rows of no group: it is no forecast", do="make it again")
    parts = {}
    for name in sorted(set(table["group"].to_pylist())):
        rows = table.filter(pc.equal(table["group"], name)).sort_by("at_s")
        part = Forecast(rows["at_s"].to_numpy(), rows["bytes_out"].to_numpy())
        if not (np.isfinite(part.at_s).all() and np.isfinite(part.bytes_out).all()):
            raise PipelineError(f"the forecast of group {name!r} has no number at some time", do="make it again")
        parts[name] = part
    return parts


def _gone(parts: dict[str, Forecast]) -> list[str]:
    newest = max((part.at_s[0] for part in parts.values()), default=0.0)
    return [name for name, part in parts.items() if part.at_s[-1] < newest]


@dataclass(frozen=True, slots=True)
class _Past:
    """The load of one group, slot by slot."""

    group: str
    slots: int
    """Of a day."""
    first: int
    """The number of the first slot."""
    loads: Floats

    @property
    def days(self) -> float:
        """How many are known."""
        return len(self.loads) / self.slots

    @property
    def is_new(self) -> bool:
        """Whether it is too short for a forecast."""
        return self.days < DAYS_MIN


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
        seen = np.bincount(numbers - first, minlength=count)
        total = np.bincount(numbers - first, rows["bytes_out"].to_numpy(), count)
        means = np.divide(total, seen, out=np.full(count, np.nan), where=seen > 0)
        for gap in np.flatnonzero(seen == 0):
            means[gap] = means[gap - slots] if gap >= slots else means[gap - 1]
        found.append(_Past(group, slots, first, means))
    if not found:
        raise PipelineError("there is no load to make forecasts from", do="record load windows first")
    return found


def _next_day(past: _Past, day_s: int) -> pa.Table:
    """The forecast of one group; of a new one, its last known load all day long."""
    loads, slots = past.loads, past.slots
    at_s = (past.first + len(loads) + np.arange(slots) + 0.5) * day_s / slots
    names = pa.array([past.group] * slots)
    if past.is_new:
        level = float(loads[-_recent(slots) :].mean())
        columns = [names, at_s, np.full(slots, level), pa.nulls(slots, pa.float64())]
    else:
        columns = [names, at_s, _ahead(loads, slots, slots), loads[-slots:]]
    return pa.table(columns, schema=FORECAST_SCHEMA)


def _recent(slots: int) -> int:
    """The last slots, from which the level is seen."""
    return max(1, round(slots * LEVEL_DAYS))


def _ahead(loads: Floats, slots: int, count: int) -> Floats:
    """The next slots, from all that is known."""
    recent = _recent(slots)
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
