"""A store is asked for when a queue waits and there is none."""

from __future__ import annotations

from collections.abc import Mapping, Set

from shoal.balance.change import HostsWanted, PlannerInput, Units
from shoal.balance.queue_planner import QueuePlanner
from shoal.load.window import LoadWindow, window_schema
from shoal.load_kinds import KINDS
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_request import CreateQueue, DropQueue, QueueRequest
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.ring import ServerAddress

WANTED = [HostsWanted("store", 1, "", "no store for new queues", {"queues_waiting": 1.0})]
ENTRY = QueueEntry(b"other", 1, 1, QueueSettings(shards=1), (ServerAddress("q1", "h", 1),), (0,))


def planned(
    request: QueueRequest | None = None,
    entries: tuple[QueueEntry, ...] = (),
    hosts: Set[str] = frozenset(),
    adding: Mapping[str, int] = {},
) -> list[HostsWanted]:
    requests = {request.unit: request} if request else {}
    window = LoadWindow(0, 2, window_schema(KINDS).empty_table())
    return [
        *QueuePlanner().plan(
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
