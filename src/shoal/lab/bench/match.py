"""`shoal bench match`: the index, naive Python, NumPy, Polars and DuckDB on the same filters and events.

Owns the sizes, the order of the runs, the check of the results and the ratios. At each size all contenders hold the
same filters. Each must first find the same ids as the index for a sample of events; otherwise the measurement fails.
Then every contender runs in each round, another one first each time. The results are medians over the rounds. A slow
contender gets fewer events, so that its run takes about as long as the others.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from shoal.filters.filter import Filter
from shoal.lab.bench.contender import BenchError
from shoal.lab.bench.loads import load as loads
from shoal.lab.bench.match_index import MANY, WORDS, Filling, fill, index_matchers
from shoal.lab.bench.match_others import OTHERS
from shoal.lab.bench.matcher import BATCH, SHOAL, BenchMatcher, EncodedEvents, Ids
from shoal.lab.machine import machine

SIZES: Final = (1_000, 10_000, 100_000, 1_000_000)
"""Numbers of subscriptions below the requested one."""
EVENTS: Final = 20_480
"""Different events at most; long runs repeat them."""
CHECKED: Final = 20
"""Events in the sample that is checked."""
CHECK_S_MAX: Final = 3.0
"""A contender that takes longer for the sample is checked on fewer events."""
WARM_UP: Final = 200
"""Filters of the index that triggers the compilation of kernels."""

Note: TypeAlias = Callable[[str], None]


class MatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    workload: str = loads.STOCK
    subscriptions: int = 1_000_000
    rounds: int = 3
    run_s: float = 0.5
    seed: int = 1
    quotes: Path | None = None

    @property
    def sizes(self) -> list[int]:
        """The numbers of subscriptions, smallest first."""
        return [*(size for size in SIZES if size < self.subscriptions), self.subscriptions]


class MatchRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run."""

    events: int
    found: int
    """Ids of all events together."""
    seconds: float
    cpu_seconds: float

    @property
    def event_s(self) -> float:
        """Time of one event."""
        return self.seconds / self.events

    def figures(self) -> dict[str, float]:
        """The figures of a row."""
        return {
            "events": self.events,
            "events_per_s": self.events / self.seconds,
            "cpu_us_per_event": 1e6 * self.cpu_seconds / self.events,
            "matches_per_event": self.found / self.events,
        }


class Entrant(msgspec.Struct, kw_only=True):
    """A contender at one size."""

    matcher: BenchMatcher
    inserts_per_s: float
    units: int = 1
    """Events or batches of one run."""
    checked: int = 0
    runs: list[MatchRun] = []


def measure(options: MatchOptions, note: Note) -> dict[str, Any]:
    """Runs everything; returns what `shoal bench match --json` prints."""
    note(f"making {options.subscriptions:,} subscriptions of {options.workload}")
    load = loads.make(options.workload, options.subscriptions, EVENTS, options.seed, options.quotes)
    wire = EncodedEvents.of(load.events)
    left_out = {name: why for name, other in OTHERS.items() if (why := other.cannot(load.name)) is not None}
    for name, why in left_out.items():
        note(f"without {name}: {why}")
    others = [name for name in OTHERS if name not in left_out]
    began = time.perf_counter()
    warm_up(load.filters[:WARM_UP], wire)
    note(f"first matches, compiling included: {time.perf_counter() - began:.1f} s")
    rows: list[dict[str, Any]] = []
    for size in options.sizes:
        rows.extend(_measured(size, load.filters[:size], wire, others, options, note))
    return {
        "name": "match",
        "workload": {**describe(options, load.words), **{name: f"left out: {why}" for name, why in left_out.items()}},
        "machine": machine(),
        "rows": rows,
        "ratios": ratios(rows),
    }


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Keeps Python's garbage collector from walking existing objects.

    These are the filters that the measurement keeps for later. An application that fills an index does not keep them.
    A heap that was frozen before stays frozen.
    """
    was_frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()


def warm_up(filters: list[Filter], wire: EncodedEvents) -> None:
    """Does everything once on a few filters, so that all kernels are compiled."""
    index, _ = fill(filters, 1)
    for matcher in index_matchers(index):
        matcher.ids(wire.each[0])
        matcher.take(wire.batches[0] if matcher.batched else wire.each[0])


def _measured(
    size: int, filters: list[Filter], wire: EncodedEvents, others: Sequence[str], options: MatchOptions, note: Note
) -> list[dict[str, Any]]:
    """The rows of one size."""
    note(f"{size:,} subscriptions: filling")
    index, filling = fill(filters, options.rounds)
    entrants = [Entrant(matcher=matcher, inserts_per_s=filling.inserts_per_s) for matcher in index_matchers(index)]
    for name in others:
        began = time.perf_counter()
        matcher = OTHERS[name](filters)
        entrants.append(Entrant(matcher=matcher, inserts_per_s=size / (time.perf_counter() - began)))
    truth, sample = entrants[0].matcher.ids, sample_of(wire.each, CHECKED)
    note(f"{size:,} subscriptions: checking that all contenders find the same ids")
    for entrant in entrants:
        entrant.checked, event_s = check(entrant.matcher, truth, sample)
        entrant.units = _units(entrant.matcher, event_s, wire, options.run_s)
    with frozen_heap():
        for number in range(options.rounds):
            note(f"{size:,} subscriptions: round {number + 1} of {options.rounds}")
            first = number % len(entrants)
            for entrant in entrants[first:] + entrants[:first]:
                entrant.runs.append(run(entrant.matcher, entrant.units, wire))
    return [_row(entrant, size, filling) for entrant in entrants]


def sample_of(events: Sequence[bytes], count: int) -> Sequence[bytes]:
    """A sample of the events, evenly spaced."""
    return events[:: max(1, len(events) // count)][:count]


def check(contender: BenchMatcher, truth: Callable[[bytes], Ids], sample: Sequence[bytes]) -> tuple[int, float]:
    """Compares the ids that a contender finds with the truth; returns the number of events checked, and the time of
    one.

    Raises BenchError if they differ.
    """
    spent_s, checked = 0.0, 0
    for event in sample:
        began = time.perf_counter()
        found = np.sort(contender.ids(event))
        spent_s += time.perf_counter() - began
        checked += 1
        expected = np.sort(truth(event))
        if not np.array_equal(found, expected):
            differing = np.setxor1d(found, expected)[:5].tolist()
            how = f"only one of them has {differing}" if differing else "some are duplicates"
            raise BenchError(
                f"for {msgspec.msgpack.decode(event)} {contender.name} finds {len(found)} subscriptions and should "
                f"find {len(expected)}: {how}",
                do="check with Filter.matches which of the two is right, and report it if the index is wrong",
            )
        if spent_s > CHECK_S_MAX:
            break
    return checked, spent_s / checked


def _units(contender: BenchMatcher, event_s: float, wire: EncodedEvents, run_s: float) -> int:
    """The number of events or batches of a run of about `run_s`."""
    if event_s > run_s / 10:
        return max(1, round(run_s / event_s))
    units: Sequence[Any] = wire.batches if contender.batched else wire.each
    count, spent_s = 0, 0.0
    while spent_s < run_s / 10:
        began = time.perf_counter()
        contender.take(units[count % len(units)])
        spent_s += time.perf_counter() - began
        count += 1
    return max(1, round(count * run_s / spent_s))


def run(contender: BenchMatcher, units: int, wire: EncodedEvents) -> MatchRun:
    """One timed run of one contender."""
    given: Sequence[Any] = wire.batches if contender.batched else wire.each
    take = contender.take
    rounds, rest = divmod(units, len(given))
    found = 0
    began, began_cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        for unit in given:
            found += take(unit)
    for unit in given[:rest]:
        found += take(unit)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    events = rounds * len(wire.each) + (min(rest * BATCH, len(wire.each)) if contender.batched else rest)
    return MatchRun(events=events, found=found, seconds=seconds, cpu_seconds=cpu_seconds)


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: median(each[name] for each in runs) for name in runs[0]}


def _row(entrant: Entrant, size: int, filling: Filling) -> dict[str, Any]:
    name = entrant.matcher.name
    ours = name.split("-")[0] == SHOAL
    return {
        "contender": name,
        "subscriptions": size,
        **medians([each.figures() for each in entrant.runs]),
        "bytes_per_subscription": entrant.matcher.nbytes / size,
        "inserts_per_s": entrant.inserts_per_s,
        "inserts_one_by_one_per_s": filling.inserts_one_by_one_per_s if ours else None,
        "removes_one_by_one_per_s": filling.removes_one_by_one_per_s if ours else None,
        "unique_filters": filling.unique if ours else None,
        "checked_events": entrant.checked,
    }


def ratios(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The index compared with the others at the largest size: with batches of events, and with one at a time."""
    size = max(row["subscriptions"] for row in rows)
    largest = {row["contender"]: row for row in rows if row["subscriptions"] == size}
    found = {}
    for prefix, ours in (("", largest[MANY]), ("each_", largest[SHOAL])):
        for name in OTHERS:
            if name in largest:
                found[f"{prefix}vs_{name}"] = ours["events_per_s"] / largest[name]["events_per_s"]
                found[f"{prefix}cpu_vs_{name}"] = ours["cpu_us_per_event"] / largest[name]["cpu_us_per_event"]
    return found


def describe(options: MatchOptions, words: str) -> dict[str, str]:
    """A description of the measurement."""
    return {
        "all": (
            f"{options.workload}: {words}; every contender starts from the bytes of an event (msgpack) and ends with "
            f"the ids of all subscriptions that match, on one thread; each found the same ids as the index on a sample "
            f"of events; medians of {options.rounds} rounds of about {options.run_s:g} s; CPU is of the whole process"
        ),
        **WORDS,
        **{name: other.words for name, other in OTHERS.items()},
        "inserts_per_s": (
            "shoal: in bulk, from filters in their wire form into an empty index, until it has settled; one by one: "
            "from Filter objects into the full index. Others: everything from Filter objects"
        ),
        "vs": (
            f"events/s of {MANY} divided by theirs at the largest size, each_vs: of {SHOAL}; cpu_vs, each_cpu_vs: its "
            f"CPU divided by theirs (lower is better)"
        ),
    }
