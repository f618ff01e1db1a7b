"""The what-if job: replays every case of a grid over every recorded day, and chooses the best settings.

Owns the split into days, the distribution of runs, and the choice. The best case is the cheapest over all days except
the one held back. Then the best case and the defaults are run on the held-back day; if the best case is worse there, it
was overfitted, and the defaults are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather as feather

from shoal import config
from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.forecast import Forecast
from shoal.errors import PipelineError
from shoal.flow import ServerModel
from shoal.flow.workloads import traffic_of
from shoal.load.kinds import SERVER
from shoal.load.window import LoadWindow
from shoal.pipeline import what_if
from shoal.pipeline.forecast import DAYS_MIN as FORECAST_DAYS_MIN
from shoal.pipeline.forecast import forecast_of, forecasts, loads_of
from shoal.pipeline.kept_windows import open_windows
from shoal.pipeline.spark.tasks import collect_numbers
from shoal.pipeline.spark.worker_files import send
from shoal.pipeline.what_if import ReplayPool, WhatIfCase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS_MIN: Final = 2
"""One day to hold back, and one to choose by."""
DAYS_OPEN_MAX: Final = 8
"""Number of days that a worker keeps in memory."""

Note = Callable[[str], None]


class Days(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded load by day."""

    traffic: dict[int, pa.Table]
    loads: pa.Table
    """Load of groups of servers, for forecasts."""
    day_s: int
    pool: ReplayPool
    source: str

    def forecast(self, day: int) -> Forecast | None:
        """The forecast of a day from the days before it; None if those are too few. PipelineError if there are enough,
        but not complete ones."""
        past = self.loads.filter(pc.less_equal(self.loads["at_s"], day * self.day_s))
        known = [before for before in self.traffic if before < day]
        if known != list(range(day - len(known), day)) or len(known) < FORECAST_DAYS_MIN:
            return None
        return forecast_of(forecasts(past, self.day_s))


class WhatIfResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result."""

    runs: pa.Table
    """Every run of the grid over the days that were not held back."""
    held_back: pa.Table
    """The runs of the held-back day: the defaults, and the best case if it differs."""
    best: WhatIfCase
    """The cheapest case over the days that were not held back."""
    chosen: WhatIfCase
    """The best case, or the defaults if it is worse on the held-back day."""
    held_back_day: int
    chosen_cost: float
    """On the held-back day, like the two below. Never above `default_cost`: the choice ensures it."""
    best_cost: float
    default_cost: float
    with_forecast: pa.Table | None
    """The run of the chosen case on the held-back day with a forecast from the days before; None if those are too few
    or incomplete, or if the policy uses no forecast."""

    @property
    def best_no_worse(self) -> bool:
        """Whether the best case was no worse than the defaults on the held-back day."""
        return self.best_cost <= self.default_cost


def read_days(place: str | Path, *, servers_min: int, servers_max: int, start_s: int) -> Days:
    """The days of kept windows, without days of which less than half is recorded."""
    kept_windows = open_windows(place)
    day_s = kept_windows.info.day_s
    by_day: dict[int, list[LoadWindow]] = {}
    for window in kept_windows.windows():
        by_day.setdefault(window.start_s // day_s, []).append(window)
    kept = {
        day: windows
        for day, windows in by_day.items()
        if sum(window.end_s - window.start_s for window in windows) * 2 >= day_s
    }
    if len(kept) < DAYS_MIN:
        raise PipelineError(
            f"{kept_windows.location} has {len(kept)} days of load; what-if needs {DAYS_MIN} or more",
            do="record for longer, or use --generate days=3,seed=1 with a new folder",
        )
    first = kept[min(kept)][0]
    capacity = pc.mean(first.hosts_of(SERVER)["capacity_bytes_per_s"]).as_py()
    pool = ReplayPool(
        capacity_bytes_per_s=capacity or ServerModel().capacity_bytes_per_s,
        servers_first=first.hosts_of(SERVER).num_rows,
        servers_min=servers_min,
        servers_max=servers_max,
        start_s=start_s,
    )
    traffic = {day: traffic_of(windows) for day, windows in sorted(kept.items())}
    loads = loads_of(window for windows in kept.values() for window in windows)
    return Days(traffic=traffic, loads=loads, day_s=day_s, pool=pool, source=kept_windows.info.source)


def day_held_back(days: Days, wanted: str) -> int:
    """The day that --hold-back names: `last`, or a number."""
    if wanted in ("last", "day"):
        return max(days.traffic)
    if not wanted.lstrip("-").isdigit() or int(wanted) not in days.traffic:
        known = ", ".join(map(str, days.traffic))
        raise PipelineError(f"there is no day {wanted!r} in the recording", do=f"name last, or one of {known}")
    return int(wanted)


def find(
    days: Days, cases: Sequence[WhatIfCase], held_back: int, spark: SparkSession | None = None, note: Note = print
) -> WhatIfResult:
    """Runs the grid and chooses; without `spark`, in process."""
    chosen_by = [day for day in days.traffic if day != held_back]
    if not chosen_by:
        raise PipelineError("there is no day left to choose by", do="record two days or more")
    tasks = [(number, day) for number in range(len(cases)) for day in chosen_by]
    note(f"{len(tasks)} runs: {len(cases)} cases over {len(chosen_by)} days")
    runs = _run(tasks, days, cases, spark, note)
    best = int(what_if.summary(runs)["case"][0].as_py())
    last = _run([(number, held_back) for number in sorted({0, best})], days, cases, spark, note)
    costs = dict(zip(last["case"].to_pylist(), last["cost"].to_pylist(), strict=True))
    chosen = best if costs[best] <= costs[0] else 0
    return WhatIfResult(
        runs=runs,
        held_back=last,
        best=cases[best],
        chosen=cases[chosen],
        held_back_day=held_back,
        chosen_cost=costs[chosen],
        best_cost=costs[best],
        default_cost=costs[0],
        with_forecast=_with_forecast(days, chosen, cases[chosen], held_back, note),
    )


def _with_forecast(days: Days, number: int, case: WhatIfCase, day: int, note: Note) -> pa.Table | None:
    """The run of a case with a forecast. A failure is only noted: this run is an extra, and an error would discard all
    other runs."""
    if case.policy != what_if.DEFAULT_POLICY:
        return None
    try:
        expected = days.forecast(day)
        if expected is None:
            return None
        return pa.Table.from_batches([what_if.run(number, case, day, days.traffic[day], days.pool, expected)])
    except Exception as error:
        note(f"no run with a forecast: {error}")
        return None


def write_config(case: WhatIfCase, path: Path, why: str) -> None:
    """Writes the settings of a case to a file for `--config`, and reads it back to check it."""
    lines = [f"# {line}" for line in why.splitlines()]
    lines += ["", "[balancer]", f'policy = "{case.policy}"', "", "[balance]"]
    lines += [f"{name} = {value!r}" for name, value in case.settings.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    read = config.load(environ={}, file=path).settings
    if (read.balance, read.balancer) != (case.balance(), BalancerOptions(policy=case.policy)):
        raise PipelineError(f"{path} does not read back as it was written", do="report this as a bug")


def _run(
    tasks: Sequence[tuple[int, int]],
    days: Days,
    cases: Sequence[WhatIfCase],
    spark: SparkSession | None,
    note: Note,
) -> pa.Table:
    """Runs (case, day) pairs, each as one task."""
    if spark is None:
        parts = []
        for done, (number, day) in enumerate(tasks, 1):
            parts.append(what_if.run(number, cases[number], day, days.traffic[day], days.pool))
            note(f"run {done} of {len(tasks)}")
        return _sorted(pa.Table.from_batches(parts, what_if.RUN_SCHEMA))
    names = {
        day: send(spark, "traffic", ".arrow", partial(feather.write_feather, days.traffic[day]))
        for day in {day for _, day in tasks}
    }
    given, pool = [(number, day, cases[number], names[day]) for number, day in tasks], days.pool

    def in_worker(place: int) -> list[pa.RecordBatch]:
        from pyspark import SparkFiles

        number, day, case, name = given[place]
        return [what_if.run(number, case, day, _opened(SparkFiles.get(name)), pool)]

    return _sorted(collect_numbers(spark, len(given), in_worker, what_if.RUN_SCHEMA))


def _sorted(runs: pa.Table) -> pa.Table:
    return runs.sort_by([("case", "ascending"), ("day", "ascending")])


@lru_cache(maxsize=DAYS_OPEN_MAX)
def _opened(path: str) -> pa.Table:
    return feather.read_table(path)


def shares_of_defaults(runs: pa.Table) -> dict[str, Any]:
    """The lowest and highest cost in a grid, divided by the cost of the defaults."""
    table = what_if.summary(runs)
    costs = table["cost"].to_numpy()
    default = float(costs[np.flatnonzero(table["case"].to_numpy() == 0)[0]])
    return {"best": float(costs.min()) / default, "worst": float(costs.max()) / default}
