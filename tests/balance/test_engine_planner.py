"""The numbers of operators follow the measured load of an engine: without flapping, and not against an operator."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.balance import engine_planner
from shoal.balance.change import HostsWanted, PlannerInput, Units, read_change
from shoal.balance.engine_entry import EngineEntry, EngineMove, EngineRequest, Layers, decode_engine_request
from shoal.balance.engine_model import SATURATED, model_of, scale
from shoal.balance.engine_planner import GOAL, LOW, Advice, EnginePlanner, advise
from shoal.balance.settings import BalanceSettings
from shoal.errors import PlanError
from shoal.load.engine_load import EngineLoad, ProcessLoad
from shoal.load.window import LoadWindow, window_schema
from shoal.load_kinds import KINDS
from shoal.plan.move_request import encode_body

SETTINGS = BalanceSettings()
MANY = 16


class Plant:
    """An engine whose load follows the model: `access`, `matching` and `merging` are the CPU microseconds of an event
    with one operator in each layer, `rest` those of each process."""

    def __init__(
        self,
        access: float,
        matching: float,
        merging: float,
        rest: float = 10.0,
        processes: int = MANY,
        base_ms: float = 3.0,
    ) -> None:
        self.costs_us = (access, matching, merging)
        self.rest_us = rest
        self.processes = processes
        self.base_ms = base_ms

    def busy(self, layers: Layers, events_per_s: float) -> list[float]:
        """The cores that each process would need."""
        each = [cost * scale(count) for cost, count in zip(self.costs_us, layers, strict=True)]
        return [
            events_per_s
            * 1e-6
            * (self.rest_us + sum(cost for cost, count in zip(each, layers, strict=True) if at < count))
            for at in range(self.processes)
        ]

    def entry(self, layers: Layers, events_per_s: float, steady_s: float = 1e6) -> EngineEntry:
        """What is measured under a load; one that is too high is cut off at what the busiest process can do."""
        events_per_s /= max(1.0, max(self.busy(layers, events_per_s)))
        each = [events_per_s * 1e-6 * cost * scale(n) for cost, n in zip(self.costs_us, layers, strict=True)]
        used = max(layers)
        processes = tuple(
            ProcessLoad(
                f"p{at}",
                sum(part for part, count in zip(each, layers, strict=True) if at < count)
                + (events_per_s * 1e-6 * self.rest_us if at < used else 0.0),
                *(part if at < count else 0.0 for part, count in zip(each, layers, strict=True)),
            )
            for at in range(self.processes)
        )
        load = EngineLoad(5.0, steady_s, events_per_s, events_per_s / 10, 0.0, 0.0, 0.0, 0.0, processes)
        entry = entry_of(layers, load)
        wait_ms = self.base_ms + _queue(entry)
        return msgspec.structs.replace(entry, load=msgspec.structs.replace(load, wait_ms_p99=wait_ms))


def _queue(entry: EngineEntry) -> float:
    """The waits in the queues of an engine, by the model."""
    model = model_of(entry)
    return model.expect(entry.layers).wait_ms_p99 - model.base_ms


def entry_of(layers: Layers, load: EngineLoad, **facts: object) -> EngineEntry:
    return EngineEntry(unit=b"main", revision=4, layers=layers, phase="idle", load=load, **facts)  # type: ignore[arg-type]


ONE = Layers(1, 1, 1)
MATCHING = Plant(5.0, 200.0, 10.0)
MERGING = Plant(5.0, 20.0, 200.0)


def settled(plant: Plant, events_per_s: float, layers: Layers = ONE, changes_max: int = 60) -> list[Layers]:
    """The configurations that follow each other under a steady load, until nothing changes."""
    found = [layers]
    for _ in range(changes_max):
        advice = advise(plant.entry(found[-1], events_per_s), SETTINGS)
        if advice.after == found[-1]:
            return found
        found.append(advice.after)
    raise AssertionError(f"it never settles: {[one.text for one in found]}")


def test_a_matcher_is_added_when_matching_is_the_bottleneck() -> None:
    advice = advise(MATCHING.entry(ONE, 4000), SETTINGS)
    assert advice.reason == "matching is the bottleneck"
    assert (advice.after.exits, advice.after.matchers > 1) == (1, True)
    assert advice.figures["busy"] > 0.75
    assert advice.figures["busy_expected"] <= GOAL
    assert advice.figures["wait_ms_p99_expected"] <= SETTINGS.engine_latency_ms


def test_an_exit_point_is_added_when_merging_is_the_bottleneck() -> None:
    advice = advise(MERGING.entry(ONE, 4000), SETTINGS)
    assert advice.reason == "merging is the bottleneck"
    assert (advice.after.matchers, advice.after.exits > 1) == (1, True)


def test_operators_that_help_equally_come_by_the_rule_of_the_paper() -> None:
    even = Plant(1.0, 100.0, 100.0, rest=1.0)
    few = advise(even.entry(ONE, 4500), SETTINGS)
    assert few.after.matchers >= few.after.exits
    many = Plant(1.0, 240.0, 64.0, rest=1.0)
    assert model_of(many.entry(Layers(1, 4, 1), 7000)).work[1] > 0
    assert advise(many.entry(Layers(1, 4, 1), 7000), SETTINGS).after.exits > 1


def test_nothing_changes_at_a_load_that_one_process_carries() -> None:
    advice = advise(MATCHING.entry(ONE, 1000), SETTINGS)
    assert (advice.after, advice.reason) == (ONE, "the target holds")


def test_an_operator_is_removed_when_the_target_holds_without_it() -> None:
    before = Layers(1, 4, 2)
    advice = advise(MATCHING.entry(before, 500), SETTINGS)
    assert advice.reason == "the load needs one operator less"
    assert sum(advice.after) == sum(before) - 1
    assert advice.figures["busy_expected"] <= LOW
    assert settled(MATCHING, 0.0, before)[-1] == ONE


costs = st.floats(1.0, 400.0)
plants = st.builds(Plant, costs, costs, costs, rest=st.floats(0.0, 60.0))
rates = st.floats(0.0, 40_000.0)
layers = st.builds(Layers, st.just(1), st.integers(1, 8), st.integers(1, 8))


@given(plants, rates, layers)
def test_nothing_flaps_under_a_steady_load(plant: Plant, events_per_s: float, begin: Layers) -> None:
    """First it grows, then it shrinks, and then it stays."""
    sizes = [sum(one) for one in settled(plant, events_per_s, begin)]
    top = sizes.index(max(sizes))
    assert sizes[: top + 1] == sorted(sizes[: top + 1])
    assert sizes[top:] == sorted(sizes[top:], reverse=True)


@given(plants, rates, st.floats(1.0, 4.0), layers)
def test_more_load_never_wants_fewer_operators(plant: Plant, events_per_s: float, more: float, begin: Layers) -> None:
    lower, higher = (advise(plant.entry(begin, rate), SETTINGS).after for rate in (events_per_s, events_per_s * more))
    assert sum(higher) >= sum(lower)


@given(plants, rates)
def test_the_target_is_met_or_no_operator_helps(plant: Plant, events_per_s: float) -> None:
    """After the last change, by the planner's own model."""
    entry = plant.entry(settled(plant, events_per_s)[-1], events_per_s)
    now = model_of(entry).expect(entry.layers)
    if now.busy > engine_planner.HIGH or now.wait_ms_p99 > SETTINGS.engine_latency_ms:
        advice = advise(entry, SETTINGS)
        assert advice.reason == "no other operator would help"
        assert advice.missing == 0


@given(plants, st.floats(100.0, 40_000.0), st.integers(1, 4))
def test_it_wants_no_operator_without_a_process(plant: Plant, events_per_s: float, processes: int) -> None:
    entry = plant.entry(ONE, events_per_s)
    few = entry.load.processes[:processes]
    advice = advise(msgspec.structs.replace(entry, load=msgspec.structs.replace(entry.load, processes=few)), SETTINGS)
    free = advise(entry, SETTINGS)
    assert max(advice.after) <= processes
    assert advice.missing == max(0, max(free.after) - processes)
    assert advice.ideal == (free.after if advice.missing else None)
    assert max(free.after) <= SETTINGS.engine_operators_max


@given(plants, st.floats(100.0, 20_000.0))
def test_what_is_expected_is_what_comes(plant: Plant, events_per_s: float) -> None:
    """In a plant that follows the model, as long as its load was not cut off."""
    entry = plant.entry(ONE, events_per_s)
    if max(plant.busy(ONE, events_per_s)) >= SATURATED:
        return
    for after in (Layers(1, 2, 1), Layers(1, 1, 2), Layers(1, 3, 2)):
        expected = model_of(entry).expect(after).busy
        assert expected >= plant.busy(after, events_per_s)[0] * (1 - 1e-6)
        assert expected <= max(plant.busy(after, events_per_s)) * (1 + 1e-6)


# -- when it does nothing ---------------------------------------------------------------------------------------------

BUSY = MATCHING.entry(ONE, 4000)


def advised(**facts: object) -> Advice:
    return advise(msgspec.structs.replace(BUSY, **facts), SETTINGS)


def test_numbers_of_an_operator_are_left_alone_until_they_are_released() -> None:
    pinned = advised(wanted=ONE)
    assert (pinned.after, "--auto" in pinned.reason) == (ONE, True)
    assert advised(wanted=ONE, by="auto").after != ONE


def test_it_waits_while_the_configuration_changes() -> None:
    assert advised(phase="joining").reason == "the configuration is changing"
    assert advised(wanted=Layers(1, 2, 1), by="x").reason == "the configuration is changing"
    gone = advised(wanted=Layers(1, MANY + 1, 1), by="x")  # a process has died: it is not coming back by itself
    assert gone.after != ONE


def test_it_waits_until_the_load_was_measured_and_the_last_change_has_settled() -> None:
    def at(**facts: float) -> Advice:
        return advised(load=msgspec.structs.replace(BUSY.load, **facts))

    assert at(window_s=2.9).reason == "the load was not measured for long enough yet"
    assert at(steady_s=SETTINGS.engine_settle_s - 0.1).reason == "the last change was too recent"
    assert at(steady_s=SETTINGS.engine_settle_s).after != ONE
    idle = MATCHING.entry(Layers(1, 2, 1), 10, steady_s=SETTINGS.engine_shrink_s - 0.1)
    assert advise(idle, SETTINGS).reason == "the last change was too recent"


def test_a_wait_that_no_operator_shortens_adds_none() -> None:
    """Something else is slow: the coordinator's network, or a server."""
    calm = MATCHING.entry(ONE, 1000)
    slow = msgspec.structs.replace(calm, load=msgspec.structs.replace(calm.load, wait_ms_p99=500.0))
    assert advise(slow, SETTINGS).reason == "no other operator would help"
    more = MATCHING.entry(Layers(1, 2, 1), 100)
    slow_more = msgspec.structs.replace(more, load=msgspec.structs.replace(more.load, wait_ms_p99=500.0))
    assert advise(slow_more, SETTINGS).after == ONE
    assert tuple(model_of(slow).expect(ONE)) == pytest.approx((0.225, 500.0))


def test_work_counts_by_the_clock_where_others_use_the_same_cores() -> None:
    calm = MATCHING.entry(ONE, 2000)
    assert advise(calm, SETTINGS).after == ONE
    (head, *others) = calm.load.processes
    slowed = (msgspec.structs.replace(head, slowdown=2.0), *others)
    busy = msgspec.structs.replace(calm, load=msgspec.structs.replace(calm.load, processes=slowed))
    assert advise(busy, SETTINGS).reason == "matching is the bottleneck"


def test_a_process_without_operators_is_left_out() -> None:
    entry = msgspec.structs.replace(BUSY, without=("p0",))
    assert entry.usable == tuple(f"p{at}" for at in range(1, MANY))
    assert model_of(entry).expect(ONE).busy < model_of(BUSY).expect(ONE).busy


# -- in the proposal --------------------------------------------------------------------------------------------------


def planned(entry: EngineEntry, adding: dict[str, int] = {}) -> list[EngineMove | HostsWanted]:  # noqa: B006
    window = LoadWindow(0, 2, window_schema(KINDS).empty_table())
    return [*EnginePlanner().plan(PlannerInput(window, Units({entry.unit: entry}, {}), adding, SETTINGS))]


def test_a_change_is_a_move_of_the_engine() -> None:
    (move,) = planned(BUSY)
    assert isinstance(move, EngineMove)
    assert (move.unit, move.revision, move.before) == (b"main", 4, ONE)
    assert read_change(msgspec.msgpack.decode(msgspec.msgpack.encode(move))) == move
    planner = EnginePlanner()
    request = planner.request(move, "r")
    assert planner.read_request(encode_body("engine", request)) == request == EngineRequest(b"main", "r", move.after, 4)
    assert not planner.is_at(BUSY, request)
    assert not planner.is_at(None, request)
    assert planner.is_at(msgspec.structs.replace(BUSY, layers=move.after), request)
    with pytest.raises(ValueError, match="cannot change from 1-1-1 to 1-0-1"):
        msgspec.structs.replace(move, after=Layers(1, 0, 1)).check()
    with pytest.raises(PlanError, match="cannot be read"):
        decode_engine_request(encode_body("queue", request))


def test_processes_are_asked_for_as_far_as_the_provider_starts_them() -> None:
    alone = msgspec.structs.replace(BUSY, load=msgspec.structs.replace(BUSY.load, processes=BUSY.load.processes[:1]))
    missing = advise(alone, SETTINGS).missing
    assert missing > 0
    assert planned(alone) == []
    (wanted,) = planned(msgspec.structs.replace(alone, startable=1))
    assert isinstance(wanted, HostsWanted)
    assert (wanted.kind, wanted.count, wanted.reason) == ("engine", 1, "no process is free")
    assert planned(msgspec.structs.replace(alone, startable=MANY), {"engine": 1}) == []
    (wanted,) = planned(msgspec.structs.replace(alone, startable=MANY))
    assert isinstance(wanted, HostsWanted)
    assert wanted.count == missing
