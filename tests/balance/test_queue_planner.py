"""A store is asked for when a queue waits and there is none; shards leave an overloaded store."""

from __future__ import annotations

from collections.abc import Mapping, Set

import msgspec
from tests.load.fold_reader import SETTINGS, T
from tests.load.telemetry_samples import records_to_batch

from shoal.balance.change import HostsWanted, PlannerInput, Units, read_change
from shoal.balance.queue_planner import QueuePlanner, ShardsMove
from shoal.load.fold import fold
from shoal.load.fold_state import FoldState
from shoal.load.record import RecordId, TelemetryRecord
from shoal.load.table import UnitTable
from shoal.load.window import LoadWindow, window_schema
from shoal.load_kinds import KINDS
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_request import (
    CreateQueue,
    DropQueue,
    MoveShards,
    QueueRequest,
    decode_queue_request,
    encode_queue_request,
)
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.ring import ServerAddress
from shoal.queues.queue_kind import QUEUE, STORE

WANTED = [HostsWanted("store", 1, "", "no store for new queues", {"queues_waiting": 1.0})]
ENTRY = QueueEntry(b"other", 1, 1, QueueSettings(shards=1), (ServerAddress("q1", "h", 1),), (0,))


def planned(
    request: QueueRequest | None = None,
    entries: tuple[QueueEntry, ...] = (),
    hosts: Set[str] = frozenset(),
    adding: Mapping[str, int] = {},
) -> list[ShardsMove | HostsWanted]:
    requests = {request.unit: request} if request else {}
    window = LoadWindow(0, 2, window_schema(KINDS).empty_table())
    return [
        *QueuePlanner(KINDS).plan(
            PlannerInput(window, Units({entry.unit: entry for entry in entries}, requests, hosts), adding)
        )
    ]


CREATE = CreateQueue(b"orders", QueueSettings(), "r")


def test_a_store_is_wanted_when_a_queue_waits_and_there_is_none() -> None:
    assert planned(CREATE) == WANTED


def test_no_store_is_wanted_otherwise() -> None:
    assert planned() == []
    assert planned(DropQueue(b"orders", "r")) == []
    assert planned(CREATE, hosts={"q1"}) == []
    assert planned(CREATE, adding={"store": 1}) == []
    assert planned(CREATE, adding={"shelf": 1}) == WANTED


def test_a_store_that_is_away_is_not_replaced() -> None:
    assert planned(CREATE, (ENTRY,)) == []


# -- moves -----------------------------------------------------------------------------------------------------------


def store_record(store: str, second: int, shards: Mapping[bytes, int], busy: float, **host: float) -> TelemetryRecord:
    """One second of a store: the puts of its shards."""
    row = dict.fromkeys([column.name for column in STORE.row], 0) | {"interval_s": 1.0, "busy_share": busy, **host}
    table = UnitTable.of_rows(QUEUE, {unit: {"puts": puts, "messages": 10} for unit, puts in shards.items()})
    return TelemetryRecord(RecordId(store, "a", second, second), STORE, row, {QUEUE.name: table}, "hall")


def window_of(stores: Mapping[str, Mapping[bytes, int]], busy: Mapping[str, float]) -> LoadWindow:
    made = [store_record(store, T + at, shards, busy[store]) for store, shards in stores.items() for at in (0, 1)]
    (window,), _ = fold(FoldState(), records_to_batch((each, T + 2.1) for each in made), T + 9.0, SETTINGS, KINDS)
    return window


Q1, Q2 = ServerAddress("q1", "h", 1), ServerAddress("q2", "h", 2)
ORDERS = QueueEntry(b"orders", 1, 1, QueueSettings(shards=4), (Q1,), (0, 0, 0, 0))
EVEN = {b"orders/%d" % shard: 100 for shard in range(4)}
BUSY = window_of({"q1": EVEN, "q2": {}}, {"q1": 0.9, "q2": 0.0})


def moves(
    window: LoadWindow = BUSY,
    entry: QueueEntry = ORDERS,
    request: QueueRequest | None = None,
    hosts: Set[str] = frozenset(("q1", "q2")),
    adding: Mapping[str, int] = {},
) -> list[ShardsMove | HostsWanted]:
    units = Units({entry.unit: entry}, {request.unit: request} if request else {}, hosts)
    return [*QueuePlanner(KINDS).plan(PlannerInput(window, units, adding))]


def test_an_overloaded_store_gives_shards_to_another_one() -> None:
    (move,) = moves()
    assert isinstance(move, ShardsMove)
    assert (move.unit, move.revision, move.reason) == (b"orders", ORDERS.newness, "store overloaded")
    assert set(move.shards.values()) == {"q2"}
    assert len(move.shards) == 2
    assert (move.figures["source_busy"], move.figures["shards_busy"], move.figures["target_busy"]) == (0.9, 0.45, 0.0)
    planner = QueuePlanner(KINDS)
    request = planner.request(move, "r")
    assert decode_queue_request(encode_queue_request(request)) == request == MoveShards(b"orders", move.shards, "r")
    assert not planner.is_at(ORDERS, request)
    places = tuple(1 if shard in move.shards else 0 for shard in range(4))
    assert planner.is_at(QueueEntry(b"orders", 2, 1, ORDERS.settings, (Q1, Q2), places), request)
    assert read_change(msgspec.msgpack.decode(msgspec.msgpack.encode(move), strict=False)) == move


def test_a_live_store_without_queues_takes_shards_before_it_was_measured() -> None:
    assert moves(window_of({"q1": EVEN}, {"q1": 0.9})) == moves()


def test_nothing_moves_below_the_limit_or_while_something_is_under_way() -> None:
    assert moves(window_of({"q1": EVEN, "q2": {}}, {"q1": 0.69, "q2": 0.0})) == []
    assert moves(request=DropQueue(b"orders", "r")) == []
    assert moves(entry=QueueEntry(b"orders", 2, 1, ORDERS.settings, (Q1,), (0, 0, 0, 0), dropped=True)) == []


def test_nothing_moves_by_a_window_from_before_the_last_move() -> None:
    """The window has shard 0 at q1, the plan at q2; or nothing about it yet."""
    after = QueueEntry(b"orders", 2, 1, ORDERS.settings, (Q1, Q2), (1, 0, 0, 0))
    assert moves(entry=after) == []
    rest = {unit: puts for unit, puts in EVEN.items() if unit != b"orders/0"}
    assert moves(window_of({"q1": rest, "q2": {}}, {"q1": 0.9, "q2": 0.0}), after) == []
    measured = window_of({"q1": rest, "q2": {b"orders/0": 100}}, {"q1": 0.9, "q2": 0.1})
    assert len(moves(measured, after)) == 1


def test_a_queue_whose_store_is_away_is_left_alone() -> None:
    spread = QueueEntry(b"orders", 2, 1, ORDERS.settings, (Q1, Q2), (0, 0, 0, 1))
    there = {unit: puts for unit, puts in EVEN.items() if unit != b"orders/3"}
    window = window_of({"q1": there, "q3": {}}, {"q1": 0.9, "q3": 0.0})
    assert moves(window, spread, hosts={"q1", "q3"}) == []


def test_a_store_is_wanted_if_none_has_room_and_only_one_at_a_time() -> None:
    full = window_of({"q1": EVEN}, {"q1": 0.9})
    (wanted,) = moves(full, hosts={"q1"})
    assert isinstance(wanted, HostsWanted)
    assert (wanted.kind, wanted.count, wanted.site) == ("store", 1, "hall")
    assert wanted.figures["source_busy"] == 0.9
    assert moves(full, hosts={"q1"}, adding={"store": 1}) == []
