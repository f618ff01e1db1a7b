"""The fold over rows with arrival times: the same windows for any division into batches."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.load.fold_reader import ONE, SETTINGS, T, settled
from tests.load.telemetry_samples import record, records_to_batch

from shoal.load.fold_state import FoldState
from shoal.load.ordered_fold import fold_in_order
from shoal.load.reports import BATCH_SCHEMA
from shoal.load.window import LoadWindow
from shoal.load_kinds import KINDS


def arrivals() -> st.SearchStrategy[list[tuple[str, int, float]]]:
    """Host, second and delay of records with distinct arrivals."""
    one = st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.floats(0.0, 4.0))
    return st.lists(one, max_size=30, unique_by=lambda arrival: arrival[1] + arrival[2])


def fold_all(batches: list[pa.Table]) -> tuple[list[LoadWindow], FoldState]:
    state, windows = FoldState(), []
    for batch in batches:
        closed, state = fold_in_order(state, batch, SETTINGS, KINDS)
        windows += closed
    return windows, state


@settings(max_examples=60, deadline=None)
@given(arrivals(), st.lists(st.integers(0, 30), max_size=5))
def test_batches_do_not_matter(found: list[tuple[str, int, float]], cuts: list[int]) -> None:
    rows = [(record(host, T + second, ONE), T + second + 1 + delay) for host, second, delay in found]
    table = pa.Table.from_batches([records_to_batch(sorted(rows, key=lambda row: row[1]))])
    bounds = [0, *sorted(min(cut, table.num_rows) for cut in cuts), table.num_rows]
    pieces = [table.slice(low, high - low) for low, high in pairwise(bounds)]
    whole, one_state = fold_all([table])
    parts, other_state = fold_all(pieces)
    assert [window.to_bytes() for window in whole] == [window.to_bytes() for window in parts]
    assert one_state.to_bytes() == other_state.to_bytes()


def test_it_equals_the_fold_of_a_live_reader() -> None:
    awake = settled("a", "b")
    seconds = range(T, T + 20)
    found = [(second + 1.1 + 0.01 * (host == "b"), record(host, second, ONE)) for second in seconds for host in "ab"]
    state = awake.state
    awake.run(found)
    batch = records_to_batch((made, arrived_s) for arrived_s, made in reversed(found))
    windows, _ = fold_in_order(state, batch, SETTINGS, KINDS)
    assert [window.to_bytes() for window in windows] == [window.to_bytes() for window in awake.windows]
    assert len(windows) == 10


def test_rows_without_a_time_are_garbage_and_delay_nothing() -> None:
    rows = records_to_batch((record("a", T + second, ONE), T + second + 1.1) for second in range(6)).to_pylist()
    rows[2]["arrived_s"] = None
    batch = pa.RecordBatch.from_pylist(rows, schema=BATCH_SCHEMA)
    windows, state = fold_in_order(FoldState(), batch, SETTINGS, KINDS)
    assert state.counters.garbage == 1
    assert state.counters.rows == 5
    assert len(windows) >= 1


def test_an_empty_batch_gives_no_windows() -> None:
    assert fold_in_order(FoldState(), BATCH_SCHEMA.empty_table(), SETTINGS, KINDS)[0] == []
