"""`shoal bench match --workload churn`: how long one match takes while subscriptions come and go.

Owns the changes, their pace and the percentiles. One index, one reader that matches events one after the other and
takes the time of each. Phases alternate: nothing changes; a second thread makes `CHANGES_PER_S` changes a second, half
of them inserts, half removes; the same changes between the matches of the one thread, as in an event loop. What is
reported is over all phases of a kind, so that what happens on the machine meanwhile happens to all three. In the end
the index must find what the naive evaluator finds among the subscriptions that are left.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from shoal.bench.loads import load as loads
from shoal.bench.machine import machine
from shoal.bench.match import EVENTS, WARM_UP, Note, Options, check, sample_of, unwalked, warm_up
from shoal.bench.match_contender import Ids, Wire
from shoal.bench.match_naive import Naive
from shoal.bench.match_ours import Copied, fill
from shoal.filters.filter import Filter
from shoal.filters.index import Index

CHANGES_PER_S: Final = 1_000
PHASES: Final = 10
"""Of each kind, in a round."""
QUIET: Final = "quiet"
THREAD: Final = "churn"
INTERLEAVED: Final = "churn-interleaved"
KINDS: Final = (QUIET, THREAD, INTERLEAVED)
CHECKED: Final = 3
"""Events that the naive evaluator matches in the end: seconds each, with a million subscriptions."""
_AHEAD: Final = 2.0
"""Changes that are drawn ahead, of those that a phase should make: a thread that was late makes more."""
SPARE: Final = 20_000
"""Subscriptions beside those in the index at the beginning, to insert."""
WORDS: Final = {
    QUIET: "nothing changes",
    THREAD: f"a second thread makes {CHANGES_PER_S} changes a second, half inserts and half removes, by the clock",
    INTERLEAVED: f"the same thread makes {CHANGES_PER_S} changes a second, between two matches",
}


class Churn:
    """The subscriptions in the index, and the changes of them: a random one goes, then another one comes. Which ones is
    decided ahead, so that what is measured beside a match is the index, not the drawing of numbers."""

    def __init__(self, index: Index, filters: list[Filter], spare: Sequence[Filter], seed: int) -> None:
        self._index = index
        self._rng = np.random.default_rng([seed, 9])
        self.held: dict[int, Filter] = dict(enumerate(filters))
        """What the index holds when all changes that were prepared have been made."""
        self._spare = deque(spare)
        self._prepared: deque[tuple[int, Filter | None]] = deque()
        self.times_us: list[float] = []

    def prepare(self, seconds: float) -> None:
        """Decides on the changes of the next seconds, and some more for a thread that is late."""
        missing = int(_AHEAD * seconds * CHANGES_PER_S) - len(self._prepared)
        for number in self._rng.integers(len(self.held), size=max(0, missing // 2)).tolist():
            new = self._spare.popleft()
            self._spare.append(self.held[number])
            self.held[number] = new
            self._prepared += ((number, None), (number, new))

    def change(self) -> None:
        """One change: a remove and an insert by turns."""
        number, new = self._prepared.popleft()
        began = time.perf_counter_ns()
        if new is None:
            self._index.remove(number)
        else:
            self._index.insert(number, new)
        self.times_us.append((time.perf_counter_ns() - began) / 1e3)

    def finish(self) -> None:
        """Makes the changes that were prepared and are not made yet."""
        while self._prepared:
            self.change()

    def truth(self) -> Callable[[bytes], Ids]:
        """What the naive evaluator finds in the index, by id."""
        ids = np.array(list(self.held), dtype=np.uint32)
        naive = Naive(list(self.held.values()))
        return lambda event: ids[naive.ids(event)]


class Pace:
    """`CHANGES_PER_S` from now on, whenever there is time for them."""

    def __init__(self, churn: Churn) -> None:
        self._churn = churn
        self._due_ns = time.perf_counter_ns()

    def catch_up(self) -> None:
        """Makes the changes that are due."""
        while self._due_ns <= time.perf_counter_ns():
            self._churn.change()
            self._due_ns += 10**9 // CHANGES_PER_S


class Writer:
    """A thread that makes changes by the clock, until it is told to stop."""

    def __init__(self, churn: Churn) -> None:
        self._churn = churn
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, name="churn", daemon=True)
        self.failure: BaseException | None = None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _write(self) -> None:
        try:
            pace = Pace(self._churn)
            while not self._over.wait(1 / CHANGES_PER_S):
                pace.catch_up()
            pace.catch_up()
        except BaseException as failure:
            self.failure = failure


def measure(options: Options, note: Note) -> dict[str, Any]:
    """Runs everything; returns what `shoal bench match --workload churn --json` prints."""
    size = options.subscriptions
    note(f"making {size:,} subscriptions of {loads.STOCK}")
    load = loads.make(loads.STOCK, size + SPARE, EVENTS, options.seed, options.quotes)
    wire = Wire.of(load.events)
    warm_up(load.filters[:WARM_UP], wire)
    note(f"{size:,} subscriptions: filling")
    index, filling = fill(load.filters[:size], 1)
    churn = Churn(index, load.filters[:size], load.filters[size:], options.seed)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    figures: dict[str, list[float]] = {kind: [0.0, 0.0, 0.0, 0.0] for kind in KINDS}
    with unwalked():
        for number in range(options.rounds * PHASES):
            note(f"phases {number + 1} of {options.rounds * PHASES}")
            first = number % len(KINDS)
            for kind in KINDS[first:] + KINDS[:first]:
                found = _phase(kind, index, wire.each, churn, options.run_s, times[kind])
                figures[kind] = [total + each for total, each in zip(figures[kind], found, strict=True)]
    changes = {"count": len(churn.times_us), **_percentiles("change", churn.times_us)}
    churn.finish()
    index.settle()
    note("checking")
    checked, _ = check(Copied(index), churn.truth(), sample_of(wire.each, CHECKED))
    filled = {"inserts_per_s": filling.inserts_per_s, "inserts_one_by_one_per_s": filling.inserts_one_by_one_per_s}
    rows = [
        {
            "contender": kind,
            "subscriptions": size,
            **_figures(times[kind], *figures[kind]),
            "bytes_per_subscription": index.nbytes / size,
            **filled,
            "checked_events": checked,
        }
        for kind in KINDS
    ]
    return {
        "name": "match",
        "workload": {"all": _describe(options, load.words), **WORDS},
        "machine": machine(),
        "rows": rows,
        "changes": changes,
        "ratios": ratios(rows),
    }


def _phase(
    kind: str, index: Index, events: Sequence[bytes], churn: Churn, run_s: float, times_us: list[float]
) -> tuple[float, float, float, float]:
    """One phase; seconds, CPU seconds, ids found and changes made."""
    churn.prepare(run_s)
    before = len(churn.times_us)
    began, began_cpu = time.perf_counter(), time.process_time()
    if kind == THREAD:
        with Writer(churn):
            found = _match(index, events, None, run_s, times_us)
    else:
        found = _match(index, events, Pace(churn) if kind == INTERLEAVED else None, run_s, times_us)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    return seconds, cpu_seconds, found, len(churn.times_us) - before


def _match(index: Index, events: Sequence[bytes], pace: Pace | None, run_s: float, times_us: list[float]) -> int:
    """Matches events for so long, and makes the changes that are due, if they are made here; the ids found."""
    clock, match, count, found = time.perf_counter_ns, index.match, len(times_us), 0
    now = clock()
    end = now + int(run_s * 1e9)
    while now < end:
        event = events[count % len(events)]
        before = clock()
        ids = match(event)
        now = clock()
        times_us.append((now - before) / 1e3)
        found += len(ids)
        count += 1
        if pace is not None:
            pace.catch_up()
    return found


def _figures(times_us: list[float], seconds: float, cpu_seconds: float, found: float, changes: float) -> dict[str, Any]:
    events = len(times_us)
    return {
        "events": events,
        "events_per_s": events / seconds,
        "cpu_us_per_event": 1e6 * cpu_seconds / events,
        "matches_per_event": found / events,
        "changes_per_s": changes / seconds,
        **_percentiles("match", times_us),
    }


def _percentiles(name: str, times_us: list[float]) -> dict[str, float]:
    p50, p99, p999 = np.quantile(times_us or [0.0], (0.5, 0.99, 0.999)).tolist()
    return {f"{name}_us_p50": p50, f"{name}_us_p99": p99, f"{name}_us_p999": p999, f"{name}_us_max": max(times_us)}


def ratios(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The time of a match with churn by that without; lower is better."""
    by_kind = {row["contender"]: row for row in rows}
    return {
        f"match_{percentile}_{kind.replace('-', '_')}_vs_quiet": by_kind[kind][f"match_us_{percentile}"]
        / by_kind[QUIET][f"match_us_{percentile}"]
        for kind in (THREAD, INTERLEAVED)
        for percentile in ("p50", "p99", "p999")
    }


def _describe(options: Options, words: str) -> str:
    return (
        f"stock: {words}; the time of one match from the event's bytes to a copy of the ids, over "
        f"{options.rounds * PHASES} alternating phases of {options.run_s:g} s of each kind; in the end the index is "
        "checked against the naive evaluator"
    )
