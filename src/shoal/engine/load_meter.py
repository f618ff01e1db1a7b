"""The load meter: from the counters of all processes of an engine to its load in the last seconds.

Owns the window. It begins again when the configuration changes, because what was measured before says little about
what is now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from shoal.engine.event_waits import quantile_ms
from shoal.engine.measures import Measures
from shoal.load.engine_load import EngineLoad, ProcessLoad

WINDOW_S: Final = 5.0
"""About how long a load is measured."""
TURN_CPU_S_MIN: Final = 0.02
"""CPU of turns in a window from which on their slowdown is known."""
SLOWDOWN_MAX: Final = 8.0


class Reading(NamedTuple):
    """The counters of one process: all its CPU, and what its operators did."""

    cpu_s: float
    measures: Measures


class _Sample(NamedTuple):
    at: float
    readings: Mapping[str, Reading]
    waits: tuple[int, ...]


class EngineLoadMeter:
    """Measures one instance."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()
        self._configuration: object = None
        self._since = 0.0

    def measure(
        self,
        configuration: object,
        readings: Mapping[str, Reading],
        waits: Sequence[int],
        exits: Sequence[str],
        now: float,
    ) -> EngineLoad:
        """The load now. `configuration` is whatever says which operators run, `readings` are those of all processes
        that live, first that of the one with the access point."""
        if configuration != self._configuration or not self._samples:
            self._configuration, self._since = configuration, now
            self._samples.clear()
        samples = self._samples
        samples.append(_Sample(now, dict(readings), tuple(waits)))
        while len(samples) > 2 and samples[1].at <= now - WINDOW_S:
            samples.popleft()
        first = samples[0]
        elapsed = now - first.at
        steady_s = round(now - self._since, 3)
        if elapsed <= 0:
            return EngineLoad(steady_s=steady_s, processes=tuple(ProcessLoad(name) for name in readings))
        before, after = _sums(first.readings, readings)
        counts = [new - old for new, old in zip(waits, first.waits, strict=True)]
        return EngineLoad(
            window_s=round(elapsed, 3),
            steady_s=steady_s,
            events_per_s=_rate(before.taken, after.taken, elapsed),
            batches_per_s=_rate(before.batches, after.batches, elapsed),
            deliveries_per_s=_rate(before.delivered, after.delivered, elapsed),
            changes_per_s=_rate(before.changed, after.changed, elapsed),
            wait_ms_p50=round(quantile_ms(counts, 0.5), 3),
            wait_ms_p99=round(quantile_ms(counts, 0.99), 3),
            processes=tuple(
                _process(name, first.readings.get(name, reading), reading, elapsed, name in exits)
                for name, reading in readings.items()
            ),
        )


def _process(name: str, before: Reading, after: Reading, elapsed: float, has_exit: bool) -> ProcessLoad:
    old, new = before.measures, after.measures
    posting = new.posting_cpu_s - old.posting_cpu_s
    turn_s, turn_cpu_s = new.turn_s - old.turn_s, new.turn_cpu_s - old.turn_cpu_s
    slowdown = turn_s / turn_cpu_s if turn_cpu_s >= TURN_CPU_S_MIN else 1.0

    def cores(cpu_s: float) -> float:
        return max(0.0, round(cpu_s / elapsed, 5))

    return ProcessLoad(
        name,
        cores(after.cpu_s - before.cpu_s),
        cores(new.access_cpu_s - old.access_cpu_s),
        cores(new.matching_cpu_s - old.matching_cpu_s + (0.0 if has_exit else posting)),
        cores(new.merging_cpu_s - old.merging_cpu_s + (posting if has_exit else 0.0)),
        round(min(max(slowdown, 1.0), SLOWDOWN_MAX), 3),
    )


def _sums(before: Mapping[str, Reading], after: Mapping[str, Reading]) -> tuple[Measures, Measures]:
    """The counters of all processes that were there before, then and now."""
    names = [name for name in after if name in before]

    def total(readings: Mapping[str, Reading]) -> Measures:
        found = [readings[name].measures for name in names]
        return Measures(*(sum(getattr(one, field) for one in found) for field in Measures.__struct_fields__))

    return total(before), total(after)


def _rate(before: int, after: int, elapsed: float) -> float:
    return round((after - before) / elapsed, 2)
