"""Virtual time and randomness of the simulator."""

from __future__ import annotations

import pytest

from shoal.lab.sim.world.world import EventBudgetExceededError, World


def test_events_run_in_order_of_time_then_of_scheduling() -> None:
    world = World(1)
    seen: list[str] = []
    world.at(2.0, seen.append, "late")
    world.at(1.0, seen.append, "first")
    world.at(1.0, seen.append, "second")
    world.run(1.0)
    assert seen == ["first", "second"]
    assert world.now == 1.0
    world.run(5.0)
    assert seen == ["first", "second", "late"]
    assert world.now == 5.0


def test_events_scheduled_in_the_past_run_now_and_time_does_not_go_back() -> None:
    world = World(1)
    seen: list[float] = []
    world.at(3.0, lambda: world.at(1.0, lambda: seen.append(world.now)))
    world.run(4.0)
    assert seen == [3.0]


def test_a_cancelled_event_does_not_run() -> None:
    world = World(1)
    seen: list[int] = []
    event = world.after(1.0, seen.append, 1)
    assert event.pending
    event.cancel()
    event.cancel()
    world.run(2.0)
    assert seen == []
    assert world.events_run == 0


def test_another_draw_from_one_stream_does_not_change_the_others() -> None:
    one, other = World(7), World(7)
    one.rng("faults").random()
    assert one.rng("delays").random() == other.rng("delays").random()
    assert World(8).rng("delays").random() != World(7).rng("delays").random()


def test_an_endless_loop_is_reported_with_its_seed_and_callback() -> None:
    world = World(42, events_max=100)

    def again() -> None:
        world.after(0.0, again)

    again()
    with pytest.raises(EventBudgetExceededError, match=r"seed 42: more than 100 events.*again"):
        world.run(1.0)


def test_the_trace_is_kept_only_when_asked_for() -> None:
    silent, kept = World(1), World(1, trace=True)
    for world in (silent, kept):
        world.at(1.5, world.note, "hello", 1)
        world.run(2.0)
    assert silent.trace is None
    assert kept.trace == [(1.5, "hello", 1)]
