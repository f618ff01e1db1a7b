"""The fold: refused records, its state, and properties for any records."""

from __future__ import annotations

import pickle
import random

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.load.fold_reader import ONE, SETTINGS, Reader, T, settled
from tests.load.telemetry_samples import hosts_of, record, records_to_batch, units_of

from shoal.balance.settings import BalanceSettings
from shoal.errors import ProtocolError
from shoal.load.fold import HOST_SILENT_S_MAX, PENDING_S_MAX, RECENT_RECORDS_MAX, fold
from shoal.load.fold_state import FoldState
from shoal.load.record import TelemetryRecord, encode
from shoal.load.reports import BATCH_SCHEMA, entries_to_batch
from shoal.load_kinds import KINDS

# -- garbage and limits ----------------------------------------------------------------------------------------------


def entry(made: TelemetryRecord) -> tuple[bytes, bytes]:
    return made.id.encode(), encode(made)


def test_garbage_is_counted_and_skipped() -> None:
    reader = settled("one")
    good, other = record("one", T, ONE), record("one", T + 1, ONE)
    rows = [
        (b"no id", entry(good)[1]),
        (good.id.encode(), b""),
        (good.id.encode(), b"not a record"),
        (good.id.encode(), entry(good)[1][:-40]),
        (good.id.encode(), entry(other)[1]),
        entry(record("one", T, ONE, sequence=1, bandwidth=float("nan"))),
        entry(record("one", T, ONE, sequence=2, cpu_share=-1.0)),
        entry(record("one", T, ONE, sequence=3, interval_s=0.0)),
        entry(record("one", T, ONE, sequence=4, interval_s=float("inf"))),
    ]
    for row in rows:
        reader.fold(entries_to_batch([row], T + 1.1), T + 1.1)
    assert reader.state.counters.garbage == len(rows)
    reader.fold(entries_to_batch([rows[1], entry(good), rows[2], entry(other)], T + 2.1), T + 2.1)
    assert units_of(reader.window(T))["one", b"c"]["publications"] == 10.0
    assert reader.state.counters.garbage == len(rows) + 2


@given(rows=st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=60)), max_size=5))
def test_no_garbage_is_fatal(rows: list[tuple[bytes, bytes]]) -> None:
    windows, state = fold(FoldState(), entries_to_batch(rows, float(T)), float(T), SETTINGS, KINDS)
    assert not windows
    assert state.counters.garbage == len(rows)


def test_rows_with_nulls_or_without_a_time_are_garbage() -> None:
    whole = records_to_batch([(record("one", T, ONE), T + 1.1)]).to_pylist()[0]
    rows = [whole | {name: None} for name in BATCH_SCHEMA.names] + [whole | {"arrived_s": float("nan")}]
    _, state = fold(FoldState(), pa.RecordBatch.from_pylist(rows, schema=BATCH_SCHEMA), T + 1.1, SETTINGS, KINDS)
    assert state.counters.garbage == len(rows)


def test_silent_hosts_are_forgotten_and_new_ones_refused_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.load.fold.HOSTS_MAX", 2)
    reader = settled("one", "two")
    reader.read(T + 1.1, record("three", T, ONE))
    assert reader.state.counters.refused == 1
    reader.read(T + HOST_SILENT_S_MAX + 1.1)
    assert not reader.state.hosts
    reader.read(T + 101.1, record("three", T + 100, ONE))
    assert list(reader.state.hosts) == ["three"]


def test_reports_of_a_forgotten_host_still_count() -> None:
    reader = Reader(BalanceSettings(window_s=2, lateness_s=100.0))
    reader.read(T + 2.1, record("one", T, ONE), record("one", T + 1, ONE))
    reader.read(T + 90.0)
    assert not reader.state.hosts
    reader.read(T + 102.0)
    assert hosts_of(reader.window(T))["one"]["seconds"] == 2


def test_the_state_is_bounded() -> None:
    reader = Reader(BalanceSettings(window_s=2, lateness_s=10_000.0))
    reader.run((second + 1.1, record("one", second, ONE)) for second in range(T, T + 300))
    assert len(reader.state.pending) <= PENDING_S_MAX
    assert len(reader.state.hosts["one"].recent) == RECENT_RECORDS_MAX
    assert reader.windows[0].start_s == T


# -- properties ------------------------------------------------------------------------------------------------------

records = st.builds(
    record,
    host=st.sampled_from(["one", "two", "three"]),
    second=st.integers(T, T + 5),
    channels=st.dictionaries(
        st.sampled_from([b"", b"c", b"d", b"\xff"]),
        st.fixed_dictionaries({"publications": st.integers(0, 99), "subscribers": st.integers(0, 9)}),
        max_size=3,
    ),
    instance=st.sampled_from(["a", "b"]),
    sequence=st.integers(1, 4),
    interval_s=st.sampled_from([None, 0.4, 1.0, 1.6, 2.0, 3.1]),
)


def tell_apart(made: list[TelemetryRecord]) -> list[TelemetryRecord]:
    """One record for each id, because ids are unique."""
    return list({each.id: each for each in made}.values())


@given(made=st.lists(records, max_size=12).map(tell_apart), seed=st.integers(0, 99), cuts=st.integers(1, 4))
@settings(deadline=None)
def test_order_batches_and_repeats_inside_the_lateness_make_no_difference(
    made: list[TelemetryRecord], seed: int, cuts: int
) -> None:
    late = BalanceSettings(window_s=2, lateness_s=100.0)
    whole, state = fold(FoldState(), records_to_batch((each, T + 9.0) for each in made), T + 9.0, late, KINDS)
    assert not whole
    whole, _ = fold(state, records_to_batch([]), T + 200.0, late, KINDS)
    mixed = made + made[: len(made) // 2]
    random.Random(seed).shuffle(mixed)
    reader = Reader(late)
    for cut in range(cuts):
        reader.read(T + 9.0, *mixed[cut::cuts])
        reader.state = FoldState.from_bytes(reader.state.to_bytes())
    reader.read(T + 200.0)
    assert reader.windows == whole
    assert reader.state.counters.duplicates == len(mixed) - len(made)


@given(made=st.lists(records, max_size=8).map(tell_apart))
@settings(max_examples=40, deadline=None)
def test_the_fold_does_not_change_its_inputs(made: list[TelemetryRecord]) -> None:
    before = settled("one").state
    data = before.to_bytes()
    first = fold(before, records_to_batch((each, T + 7.0) for each in made), T + 7.0, SETTINGS, KINDS)
    assert before.to_bytes() == data
    again = fold(before, records_to_batch((each, T + 7.0) for each in made), T + 7.0, SETTINGS, KINDS)
    assert first[0] == again[0]
    assert first[1].to_bytes() == again[1].to_bytes()


@given(
    made=st.lists(records, max_size=12).map(tell_apart),
    shown=st.lists(st.floats(0, 9), min_size=12, max_size=12),
)
@settings(deadline=None)
def test_nothing_is_counted_twice_and_windows_never_overlap(made: list[TelemetryRecord], shown: list[float]) -> None:
    reader = Reader()
    reader.run((T + at, each) for at, each in zip(shown, made, strict=False))
    reader.read(T + 300.0)
    starts = [window.start_s for window in reader.windows]
    assert starts == sorted(set(starts))
    assert not reader.state.pending
    counters = reader.state.counters
    assert counters.taken + counters.late + counters.early == len(made)
    for window in reader.windows:
        assert window.start_s % SETTINGS.window_s == 0
        for row in window.table.to_pylist():
            assert 1 <= row["seconds"] <= SETTINGS.window_s
    spoken = [(host, window.start_s) for window in reader.windows for host in hosts_of(window)]
    assert len(spoken) == len(set(spoken))


@given(made=st.lists(records, max_size=8).map(tell_apart))
@settings(max_examples=40, deadline=None)
def test_the_state_survives_bytes_and_pickle(made: list[TelemetryRecord]) -> None:
    _, state = fold(FoldState(), records_to_batch((each, T + 7.0) for each in made), T + 4.0, SETTINGS, KINDS)
    for copy in (FoldState.from_bytes(state.to_bytes()), pickle.loads(pickle.dumps(state))):
        assert copy.to_bytes() == state.to_bytes()
        assert (
            fold(copy, records_to_batch([]), T + 99.0, SETTINGS, KINDS)[0]
            == (fold(state, records_to_batch([]), T + 99.0, SETTINGS, KINDS)[0])
        )


@pytest.mark.parametrize("version", [2, 4])
def test_a_state_of_another_version_is_refused(version: int) -> None:
    fields = msgspec.msgpack.decode(settled("one").state.to_bytes())
    with pytest.raises(ProtocolError, match=f"version {version}; this process knows version 3"):
        FoldState.from_bytes(msgspec.msgpack.encode([version, *fields[1:-1]]))


@given(st.binary(max_size=100))
def test_invalid_states_are_refused(garbage: bytes) -> None:
    with pytest.raises(ProtocolError):
        FoldState.from_bytes(garbage)
    whole = FoldState().to_bytes()
    with pytest.raises(ProtocolError):
        FoldState.from_bytes(whole[: len(garbage) % len(whole)])
