"""Figure 13 of the E-SilboPS paper (6.4) on real processes: matchers are added and removed under load.

Owns the schedule, the measures and the claims. Emitters, readers and the engine are processes of their own; 100,000
filters are in force, 2,000 events/s are emitted and 1,000 filters/s come and go, while the engine changes from 1-1-1 to
1-3-1 and back. What readers are given is judged as in `soak engine`.

    delivery pause   the longest time in which a reader is given nothing, during a change
    above quiet      how much longer that is than in as much time without a change, in the same run
    scaling          from the wish in the coordinator until everything older than the switch is delivered
    in force         from `add_many` until it returns, for filters that are added during a change
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from shoal.cluster.local import LocalCluster
from shoal.filters.index.warm_up import warm_up
from shoal.lab.experiments import ExperimentOptions
from shoal.lab.experiments.result import Drawing, ExperimentResult, Line, Panel, Table
from shoal.lab.soak.engine_orders import ASKED, DELIVERED, IN_FORCE
from shoal.lab.soak.engine_orders import Line as LogLine
from shoal.lab.soak.engine_round import EngineOutcome, EngineRound, EngineSoakOptions
from shoal.limits import DEFAULT_LIMITS

NAME: Final = "esilbops-13"
PAPER: Final = "E-SilboPS, figure 13"
FILTERS: Final = 100_000
EVENTS_PER_S: Final = 2000
CHANGES_PER_S: Final = 1000
FAST_EVENTS_PER_S: Final = 4000
FAST_CHANGES_PER_S: Final = 4000
"""The paper's largest load: 8,000 messages/s."""
PER_CELL: Final = 2
"""Each event matches one or two filters."""
READERS: Final = 3
CYCLES: Final = 3
"""Changes to three matchers and back. Medians count."""
WARM_UP_S: Final = 3.0
QUIET_S: Final = 3.0
"""Time between two changes."""
BIN_S: Final = 0.1
PAPER_PAUSE_MS: Final = 588.0
DELIVERY_PAUSE_MS_MAX: Final = 250.0
PAUSE_ABOVE_QUIET_MS_MAX: Final = 100.0
SCALING_S_MAX: Final = 1.0
FAST_SCALING_S_MAX: Final = 2.0
IN_FORCE_MS_MAX: Final = 250.0


class ScaleChange(NamedTuple):
    """A change of the number of matchers, by the machine's monotonic clock."""

    began: float
    ended: float
    matchers: int
    with_start: bool
    """Whether processes were started for it."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began


class ScalingRound(EngineRound):
    """A round in which the number of matchers changes to three and back, several times. The first change starts the
    processes that it needs."""

    cycles = CYCLES

    async def _load(self, cluster: LocalCluster) -> None:
        self._phase = "load"
        self.changes: list[ScaleChange] = []
        self._start_load()
        await self._until(lambda: False, WARM_UP_S)
        await self._change(3, cluster)
        for _ in range(self.cycles):
            await self._change(1)
            await self._change(3)
        await self._until(lambda: False, QUIET_S)

    async def _change(self, matchers: int, cluster: LocalCluster | None = None) -> None:
        """Changes the number of matchers after a quiet time. With a cluster, it starts two processes first."""
        await self._until(lambda: False, QUIET_S)
        began = time.monotonic()
        if cluster is not None:
            for number in (2, 3):
                await cluster.fleet.start_engine(number)
        await self._scale(1, matchers, 1)
        self.changes.append(ScaleChange(began, time.monotonic(), matchers, cluster is not None))


class ScaleMeasures(NamedTuple):
    """What one run has shown."""

    changes: list[ScaleChange]
    pauses_ms: list[float]
    quiet_pauses_ms: list[float]
    in_force_ms_p99: float
    lost: int
    duplicated: int
    reordered: int
    unmatched: int
    gaps: int
    deliveries: list[tuple[float, int]]
    """Deliveries a second, from the start of the load."""
    began: float
    violations: list[str]


async def measure(
    events_per_s: int, changes_per_s: int, filters: int, cycles: int, options: ExperimentOptions
) -> ScaleMeasures:
    """Runs the load once."""
    soak = EngineSoakOptions(
        filters=filters,
        rate=events_per_s,
        seconds=0.0,
        seed=1,
        limits=DEFAULT_LIMITS,
        kill=False,
        changes_per_s=changes_per_s,
        per_cell=PER_CELL,
        emitters=1,
        readers=READERS,
    )
    outcome = EngineOutcome(soak)
    with tempfile.TemporaryDirectory(prefix="shoal-experiment-") as directory:
        told: list[str] = []

        def tell(progress: Any) -> None:
            if progress.phase not in told:
                told.append(progress.phase)
                options.note(f"{events_per_s} events/s, {changes_per_s} changes/s: {progress.phase}")

        run = ScalingRound(soak, Path(directory), outcome, tell)
        run.cycles = cycles
        run.engines = 1
        await run.execute()
    return evaluate(run.lines, run.changes, outcome)


def evaluate(lines: Sequence[LogLine], changes: list[ScaleChange], outcome: EngineOutcome) -> ScaleMeasures:
    """The measures, from the logs."""
    given: dict[str, list[float]] = defaultdict(list)
    asked: dict[tuple[str, int], float] = {}
    in_force: list[float] = []
    warm = [change for change in changes if not change.with_start]
    for line in lines:
        if line.what == DELIVERED:
            given[line.client].append(line.at)
        elif line.what == ASKED:
            asked[line.client, line.number] = line.at
        elif line.what == IN_FORCE and (line.client, line.number) in asked:
            at = asked[line.client, line.number]
            if any(change.began <= line.at and at <= change.ended for change in warm):
                in_force.append(1000 * (line.at - at))
    for times in given.values():
        times.sort()
    every = sorted(at for times in given.values() for at in times)
    verdict = outcome.verdict
    return ScaleMeasures(
        changes=changes,
        pauses_ms=[_pause_ms(given, change.began, change.ended) for change in warm],
        quiet_pauses_ms=[_pause_ms(given, change.began - change.seconds, change.began) for change in warm],
        in_force_ms_p99=_percentile(in_force, 0.99),
        lost=verdict.lost,
        duplicated=verdict.duplicated,
        reordered=verdict.reordered,
        unmatched=verdict.unmatched,
        gaps=verdict.gaps,
        deliveries=_rates(every),
        began=every[0] if every else 0.0,
        violations=outcome.report.violations,
    )


def _pause_ms(given: dict[str, list[float]], began: float, ended: float) -> float:
    """The longest time without a delivery to one of the readers, of all that overlap the interval."""
    longest = 0.0
    for times in given.values():
        first, last = max(bisect_left(times, began) - 1, 0), min(bisect_right(times, ended) + 1, len(times))
        inside = times[first:last]
        longest = max([longest, *(after - before for before, after in itertools.pairwise(inside))])
    return 1000 * longest


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else float("nan")


def _rates(every: list[float]) -> list[tuple[float, int]]:
    """Deliveries a second, in steps of `BIN_S`."""
    counts: dict[int, int] = defaultdict(int)
    for at in every:
        counts[int((at - every[0]) / BIN_S)] += 1
    return [(step * BIN_S, round(counts[step] / BIN_S)) for step in range(max(counts, default=-1) + 1)]


def run(options: ExperimentOptions) -> ExperimentResult:
    """Runs the experiment."""
    warm_up()
    slow = asyncio.run(measure(EVENTS_PER_S, CHANGES_PER_S, FILTERS, CYCLES, options))
    fast = asyncio.run(measure(FAST_EVENTS_PER_S, FAST_CHANGES_PER_S, FILTERS, 1, options))
    return result(slow, fast)


def result(slow: ScaleMeasures, fast: ScaleMeasures) -> ExperimentResult:
    """The result of two runs: with the paper's load, and with its largest."""
    warm = [change for change in slow.changes if not change.with_start]
    pause = statistics.median(slow.pauses_ms)
    quiet = statistics.median(slow.quiet_pauses_ms)
    headline = {
        "delivery_pause_ms": round(pause, 1),
        "delivery_pause_ms_max": round(max(slow.pauses_ms), 1),
        "quiet_pause_ms": round(quiet, 1),
        "pause_above_quiet_ms": round(max(pause - quiet, 0.0), 1),
        "scaling_seconds": round(statistics.median(change.seconds for change in warm), 3),
        "scaling_seconds_max": round(max(change.seconds for change in warm), 3),
        "scaling_seconds_with_start": round(slow.changes[0].seconds, 3),
        "scaling_seconds_8000": round(statistics.median(one.seconds for one in fast.changes if not one.with_start), 3),
        "in_force_ms_p99": round(slow.in_force_ms_p99, 1),
        **{
            name: getattr(slow, name) + getattr(fast, name) for name in ("lost", "duplicated", "reordered", "unmatched")
        },
        "gaps": slow.gaps + fast.gaps,
    }
    nothing_lost = not any(headline[name] for name in ("lost", "duplicated", "reordered", "unmatched", "gaps"))
    claims = {
        "deliveries pause for 250 ms at most": headline["delivery_pause_ms"] <= DELIVERY_PAUSE_MS_MAX,
        "a change pauses deliveries for 100 ms at most": headline["pause_above_quiet_ms"] <= PAUSE_ABOVE_QUIET_MS_MAX,
        "a change takes a second at most": headline["scaling_seconds"] <= SCALING_S_MAX,
        "at 8,000 messages/s it takes two seconds at most": headline["scaling_seconds_8000"] <= FAST_SCALING_S_MAX,
        "filters come into force within 250 ms": headline["in_force_ms_p99"] <= IN_FORCE_MS_MAX,
        "nothing is lost, doubled or reordered": nothing_lost and not slow.violations and not fast.violations,
    }
    rows: list[tuple[str, ...]] = [
        (
            f"1-{3 if change.matchers == 1 else 1}-1 to 1-{change.matchers}-1",
            "started for it" if change.with_start else "standing by",
            f"{change.seconds:.2f}",
        )
        for change in slow.changes
    ]
    marks = [("change", [change.began - slow.began for change in slow.changes])]
    xs, ys = [at for at, _ in slow.deliveries], [float(rate) for _, rate in slow.deliveries]
    panel = Panel(
        "deliveries while matchers come and go", "seconds", "deliveries/s", [Line("delivered", xs, ys)], marks
    )
    return ExperimentResult(
        name=NAME,
        paper=PAPER,
        parameters={
            "filters": FILTERS,
            "events_per_s": EVENTS_PER_S,
            "changes_per_s": CHANGES_PER_S,
            "readers": READERS,
            "cycles": CYCLES,
        },
        series={
            "deliveries_per_s": slow.deliveries,
            "changes": [[change.began - slow.began, change.seconds, change.matchers] for change in slow.changes],
            "pauses_ms": slow.pauses_ms,
            "quiet_pauses_ms": slow.quiet_pauses_ms,
            "violations": [*slow.violations, *fast.violations],
        },
        headline=headline,
        tables=[Table("changes of the number of matchers", ("change", "processes", "seconds"), rows)],
        drawings=[Drawing(NAME, [panel])],
        paragraph=f"The paper pauses deliveries for {PAPER_PAUSE_MS:.0f} ms and takes 1 to 8 s. Here the longest pause "
        f"is {pause:.0f} ms during a change and {quiet:.0f} ms without one, and a change takes "
        f"{headline['scaling_seconds']:.2f} s, or {headline['scaling_seconds_with_start']:.1f} s if processes start.",
        claims=claims,
    )
