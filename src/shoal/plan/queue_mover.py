"""The move of a queue's shards from store to store: its phases, when each ends, and the entry that follows.

Owns the table of phases and events, and what the store of each shard has to do in each phase. Pure: the leader's table
of steps calls it with reports, agents of stores call it with entries.

    prepare   until the destination has made room for the shard; given up after `shard_prepare_timeout_s`, or if the
              shard is too large to stand still for less than `move_pause_s_max`
    copy      the destination seals the shard at the source, copies it and reports; given up after
              `shard_copy_timeout_s`, or if the copy fails
    open      the shard is at the destination, which opens it; the source drops its copy

Before the shard is opened the leader alone decides between continuing and giving up, with one write: an agent acts only
on entries that are written. A move that was given up leaves the shard open at its source: it was sealed at most. After
the switch a move is never given up. Shards move one at a time; a move that is given up ends the whole request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from shoal.limits import Limits
from shoal.plan.queue_entry import QueueEntry, ShardMove, ShardPhase
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.ring import ServerAddress

MOVE: Final[Mapping[tuple[ShardPhase | None, str], ShardPhase | None]] = {
    (None, "asked"): ShardPhase.PREPARE,
    (ShardPhase.PREPARE, "ready"): ShardPhase.COPY,
    (ShardPhase.PREPARE, "given up"): None,
    (ShardPhase.COPY, "copied"): ShardPhase.OPEN,
    (ShardPhase.COPY, "given up"): None,
    (ShardPhase.OPEN, "opened, another shard"): ShardPhase.PREPARE,
    (ShardPhase.OPEN, "opened"): None,
}
"""The next phase by phase and event; None is a queue without a moving shard."""

OPEN, IMPORT, GONE, AS_IT_IS = "o", "i", "g", "."
"""The states that an entry wants for a shard on a store, as the script `ship` reads them."""


class ShardReport(Protocol):
    """What the agent of a store reports about a queue."""

    @property
    def newness(self) -> int:
        """The newest revision that its store has carried out."""

    @property
    def copied(self) -> int:
        """The move (`ShardMove.since`) whose shard is copied to its store completely; 0 if none."""

    @property
    def refused(self) -> int:
        """The move that it cannot carry out; 0 if none."""

    @property
    def trouble(self) -> str:
        """Why it cannot."""


def begin(entry: QueueEntry, wanted: Mapping[int, ServerAddress]) -> QueueEntry | None:
    """The first entry of a request; None if all shards are there already. ValueError if it is impossible."""
    if entry.move is not None:
        raise ValueError("a shard of the queue is moving already")
    if strangers := [shard for shard in wanted if not 0 <= shard < len(entry.places)]:
        raise ValueError(f"the queue has no shard {strangers[0]}: it has {len(entry.places)}")
    places = [entry.store_of(shard) for shard in range(len(entry.places))]
    return _next_shard(entry, places, [wanted.get(shard, place) for shard, place in enumerate(places)], "asked")


def next_step(
    entry: QueueEntry, said: ShardReport | None, over: Callable[[float], bool], limits: Limits
) -> tuple[QueueEntry | None, str | None]:
    """The next entry of a move if it is due, and why the move was given up if it was. `said` is the report of the
    destination; `over` tells whether the phase has lasted that long."""
    move = entry.move
    if move is None:
        return None, None
    carried_out = said is not None and said.newness >= entry.newness
    if move.phase is ShardPhase.OPEN:
        return (_opened(entry) if carried_out else None), None
    trouble = said.trouble if said is not None and said.refused == move.since else ""
    if move.phase is ShardPhase.PREPARE:
        if carried_out and not trouble:
            return _in_phase(entry, "ready"), None
        timeout_s, what = limits.shard_prepare_timeout_s, "did not make room for"
    else:
        if said is not None and said.copied == move.since:
            return _switched(entry), None
        timeout_s, what = limits.shard_copy_timeout_s, "did not copy"
    if trouble:
        return give_up(entry), f"store {move.destination} refuses shard {move.shard}: {trouble}"
    if over(timeout_s):
        return give_up(entry), f"store {move.destination} {what} shard {move.shard} within {timeout_s:g} s"
    return None, None


def give_up(entry: QueueEntry) -> QueueEntry:
    """The entry without the move. Only before the switch."""
    assert entry.move is not None
    step(entry.move.phase, "given up")
    return _placed(entry, [entry.store_of(shard) for shard in range(len(entry.places))])


def abandon(entry: QueueEntry, gone: Sequence[str], target: ServerAddress, version: int) -> QueueEntry:
    """The entry that places the shards of stores that are gone, empty, on another store, under a new version."""
    here = [entry.store_of(shard) for shard in range(len(entry.places))]
    placed = _placed(entry, [target if store.id in gone else store for store in here])
    return replace(
        placed,
        version=version,
        revision=max(placed.revision, version),
        inherits=entry.inherits or entry.version,
        heirs=tuple(dict.fromkeys(store.id for store in here if store.id not in gone)),
        began=tuple(
            version if store.id in gone else began
            for store, began in zip(here, entry.began or (entry.version,) * len(here), strict=True)
        ),
    )


def step(phase: ShardPhase | None, event: str) -> ShardPhase | None:
    """The next phase. An event that is not in the table is a bug."""
    try:
        return MOVE[phase, event]
    except KeyError:
        raise AssertionError(f"a move in phase {phase!r} cannot take {event!r}") from None


def wanted_states(entry: QueueEntry, store: str) -> str:
    """What a store has to do with each shard: a letter each."""
    letters = [OPEN if entry.stores[place].id == store else GONE for place in entry.places]
    move = entry.move
    if move is not None and move.destination == store and move.phase is not ShardPhase.OPEN:
        letters[move.shard] = IMPORT
    if move is not None and move.source == store and move.phase is ShardPhase.COPY:
        letters[move.shard] = AS_IT_IS  # the destination seals it
    return "".join(letters)


def first_states(entry: QueueEntry, store: str) -> str:
    """The states of the shards of a new queue on a store: open, or absent."""
    return "".join("o" if entry.stores[place].id == store else "a" for place in entry.places)


def renewed_states(entry: QueueEntry, store: str, version: int) -> str:
    """The same for a store that continues shards of an older version: open, empty, or absent."""
    states = zip(first_states(entry, store), entry.began or (0,) * len(entry.places), strict=True)
    return "".join("e" if state == "o" and began > version else state for state, began in states)


def settings_at(entry: QueueEntry, store: str) -> QueueSettings:
    """The limits of a queue on one store: its part of them, by the number of its shards. Exact on one store."""
    settings, here, shards = entry.settings, len(entry.shards_at(store)), len(entry.places)
    if here == shards:
        return settings
    parts = {name: max(1, -(-getattr(settings, name) * here // shards)) for name in _DIVIDED}
    return replace(settings, **parts)


_DIVIDED: Final = ("messages_max", "bytes_max", "keys_max", "dedupe_ids_max", "dead_max")


def pause_s(messages: int, bytes: int, ids: int) -> float:
    """How long a shard with this content stands still while it is copied, on a slow machine."""
    return PAUSE_S + (messages + ids) * PAUSE_MESSAGE_S + bytes * PAUSE_BYTE_S


PAUSE_S: Final = 0.05
PAUSE_MESSAGE_S: Final = 20e-6
PAUSE_BYTE_S: Final = 30e-9
"""The pause of any move, and what each message and byte adds: export, transfer, import, two syncs."""


def _opened(entry: QueueEntry) -> QueueEntry:
    places = [entry.store_of(shard) for shard in range(len(entry.places))]
    target = [entry.stores[place] for place in entry.target]
    return _next_shard(entry, places, target, "opened, another shard") or _placed(entry, places, "opened")


def _next_shard(
    entry: QueueEntry, places: Sequence[ServerAddress], target: Sequence[ServerAddress], event: str
) -> QueueEntry | None:
    """The entry in which the first shard that is not at its target begins to move; None if there is none."""
    for shard, (here, there) in enumerate(zip(places, target, strict=True)):
        if here.id != there.id:
            phase = step(entry.move.phase if entry.move else None, event)
            assert phase is not None
            moved = _placed(entry, places, target=target)
            return replace(moved, move=ShardMove(shard, here.id, there.id, phase, moved.revision))
    return None


def _in_phase(entry: QueueEntry, event: str) -> QueueEntry:
    assert entry.move is not None
    phase = step(entry.move.phase, event)
    assert phase is not None
    return replace(entry, revision=entry.revision + 1, move=replace(entry.move, phase=phase))


def _switched(entry: QueueEntry) -> QueueEntry:
    """The shard is at the destination."""
    assert entry.move is not None
    moving = entry.move.shard
    target = [entry.stores[place] for place in entry.target]
    places = [target[shard] if shard == moving else entry.store_of(shard) for shard in range(len(entry.places))]
    moved = replace(_placed(entry, places, target=target), move=entry.move, revision=entry.revision)
    return _in_phase(moved, "copied")


def _placed(
    entry: QueueEntry,
    places: Sequence[ServerAddress],
    event: str = "",
    target: Sequence[ServerAddress] = (),
) -> QueueEntry:
    """The entry with shards at these stores, and no other stores listed."""
    if event and entry.move is not None:
        step(entry.move.phase, event)
    stores = _listed((*places, *target))
    index = {store.id: number for number, store in enumerate(stores)}
    return replace(
        entry,
        revision=entry.revision + 1,
        stores=stores,
        places=tuple(index[store.id] for store in places),
        target=tuple(index[store.id] for store in target),
        move=None,
    )


def _listed(stores: Iterable[ServerAddress]) -> tuple[ServerAddress, ...]:
    return tuple({store.id: store for store in stores}.values())
