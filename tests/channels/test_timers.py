"""Timers: each name has one deadline, handed out once, in order, when the time that the core is given has come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.channels.timers import Timers


def test_nothing_is_due_before_its_time() -> None:
    timers = Timers()
    timers.set("a", 5.0)
    assert list(timers.due(4.999)) == []
    assert list(timers.due(5.0)) == ["a"]
    assert list(timers.due(99.0)) == []


def test_what_is_due_comes_in_order() -> None:
    timers = Timers()
    for name, at in (("late", 3.0), ("early", 1.0), ("middle", 2.0)):
        timers.set(name, at)
    assert list(timers.due(10.0)) == ["early", "middle", "late"]


def test_equal_deadlines_come_in_the_order_in_which_they_were_set() -> None:
    timers = Timers()
    for number in range(10):
        timers.set(number, 1.0)
    assert list(timers.due(1.0)) == list(range(10))


def test_setting_again_replaces_later_or_earlier() -> None:
    timers = Timers()
    timers.set("a", 1.0)
    timers.set("a", 5.0)
    assert timers.next_at() == 5.0
    assert list(timers.due(4.0)) == []
    timers.set("a", 4.5)
    assert timers.next_at() == 4.5
    assert list(timers.due(9.0)) == ["a"]


def test_set_if_absent_keeps_what_is_there() -> None:
    timers = Timers()
    timers.set_if_absent("a", 1.0)
    timers.set_if_absent("a", 0.5)
    assert timers.next_at() == 1.0


def test_a_cancelled_deadline_does_not_come() -> None:
    timers = Timers()
    timers.set("a", 1.0)
    timers.cancel("a")
    timers.cancel("never set")
    assert timers.next_at() is None
    assert list(timers.due(9.0)) == []
    assert len(timers) == 0


def test_a_duty_may_set_itself_again_while_others_are_due() -> None:
    timers = Timers()
    timers.set("a", 1.0)
    timers.set("b", 1.0)
    seen = []
    for name in timers.due(1.0):
        seen.append(name)
        if name == "a" and seen.count("a") < 3:
            timers.set("a", 1.0)
    assert sorted(map(str, seen)) == ["a", "a", "a", "b"]


@given(
    script=st.lists(
        st.tuples(st.sampled_from(["set", "absent", "cancel", "due"]), st.integers(0, 4), st.integers(0, 20))
    )
)
def test_timers_are_a_table_of_names_and_deadlines(script: list[tuple[str, int, int]]) -> None:
    timers, model = Timers(), dict[int, int]()
    for action, name, at in script:
        if action == "set":
            timers.set(name, at)
            model[name] = at
        elif action == "absent":
            timers.set_if_absent(name, at)
            model.setdefault(name, at)
        elif action == "cancel":
            timers.cancel(name)
            model.pop(name, None)
        else:
            due = list(timers.due(at))
            assert set(due) == {other for other, deadline in model.items() if deadline <= at}
            assert len(due) == len(set(due))
            deadlines = [model.pop(other) for other in range(5) if other in due]
            assert len(deadlines) == len(due)
        assert len(timers) == len(model)
        assert timers.next_at() == min(model.values(), default=None)
