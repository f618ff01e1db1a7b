"""A queue's plan entry: its shards, and the store of each.

Owns the record. A queue lives only where its entry says: without an entry there is no queue, because a home that a ring
derives would strand stored messages when the ring changes. The keys of a queue are divided among its shards by hash;
shards are what is placed.

The revision of an entry grows with every change. Its version stays the same as long as the queue exists: it is the
first half of every fencing token, so a queue that was dropped and created again accepts no token from before. It is the
version of the key of the request that created the queue: the coordinator gives later requests greater ones. Entries
are compared by version first, because the revisions of a dropped queue may have grown further than the next version.

A queue that is being dropped has an entry until its stores report that its data is deleted.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from shoal.plan.kinds import QUEUE
from shoal.plan.queue_settings import SHARDS_MAX, QueueSettings
from shoal.plan.ring import ServerAddress

REVISION_BITS: Final = 32
"""Bits of a revision in `newness`."""


class QueueEntry(msgspec.Struct, frozen=True, array_like=True, tag=QUEUE):
    """The plan entry of one queue, the `unit`. `places` has the index of a store in `stores` for each shard."""

    unit: bytes
    revision: int
    version: int
    settings: QueueSettings
    stores: tuple[ServerAddress, ...]
    places: tuple[int, ...]
    dropped: bool = False
    """Whether the queue is being dropped: stores delete its data, and clients do not use it."""

    @property
    def newness(self) -> int:
        """The number by which entries of a queue are compared: version first, then revision."""
        return self.version << REVISION_BITS | self.revision

    @property
    def is_moving(self) -> bool:
        """Whether the queue is being dropped."""
        return self.dropped

    @property
    def stage(self) -> int:
        """Changes with the revision only."""
        return self.revision

    def shard_of(self, key: bytes) -> int:
        """The shard of a key."""
        return zlib.crc32(key) % len(self.places)

    def check(self) -> None:
        """Raises ValueError if the entry is inconsistent."""
        if not 1 <= len(self.places) <= SHARDS_MAX:
            raise ValueError(f"a queue has 1 to {SHARDS_MAX} shards, not {len(self.places)}")
        if not 1 <= self.version <= self.revision < 1 << REVISION_BITS:
            raise ValueError("the version of a queue is at least 1 and at most the revision of its entry")
        if self.settings.shards != len(self.places):
            raise ValueError(f"a queue with {self.settings.shards} shards has {len(self.places)} places")
        if {*self.places} != {*range(len(self.stores))}:
            raise ValueError("the shards of a queue name a store that is not listed, or leave one out")
        if len({store.id for store in self.stores}) != len(self.stores):
            raise ValueError("a queue names a store twice")
