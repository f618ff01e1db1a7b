"""The table of steps of queues: how the leader answers requests to create, configure, move, abandon and drop them.

Owns the next entry of each queue (`shoal.plan.conductor.Steps`). A core without I/O.

    create     all shards on the live store with the fewest shards; waits while there is no store
    configure  the same places, new limits
    move       shards go to other stores, one at a time: see `shoal.plan.queue_mover`
    abandon    the shards of stores that are gone begin again, empty, on a live store, under a new version
    drop       the entry says so until every store of the queue has reported that its data is deleted, then it goes

A request ends when the stores report that they have carried it out. A store that is not alive keeps its queues: they
are never placed elsewhere without their data, unless an operator abandons them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from typing import Final, TypeAlias

from msgspec.structs import replace

from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.plan.conductor import Around, Case, Step
from shoal.plan.kinds import QUEUE
from shoal.plan.queue_entry import QueueEntry, ShardPhase
from shoal.plan.queue_mover import abandon, begin, next_step
from shoal.plan.queue_report import QueueReport, decode_queue_report, holds_older
from shoal.plan.queue_request import (
    AbandonShards,
    ConfigureQueue,
    CreateQueue,
    DropQueue,
    MoveShards,
    QueueRequest,
    decode_queue_request,
)
from shoal.plan.ring import ServerAddress
from shoal.rules import ALL_RULES, Rules

Stores: TypeAlias = Mapping[str, ServerAddress]
"""The live stores: their agents hold the lease."""
QueueCase: TypeAlias = Case[QueueEntry, Stores, QueueReport]
QueueAround: TypeAlias = Around[QueueEntry, Stores]


class QueueSteps:
    """The table of steps of queues."""

    kind: Final = QUEUE
    entry_type: Final = QueueEntry

    def __init__(self, limits: Limits = DEFAULT_LIMITS, rules: Rules = ALL_RULES) -> None:
        self._limits = limits
        self._queues_max = limits.queues_max
        self._rules = rules

    def read_request(self, data: bytes) -> QueueRequest:
        """The request in `data`; PlanError if it is invalid."""
        return decode_queue_request(data)

    def read_report(self, data: bytes) -> QueueReport:
        """The report in `data`; ProtocolError if it is invalid."""
        return decode_queue_report(data)

    def facts(self, entry: QueueEntry) -> Mapping[str, object]:
        """The fields that the log shows for an entry."""
        stores = ",".join(store.id for store in entry.stores)
        return {"queue": entry.unit, "stores": stores, "revision": entry.revision, "dropped": entry.dropped}

    def answer(self, request: QueueRequest, case: QueueCase | None, around: QueueAround) -> Step[QueueEntry]:
        """The step for a request."""
        match request:
            case CreateQueue():
                return self._create(request, case, around)
            case DropQueue():
                return self._drop(case)
            case ConfigureQueue():
                return self._configure(request, case)
            case MoveShards():
                return self._move(request, case, around)
            case AbandonShards():
                return self._abandon(request, case, around)

    def go_on(self, case: QueueCase) -> Step[QueueEntry]:
        """The next phase of a move; the end of a queue that is being dropped, when its data is deleted."""
        entry = case.entry
        if entry.dropped or entry.move is None:
            return Step(deleted=entry.dropped and in_force(case))
        report = case.reports.get(entry.move.destination)
        following, why = next_step(entry, report.queues.get(entry.unit) if report else None, case.over, self._limits)
        return Step(following, given_up=why)

    def is_settled(self, case: QueueCase) -> bool:
        """Requests end by their answer."""
        return False

    def _create(self, request: CreateQueue, case: QueueCase | None, around: QueueAround) -> Step[QueueEntry]:
        if case is not None:
            return Step() if case.entry.dropped else _carried_out(case)
        if len(around.entries) >= self._queues_max:
            return Step(dropped=f"the cluster has {self._queues_max} queues, which is the limit (queues_max)")
        store = least_used(around)
        if store is None:
            return Step()
        version, shards = around.number, request.settings.shards
        return Step(QueueEntry(request.unit, version, version, request.settings, (store,), (0,) * shards))

    def _drop(self, case: QueueCase | None) -> Step[QueueEntry]:
        if case is None:
            return Step(dropped="there is no such queue")
        entry = case.entry
        if entry.dropped:
            return Step(dropped="" if in_force(case) else None)
        return Step(replace(entry, dropped=True, revision=entry.revision + 1))

    def _configure(self, request: ConfigureQueue, case: QueueCase | None) -> Step[QueueEntry]:
        if case is None or case.entry.dropped:
            return Step(dropped="there is no such queue")
        entry = case.entry
        if request.settings.shards != entry.settings.shards:
            return Step(dropped=f"the queue has {entry.settings.shards} shards, which cannot be changed")
        if request.settings != entry.settings:
            return Step(replace(entry, settings=request.settings, revision=entry.revision + 1))
        return _carried_out(case)

    def _move(self, request: MoveShards, case: QueueCase | None, around: QueueAround) -> Step[QueueEntry]:
        """Shards that are moving already are waited for. A request ends when its shards are where it wants them, or
        when one of them cannot be moved."""
        if case is None or case.entry.dropped:
            return Step(dropped="there is no such queue")
        entry = case.entry
        if entry.move is not None:
            return Step()
        here = {entry.store_of(shard).id for shard in request.shards if 0 <= shard < len(entry.places)}
        for store in {*request.shards.values()} - here:
            if store not in around.hosts or store in around.leaving:
                return Step(dropped=f"store {store} is not in the cluster, or is being removed")
        known = {store.id: store for store in (*entry.stores, *around.hosts.values())}
        try:
            moving = begin(entry, {shard: known[store] for shard, store in request.shards.items()})
        except (ValueError, KeyError) as error:
            return Step(dropped=str(error))
        if moving is not None:
            return Step(moving)
        return _carried_out(case)

    def _abandon(self, request: AbandonShards, case: QueueCase | None, around: QueueAround) -> Step[QueueEntry]:
        """A move is waited for: it ends, or is given up. Only a move that has switched to a store that is gone cannot
        end. The request ends when the stores that are alive have the new version."""
        if case is None or case.entry.dropped:
            return Step(dropped="there is no such queue")
        entry, gone = case.entry, request.stores
        if entry.version == around.number:
            return Step(dropped="" if in_force(case, around.hosts) else None)
        if alive := [store for store in gone if store in around.hosts]:
            return Step(dropped=f"store {alive[0]} is alive")
        if not any(entry.shards_at(store) for store in gone):
            return Step(dropped=f"the queue has no shard on store {', '.join(gone)}")
        move = entry.move
        if move is not None and not (move.phase is ShardPhase.OPEN and move.destination in gone):
            return Step()
        target = least_used(around, {*gone, *((move.source,) if move is not None else ())})
        if target is None:
            return Step(dropped="no other store is alive that could take the shards")
        return Step(abandon(entry, gone, target, around.number))


def in_force(case: QueueCase, among: Container[str] | None = None) -> bool:
    """Whether every store of the queue, or of those `among` them, has carried out its entry."""
    entry = case.entry
    return all(
        (report := case.reports.get(store.id)) is not None
        and (status := report.queues.get(entry.unit)) is not None
        and status.newness >= entry.newness
        and not status.trouble
        for store in entry.stores
        if among is None or store.id in among
    )


def _carried_out(case: QueueCase) -> Step[QueueEntry]:
    """Ends a request whose entry is in force. It also ends if a store holds an older version of the queue: only a drop
    helps then, which is refused while another request waits."""
    entry = case.entry
    for store in entry.stores:
        report = case.reports.get(store.id)
        status = report.queues.get(entry.unit) if report is not None else None
        if status is not None and holds_older(status.trouble, entry.version):
            return Step(dropped=f"store {store.id} holds an older version of it: drop the queue, which deletes both")
    return Step(dropped="" if in_force(case) else None)


def least_used(around: QueueAround, without: Container[str] = ()) -> ServerAddress | None:
    """The live store with the fewest shards; None if there is none."""
    shards: Counter[str] = Counter()
    for entry in around.entries.values():
        shards.update(entry.stores[place].id for place in entry.places)
    live = [store for store in around.hosts if store not in around.leaving and store not in without]
    return around.hosts[min(live, key=lambda store: (shards[store], store))] if live else None
