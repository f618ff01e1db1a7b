"""`shoal bench quotes`: subscriptions by the paper's templates against every quote of the real data set.

Owns this one measurement: the time, how many deliveries it comes to, and the check of a sample of the quotes against
`Filter.matches`, which shares no code with the index. Without a data set it runs on generated quotes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from shoal.bench.contender import BenchError
from shoal.bench.loads import stock
from shoal.bench.machine import machine
from shoal.bench.match import WARM_UP, Note, Run, check, run, sample_of, unwalked, warm_up
from shoal.bench.match_contender import NAIVE, SHOAL, Wire
from shoal.bench.match_naive import WORDS as NAIVE_WORDS
from shoal.bench.match_naive import Naive
from shoal.bench.match_ours import MANY, WORDS, Copied, Many, fill

CHECKED: Final = 200
"""Quotes that the slow evaluator is asked about."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    subscriptions: int = 10_000
    quotes: Path | None = None
    seed: int = 1


def measure(options: Options, note: Note) -> dict[str, Any]:
    """Runs everything; returns what `shoal bench quotes --json` prints."""
    note("reading quotes" if options.quotes else "making quotes")
    published = stock.publications(options.seed, options.quotes)
    filters = stock.draw(options.subscriptions, published, options.seed)
    wire = Wire.of([quote for of_symbol in published.values() for quote in of_symbol])
    sample = sample_of(wire.each, CHECKED)
    warm_up(filters[:WARM_UP], wire)
    index, filling = fill(filters, 1)
    ours, naive = (Copied(index), Many(index)), Naive(filters)
    runs: dict[str, Run] = {}
    with unwalked():
        for way in ours:
            note(f"{len(wire.each):,} quotes against {len(filters):,} subscriptions: {way.name}")
            runs[way.name] = run(way, len(wire.batches if way.batched else wire.each), wire)
        note(f"the slow evaluator: {len(sample)} of the quotes")
        runs[NAIVE] = run(naive, len(sample), Wire(each=sample, batches=[]))
    if runs[SHOAL].found != runs[MANY].found:
        raise BenchError(f"{SHOAL} delivers {runs[SHOAL].found} times and {MANY} {runs[MANY].found} times")
    truth = cache(naive.ids)
    checked = min(check(way, truth, sample)[0] for way in ours)
    note(f"the same ids as the slow evaluator for {checked} quotes")
    return {
        "name": "quotes",
        "workload": {"all": stock.words(options.quotes), SHOAL: WORDS[SHOAL], MANY: WORDS[MANY], NAIVE: NAIVE_WORDS},
        "machine": machine(),
        "quotes": len(wire.each),
        "stocks": len(published),
        "subscriptions": len(filters),
        "unique_filters": filling.unique,
        "deliveries": runs[SHOAL].found,
        "seconds": runs[SHOAL].seconds,
        "checked_events": checked,
        "rows": [_row(name, each) for name, each in runs.items()],
        "ratios": {"vs_naive": runs[NAIVE].event_s / runs[SHOAL].event_s},
    }


def _row(name: str, of: Run) -> dict[str, Any]:
    return {
        "contender": name,
        **of.figures(),
        "deliveries": of.found,
        "deliveries_per_s": of.found / of.seconds,
        "seconds": of.seconds,
        "cpu_seconds": of.cpu_seconds,
    }
