"""What processes of an engine measure, and the load that comes of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.lone_engine import LoneEngine

from shoal.engine.engine_report import EngineReport, decode_report, encode_report
from shoal.engine.event_waits import BOUNDS_MS, GROWTH, EventWaits, quantile_ms
from shoal.engine.links import Status, decode_to_head, encode
from shoal.engine.load_meter import WINDOW_S, EngineLoadMeter, Reading
from shoal.engine.measures import Measures, Meter
from shoal.engine.messages import Add, Event, Letter, Open, Ready
from shoal.filters import encode_event, parse
from shoal.limits import DEFAULT_LIMITS
from shoal.load.engine_load import EngineLoad, ProcessLoad

LIMITS = msgspec.structs.replace(DEFAULT_LIMITS, engine_roll_s=0.0)
_wire = msgspec.msgpack.Encoder().encode


class Clock:
    """A CPU that takes a second between two readings."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return float(self.reads)


def test_operators_are_measured_separately_and_not_for_each_event() -> None:
    clock = Clock()
    meter = Meter(clock)
    engine = LoneEngine(1, 0, LIMITS, 0.0, meter=meter)
    engine.lease_until = 1e9
    engine.turn(0.0)
    engine.serve()
    engine.turn(0.0)
    filters = [(1, _wire(parse("a > 0"))), (2, _wire(parse("a > 1")))]
    engine.received(7, Letter(7, 1, [Open(7), Add(filters), Ready()]))
    posts = engine.turn(1.0)
    assert meter.changed == 2
    before, reads = meter.read(), clock.reads
    events = [Event(number, 0, encode_event({"a": number}), b"") for number in range(1, 101)]
    engine.received(7, Letter(7, 1, [*events]))
    posts += engine.turn(2.0)
    assert clock.reads - reads < 20
    after = meter.read()
    assert (after.taken - before.taken, after.batches - before.batches) == (100, 1)
    assert (after.matched - before.matched, after.delivered - before.delivered) == (100, 100)
    for name in ("access_cpu_s", "matching_cpu_s", "merging_cpu_s"):
        assert getattr(after, name) > getattr(before, name)
    assert sum(engine.waits.counts) == 0
    for post in posts:
        engine.confirmed(post.group)
    engine.turn(2.25)
    assert sum(engine.waits.counts) == 100
    assert 250 <= quantile_ms(engine.waits.counts, 0.99) <= 250 * GROWTH


@given(st.lists(st.floats(0.0, 40.0), min_size=1, max_size=300), st.sampled_from((0.5, 0.9, 0.99)))
def test_a_quantile_is_never_too_short_and_at_most_a_fourth_too_long(waits_s: list[float], share: float) -> None:
    waits = EventWaits()
    for batch, wait_s in enumerate(waits_s, 1):
        waits.taken(batch, 1, 100.0 - wait_s)
        waits.settled(batch, 100.0)
    ordered = sorted(waits_s)
    exact_ms = 1000 * next(wait for place, wait in enumerate(ordered, 1) if place >= share * len(ordered))
    found = quantile_ms(waits.counts, share)
    assert found >= exact_ms * (1 - 1e-9)
    assert found <= max(exact_ms * GROWTH * (1 + 1e-9), BOUNDS_MS[0])


def test_no_events_have_no_wait() -> None:
    assert quantile_ms(EventWaits().counts, 0.99) == 0.0


def reading(cpu_s: float, **counts: float) -> Reading:
    return Reading(cpu_s, Measures(**counts))  # type: ignore[arg-type]


WAITS = tuple(EventWaits().counts)


def test_the_load_is_that_of_the_last_seconds() -> None:
    meter = EngineLoadMeter()
    for at in range(21):
        busy = 0.2 if at <= 10 else 0.2 * (1 + 3 * (at - 10) / at)
        load = meter.measure(
            "1-1-1", {"a": reading(busy * at, taken=100 * at, matching_cpu_s=busy * at)}, WAITS, ["a"], 50.0 + at
        )
    assert load.window_s == WINDOW_S
    assert (load.steady_s, load.events_per_s) == (20.0, 100.0)
    assert load.processes == (ProcessLoad("a", 0.8, 0.0, 0.8, 0.0, 1.0),)


def test_it_begins_again_with_another_configuration() -> None:
    meter = EngineLoadMeter()
    meter.measure("1-1-1", {"a": reading(0.0)}, WAITS, ["a"], 0.0)
    meter.measure("1-1-1", {"a": reading(9.0)}, WAITS, ["a"], 9.0)
    changed = meter.measure("1-2-1", {"a": reading(10.0), "b": reading(1.0)}, WAITS, ["a"], 10.0)
    assert (changed.window_s, changed.steady_s) == (0.0, 0.0)
    later = meter.measure("1-2-1", {"a": reading(10.5), "b": reading(3.0)}, WAITS, ["a"], 14.0)
    assert [process.cpu for process in later.processes] == [0.125, 0.5]
    assert later.steady_s == 4.0


def test_posting_belongs_to_the_exit_point_and_processes_that_wait_are_slowed_down() -> None:
    meter = EngineLoadMeter()
    meter.measure("x", {"a": reading(0.0), "b": reading(0.0)}, WAITS, ["a"], 0.0)
    some = {"matching_cpu_s": 0.4, "merging_cpu_s": 0.2, "posting_cpu_s": 0.1, "turn_s": 2.0, "turn_cpu_s": 1.0}
    load = meter.measure("x", {"a": reading(1.0, **some), "b": reading(1.0, **some)}, WAITS, ["a"], 2.0)
    a, b = load.processes
    assert (a.matching, a.slowdown) == (0.2, 2.0)
    assert a.merging == pytest.approx(0.15)
    assert (b.matching, b.merging) == (0.25, 0.1)
    assert a.rest == pytest.approx(0.5 - 0.35)


def test_a_process_that_comes_in_between_is_counted_from_then_on() -> None:
    meter = EngineLoadMeter()
    meter.measure("x", {"a": reading(0.0, taken=10)}, WAITS, ["a"], 0.0)
    load = meter.measure("x", {"a": reading(1.0, taken=20), "b": reading(50.0, taken=1000)}, WAITS, ["a"], 2.0)
    assert load.events_per_s == 5.0
    assert load.processes[1] == ProcessLoad("b")


def test_measures_travel_in_status_and_load_in_the_report() -> None:
    status = Status("a", measures=Measures(taken=3, matching_cpu_s=0.5))
    assert decode_to_head(encode(status)) == status
    report = EngineReport(load=EngineLoad(5.0, 9.0, 100.0, processes=(ProcessLoad("a", 0.5),)))
    assert decode_report(encode_report(report)) == report
    assert decode_report(b"{}").load == EngineLoad()
