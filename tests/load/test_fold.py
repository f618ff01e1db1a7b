"""The fold: which records count, for which second, and how they are summed up."""

from __future__ import annotations

import pytest
from tests.load.fold_reader import ONE, T, settled
from tests.load.telemetry_samples import hosts_of, record, units_of

from shoal.channels.telemetry.channel_kind import CHANNEL, SERVER
from shoal.load.fold_state import FoldState
from shoal.load.kinds import Kinds
from shoal.load_kinds import KINDS

# -- sums ------------------------------------------------------------------------------------------------------------


OF_QUEUES = {*KINDS.figures} - {*Kinds((CHANNEL,), (SERVER,)).figures}


def test_a_window_holds_rates_and_the_largest_counts() -> None:
    reader = settled("one")
    more = {
        b"c": {"publications": 30, "forwarded": 4, "bytes_out": 300, "bytes_in": 8, "subscribers": 1, "publishers": 5}
    }
    reader.read(T + 1.1, record("one", T, ONE, bandwidth=1000.0, cpu_share=0.2))
    (window,) = reader.read(T + 2.1, record("one", T + 1, more | {b"d": {}}, bandwidth=3000.0, cpu_share=0.4))
    assert (window.start_s, window.end_s) == (T, T + 2)
    assert {name: value for name, value in units_of(window)["one", b"c"].items() if name not in OF_QUEUES} == {
        "kind": "channel",
        "unit": b"c",
        "host": "one",
        "host_kind": "server",
        "site": None,
        "seconds": 2,
        "publications": 20.0,
        "forwarded": 2.0,
        "messages_sent": 15.0,
        "bytes_in": 4.0,
        "bytes_out": 200.0,
        "publishers": 5,
        "subscribers": 3,
        "pattern_subscribers": 0,
        "capacity_bytes_per_s": None,
        "bandwidth_bytes_per_s": None,
        "cpu_share": None,
        "connections": None,
        "complete": True,
    }
    assert units_of(window)["one", b"d"]["publications"] == 0.0
    host = hosts_of(window)["one"]
    assert host["bandwidth_bytes_per_s"] == 2000.0
    assert host["cpu_share"] == pytest.approx(0.3)
    assert (host["capacity_bytes_per_s"], host["connections"], host["complete"]) == (10_000.0, 7, True)
    assert (host["publications"], host["bytes_out"], host["publishers"]) == (20.0, 200.0, None)


def test_a_channel_on_two_hosts_has_two_rows() -> None:
    reader = settled("one", "two")
    reader.read(T + 2.1, *(record(host, second, ONE) for host in ("one", "two") for second in (T, T + 1)))
    assert set(units_of(reader.window(T))) == {("one", b"c"), ("two", b"c")}


def test_an_unknown_capacity_is_null_and_uncounted_items_make_a_row_incomplete() -> None:
    reader = settled("one")
    odd = {b"c": {"complete": False}, b"d": {}}
    reader.read(T + 2.1, record("one", T, ONE), record("one", T + 1, odd, capacity=0.0, uncounted=1))
    window = reader.window(T)
    assert hosts_of(window)["one"]["capacity_bytes_per_s"] is None
    assert not hosts_of(window)["one"]["complete"]
    assert not units_of(window)["one", b"c"]["complete"]
    assert units_of(window)["one", b"d"]["complete"]


# -- missing, late, duplicate ----------------------------------------------------------------------------------------


def test_a_missing_second_does_not_change_the_rate() -> None:
    reader = settled("one", "two")
    reader.read(T + 2.1, record("one", T, ONE), record("one", T + 1, ONE), record("two", T + 1, ONE))
    units = units_of(reader.window(T))
    assert units["one", b"c"]["publications"] == units["two", b"c"]["publications"] == 10.0
    assert (units["one", b"c"]["seconds"], units["two", b"c"]["seconds"]) == (2, 1)
    hosts = hosts_of(reader.window(T))
    assert (hosts["one"]["complete"], hosts["two"]["complete"]) == (True, False)


def test_a_host_without_reports_is_absent() -> None:
    reader = settled("one", "two")
    reader.read(T + 2.1, record("one", T, ONE), record("one", T + 1, ONE))
    assert not reader.windows
    reader.read(T + 3.5)
    assert set(hosts_of(reader.window(T))) == {"one"}


def test_late_records_count_until_the_window_is_closed_and_are_counted_as_late_then() -> None:
    reader = settled("one", "two")
    reader.read(T + 2.1, record("one", T, ONE), record("one", T + 1, ONE))
    reader.read(T + 3.4, record("two", T, ONE))
    assert not reader.windows
    reader.read(T + 3.5)
    assert set(hosts_of(reader.window(T))) == {"one", "two"}
    assert reader.state.counters.late == 0
    reader.read(T + 3.6, record("two", T + 1, ONE))
    assert reader.state.counters.late == 1
    assert len(reader.windows) == 1


def test_records_of_an_interval_that_passed_without_any_are_late_too() -> None:
    reader = settled("one")
    reader.read(T + 9.0)
    reader.read(T + 9.0, record("one", T, ONE), record("one", T + 1, ONE))
    assert not reader.windows
    assert reader.state.counters.late == 2


def test_a_duplicate_counts_once_in_one_batch_in_two_and_after_a_restart_of_the_reader() -> None:
    reader = settled("one")
    first, second = record("one", T, ONE), record("one", T + 1, ONE)
    reader.read(T + 1.1, first, first)
    reader.read(T + 1.2, first)
    assert reader.state.counters.duplicates == 2
    reader.state = FoldState.from_bytes(reader.state.to_bytes())
    reader.read(T + 2.1, first, second, second)
    assert reader.state.counters.duplicates == 4
    assert units_of(reader.window(T))["one", b"c"]["publications"] == 10.0


def test_the_same_second_under_another_sequence_is_not_a_duplicate_and_one_of_them_counts() -> None:
    reader = settled("one")
    twice = {b"c": {"publications": 50}}
    reader.read(T + 1.1, record("one", T, ONE, sequence=7), record("one", T, twice, sequence=8))
    reader.read(T + 2.1, record("one", T + 1, twice, sequence=9))
    assert units_of(reader.window(T))["one", b"c"]["publications"] == 50.0
    assert (reader.state.counters.duplicates, reader.state.counters.overlapping) == (0, 1)


# -- restarted agents and servers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sequence", [1, 9])
@pytest.mark.parametrize("order", [1, -1])
def test_of_two_instances_the_one_that_measured_counts(order: int, sequence: int) -> None:
    reader = settled("one")
    old = record("one", T, {b"c": {"publications": 10}}, instance="old", sequence=5)
    new = record("one", T, {b"c": {"publications": 2}}, instance="new", sequence=sequence, interval_s=None)
    later = record("one", T + 1, {b"c": {"publications": 10}}, instance="new", sequence=sequence + 1)
    reader.read(T + 2.1, *[old, new, later][::order])
    assert units_of(reader.window(T))["one", b"c"]["publications"] == 10.0
    assert hosts_of(reader.window(T))["one"]["seconds"] == 2
    assert reader.state.counters.overlapping == 1


def test_of_two_instances_that_measured_the_longer_running_one_counts() -> None:
    reader = settled("one")
    for second in (T, T + 1):
        reader.read(
            second + 1.1,
            record("one", second, {b"c": {"publications": 10}}, instance="a", sequence=second),
            record("one", second, {b"c": {"publications": 9}}, instance="b", sequence=2),
        )
    assert units_of(reader.window(T))["one", b"c"]["publications"] == 10.0


def test_records_of_a_restarted_analyzer_count() -> None:
    reader = settled("one")
    reader.read(T + 1.1, record("one", T, ONE, instance="a", sequence=1))
    reader.read(T + 2.1, record("one", T + 1, ONE, instance="b", sequence=1))
    assert units_of(reader.window(T))["one", b"c"]["seconds"] == 2
    assert reader.state.counters.duplicates == 0


def test_a_server_that_was_restarted_has_rates_from_its_measured_seconds_only() -> None:
    reader = settled("one")
    first = record("one", T, {b"c": {"publications": 4}}, interval_s=None)
    reader.read(T + 2.1, first, record("one", T + 1, ONE, bandwidth=500.0, cpu_share=0.3))
    host = hosts_of(reader.window(T))["one"]
    assert (host["bandwidth_bytes_per_s"], host["cpu_share"], host["complete"]) == (500.0, 0.3, False)
    assert units_of(reader.window(T))["one", b"c"]["publications"] == 7.0
    reader.read(T + 4.1, *(record("one", second, ONE, interval_s=None) for second in (T + 2, T + 3)))
    host = hosts_of(reader.window(T + 2))["one"]
    assert (host["bandwidth_bytes_per_s"], host["cpu_share"], host["seconds"]) == (None, None, 2)


# -- a record of two seconds -----------------------------------------------------------------------------------------


def test_a_record_that_covers_two_seconds_counts_for_both() -> None:
    reader = settled("one")
    reader.read(T + 2.1, record("one", T, {b"c": {"publications": 42}}, interval_s=2.1))
    unit = units_of(reader.window(T))["one", b"c"]
    assert unit["publications"] == pytest.approx(20.0)
    assert unit["seconds"] == 2


def test_a_record_that_covers_two_windows_gives_each_its_part() -> None:
    reader = settled("one")
    reader.read(T + 1.1, record("one", T, {b"c": {"publications": 10}}))
    reader.read(T + 3.1, record("one", T + 1, {b"c": {"publications": 60}}, interval_s=2.0))
    reader.read(T + 4.1, record("one", T + 3, {b"c": {"publications": 10}}))
    for start_s in (T, T + 2):
        unit = units_of(reader.window(start_s))["one", b"c"]
        assert (unit["publications"], unit["seconds"]) == (20.0, 2)


def test_a_record_that_names_a_second_takes_precedence_over_one_that_also_covers_it() -> None:
    reader = settled("one")
    old = record("one", T, {b"c": {"publications": 16}}, interval_s=1.6, instance="old", sequence=99)
    reader.read(T + 1.6, old)
    reader.read(T + 2.1, record("one", T + 1, {b"c": {"publications": 4}}, interval_s=0.4, instance="new", sequence=2))
    unit = units_of(reader.window(T))["one", b"c"]
    assert unit["seconds"] == 2
    assert unit["publications"] == pytest.approx(10.0)


def test_the_first_record_of_a_paused_agent_covers_the_pause() -> None:
    reader = settled("one", "two")
    reader.read(T + 1.1, record("one", T, {b"c": {"publications": 7}}))
    reader.run((second + 1.1, record("two", second, ONE)) for second in range(T, T + 4))
    away = record("one", T + 4, {b"c": {"publications": 50}}, interval_s=5.0)
    reader.read(T + 5.1, away, record("two", T + 4, ONE))
    reader.read(T + 6.1, *(record(host, T + 5, {b"c": {"publications": 20}}) for host in ("one", "two")))
    assert reader.state.hosts["one"].clock.shift_s == 0
    rates = [units_of(reader.window(start_s))["one", b"c"]["publications"] for start_s in (T, T + 2, T + 4)]
    assert rates == [7.0, 10.0, 15.0]
    assert reader.state.counters.early == 0


def test_a_reported_second_is_not_replaced_by_a_record_that_covers_earlier_seconds() -> None:
    reader = settled("one", "two")
    reader.read(T + 1.1, record("one", T, {b"c": {"publications": 7}}))
    reader.read(T + 2.1, record("one", T + 1, {b"c": {"publications": 30}}, interval_s=3.0))
    reader.read(T + 3.5)
    assert units_of(reader.window(T))["one", b"c"]["publications"] == 8.5


def test_after_a_long_pause_only_the_last_seconds_count() -> None:
    reader = settled("one")
    reader.read(T + 500.1, record("one", T, {b"c": {"publications": 5000}}, interval_s=500.0))
    assert reader.windows[0].start_s == T + 440
    assert all(units_of(window)["one", b"c"]["publications"] == pytest.approx(10.0) for window in reader.windows)
