"""A queue's plan entry: its shards, the store of each, and the move of a shard.

Owns the record. A queue lives only where its entry says: without an entry there is no queue, because a home that a ring
derives would strand stored messages when the ring changes. The keys of a queue are divided among its shards by hash;
shards are what is placed. They move one at a time, so that each stands still for a short time only.

The revision of an entry grows with every change. Its version stays the same as long as the queue exists: it is the
first half of every fencing token, so a queue that was dropped and created again accepts no token from before. It is the
version of the key of the request that created the queue: the coordinator gives later requests greater ones. Entries
are compared by version first, because the revisions of a dropped queue may have grown further than the next version.

When an operator abandons the shards on a store that is gone, the entry gets a new version and places them, empty, on a
live store: the tokens of the old ones end, and data of the old version is recognized if its store comes back. Stores
that keep shards (`heirs`) continue under the new version.

A queue that is being dropped has an entry until its stores report that its data is deleted.
"""

from __future__ import annotations

import enum
import zlib
from typing import Final

import msgspec

from shoal.plan.kinds import QUEUE
from shoal.plan.queue_settings import SHARDS_MAX, QueueSettings
from shoal.plan.ring import ServerAddress

REVISION_BITS: Final = 32
"""Bits of a revision in `newness`."""


class ShardPhase(enum.IntEnum):
    """The phases of a shard's move: see `shoal.plan.queue_mover`."""

    PREPARE = 1
    COPY = 2
    OPEN = 3


class ShardMove(msgspec.Struct, frozen=True, array_like=True):
    """The move of one shard. `since` is the revision with which it began; it identifies the move."""

    shard: int
    source: str
    destination: str
    phase: ShardPhase
    since: int


class QueueEntry(msgspec.Struct, frozen=True, array_like=True, tag=QUEUE):
    """The plan entry of one queue, the `unit`. `places` has the index of a store in `stores` for each shard; `target`
    is the same for the places that its shards are moving to, one after the other, and is empty if none does."""

    unit: bytes
    revision: int
    version: int
    settings: QueueSettings
    stores: tuple[ServerAddress, ...]
    places: tuple[int, ...]
    dropped: bool = False
    """Whether the queue is being dropped: stores delete its data, and clients do not use it."""
    move: ShardMove | None = None
    target: tuple[int, ...] = ()
    inherits: int = 0
    """The oldest version whose shards are continued by this one; 0 if none was abandoned."""
    heirs: tuple[str, ...] = ()
    """The stores that had shards when others were abandoned last: they continue them under this version."""
    began: tuple[int, ...] = ()
    """The version with which each shard began, empty; empty if none was abandoned."""

    @property
    def newness(self) -> int:
        """The number by which entries of a queue are compared: version first, then revision."""
        return self.version << REVISION_BITS | self.revision

    @property
    def is_moving(self) -> bool:
        """Whether a shard is moving, or the queue is being dropped."""
        return self.move is not None or self.dropped

    @property
    def stage(self) -> object:
        """Changes when a phase of a move begins."""
        return (self.move.since, self.move.phase) if self.move else -self.revision

    def shard_of(self, key: bytes) -> int:
        """The shard of a key."""
        return zlib.crc32(key) % len(self.places)

    def store_of(self, shard: int) -> ServerAddress:
        """The store of a shard."""
        return self.stores[self.places[shard]]

    def store(self, id: str) -> ServerAddress | None:
        """The store with this id, if the entry names it."""
        return next((store for store in self.stores if store.id == id), None)

    def shards_at(self, id: str) -> list[int]:
        """The shards that a store has."""
        return [shard for shard, place in enumerate(self.places) if self.stores[place].id == id]

    def check(self) -> None:
        """Raises ValueError if the entry is inconsistent."""
        if not 1 <= len(self.places) <= SHARDS_MAX:
            raise ValueError(f"a queue has 1 to {SHARDS_MAX} shards, not {len(self.places)}")
        if not 1 <= self.version <= self.revision < 1 << REVISION_BITS:
            raise ValueError("the version of a queue is at least 1 and at most the revision of its entry")
        if self.settings.shards != len(self.places):
            raise ValueError(f"a queue with {self.settings.shards} shards has {len(self.places)} places")
        if {*self.places, *self.target} != {*range(len(self.stores))}:
            raise ValueError("the shards of a queue name a store that is not listed, or leave one out")
        if len({store.id for store in self.stores}) != len(self.stores):
            raise ValueError("a queue names a store twice")
        if self.inherits and not self.inherits < self.version:
            raise ValueError("a queue continues a version that is not older than its own")
        if self.began and (len(self.began) != len(self.places) or not max(self.began) <= self.version):
            raise ValueError("a queue has shards that began with a later version, or not one version for each")
        if (self.move is None) != (not self.target):
            raise ValueError("a queue with places to move to has a moving shard")
        if self.move is not None:
            self._check_move(self.move)

    def _check_move(self, move: ShardMove) -> None:
        if len(self.target) != len(self.places):
            raise ValueError(f"a queue with {len(self.places)} shards moves to {len(self.target)} places")
        if not 0 <= move.shard < len(self.places) or not self.version <= move.since <= self.revision:
            raise ValueError("the moving shard of a queue is not one of its shards, or moves since another revision")
        if move.destination != self.stores[self.target[move.shard]].id or move.source == move.destination:
            raise ValueError("the moving shard of a queue does not move to its target")
        here = move.destination if move.phase is ShardPhase.OPEN else move.source
        if self.store_of(move.shard).id != here or (move.phase is not ShardPhase.OPEN and not self.store(move.source)):
            raise ValueError(f"the moving shard of a queue is not at {here}")
