"""The job of what-if: days of recorded load, a grid of cases, one run each, and the settings that come out best.

Owns how days are divided, how runs reach workers, and how the best case is chosen: by the objective over all days but
the one that is held back. Only then that day is looked at, for the best case and the defaults: if the best one is worse
there, it was luck, and the defaults stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather as feather

from shoal import config
from shoal.balance.forecast import Forecast
from shoal.balance.options import BalancerOptions
from shoal.balance.window import LoadWindow
from shoal.errors import PipelineError
from shoal.pipeline import archives, what_if
from shoal.pipeline.forecast import DAYS_MIN as FORECAST_DAYS_MIN
from shoal.pipeline.forecast import forecast_of, forecasts, loads_of
from shoal.pipeline.kept_windows import read_manifest, read_windows
from shoal.pipeline.sending import send
from shoal.pipeline.what_if import Case, Site
from shoal.sim.flow import ServerModel
from shoal.sim.flow.workloads import traffic_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS_MIN: Final = 2
"""One to hold back, and one to choose by."""
DAYS_OPEN_MAX: Final = 8
"""Days that a worker keeps in memory."""

Note = Callable[[str], None]


class Days(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded load by day."""

    traffic: dict[int, pa.Table]
    loads: pa.Table
    """Of groups of servers, for forecasts."""
    day_s: int
    site: Site
    source: str

    def forecast(self, day: int) -> Forecast | None:
        """What was to be expected of a day, by the days before it; None if they are too few. PipelineError if they are
        enough, but not whole."""
        past = self.loads.filter(pc.less_equal(self.loads["at_s"], day * self.day_s))
        known = [before for before in self.traffic if before < day]
        if known != list(range(day - len(known), day)) or len(known) < FORECAST_DAYS_MIN:
            return None
        return forecast_of(forecasts(past, self.day_s))


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    runs: pa.Table
    """Every run of the grid over the days that were not held back."""
    held_back: pa.Table
    """The runs of the held-back day: the defaults, and the best case if that is another one."""
    best: Case
    """The cheapest case by the days that were not held back."""
    chosen: Case
    """The best case, or the defaults if it is worse on the held-back day."""
    held_back_day: int
    chosen_cost: float
    """No more than `default_cost`, whatever the grid: that is how the choice is made."""
    best_cost: float
    default_cost: float
    """Of the held-back day all three."""
    with_forecast: pa.Table | None
    """The run of the chosen case on that day with a forecast from the days before; None if they are too few or not
    whole, or if its policy goes by none."""

    @property
    def best_no_worse(self) -> bool:
        """Whether the best case of the grid was no worse than the defaults on a day that it was not chosen by: the
        judgement of the grid."""
        return self.best_cost <= self.default_cost


def read_days(folder: Path, *, servers_min: int, servers_max: int, start_s: int) -> Days:
    """The days of a folder of kept windows. Days of which less than half of the seconds are known are left out."""
    manifest = read_manifest(folder)
    by_day: dict[int, list[LoadWindow]] = {}
    for window in read_windows(folder):
        by_day.setdefault(window.start_s // manifest.day_s, []).append(window)
    kept = {
        day: windows
        for day, windows in by_day.items()
        if sum(window.end_s - window.start_s for window in windows) * 2 >= manifest.day_s
    }
    if len(kept) < DAYS_MIN:
        raise PipelineError(
            f"{folder} has {len(kept)} days of load, what-if needs {DAYS_MIN} or more",
            do="record for longer, or --generate days=3,seed=1",
        )
    first = kept[min(kept)][0]
    capacity = pc.mean(first.hosts["capacity_bytes_per_s"]).as_py()
    site = Site(
        capacity_bytes_per_s=capacity or ServerModel().capacity_bytes_per_s,
        servers_first=first.hosts.num_rows,
        servers_min=servers_min,
        servers_max=servers_max,
        start_s=start_s,
    )
    traffic = {day: traffic_of(windows) for day, windows in sorted(kept.items())}
    loads = loads_of(window for windows in kept.values() for window in windows)
    return Days(traffic=traffic, loads=loads, day_s=manifest.day_s, site=site, source=manifest.source)


def day_held_back(days: Days, wanted: str) -> int:
    """The day that a flag names: `last`, or its number."""
    if wanted in ("last", "day"):
        return max(days.traffic)
    if not wanted.lstrip("-").isdigit() or int(wanted) not in days.traffic:
        known = ", ".join(map(str, days.traffic))
        raise PipelineError(f"there is no day {wanted!r} in the record", do=f"name last, or one of {known}")
    return int(wanted)


def find(
    days: Days, cases: Sequence[Case], held_back: int, spark: SparkSession | None = None, note: Note = print
) -> Finding:
    """Runs the grid and chooses. Without Spark all runs are in process."""
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
    return Finding(
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


def _with_forecast(days: Days, number: int, case: Case, day: int, note: Note) -> pa.Table | None:
    """The run of a case with a forecast. It comes last and is an extra: if it cannot be, that is said and no more, for
    all runs before it would be lost."""
    if case.policy != what_if.DEFAULT_POLICY:
        return None
    try:
        expected = days.forecast(day)
        if expected is None:
            return None
        return pa.Table.from_batches([what_if.run(number, case, day, days.traffic[day], days.site, expected)])
    except Exception as error:
        note(f"no run with a forecast: {error}")
        return None


def write_config(case: Case, path: Path, why: str) -> None:
    """The settings of a case as a file that `--config` reads. It is read back, so that it is certain to be one."""
    lines = [f"# {line}" for line in why.splitlines()]
    lines += ["", "[balancer]", f'policy = "{case.policy}"', "", "[balance]"]
    lines += [f"{name} = {value!r}" for name, value in case.settings.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    read = config.load(environ={}, file=path).settings
    if (read.balance, read.balancer) != (case.balance(), BalancerOptions(policy=case.policy)):
        raise PipelineError(f"{path} does not say what was found", do="report this")


def _run(
    tasks: Sequence[tuple[int, int]],
    days: Days,
    cases: Sequence[Case],
    spark: SparkSession | None,
    note: Note,
) -> pa.Table:
    """Runs (case, day) pairs, one a task."""
    if spark is None:
        parts = []
        for done, (number, day) in enumerate(tasks, 1):
            parts.append(what_if.run(number, cases[number], day, days.traffic[day], days.site))
            note(f"run {done} of {len(tasks)}")
        return _sorted(pa.Table.from_batches(parts, what_if.RUN_SCHEMA))
    from shoal.pipeline.progress import shown

    names = {
        day: send(spark, "traffic", ".arrow", partial(feather.write_feather, days.traffic[day]))
        for day in {day for _, day in tasks}
    }
    rows = spark.range(0, len(tasks), 1, len(tasks))
    task = _task([(number, day, cases[number], names[day]) for number, day in tasks], days.site)
    with shown(spark, "runs", note):
        found: pa.Table = rows.mapInArrow(task, archives.spark_schema(what_if.RUN_SCHEMA)).toArrow()
    return _sorted(found.cast(what_if.RUN_SCHEMA))


def _sorted(runs: pa.Table) -> pa.Table:
    return runs.sort_by([("case", "ascending"), ("day", "ascending")])


def _task(
    tasks: Sequence[tuple[int, int, Case, str]], site: Site
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a worker runs: the tasks whose places it gets."""

    def do(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import SparkFiles

        for batch in batches:
            for place in batch.column(0).to_pylist():
                number, day, case, name = tasks[place]
                yield what_if.run(number, case, day, _opened(SparkFiles.get(name)), site)

    return do


@lru_cache(maxsize=DAYS_OPEN_MAX)
def _opened(path: str) -> pa.Table:
    return feather.read_table(path)


def shares_of_defaults(runs: pa.Table) -> dict[str, Any]:
    """The range of costs over a grid, as parts of what the defaults cost: how much there was to choose."""
    table = what_if.summary(runs)
    costs = table["cost"].to_numpy()
    default = float(costs[np.flatnonzero(table["case"].to_numpy() == 0)[0]])
    return {"best": float(costs.min()) / default, "worst": float(costs.max()) / default}
