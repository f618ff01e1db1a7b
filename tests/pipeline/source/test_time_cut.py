"""The search for the time at which a batch ends."""

from __future__ import annotations

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from shoal.pipeline.source.time_cut import FULL, PROBES_MAX, find_cut


class Entries:
    """Times of entries, and how often they were counted."""

    def __init__(self, times_ms: list[int]) -> None:
        self.times_ms = sorted(times_ms)
        self.counted = 0

    def count(self, until_ms: int) -> int:
        self.counted += 1
        return bisect_right(self.times_ms, until_ms)

    def cut(self, rows_max: int) -> int:
        low_ms, high_ms = self.times_ms[0] - 1, self.times_ms[-1]
        return find_cut(self.count, low_ms, high_ms, len(self.times_ms), rows_max)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=200), st.data())
def test_a_batch_holds_some_entries_and_never_too_many(times_ms: list[int], data: st.DataObject) -> None:
    rows_max = data.draw(st.integers(1, len(times_ms) - 1))
    entries = Entries(times_ms)
    cut_ms = entries.cut(rows_max)
    found = bisect_right(entries.times_ms, cut_ms)
    assert found <= rows_max
    if not found:  # then one millisecond has more than a batch holds
        assert bisect_right(entries.times_ms, cut_ms + 1) > rows_max


def test_even_rates_are_found_at_once() -> None:
    entries = Entries([*range(0, 60_000, 2), *range(0, 60_000, 20)])
    cut_ms = entries.cut(10_000)
    assert 10_000 * FULL <= bisect_right(entries.times_ms, cut_ms) <= 10_000
    assert entries.counted <= 2


def test_uneven_rates_take_a_limited_number_of_counts() -> None:
    entries = Entries([0, *range(10**10, 10**10 + 20_000), *([10**10 + 50_000] * 30_000)])
    cut_ms = entries.cut(10_000)
    assert 1 <= bisect_right(entries.times_ms, cut_ms) <= 10_000
    assert entries.counted <= PROBES_MAX
