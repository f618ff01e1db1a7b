"""Building situations: which channels and hosts a situation has, and their figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.load.fold_reader import SETTINGS
from tests.load.telemetry_samples import record, records_to_batch
from tests.support.core_driver import SIGNER

from shoal.balance.columns import ALL_PUBLISHERS, ALL_SUBSCRIBERS, NEVER, SINGLE, host_loads
from shoal.balance.homes import Homes
from shoal.balance.situation import Pool, Situation
from shoal.balance.situation_builder import PlacementHistory, PoolFacts, join
from shoal.channels.telemetry.channel_kind import DELIVERY_WORK, PUBLICATION_WORK
from shoal.errors import PlanError
from shoal.load.fold import fold
from shoal.load.fold_state import FoldState
from shoal.load.window import LoadWindow
from shoal.load_kinds import KINDS
from shoal.plan.book import PlanBook
from shoal.plan.entry import Entry, Phase
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Verifier

T = 1_000_000
FACTS = PoolFacts(Pool(1, 9, 0, new_capacity=5000.0, new_cpu_capacity=1.0, new_cost=2.0))

Load = Mapping[str, Mapping[bytes, Mapping[str, int]]]
"""The figures of channels by host."""


def ring_of(*ids: str, version: int = 1, guests: tuple[str, ...] = ()) -> Ring:
    return Ring(version, tuple(ServerAddress(server, "localhost", 1) for server in ids), guests=guests)


@dataclass
class Plan:
    ring: Ring | None
    entries: dict[bytes, Entry] = field(default_factory=dict)


def placed(name: bytes, mode: Mode, *servers: str) -> dict[bytes, Entry]:
    return {name: Entry(name, Placement(7, mode, servers))}


def window_of(load: Load, bandwidth: float = 1000.0, cpu_share: float = 0.5) -> LoadWindow:
    records = [
        record(host, second, load[host], bandwidth=bandwidth, cpu_share=cpu_share)
        for host in load
        for second in (T, T + 1)
    ]
    windows, _ = fold(FoldState(), records_to_batch((made, T + 2.0) for made in records), T + 9.0, SETTINGS, KINDS)
    return windows[0]


def situation_of(
    load: Load, plan: Plan, facts: PoolFacts = FACTS, history: PlacementHistory | None = None
) -> Situation:
    return join(window_of(load), plan, facts, history or PlacementHistory(), Homes(), KINDS)


def names_of(situation: Situation) -> list[bytes]:
    names: list[bytes] = situation.channels.names.to_pylist()
    return names


# -- channels and placements -----------------------------------------------------------------------------------


def test_channels_are_those_of_the_window_and_of_the_plan_sorted_by_name() -> None:
    ring = ring_of("b", "a")
    plan = Plan(ring, placed(b"idle", Mode.SINGLE, "b") | placed(b"z", Mode.SINGLE, "a"))
    situation = situation_of({"a": {b"z": {"publications": 3}, b"\xff": {}}, "b": {b"": {"publications": 4}}}, plan)
    assert names_of(situation) == [b"", b"idle", b"z", b"\xff"]
    assert situation.channels.publications.tolist() == [4.0, 0.0, 3.0, 0.0]
    assert situation.hosts.ids == ("a", "b")
    homes = [("a", "b").index(ring.home(name)) for name in (b"", b"\xff")]
    assert [situation.placements.of(row) for row in range(4)] == [(homes[0],), (1,), (0,), (homes[1],)]
    assert situation.placements.mode.tolist() == [SINGLE] * 4
    assert situation.at_s == T + 2


def test_an_entry_without_a_live_server_falls_back_to_the_home_and_one_with_some_is_reduced() -> None:
    plan = Plan(ring_of("a", "b"), placed(b"x", Mode.SINGLE, "dead"))
    plan.entries |= placed(b"y", Mode.ALL_PUBLISHERS, "dead", "b", "a")
    situation = situation_of({"a": {}, "b": {}}, plan)
    assert situation.placements.of(0) == (("a", "b").index(ring_of("a", "b").home(b"x")),)
    assert situation.placements.of(1) == (1, 0)
    assert situation.placements.mode.tolist() == [SINGLE, ALL_PUBLISHERS]


servers = st.sampled_from(["a", "b", "c", "dead", "gone"])
placements = st.builds(
    lambda mode, where: Placement(0, mode, tuple(where[:1]) if mode is Mode.SINGLE else tuple(where)),
    st.sampled_from(list(Mode)),
    st.lists(servers, min_size=1, max_size=4, unique=True),
)


@st.composite
def entries(draw: st.DrawFn, name: bytes) -> Entry:
    phase = draw(st.sampled_from(list(Phase)))
    count = 1 if phase is Phase.END else draw(st.integers(2, 3))
    chain = [
        Placement(version, made.mode, made.servers)
        for version, made in enumerate(draw(st.lists(placements, min_size=count, max_size=count)), 1)
    ]
    publish = chain[-2].version if phase in (Phase.PREPARE, Phase.WIDEN) else 0
    return Entry(name, chain[-1], phase, tuple(chain[:-1]), publish, revision=10)


@given(data=st.data())
@settings(deadline=None)
def test_a_channel_is_where_the_plan_book_says(data: st.DataObject) -> None:
    book = PlanBook(Verifier(SIGNER.public))
    book.accept_ring(SIGNER.ring(ring_of("a", "b", "c", version=3)))
    for name in (b"one", b"two"):
        book.accept_entry(SIGNER.line(data.draw(entries(name))))
    situation = join(window_of({"a": {b"three": {}}}), book, FACTS, PlacementHistory(), Homes(), KINDS)
    assert names_of(situation) == [b"one", b"three", b"two"]
    for row, name in enumerate(names_of(situation)):
        expected = book.placement(name)
        assert [situation.hosts.ids[place] for place in situation.placements.of(row)] == list(expected.servers)
        assert situation.placements.mode[row] == list(Mode).index(expected.mode)


def test_a_guest_is_a_host_but_not_a_home() -> None:
    situation = situation_of(
        {"a": {b"%d" % number: {} for number in range(50)}, "b": {}}, Plan(ring_of("a", "b", guests=("a",)))
    )
    assert situation.hosts.ids == ("a", "b")
    assert situation.hosts.takes.tolist() == [True, True]
    assert set(situation.placements.servers.tolist()) == {1}


def test_without_a_ring_there_is_no_situation() -> None:
    for ring in (None, ring_of()):
        with pytest.raises(PlanError, match="no ring"):
            situation_of({"a": {}}, Plan(ring))


# -- figures of channels ----------------------------------------------------------------------------------------

SEEN = {
    "a": {b"c": {"publications": 10, "publishers": 3, "subscribers": 4, "messages_sent": 40, "bytes_out": 400}},
    "b": {b"c": {"publications": 6, "publishers": 2, "subscribers": 7, "messages_sent": 42, "bytes_out": 500}},
}


@pytest.mark.parametrize(
    ("mode", "publications", "publishers", "subscribers"),
    [(Mode.SINGLE, 16.0, 3, 7), (Mode.ALL_SUBSCRIBERS, 16.0, 5, 7), (Mode.ALL_PUBLISHERS, 10.0, 3, 11)],
)
def test_figures_of_several_servers_are_combined_by_the_mode(
    mode: Mode, publications: float, publishers: int, subscribers: int
) -> None:
    where = ("a",) if mode is Mode.SINGLE else ("a", "b")
    channels = situation_of(SEEN, Plan(ring_of("a", "b"), placed(b"c", mode, *where))).channels
    assert channels.publications.tolist() == [publications]
    assert channels.publishers.tolist() == [publishers]
    assert channels.subscribers.tolist() == [subscribers]
    assert channels.messages_out.tolist() == [82.0]
    assert channels.bytes_out.tolist() == [900.0]


def test_the_load_of_a_server_that_has_left_the_ring_counts_for_its_channels() -> None:
    situation = situation_of(SEEN, Plan(ring_of("a"), placed(b"c", Mode.SINGLE, "a")))
    assert situation.hosts.ids == ("a",)
    assert situation.channels.publications.tolist() == [16.0]


def test_processor_time_is_attributed_to_channels_by_their_work() -> None:
    load = {"a": {b"in": {"publications": 10}, b"out": {"publications": 5, "messages_sent": 100, "forwarded": 5}}}
    plan = Plan(ring_of("a"))
    channels = join(window_of(load, cpu_share=0.6), plan, FACTS, PlacementHistory(), Homes(), KINDS).channels
    work = 20 * PUBLICATION_WORK + 100 * DELIVERY_WORK
    assert channels.cpu_in == pytest.approx([0.6 * 10 * PUBLICATION_WORK / work] * 2)
    assert channels.cpu_out == pytest.approx([0.0, 0.6 * 100 * DELIVERY_WORK / work])


@pytest.mark.parametrize("mode", [ALL_SUBSCRIBERS, ALL_PUBLISHERS])
def test_the_load_model_reproduces_the_measured_load_of_an_even_channel(mode: int) -> None:
    seen = {b"c": {"publications": 10, "subscribers": 4, "messages_sent": 40, "bytes_out": 400}}
    plan = Plan(ring_of("a", "b"), placed(b"c", list(Mode)[mode], "a", "b"))
    window = window_of({"a": seen, "b": seen}, cpu_share=0.4, bandwidth=400.0)
    situation = join(window, plan, FACTS, PlacementHistory(), Homes(), KINDS)
    bytes_out, cpu = host_loads(situation.channels, situation.placements, 2)
    assert bytes_out == pytest.approx([400.0, 400.0])
    assert cpu == pytest.approx([0.4, 0.4])
    assert situation.residual()[0] == pytest.approx([0.0, 0.0])


@pytest.mark.parametrize(
    ("mode", "messages", "to_patterns"), [(ALL_SUBSCRIBERS, 100.0, 0.6), (ALL_PUBLISHERS, 70.0, 3 / 7)]
)
def test_deliveries_to_patterns_by_several_servers_count_once_per_publication(
    mode: int, messages: float, to_patterns: float
) -> None:
    seen = {
        b"c": {"publications": 10, "subscribers": 2, "pattern_subscribers": 3, "messages_sent": 50, "bytes_out": 500}
    }
    plan = Plan(ring_of("a", "b"), placed(b"c", list(Mode)[mode], "a", "b"))
    situation = join(window_of({"a": seen, "b": seen}, cpu_share=0.4), plan, FACTS, PlacementHistory(), Homes(), KINDS)
    channels = situation.channels
    assert channels.messages_out == pytest.approx([messages])
    assert channels.bytes_out == pytest.approx([10 * messages])
    assert channels.pattern_part == pytest.approx([to_patterns])
    bytes_out, cpu = host_loads(channels, situation.placements, 2)
    assert bytes_out == pytest.approx([500.0, 500.0])
    assert cpu == pytest.approx([0.4, 0.4])


def test_parts_of_a_channel_are_those_of_its_own_subscribers() -> None:
    own = {"publications": 10, "pattern_subscribers": 2}
    seen = {
        "a": {b"c": {**own, "subscribers": 3, "messages_sent": 50, "bytes_out": 500}},
        "b": {b"c": {**own, "subscribers": 1, "messages_sent": 30, "bytes_out": 300}},
    }
    situation = situation_of(seen, Plan(ring_of("a", "b"), placed(b"c", Mode.ALL_PUBLISHERS, "a", "b")))
    assert situation.placements.part == pytest.approx([0.75, 0.25])
    assert host_loads(situation.channels, situation.placements, 2)[0] == pytest.approx([500.0, 300.0])


def test_parts_are_the_measured_ones_position_by_position() -> None:
    plan = Plan(ring_of("a", "b", "c"), placed(b"c", Mode.ALL_SUBSCRIBERS, "b", "c", "a"))
    situation = situation_of(SEEN, plan)
    assert situation.placements.of(0) == (1, 2, 0)
    assert situation.placements.part == pytest.approx([500 / 900, 0.0, 400 / 900])
    assert host_loads(situation.channels, situation.placements, 3)[0] == pytest.approx([400.0, 500.0, 0.0])


def test_parts_of_a_recently_placed_channel_are_equal() -> None:
    plan = Plan(ring_of("a", "b"), placed(b"c", Mode.ALL_SUBSCRIBERS, "a", "b"))
    situation = situation_of(SEEN, plan, history=PlacementHistory(moved_at={b"c": T - 1.0}))
    assert situation.placements.part.tolist() == [0.5, 0.5]


names = st.sampled_from([b"a", b"b", b"c", b"d"])
loads = st.dictionaries(
    st.sampled_from(["a", "b", "x"]),
    st.dictionaries(
        names, st.fixed_dictionaries({"publications": st.integers(0, 99), "messages_sent": st.integers(0, 999)})
    ),
    min_size=1,
)


@given(loads, st.dictionaries(names, st.sampled_from([Mode.SINGLE, Mode.ALL_SUBSCRIBERS])))
@settings(max_examples=50, deadline=None)
def test_the_totals_equal_the_measured_load(load: Load, modes: dict[bytes, Mode]) -> None:
    plan = Plan(ring_of("a", "b"))
    for name, mode in modes.items():
        plan.entries |= placed(name, mode, "a") if mode is Mode.SINGLE else placed(name, mode, "a", "b")
    window = window_of(load)
    channels = join(window, plan, FACTS, PlacementHistory(), Homes(), KINDS).channels
    busy = [host for host, of_host in load.items() if any(sum(row.values()) for row in of_host.values())]
    assert names_of_all(load, plan) == channels.names.to_pylist()
    assert channels.publications.sum() == pytest.approx(sum(window.units["publications"].to_pylist()))
    assert channels.messages_out.sum() == pytest.approx(sum(window.units["messages_sent"].to_pylist()))
    assert (channels.cpu_in + channels.cpu_out).sum() == pytest.approx(0.5 * len(busy))


def names_of_all(load: Load, plan: Plan) -> list[bytes]:
    return sorted({*plan.entries, *(name for of_host in load.values() for name in of_host)})


@given(loads)
@settings(max_examples=50, deadline=None)
def test_the_order_of_the_inputs_makes_no_difference(load: Load) -> None:
    plan = Plan(ring_of("a", "b"), placed(b"c", Mode.ALL_PUBLISHERS, "b", "a") | placed(b"e", Mode.SINGLE, "b"))
    turned = Plan(plan.ring, dict(reversed(plan.entries.items())))
    window = window_of(load)
    shuffled = replace(window, table=window.table.take(list(reversed(range(window.table.num_rows)))))
    one = join(window, plan, FACTS, PlacementHistory(), Homes(), KINDS)
    two = join(shuffled, turned, FACTS, PlacementHistory(), Homes(), KINDS)
    assert one.channels.names.equals(two.channels.names)
    for name in ("publications", "publishers", "subscribers", "messages_out", "bytes_out", "cpu_in", "cpu_out"):
        assert getattr(one.channels, name) == pytest.approx(getattr(two.channels, name))
    for name in ("mode", "offsets", "servers"):
        assert getattr(one.placements, name).tolist() == getattr(two.placements, name).tolist()


# -- hosts -----------------------------------------------------------------------------------------------------


def test_hosts_are_the_members_with_their_figures() -> None:
    facts = replace(
        FACTS,
        draining=frozenset({"b"}),
        capacities={"a": 1.0, "d": 777.0},
        cpu_capacities={"a": 4.0},
        costs={"b": 3.0},
        joined_at={"d": 50.0},
    )
    plan = Plan(ring_of("d", "c", "b", "a"))
    hosts = situation_of({"a": {}, "b": {}, "x": {}}, plan, facts).hosts
    assert hosts.ids == ("a", "b", "c", "d")
    assert hosts.capacity.tolist() == [10_000.0, 10_000.0, 5000.0, 777.0]
    assert hosts.bytes_out.tolist() == [1000.0, 1000.0, 0.0, 0.0]
    assert hosts.cpu.tolist() == [0.5, 0.5, 0.0, 0.0]
    assert hosts.cpu_capacity.tolist() == [4.0, 1.0, 1.0, 1.0]
    assert hosts.cost.tolist() == [2.0, 3.0, 2.0, 2.0]
    assert hosts.takes.tolist() == [True, False, False, False]
    assert hosts.heard.tolist() == [True, True, False, False]
    assert hosts.joined_at.tolist() == [NEVER, NEVER, NEVER, 50.0]


def test_a_missing_bandwidth_comes_from_the_channels_and_a_missing_capacity_from_the_pool() -> None:
    records = [record("a", T + at, SEEN["a"], interval_s=None, capacity=0.0) for at in (0, 1)]
    windows, _ = fold(FoldState(), records_to_batch((made, T + 2.0) for made in records), T + 9.0, SETTINGS, KINDS)
    hosts = join(windows[0], Plan(ring_of("a")), FACTS, PlacementHistory(), Homes(), KINDS).hosts
    assert (hosts.bytes_out.tolist(), hosts.cpu.tolist(), hosts.capacity.tolist()) == ([400.0], [0.0], [5000.0])


# -- history ---------------------------------------------------------------------------------------------------


def test_history_is_aligned_with_the_rows() -> None:
    history = PlacementHistory({b"c": 12.0, b"unknown": 13.0}, planned_at=11.0, past=[(8.0, 100.0), (10.0, 200.0)])
    situation = situation_of({"a": {b"b": {}, b"c": {}}}, Plan(ring_of("a")), history=history)
    assert situation.moved_at.tolist() == [NEVER, 12.0]
    assert situation.planned_at == 11.0
    assert situation.past_at.tolist() == [8.0, 10.0]
    assert situation.past_bytes_out.tolist() == [100.0, 200.0]
    nothing = situation_of({"a": {}}, Plan(ring_of("a")))
    assert (len(nothing.channels), len(nothing.moved_at), len(nothing.past_at)) == (0, 0, 0)


# -- homes -----------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.binary(max_size=2), unique=True), max_size=4), st.integers(1, 5))
def test_cached_homes_are_those_of_the_ring(asks: list[list[bytes]], names_max: int) -> None:
    homes = Homes(names_max)
    rings = [ring_of("a", "b"), ring_of("a", "b", "c", version=2), ring_of("a", "b", "c", guests=("a",))]
    for ring in rings:
        for ask in asks:
            assert [ring.homes[place] for place in homes.of(ring, ask)] == [ring.home(name) for name in ask]
            assert len(homes) <= max(names_max, *map(len, asks))


def test_a_name_is_hashed_once_while_the_homes_of_the_ring_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    real = Ring.homes_of

    def homes_of(ring: Ring, names: list[bytes]) -> list[str]:
        asked.extend(names)
        return real(ring, names)

    monkeypatch.setattr(Ring, "homes_of", homes_of)
    homes, ring = Homes(), ring_of("a", "b")
    for _ in range(3):
        homes.of(ring, [b"x", b"y"])
    homes.of(ring_of("a", "b", "new", version=2, guests=("new",)), [b"y", b"z"])
    assert asked == [b"x", b"y", b"z"]
    homes.of(ring_of("a", version=3), [b"x"])
    assert asked[3:] == [b"x"]
    assert isinstance(homes.of(ring, []), np.ndarray)
