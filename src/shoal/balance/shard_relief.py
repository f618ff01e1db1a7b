"""Which shards leave a store that is overloaded, and where they go.

Owns the rule. A pure function of the load of stores and shards.

A queue stays on one store unless that store is overloaded: a queue on several stores costs its clients a connection to
each. An overloaded store is relieved by a whole queue if one suffices, else by shards of its busiest queue, those with
few messages for their load first, because a shard stands still while its messages are copied.

Nothing oscillates: a store gives only above `HIGH`, takes only up to `GOAL`, and a move that would relieve its store by
less than `GAIN_MIN` is not worth its pause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

HIGH: Final = 0.7
"""Share of a store's time or memory above which it is overloaded."""
GOAL: Final = 0.5
"""Share down to which it is relieved, and up to which others are filled."""
GAIN_MIN: Final = 0.05
"""Smallest relief that is worth a move."""
SHARDS_MAX: Final = 16
"""Shards that one plan moves. They move one after the other."""
MESSAGES_MAX: Final = 5_000
"""Messages of a shard above which it stays: it would stand still for too long. It can move when it has been emptied."""


class Share(NamedTuple):
    """The use of a store: the used shares of its time and its memory."""

    busy: float
    memory: float

    def plus(self, other: Share) -> Share:
        """The sum."""
        return Share(self.busy + other.busy, self.memory + other.memory)

    @property
    def most(self) -> float:
        """The larger of the two."""
        return max(self)


class ShardUse(NamedTuple):
    """One shard: its store, what it uses there, and its messages."""

    queue: bytes
    shard: int
    store: str
    use: Share
    messages: int
    may_move: bool = True


@dataclass(frozen=True, slots=True)
class Relief:
    """Shards of one queue that go from an overloaded store to another one, or, without `target`, to a new store."""

    queue: bytes
    shards: tuple[int, ...]
    source: str
    target: str | None
    use: Share
    messages: int


def relieve(stores: Mapping[str, Share], shards: Iterable[ShardUse]) -> Relief | None:
    """The relief of the most overloaded store that can be relieved; None if there is none. Only stores whose load is
    known are in `stores`."""
    by_store: dict[str, list[ShardUse]] = {store: [] for store in stores}
    for shard in shards:
        if shard.store in by_store:
            by_store[shard.store].append(shard)
    wanted: Relief | None = None
    for source in sorted(stores, key=lambda store: (-stores[store].most, store)):
        if stores[source].most <= HIGH:
            break
        found = _relieve_one(source, stores, by_store)
        if found is not None and found.target is not None:
            return found
        wanted = wanted or found
    return wanted


def _relieve_one(source: str, stores: Mapping[str, Share], by_store: Mapping[str, Sequence[ShardUse]]) -> Relief | None:
    load = stores[source]
    side = int(load.memory > load.busy)
    queues: dict[bytes, list[ShardUse]] = {}
    for shard in by_store[source]:
        queues.setdefault(shard.queue, []).append(shard)
    used = {queue: sum(shard.use[side] for shard in found) for queue, found in queues.items()}
    stays = sum(used.values()) - GAIN_MIN
    """Relief of everything would move the overload, not end it."""
    least = max(load[side] - HIGH, GAIN_MIN)
    others = {store: share for store, share in stores.items() if store != source}
    for queue in sorted(queues, key=lambda queue: (used[queue], queue)):
        if least <= used[queue] <= stays and _is_movable(queues[queue]):
            relief = _fit(queues[queue], source, others, by_store, side, used[queue] + GAIN_MIN)
            if relief is not None and len(relief.shards) == len(queues[queue]):
                return relief
    wanted: Relief | None = None
    for queue in sorted(queues, key=lambda queue: (-used[queue], queue)):
        movable = [shard for shard in queues[queue] if _is_movable([shard]) and shard.use[side] > 0]
        movable.sort(key=lambda shard: ((1 + shard.messages) / shard.use[side], shard.shard))
        excess = min(load[side] - GOAL, stays)
        relief = _fit(movable, source, others, by_store, side, excess)
        if relief is not None and relief.use[side] >= GAIN_MIN:
            return relief
        alone = _fit(movable, source, {"": Share(0.0, 0.0)}, {}, side, excess)
        if wanted is None and alone is not None and alone.use[side] >= GAIN_MIN:
            wanted = replace(alone, target=None)
    return wanted


def _is_movable(found: Sequence[ShardUse]) -> bool:
    return len(found) <= SHARDS_MAX and all(shard.may_move and shard.messages <= MESSAGES_MAX for shard in found)


def _fit(
    wanted: Sequence[ShardUse],
    source: str,
    targets: Mapping[str, Share],
    by_store: Mapping[str, Sequence[ShardUse]],
    side: int,
    excess: float,
) -> Relief | None:
    """As many of the shards as fit one target, up to the excess: the target that takes most, then one that has the
    queue, then the least loaded."""
    best: tuple[tuple[float, bool, float, str], list[ShardUse]] | None = None
    for target, load in targets.items():
        taken, fitting = 0.0, list[ShardUse]()
        for shard in wanted:
            if len(fitting) == SHARDS_MAX or taken >= excess:
                break
            if load.plus(shard.use).most <= GOAL and (not fitting or taken + shard.use[side] <= excess + GAIN_MIN):
                load = load.plus(shard.use)
                taken += shard.use[side]
                fitting.append(shard)
        if fitting:
            has = any(shard.queue == wanted[0].queue for shard in by_store.get(target, ()))
            rank = (-taken, not has, targets[target].most, target)
            best = (rank, fitting) if best is None or rank < best[0] else best
    if best is None:
        return None
    (*_, chosen), fitting = best
    return Relief(
        wanted[0].queue,
        tuple(shard.shard for shard in fitting),
        source,
        chosen,
        Share(sum(shard.use.busy for shard in fitting), sum(shard.use.memory for shard in fitting)),
        sum(shard.messages for shard in fitting),
    )
