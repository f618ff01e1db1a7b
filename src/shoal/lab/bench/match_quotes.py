"""`shoal bench quotes`: subscriptions from the paper's templates against every quote of the real data set.

Owns this one measurement: the time, the number of deliveries, and the check of a sample of quotes against
`Filter.matches`, which shares no code with the index. Without a data set it runs on generated quotes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from shoal.lab.bench.contender import BenchError
from shoal.lab.bench.loads import stock
from shoal.lab.bench.match import WARM_UP, MatchRun, Note, check, frozen_heap, run, sample_of, warm_up
from shoal.lab.bench.match_index import MANY, WORDS, BatchMatcher, EventMatcher, fill
from shoal.lab.bench.match_others import NAIVE, NaiveMatcher
from shoal.lab.bench.matcher import SHOAL, EncodedEvents
from shoal.lab.machine import machine

CHECKED: Final = 200
"""Quotes that the naive evaluator checks."""


class QuotesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    subscriptions: int = 10_000
    quotes: Path | None = None
    seed: int = 1


def measure(options: QuotesOptions, note: Note) -> dict[str, Any]:
    """Runs everything; returns what `shoal bench quotes --json` prints."""
    note("reading quotes" if options.quotes else "making quotes")
    published = stock.publications(options.seed, options.quotes)
    filters = stock.draw(options.subscriptions, published, options.seed)
    wire = EncodedEvents.of([quote for of_symbol in published.values() for quote in of_symbol])
    sample = sample_of(wire.each, CHECKED)
    warm_up(filters[:WARM_UP], wire)
    index, filling = fill(filters, 1)
    ours, naive = (EventMatcher(index), BatchMatcher(index)), NaiveMatcher(filters)
    runs: dict[str, MatchRun] = {}
    with frozen_heap():
        for matcher in ours:
            note(f"{len(wire.each):,} quotes against {len(filters):,} subscriptions: {matcher.name}")
            runs[matcher.name] = run(matcher, len(wire.batches if matcher.batched else wire.each), wire)
        note(f"the naive evaluator: {len(sample)} of the quotes")
        runs[NAIVE] = run(naive, len(sample), EncodedEvents(each=sample, batches=[]))
    if runs[SHOAL].found != runs[MANY].found:
        raise BenchError(f"{SHOAL} delivers {runs[SHOAL].found} times and {MANY} {runs[MANY].found} times")
    truth = cache(naive.ids)
    checked = min(check(matcher, truth, sample)[0] for matcher in ours)
    note(f"the same ids as the naive evaluator for {checked} quotes")
    return {
        "name": "quotes",
        "workload": {
            "all": stock.words(options.quotes),
            SHOAL: WORDS[SHOAL],
            MANY: WORDS[MANY],
            NAIVE: NaiveMatcher.words,
        },
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


def _row(name: str, of: MatchRun) -> dict[str, Any]:
    return {
        "contender": name,
        **of.figures(),
        "deliveries": of.found,
        "deliveries_per_s": of.found / of.seconds,
        "seconds": of.seconds,
        "cpu_seconds": of.cpu_seconds,
    }
