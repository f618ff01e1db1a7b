"""The planner of queues: asks for a store when the first queue needs one.

Owns when (`shoal.balance.change.Planner`). The shards of a queue are placed by the leader's table of steps when it is
created (`shoal.plan.queue_steps`); this planner moves none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from shoal.balance.change import HostsWanted, PlannerInput
from shoal.coordination.acl import STORES
from shoal.plan.kinds import STORE
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_request import CreateQueue, QueueRequest
from shoal.plan.queue_steps import QueueSteps


class QueuePlanner(QueueSteps):
    """Asks for one store while a queue waits to be created and the cluster has none. A store that queues name but that
    is not alive counts: it comes back with their messages, and no store replaces it."""

    group: Final = STORES

    def plan(self, given: PlannerInput) -> Iterator[HostsWanted]:
        """The wanted store, if any."""
        units = given.units
        waiting = [unit for unit, request in units.requests.items() if isinstance(request, CreateQueue)]
        if waiting and not units.hosts and not units.entries and not given.adding.get(STORE):
            yield HostsWanted(STORE, 1, "", "no store for new queues", {"queues_waiting": float(len(waiting))})

    def request(self, move: Any, id: str) -> QueueRequest:
        """The request for a move; this planner proposes none."""
        raise NotImplementedError(f"queues are not moved by plans: {move}, {id}")

    def is_at(self, entry: QueueEntry | None, request: QueueRequest) -> bool:
        """Whether a queue exists."""
        return entry is not None
