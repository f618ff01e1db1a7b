"""Forecasts the load of the next day from past days, by group of servers, and measures the error of such forecasts.

Owns the model and its backtest, as functions from tables to tables. Reads and writes nothing.

The model is simple. A day has `SLOTS` slots. The season is the mean of the past days, slot by slot, weighted towards
the latest day. The level is the ratio of the last slots to the season; its influence fades, so that at the end of the
forecast only the season counts:

    forecast(t) = season(t) * (1 + (level - 1) * exp(-(t - now) / fade))

The backtest measures the model: it makes forecasts from past moments, each with only the data known then, and compares
them, and "the same as a day before", with the actual load.

A group of servers is all servers whose ids differ only in the number at the end: `eu-1` and `eu-2` form the group `eu`.
A group that is too new for a forecast is expected to keep its current load, so that the forecast rise of other groups
is not applied to it.
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
from shoal.errors import PipelineError
from shoal.load.kinds import SERVER
from shoal.load.window import LoadWindow

SLOTS: Final = 288
"""Slots of a day: five minutes each in a real day. Fewer if windows are longer than a slot."""
LATEST_WEIGHT: Final = 0.5
"""Weight of the latest day in the season; each earlier day gets the same share of the rest."""
LEVEL_DAYS: Final = 1 / 48
"""Part of a day from which the level is measured: half an hour."""
LEVEL_MAX: Final = 3.0
"""Limit of the level, and its inverse the lower limit."""
FADE_DAYS: Final = 1 / 6
"""Part of a day after which about a third of the level's influence is left: four hours."""
DAYS_MIN: Final = 2
"""Full days that a forecast needs."""
BACKTEST_ORIGINS: Final = 8
"""Moments of each past day from which the backtest makes forecasts."""
BACKTEST_DAYS: Final = 1 / 4
"""Length of those forecasts, as part of a day."""

LOAD_SCHEMA: Final = pa.schema([("group", pa.string()), ("at_s", pa.int64()), ("bytes_out", pa.float64())])
"""Input: the load of each group in each window, by the window's end."""

FORECAST_SCHEMA: Final = pa.schema(
    [
        ("group", pa.string()),
        ("at_s", pa.float64()),  # the middle of a slot
        ("bytes_out", pa.float64()),  # a second
        ("bytes_out_day_before", pa.float64()),  # the load a day before; null for a new group
    ]
)
"""Output: one day, starting after the last slot of the history."""

_NUMBER: Final = re.compile(r"[-_.]?\d+$")


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    """The error of past forecasts for one group: the sum of absolute differences, divided by the sum of loads."""

    group: str
    forecasts: int
    """Number of points compared."""
    error: float
    error_day_before: float
    """The error of "the same as a day before", at the same points."""

    @property
    def better(self) -> bool:
        """Whether the model is better than "the same as a day before"."""
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
        hosts = window.hosts_of(SERVER)
        sent = pc.coalesce(hosts["bandwidth_bytes_per_s"], hosts["bytes_out"]).to_pylist()
        by_group: dict[str, float] = {}
        for host, load in zip(hosts["host"].to_pylist(), sent, strict=True):
            by_group[group_of(host)] = by_group.get(group_of(host), 0.0) + load
        groups += by_group
        moments += [window.end_s] * len(by_group)
        loads += by_group.values()
    return pa.table([groups, moments, loads], schema=LOAD_SCHEMA)


def forecasts(loads: pa.Table, day_s: int) -> pa.Table:
    """The forecast of the next day for every group. PipelineError if all groups are too new."""
    pasts = _slotted(loads, day_s)
    if all(past.is_new for past in pasts):
        past = max(pasts, key=lambda each: each.days)
        raise PipelineError(
            f"group {past.group!r} has {past.days:.1f} days of load; a forecast needs {DAYS_MIN}",
            do="record for longer",
        )
    return pa.concat_tables([_next_day(past, day_s) for past in pasts])


def new_groups(loads: pa.Table, day_s: int) -> dict[str, float]:
    """The groups that are too new for a forecast, and the days of load that each has."""
    return {past.group: past.days for past in _slotted(loads, day_s) if past.is_new}


def backtest(loads: pa.Table, day_s: int) -> list[Backtest]:
    """The errors of past forecasts, group by group."""
    return [_backtest(past) for past in _slotted(loads, day_s)]


def forecast_of(table: pa.Table, group: str | None = None) -> Forecast:
    """The forecast for a policy, for one group or for all together.

    The sum covers only the time for which all groups have a forecast; elsewhere it would lack the load of one. Groups
    in `gone_groups` are left out. PipelineError if the table is not a forecast.
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
    """The groups whose forecast ends before another one begins, because they sent nothing for a day."""
    return _gone(_by_group(table))


def _by_group(table: pa.Table) -> dict[str, Forecast]:
    """The forecast of each group."""
    if table["group"].null_count:
        raise PipelineError(
            "the table has rows without a group, so it is not a forecast", do="run `shoal pipeline forecast` again"
        )
    parts = {}
    for name in sorted(set(table["group"].to_pylist())):
        rows = table.filter(pc.equal(table["group"], name)).sort_by("at_s")
        part = Forecast(rows["at_s"].to_numpy(), rows["bytes_out"].to_numpy())
        if not (np.isfinite(part.at_s).all() and np.isfinite(part.bytes_out).all()):
            raise PipelineError(
                f"the forecast of group {name!r} has no number at some time", do="run `shoal pipeline forecast` again"
            )
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
    """Slots in a day."""
    first: int
    """The number of the first slot."""
    loads: Floats

    @property
    def days(self) -> float:
        """Number of days of load."""
        return len(self.loads) / self.slots

    @property
    def is_new(self) -> bool:
        """Whether there are too few days for a forecast."""
        return self.days < DAYS_MIN


def _slotted(loads: pa.Table, day_s: int) -> list[_Past]:
    """The past of every group. A slot without data gets the value of a day before, or else of the slot before."""
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
        raise PipelineError("there is no load to make a forecast from", do="record load windows first")
    return found


def _next_day(past: _Past, day_s: int) -> pa.Table:
    """The forecast of one group; for a new group, its latest load all day."""
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
    """Number of last slots from which the level is measured."""
    return max(1, round(slots * LEVEL_DAYS))


def _ahead(loads: Floats, slots: int, count: int) -> Floats:
    """The forecast of the next slots."""
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
    """The weighted mean of the past days, slot by slot, starting with the next slot."""
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
