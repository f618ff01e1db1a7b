"""The table of steps of queues: how the leader answers requests to create, configure and drop them.

Owns the next entry of each queue (`shoal.plan.conductor.Steps`). A core without I/O.

    create     all shards on the live store with the fewest shards; waits while there is no store
    configure  the same places, new limits
    drop       the entry says so until every store of the queue has reported that its data is deleted, then it goes

A request ends when the stores report that they have carried it out. A store that is not alive keeps its queues: they
are never placed elsewhere without their data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeAlias

from msgspec.structs import replace

from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.plan.conductor import Around, Case, Step
from shoal.plan.kinds import QUEUE
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_report import QueueReport, decode_queue_report
from shoal.plan.queue_request import (
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
                return Step(dropped="this leader does not move shards")

    def go_on(self, case: QueueCase) -> Step[QueueEntry]:
        """The end of a queue that is being dropped, when its data is deleted."""
        return Step(deleted=case.entry.dropped and in_force(case))

    def is_settled(self, case: QueueCase) -> bool:
        """Requests end by their answer."""
        return False

    def _create(self, request: CreateQueue, case: QueueCase | None, around: QueueAround) -> Step[QueueEntry]:
        if case is not None:
            return Step(dropped="" if not case.entry.dropped and in_force(case) else None)
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
        return Step(dropped="" if in_force(case) else None)


def in_force(case: QueueCase) -> bool:
    """Whether every store of the queue has carried out its entry."""
    entry = case.entry
    return all(
        (report := case.reports.get(store.id)) is not None
        and (status := report.queues.get(entry.unit)) is not None
        and status.newness >= entry.newness
        and not status.trouble
        for store in entry.stores
    )


def least_used(around: QueueAround) -> ServerAddress | None:
    """The live store with the fewest shards; None if there is none."""
    shards: Counter[str] = Counter()
    for entry in around.entries.values():
        shards.update(entry.stores[place].id for place in entry.places)
    live = [store for store in around.hosts if store not in around.leaving]
    return around.hosts[min(live, key=lambda store: (shards[store], store))] if live else None
