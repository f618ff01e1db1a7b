"""The fold: when windows close, and the effect of wrong clocks."""

from __future__ import annotations

import pytest
from tests.load.fold_reader import ONE, Reader, T, settled
from tests.load.telemetry_samples import hosts_of, record, units_of

from shoal.balance.settings import BalanceSettings
from shoal.load.clocks import SKEW_S_MAX
from shoal.load.fold import EXPECTED_WINDOWS, PENDING_S_MAX
from shoal.load.window import LoadWindow

# -- when windows close ----------------------------------------------------------------------------------------------


def test_a_window_closes_as_soon_as_all_expected_hosts_have_reported_its_end() -> None:
    reader = settled("one", "two")
    reader.read(T + 2.05, record("one", T, ONE), record("one", T + 1, ONE), record("two", T, ONE))
    assert not reader.windows
    reader.read(T + 2.06, record("two", T + 1, ONE))
    assert set(hosts_of(reader.window(T))) == {"one", "two"}


def test_while_no_host_is_expected_a_window_waits_for_its_lateness() -> None:
    reader = Reader()
    reader.read(T + 2.1, record("one", T, ONE), record("one", T + 1, ONE))
    reader.read(T + 3.0, record("two", T + 1, ONE))
    assert not reader.windows
    reader.read(T + 3.5)
    assert set(hosts_of(reader.window(T))) == {"one", "two"}


def test_windows_wait_for_a_dead_host_a_few_times_only() -> None:
    reader = settled("one", "dead")
    delays = []
    for start_s in range(T, T + 12, 2):
        reader.read(start_s + 2.1, record("one", start_s, ONE), record("one", start_s + 1, ONE))
        delays.append(not reader.windows or reader.windows[-1].start_s != start_s)
        reader.read(start_s + 3.5)
        assert reader.windows[-1].start_s == start_s
    assert delays == [True] * EXPECTED_WINDOWS + [False] * (6 - EXPECTED_WINDOWS)


@pytest.mark.parametrize("window_s", [1, 2])
def test_windows_wait_for_a_new_host_that_is_always_last_after_it_was_missed(window_s: int) -> None:
    reader = settled("one", settings=BalanceSettings(window_s=window_s, lateness_s=1.5))
    for second in range(T, T + 8):
        reader.read(second + 1.1, record("one", second, ONE))
        reader.read(second + 1.4, record("slow", second, ONE))
    for start_s in range(T + 2, T + 8, window_s):
        assert hosts_of(reader.window(start_s))["slow"]["seconds"] == window_s
    assert reader.state.counters.late <= 1


def test_windows_come_oldest_first_and_an_interval_without_records_gives_none() -> None:
    reader = settled("one")
    reader.read(T + 9.1, *(record("one", second, ONE) for second in (T + 8, T, T + 2)))
    reader.read(T + 20.0)
    assert [window.start_s for window in reader.windows] == [T, T + 2, T + 8]


def test_all_records_count_after_the_reader_stalled() -> None:
    reader = settled("one", "two")
    backlog = [record(host, second, ONE) for host in ("two", "one") for second in range(T, T + 40)]
    reader.read(T + 40.1, *backlog)
    assert [window.start_s for window in reader.windows] == list(range(T, T + 40, 2))
    assert all(hosts_of(window)["two"]["seconds"] == 2 for window in reader.windows)


def test_a_new_fold_accepts_only_recent_records() -> None:
    reader = Reader()
    reader.read(T + 0.1, *(record("one", second, ONE) for second in range(T - 600, T)))
    assert reader.windows[0].start_s == T - PENDING_S_MAX
    assert reader.state.counters.late == 600 - PENDING_S_MAX


def test_an_interval_of_another_length_continues_after_the_last_one() -> None:
    reader = settled("one")
    reader.read(T + 1.1, record("one", T, ONE))
    reader.settings = BalanceSettings(window_s=5, lateness_s=1.5)
    reader.run((second + 1.1, record("one", second, ONE)) for second in range(T + 1, T + 10))
    assert [(window.start_s, hosts_of(window)["one"]["seconds"]) for window in reader.windows] == [(T, 5), (T + 5, 5)]


# -- clocks ----------------------------------------------------------------------------------------------------------


def marked(second: int) -> dict[bytes, dict[str, int]]:
    """A channel whose publications encode the real second."""
    return {b"c": {"publications": second - T}}


def seconds_of_skewed(skew_s: int, until: int = 40) -> tuple[Reader, list[LoadWindow]]:
    """The last windows of a host with a correct clock and one whose clock is ahead by this much."""
    reader = Reader()
    arrivals = []
    for second in range(T, T + until):
        arrivals.append((second + 1.1, record("right", second, marked(second))))
        arrivals.append((second + 1.2, record("wrong", second + skew_s, marked(second))))
    reader.run(arrivals)
    return reader, reader.windows[-8:]


@pytest.mark.parametrize("skew_s", [-SKEW_S_MAX + 1, -7, -2, 0, 2, 7, SKEW_S_MAX - 1])
def test_a_window_has_the_same_real_time_of_a_host_with_a_wrong_clock(skew_s: int) -> None:
    _, windows = seconds_of_skewed(skew_s)
    for window in windows:
        units = units_of(window)
        assert units["right", b"c"]["publications"] == window.start_s - T + 0.5
        assert units["wrong", b"c"]["publications"] == pytest.approx(window.start_s - T + 0.5, abs=1.0)
        assert units["wrong", b"c"]["seconds"] == 2


@pytest.mark.parametrize("skew_s", [-86_400, -SKEW_S_MAX - 10, SKEW_S_MAX + 10, 86_400, 2**40])
def test_a_wild_clock_neither_stalls_windows_nor_closes_them_early(skew_s: int) -> None:
    reader, windows = seconds_of_skewed(skew_s)
    assert [window.start_s for window in windows] == list(range(T + 24, T + 40, 2))
    for window in windows:
        assert set(hosts_of(window)) == {"right"}
        assert hosts_of(window)["right"]["complete"]
    counters = reader.state.counters
    assert counters.late + counters.early == 40
    assert not any(host == "wrong" for pieces in reader.state.pending.values() for host in pieces)


def test_a_clock_that_goes_wild_later_makes_others_wait_for_a_few_windows_only() -> None:
    reader = settled("right", "wrong")
    closed_at = {}
    for second in range(T, T + 20):
        reader.read(second + 1.1, record("wrong", second + 5000, ONE))
        for window in reader.read(second + 1.2, record("right", second, ONE)):
            closed_at[window.start_s] = second + 1.2
    assert closed_at[T + 16] == pytest.approx(T + 18.2)
    assert hosts_of(reader.window(T + 16))["right"]["complete"]


def test_a_backlog_is_not_taken_for_a_clock_that_is_behind() -> None:
    reader = Reader()
    reader.read(T + 20.1, *(record("one", second, marked(second)) for second in range(T, T + 5)))
    reader.read(T + 20.2, *(record("one", second, marked(second)) for second in range(T + 5, T + 20)))
    reader.run((second + 1.1, record("one", second, marked(second))) for second in range(T + 20, T + 30))
    assert reader.state.hosts["one"].clock.shift_s == 0
    for start_s in range(T + 20, T + 30, 2):
        unit = units_of(reader.window(start_s))["one", b"c"]
        assert (unit["publications"], unit["seconds"]) == (start_s - T + 0.5, 2)


def test_a_corrected_clock_is_detected() -> None:
    reader = Reader()
    arrivals = [(second + 1.1, record("one", second + 9, ONE, sequence=second)) for second in range(T, T + 20)]
    arrivals += [(second + 1.1, record("one", second, ONE, sequence=second)) for second in range(T + 20, T + 50)]
    reader.run(arrivals)
    assert reader.state.hosts["one"].clock.shift_s == 0
    assert hosts_of(reader.windows[-1])["one"]["complete"]
