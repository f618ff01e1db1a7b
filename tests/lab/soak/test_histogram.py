"""The histogram: percentiles close to the exact ones, in little space."""

from __future__ import annotations

import math
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lab.soak.histogram import GROWTH, HIGHEST_S, LOWEST_S, SHARES, Histogram


def of(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(st.lists(st.floats(LOWEST_S, 100.0), min_size=1, max_size=200), st.sampled_from(sorted(SHARES.values())))
def test_a_percentile_is_at_most_a_bucket_above_the_exact_one(values: list[float], share: float) -> None:
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    found = of(values).percentile_s(share)
    assert found is not None
    assert exact * (1 - 1e-9) <= found <= exact * GROWTH * (1 + 1e-9)
    assert found <= max(values)


def test_many_values_take_little_space_and_any_value_fits() -> None:
    rng = Random(1)
    histogram = of([rng.lognormvariate(-6, 2) for _ in range(20_000)] + [0.0, -0.1, 1e-12, 1e9])
    assert histogram.count == 20_004
    assert len(histogram.counts) < math.log(HIGHEST_S / LOWEST_S) / math.log(GROWTH) + 3
    assert histogram.highest_s == 1e9


def test_merging_adds_the_counts_also_after_a_trip_through_json() -> None:
    first, second = of([0.001, 0.002]), of([0.5])
    first.merge(msgspec.json.decode(msgspec.json.encode(second), type=Histogram))
    assert first == of([0.001, 0.002, 0.5])
    assert second == of([0.5])


def test_the_summary_is_in_milliseconds_and_an_empty_histogram_has_none() -> None:
    assert Histogram().percentile_s(0.5) is None
    assert Histogram().summary_ms() == {}
    summary = of([0.001] * 999 + [0.25]).summary_ms()
    assert list(summary) == ["p50", "p99", "p99.9", "p99.99", "max"]
    assert summary["p50"] == pytest.approx(1.0, rel=0.01)
    assert summary["p99.99"] == summary["max"] == 250.0
