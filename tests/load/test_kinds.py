"""A second kind is measured, folded and priced beside channels; contradicting kinds are refused."""

from __future__ import annotations

import pytest
from tests.load.fold_reader import ONE, SETTINGS, T
from tests.load.telemetry_samples import hosts_of, record, records_to_batch, units_of
from tests.support.lamp_kind import BOTH, LAMP, SHELF, shelf_record

from shoal.balance.homes import Homes
from shoal.balance.situation import Pool
from shoal.balance.situation_builder import PlacementHistory, PoolFacts, join
from shoal.errors import ConfigError
from shoal.load.costs import used_by_units
from shoal.load.fold import fold
from shoal.load.fold_state import FoldState
from shoal.load.kinds import Column, Cost, Folding, HostColumn, HostKind, Kinds, Type, UnitKind
from shoal.load.ordered_fold import fold_in_order
from shoal.load.record import TelemetryRecord
from shoal.load.window import LoadWindow
from shoal.load_kinds import KINDS
from shoal.plan.book import PlanBook
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Verifier


def telemetry() -> list[TelemetryRecord]:
    made = [record("s1", second, ONE, site="hall") for second in (T, T + 1)]
    made += [
        shelf_record("x", T, {b"left": {"lit_s": 1.0, "brightest": 7}, b"c": {"flashes": 10}}),
        shelf_record("x", T + 1, {b"left": {"lit_s": 0.5, "flashes": 5, "brightest": 3, "hottest": 60.5}}, watts=200.0),
    ]
    return made


def window_of(*made: TelemetryRecord) -> LoadWindow:
    batch = records_to_batch((each, T + 2.1) for each in made)
    (window,), _ = fold(FoldState(), batch, T + 9.0, SETTINGS, BOTH)
    return window


def test_lamps_are_folded_beside_channels() -> None:
    window = window_of(*telemetry())
    assert window.table.num_rows == 5
    assert [row["unit"] for row in window.units_of("channel").to_pylist()] == [b"c"]
    assert [row["unit"] for row in window.units_of("lamp").to_pylist()] == [b"left", b"c"]
    assert [row["host"] for row in window.hosts_of("shelf").to_pylist()] == ["x"]
    assert window.units.num_rows == 3
    assert window.units_of("sofa").num_rows == window.hosts_of("sofa").num_rows == 0
    left = units_of(window)["x", b"left"]
    assert (left["kind"], left["host_kind"], left["site"], left["seconds"]) == ("lamp", "shelf", "attic", 2)
    assert (left["lit_s"], left["flashes"], left["brightest"], left["hottest"]) == (0.75, 2.5, 7, 60.5)
    assert left["publications"] is left["subscribers"] is None
    channel = units_of(window)["s1", b"c"]
    assert (channel["kind"], channel["host_kind"], channel["site"]) == ("channel", "server", "hall")
    assert (channel["publications"], channel["lit_s"], channel["hottest"]) == (10.0, None, None)
    shelf, server = hosts_of(window)["x"], hosts_of(window)["s1"]
    assert (shelf["kind"], shelf["watts"], shelf["watts_max"], shelf["plugs"]) == (None, 150.0, 500.0, 3)
    assert (shelf["lit_s"], shelf["flashes"], shelf["publications"], shelf["cpu_share"]) == (0.75, 7.5, None, None)
    assert (server["publications"], server["cpu_share"], server["watts"], server["lit_s"]) == (10.0, 0.5, None, None)


def test_what_a_unit_costs_follows_from_its_kind() -> None:
    window = window_of(*telemetry())
    used = used_by_units(window, "lamp", BOTH)
    assert list(used) == ["watts"]
    work = {b"left": 60 * 0.75 + 2 * 2.5, b"c": 2 * 5.0}
    assert used["watts"].tolist() == pytest.approx([150 * part / sum(work.values()) for part in work.values()])
    of_channels = used_by_units(window, "channel", BOTH)
    assert {resource: values.tolist() for resource, values in of_channels.items()} == {
        "bandwidth_bytes_per_s": pytest.approx([1000.0]),
        "cpu_share": pytest.approx([0.5]),
    }


def test_batches_and_saved_states_give_the_same_bytes() -> None:
    made = [
        each
        for second in range(T, T + 12)
        for each in (record("s1", second, ONE), shelf_record("x", second, {b"l": {"flashes": second % 5}}))
    ]
    whole, _ = fold_in_order(
        FoldState(), records_to_batch((each, each.id.second + 1.1) for each in made), SETTINGS, BOTH
    )
    state, windows = FoldState(), []
    for at in range(0, len(made), 3):
        batch = records_to_batch((each, each.id.second + 1.1) for each in made[at : at + 3])
        closed, state = fold_in_order(FoldState.from_bytes(state.to_bytes()), batch, SETTINGS, BOTH)
        windows += closed
    assert [window.to_bytes() for window in windows] == [window.to_bytes() for window in whole]
    assert len(windows) > 3
    for window in windows:
        assert LoadWindow.from_bytes(window.to_bytes(), BOTH) == window


def test_a_window_of_fewer_kinds_is_read_and_one_of_more_is_refused() -> None:
    (plain,), _ = fold(FoldState(), records_to_batch([(record("s1", T, ONE), T + 1.1)]), T + 9.0, SETTINGS, KINDS)
    more = LoadWindow.from_bytes(plain.to_bytes(), BOTH)
    assert units_of(more)["s1", b"c"]["publications"] == 10.0
    assert units_of(more)["s1", b"c"]["lit_s"] is None
    from shoal.errors import ProtocolError

    with pytest.raises(ProtocolError, match="upgrade this process"):
        LoadWindow.from_bytes(more.to_bytes(), KINDS)


def test_a_situation_of_channels_does_not_see_lamps() -> None:
    """A lamp has the name of a channel, is on a server, and uses processor time of that server."""
    sparks = UnitKind("lamp", LAMP.columns, (Cost("cpu_share", (("flashes", 1.0),)),))
    kinds = Kinds((*KINDS.units, sparks), BOTH.hosts)
    book = PlanBook(Verifier(bytes(32)))
    ring = Ring(1, (ServerAddress("s1", "localhost", 1),))
    facts = PoolFacts(Pool(1, 9, 0, new_capacity=5000.0, new_cpu_capacity=1.0, new_cost=2.0))

    def situation(*made: TelemetryRecord) -> object:
        batch = records_to_batch((each, T + 2.1) for each in made)
        (window,), _ = fold(FoldState(), batch, T + 9.0, SETTINGS, kinds)
        plan = type("Plan", (), {"ring": ring, "entries": book.entries})()
        return join(window, plan, facts, PlacementHistory(), Homes(), kinds)

    channels = [record("s1", second, ONE) for second in (T, T + 1)]
    lamps = shelf_record("x", T, {b"c": {"flashes": 70}, b"d": {"flashes": 1}}).tables["lamp"]
    alone = situation(*channels)
    beside = situation(*(each._replace(tables={**each.tables, "lamp": lamps}) for each in channels), *telemetry()[2:])
    assert beside.channels.names.to_pylist() == [b"c"]  # type: ignore[attr-defined]
    assert beside.hosts.ids == ("s1",)  # type: ignore[attr-defined]
    assert beside.channels.bytes_out.tolist() == alone.channels.bytes_out.tolist()  # type: ignore[attr-defined]
    whole, part = (each.channels.cpu_in + each.channels.cpu_out for each in (alone, beside))  # type: ignore[attr-defined]
    work = 4 * 10 + 30
    assert part.tolist() == pytest.approx([whole[0] * work / (work + 71)])


COUNT = Column("count", folding=Folding.RATE)


@pytest.mark.parametrize(
    "make",
    [
        lambda: UnitKind("a", (COUNT, COUNT)),
        lambda: UnitKind("a", (Column("unit"),)),
        lambda: UnitKind("a", (Column("ids", Type.IDS, Folding.PEAK),)),
        lambda: UnitKind("a", (Column("x", folding=Folding.MEAN),)),
        lambda: UnitKind("a", (Column("x"),), (Cost("watts", (("x", 1.0),)),)),
        lambda: HostKind("a", (HostColumn("interval_s"),)),
        lambda: HostKind("a", (HostColumn("x", Type.INT, nullable=True),)),
        lambda: HostKind("a", (HostColumn("x", figure="x", folding=Folding.RATE),)),
        lambda: Kinds((UnitKind("a", (COUNT,)), UnitKind("a", ())), ()),
        lambda: Kinds((UnitKind("a", (COUNT,)), UnitKind("b", (Column("count", folding=Folding.PEAK),))), ()),
        lambda: Kinds((UnitKind("a", (COUNT,)),), (HostKind("b", (HostColumn("x", figure="count"),)),)),
        lambda: Kinds((UnitKind("a", (Column("seconds", folding=Folding.RATE),)),), ()),
    ],
)
def test_kinds_that_contradict_themselves_or_each_other_are_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]


def test_two_kinds_may_share_a_figure() -> None:
    kinds = Kinds((UnitKind("a", (COUNT,)), UnitKind("b", (COUNT,))), (SHELF,))
    assert [*kinds.figures] == ["count", "watts", "watts_max", "plugs"]
