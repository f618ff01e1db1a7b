"""The switch between own windows and Spark's: each interval once, in order, and bounded stalls."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.balance.window_source import LATE_S_MAX, WARM_AGAIN_WINDOWS, WARM_WINDOWS, Way, WindowSource
from shoal.load.window import LoadWindow, window_schema
from shoal.load_kinds import KINDS

LENGTH = 2
EMPTY = window_schema(KINDS).empty_table()


def window(number: int) -> LoadWindow:
    return LoadWindow(number * LENGTH, (number + 1) * LENGTH, EMPTY)


def numbers(windows: list[LoadWindow]) -> list[int]:
    return [found.start_s // LENGTH for found in windows]


def warm(source: WindowSource, first: int = 0, count: int = WARM_WINDOWS) -> int:
    """Both sources deliver in time until Spark is in use; returns the next interval."""
    for number in range(first, first + count):
        end_s = (number + 1) * LENGTH
        assert numbers(source.step([window(number)], [], end_s + 0.3)) == [number]
        assert source.step([], [window(number)], end_s + 1.2) == []
    assert source.route.way is Way.SPARK
    return first + count


def test_own_windows_are_used_immediately_until_spark_is_warm() -> None:
    source = WindowSource(0.0, wanted=True)
    assert source.route.way is Way.IN_PROCESS
    assert "not warm" in source.route.why
    warm(source)


def test_spark_windows_are_used_once_it_is_warm_and_own_ones_are_held() -> None:
    source = WindowSource(0.0, wanted=True)
    number = warm(source)
    end_s = (number + 1) * LENGTH
    assert source.step([window(number)], [], end_s + 0.3) == []
    assert numbers(source.step([], [window(number)], end_s + 1.2)) == [number]


def test_a_stall_falls_back_within_the_limit_and_nothing_is_left_out() -> None:
    source = WindowSource(0.0, wanted=True)
    number = warm(source)
    end_s = (number + 1) * LENGTH
    assert source.step([window(number)], [], end_s + 0.3) == []
    assert source.step([window(number + 1)], [], end_s + 2.3) == []
    assert numbers(source.step([], [], end_s + LATE_S_MAX + 0.1)) == [number, number + 1]
    assert source.route.way is Way.IN_PROCESS
    assert "6 s after the end" in source.route.why
    assert numbers(source.step([], [window(number)], end_s + 7)) == []


def test_a_dead_job_causes_an_immediate_fall_back() -> None:
    source = WindowSource(0.0, wanted=True)
    number = warm(source)
    assert numbers(source.step([window(number)], [], (number + 1) * LENGTH + 0.3, alive=False)) == [number]
    assert source.route.why == "the Spark job has died"


def test_after_a_failure_more_windows_must_arrive_in_time() -> None:
    source = WindowSource(0.0, wanted=True)
    number = warm(source)
    source.step([window(number)], [], (number + 1) * LENGTH, alive=False)
    warm(source, number + 1, WARM_AGAIN_WINDOWS)


def test_late_windows_do_not_warm() -> None:
    source = WindowSource(0.0, wanted=True)
    for number in range(10):
        source.step([window(number)], [window(number)], (number + 1) * LENGTH + LATE_S_MAX + 1)
    assert source.route.way is Way.IN_PROCESS


def test_an_interval_that_spark_skips_comes_from_the_own_fold() -> None:
    source = WindowSource(0.0, wanted=True)
    number = warm(source)
    end_s = (number + 2) * LENGTH
    found = source.step([window(number), window(number + 1)], [window(number + 1)], end_s + 1)
    assert numbers(found) == [number, number + 1]


Event = tuple[str, int, float]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[float, list[int], list[int], bool | None]]:
    """Rounds, each a little later: the windows of both sources, and whether the job is alive."""
    now_s, own, spark = 0.0, 0, 0
    turns = []
    for _ in range(draw(st.integers(1, 60))):
        now_s += draw(st.sampled_from((0.1, 0.5, 1.0, 2.0)))
        closed = int(now_s // LENGTH)
        news = list(range(own, closed))
        own = closed
        skipped = draw(st.integers(0, 2)) if draw(st.booleans()) else 0
        upto = draw(st.integers(spark, max(spark, closed)))
        come = list(range(min(spark + skipped, upto), upto))
        spark = upto
        again = draw(st.lists(st.integers(0, max(0, spark)), max_size=2))
        turns.append((now_s, news, [*come, *again], draw(st.sampled_from((None, None, True, True, False)))))
    return turns


@settings(max_examples=75, deadline=None)
@given(histories())
def test_each_interval_is_used_once_in_order_and_no_stall_lasts(
    turns: list[tuple[float, list[int], list[int], bool | None]],
) -> None:
    source = WindowSource(0.0, wanted=True)
    used: list[int] = []
    offered: list[int] = []
    for now_s, own, spark, alive in turns:
        used += numbers(source.step(map(window, own), map(window, spark), now_s, alive=alive))
        offered += own
        assert used == sorted(set(used))
        # Own windows are used immediately, or within the limit after their end.
        due = [number for number in offered if now_s - (number + 1) * LENGTH > LATE_S_MAX]
        assert {*due} <= {*used} | {number for number in due if used and number < min(used)}
        if alive is False or source.route.way is Way.IN_PROCESS:
            assert {*offered} <= {*used} | {number for number in offered if used and number < min(used)}
