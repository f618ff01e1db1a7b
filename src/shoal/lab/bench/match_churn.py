"""`shoal bench match --workload churn`: how long one match takes while subscriptions come and go.

Owns the changes, their rate and the percentiles. One reader matches events on one index, one after the other, and
measures each match. Three kinds of phases alternate: nothing changes; a second thread makes `CHANGES_PER_S` changes a
second, half of them inserts and half removes; the reader makes the same changes between matches, as in an event loop.
The results cover all phases of a kind, so that other work on the machine affects all three. At the end the index must
find the same ids as the naive evaluator.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from shoal.filters.filter import Filter
from shoal.filters.index import Index
from shoal.lab.bench.loads import load as loads
from shoal.lab.bench.match import EVENTS, WARM_UP, MatchOptions, Note, check, frozen_heap, sample_of, warm_up
from shoal.lab.bench.match_index import EventMatcher, fill
from shoal.lab.bench.match_others import NaiveMatcher
from shoal.lab.bench.matcher import EncodedEvents, Ids
from shoal.lab.machine import machine

CHANGES_PER_S: Final = 1_000
PHASES: Final = 10
"""Phases of each kind in a round."""
QUIET: Final = "quiet"
THREAD: Final = "churn"
INTERLEAVED: Final = "churn-interleaved"
KINDS: Final = (QUIET, THREAD, INTERLEAVED)
CHECKED: Final = 3
"""Events that the naive evaluator matches at the end. Each takes seconds with a million subscriptions."""
_AHEAD: Final = 2.0
"""Changes that are drawn ahead, divided by those that a phase should make: a phase that takes longer makes more."""
EXTRA_S: Final = 0.1
"""Seconds of changes that are drawn when the prepared ones have run out."""
SPARE: Final = 20_000
"""Subscriptions to insert, beside those in the index at the start."""
WORDS: Final = {
    QUIET: "nothing changes",
    THREAD: f"a second thread makes {CHANGES_PER_S} changes a second, half inserts and half removes",
    INTERLEAVED: f"the same thread makes {CHANGES_PER_S} changes a second, between two matches",
}


class Churn:
    """The subscriptions in the index and their changes: a random one is removed, then another one inserted. Changes are
    drawn ahead, so that the measurement contains the index and not the random generator."""

    def __init__(self, index: Index, filters: list[Filter], spare: Sequence[Filter], seed: int) -> None:
        self._index = index
        self._rng = np.random.default_rng([seed, 9])
        self.held: dict[int, Filter] = dict(enumerate(filters))
        """The subscriptions in the index after all prepared changes."""
        self._spare = deque(spare)
        self._prepared: deque[tuple[int, Filter | None]] = deque()
        self.times_us: list[float] = []

    def prepare(self, seconds: float) -> None:
        """Draws the changes of the next seconds, and some more for a phase that takes longer."""
        missing = int(_AHEAD * seconds * CHANGES_PER_S) - len(self._prepared)
        for number in self._rng.integers(len(self.held), size=max(0, missing // 2)).tolist():
            new = self._spare.popleft()
            self._spare.append(self.held[number])
            self.held[number] = new
            self._prepared += ((number, None), (number, new))

    def change(self) -> None:
        """Makes one change: a remove and an insert, alternating. On a busy machine the prepared changes may run out."""
        if not self._prepared:
            self.prepare(EXTRA_S)
        number, new = self._prepared.popleft()
        began = time.perf_counter_ns()
        if new is None:
            self._index.remove(number)
        else:
            self._index.insert(number, new)
        self.times_us.append((time.perf_counter_ns() - began) / 1e3)

    def finish(self) -> None:
        """Makes the remaining prepared changes."""
        while self._prepared:
            self.change()

    def truth(self) -> Callable[[bytes], Ids]:
        """The ids that the naive evaluator finds."""
        ids = np.array(list(self.held), dtype=np.uint32)
        naive = NaiveMatcher(list(self.held.values()))
        return lambda event: ids[naive.ids(event)]


class ChangePace:
    """Makes `CHANGES_PER_S` changes a second, whenever it is called."""

    def __init__(self, churn: Churn) -> None:
        self._churn = churn
        self._due_ns = time.perf_counter_ns()

    def catch_up(self) -> None:
        """Makes all changes that are due."""
        while self._due_ns <= time.perf_counter_ns():
            self._churn.change()
            self._due_ns += 10**9 // CHANGES_PER_S


class ChurnThread:
    """A thread that makes changes while the block runs."""

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
            pace = ChangePace(self._churn)
            while not self._over.wait(1 / CHANGES_PER_S):
                pace.catch_up()
            pace.catch_up()
        except BaseException as failure:
            self.failure = failure


def measure(options: MatchOptions, note: Note) -> dict[str, Any]:
    """Runs everything; returns what `shoal bench match --workload churn --json` prints."""
    size = options.subscriptions
    note(f"making {size:,} subscriptions of {loads.STOCK}")
    load = loads.make(loads.STOCK, size + SPARE, EVENTS, options.seed, options.quotes)
    wire = EncodedEvents.of(load.events)
    warm_up(load.filters[:WARM_UP], wire)
    note(f"{size:,} subscriptions: filling")
    index, filling = fill(load.filters[:size], 1)
    churn = Churn(index, load.filters[:size], load.filters[size:], options.seed)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    figures: dict[str, list[float]] = {kind: [0.0, 0.0, 0.0, 0.0] for kind in KINDS}
    with frozen_heap():
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
    checked, _ = check(EventMatcher(index), churn.truth(), sample_of(wire.each, CHECKED))
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
    """Runs one phase; returns seconds, CPU seconds, ids found and changes made."""
    churn.prepare(run_s)
    before = len(churn.times_us)
    began, began_cpu = time.perf_counter(), time.process_time()
    if kind == THREAD:
        with ChurnThread(churn):
            found = _match(index, events, None, run_s, times_us)
    else:
        found = _match(index, events, ChangePace(churn) if kind == INTERLEAVED else None, run_s, times_us)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
    return seconds, cpu_seconds, found, len(churn.times_us) - before


def _match(index: Index, events: Sequence[bytes], pace: ChangePace | None, run_s: float, times_us: list[float]) -> int:
    """Matches events for `run_s`, and makes changes in between if there is a `pace`; returns the number of ids."""
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
    """The time of a match with churn, divided by that without; lower is better."""
    by_kind = {row["contender"]: row for row in rows}
    return {
        f"match_{percentile}_{kind.replace('-', '_')}_vs_quiet": by_kind[kind][f"match_us_{percentile}"]
        / by_kind[QUIET][f"match_us_{percentile}"]
        for kind in (THREAD, INTERLEAVED)
        for percentile in ("p50", "p99", "p999")
    }


def _describe(options: MatchOptions, words: str) -> str:
    return (
        f"stock: {words}; the time of one match from the event's bytes to a copy of the ids, over "
        f"{options.rounds * PHASES} alternating phases of {options.run_s:g} s of each kind; at the end the index is "
        "checked against the naive evaluator"
    )
