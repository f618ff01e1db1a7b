"""The planner of queues: asks for stores, and moves shards away from overloaded ones.

Owns when it plans (`shoal.balance.change.Planner`); `shard_relief` has which shards go where. The shards of a new queue
are placed by the leader's table of steps (`shoal.plan.queue_steps`).

It waits while a request about a queue is answered or shards move, and while the load window was measured in part before
the last move: then it would plan for a load that is no longer there. That is its pause between two plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Final

from shoal.balance.change import HostsWanted, PlannerInput, UnitMove, registered
from shoal.balance.shard_relief import GOAL, HIGH, Relief, ShardUse, Share, relieve
from shoal.coordination.acl import STORES
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.load.costs import used_by_units
from shoal.load.kinds import Kinds
from shoal.load.window import LoadWindow
from shoal.plan.kinds import QUEUE, STORE
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_request import CreateQueue, MoveShards, QueueRequest
from shoal.plan.queue_steps import QueueSteps
from shoal.plan.shard_names import read_shard_name
from shoal.rules import ALL_RULES, Rules

OVERLOAD: Final = "store overloaded"
FULL: Final = "all stores overloaded or full"
NO_STORE: Final = "no store for new queues"


@registered
class ShardsMove(UnitMove, frozen=True, tag=QUEUE):
    """Shards of one queue to move, each to a store."""

    shards: dict[int, str]
    reason: str
    figures: dict[str, float]

    def check(self) -> None:
        """Raises ValueError if nothing would move."""
        if not self.shards or any(shard < 0 or not store for shard, store in self.shards.items()):
            raise ValueError("a move of shards names no shard, or no store")


class QueuePlanner(QueueSteps):
    """Plans queues. `load` are the kinds in load windows, for the cost of shards.

    It asks for one store while a queue waits to be created and the cluster has none. A store that queues name but that
    is not alive counts: it comes back with their messages, no store replaces it, and its queues are left alone."""

    group: Final = STORES

    def __init__(self, load: Kinds, limits: Limits = DEFAULT_LIMITS, rules: Rules = ALL_RULES) -> None:
        super().__init__(limits, rules)
        self._load = load

    def plan(self, given: PlannerInput) -> Iterator[ShardsMove | HostsWanted]:
        """The wanted store or move, if any."""
        units = given.units
        waiting = [unit for unit, request in units.requests.items() if isinstance(request, CreateQueue)]
        if waiting and not units.hosts and not units.entries and not given.adding.get(STORE):
            yield HostsWanted(STORE, 1, "", NO_STORE, {"queues_waiting": float(len(waiting))})
        if units.requests or any(entry.is_moving for entry in units.entries.values()):
            return
        stores = _loads(given.window, units.hosts, units.entries)
        shards = self._shards(given.window, units.entries, units.hosts)
        if shards is None:
            return
        relief = relieve({store: share for store, (share, _) in stores.items()}, shards)
        if relief is None:
            return
        figures = _figures(relief, {store: share for store, (share, _) in stores.items()})
        if relief.target is not None:
            moved = dict.fromkeys(relief.shards, relief.target)
            yield ShardsMove(relief.queue, units.revision(relief.queue), moved, OVERLOAD, figures)
        elif not given.adding.get(STORE):
            yield HostsWanted(STORE, 1, stores[relief.source][1], FULL, figures)

    def request(self, move: ShardsMove, id: str) -> QueueRequest:
        """The request for a move."""
        return MoveShards(move.unit, move.shards, id)

    def is_at(self, entry: QueueEntry | None, request: QueueRequest) -> bool:
        """Whether a queue exists, with its shards where a request wants them."""
        if entry is None:
            return False
        wanted = request.shards if isinstance(request, MoveShards) else {}
        return all(entry.stores[entry.places[shard]].id == store for shard, store in wanted.items())

    def _shards(self, window: LoadWindow, entries: Mapping[bytes, QueueEntry], live: Set[str]) -> list[ShardUse] | None:
        """The shards in a window; None if one of them has moved since the window began."""
        table = window.units_of(QUEUE)
        busy = used_by_units(window, QUEUE, self._load)["busy_share"].tolist()
        memory = _memory(window)
        found: dict[tuple[bytes, int], ShardUse] = {}
        columns = ("unit", "host", "messages", "bytes_stored")
        for unit, host, messages, stored, part in zip(
            *(table[name].to_pylist() for name in columns), busy, strict=True
        ):
            name = read_shard_name(unit)
            entry = entries.get(name[0]) if name else None
            if name is None or entry is None or name[1] >= len(entry.places):
                continue
            if entry.stores[entry.places[name[1]]].id != host:
                return None
            may_move = all(store.id in live for store in entry.stores)
            use = Share(part, stored / memory[host] if memory[host] else 0.0)
            found[name] = ShardUse(*name, host, use, messages, may_move)
        for queue, entry in entries.items():
            measured = {(queue, shard) for shard in range(len(entry.places))} & found.keys()
            has_changed = entry.revision > entry.version and all(store.id in live for store in entry.stores)
            if has_changed and len(measured) < len(entry.places):
                return None
        return list(found.values())


def _memory(window: LoadWindow) -> dict[str, float]:
    """The memory that each store may use; 0 if it is not limited."""
    hosts = window.hosts_of(STORE)
    pairs = zip(hosts["host"].to_pylist(), hosts["memory_max_bytes"].to_pylist(), strict=True)
    return {host: limit or 0.0 for host, limit in pairs}


def _loads(window: LoadWindow, live: Set[str], entries: Mapping[bytes, QueueEntry]) -> dict[str, tuple[Share, str]]:
    """The load and the site of each live store that was measured. A live store that no queue names is idle, measured or
    not."""
    hosts = window.hosts_of(STORE)
    columns = ("host", "site", "busy_share", "memory_bytes", "memory_max_bytes")
    found: dict[str, tuple[Share, str]] = {}
    for host, site, busy, used, limit in zip(*(hosts[name].to_pylist() for name in columns), strict=True):
        if host in live and busy is not None:
            found[host] = Share(busy, used / limit if limit else 0.0), site or ""
    named = {store.id for entry in entries.values() for store in entry.stores}
    for store in sorted(live - named - found.keys()):
        found[store] = Share(0.0, 0.0), ""
    return found


def _figures(relief: Relief, stores: Mapping[str, Share]) -> dict[str, float]:
    """What the decision rests on."""
    source = stores[relief.source]
    figures = {
        "source_busy": source.busy,
        "source_memory": source.memory,
        "limit": HIGH,
        "goal": GOAL,
        "shards": float(len(relief.shards)),
        "shards_busy": relief.use.busy,
        "shards_memory": relief.use.memory,
        "messages": float(relief.messages),
    }
    if relief.target is not None:
        figures |= {"target_busy": stores[relief.target].busy, "target_memory": stores[relief.target].memory}
    return {name: round(value, 4) for name, value in figures.items()}
