"""The interface of the contenders of `shoal bench match`, and the events as they get them.

Owns both. All contenders start from the bytes of an event on the wire and end with the ids of the filters that match
it, on one thread.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from shoal.filters.filter import Filter
from shoal.filters.index import WireTable, event_table
from shoal.filters.values import Event

Ids: TypeAlias = NDArray[np.uint32]

SHOAL: Final = "shoal"
BATCH: Final = 64
"""Events in a batch. Of 32, 64, 128 and 256, small batches were best for `shoal-many` with a million `stock`
subscriptions, and all were alike with 100,000 `hard` ones."""


class EncodedEvents(NamedTuple):
    """Events on the wire: one by one, and in batches."""

    each: Sequence[bytes]
    batches: Sequence[WireTable]

    @classmethod
    def of(cls, events: Sequence[Event]) -> EncodedEvents:
        """These events, in this order."""
        encode = msgspec.msgpack.Encoder().encode
        starts = range(0, len(events), BATCH)
        return cls(
            [encode(event) for event in events], [event_table(events[start : start + BATCH]) for start in starts]
        )


class BenchMatcher(Protocol):
    """A contender: it holds filters, whose ids are their positions, and matches events."""

    name: str
    batched: bool
    """Whether it takes batches."""

    @property
    def nbytes(self) -> int:
        """Memory that its filters use."""

    def take(self, events: Any) -> int:
        """Matches one event, or one batch; returns the number of ids found."""

    def ids(self, event: bytes) -> Ids:
        """The ids for one event, in any order."""


def nbytes_of(objects: list[Filter]) -> int:
    """Memory that Python objects use, with everything that they refer to, each counted once."""
    seen: set[int] = set()
    waiting: list[object] = list(objects)
    total = sys.getsizeof(objects)
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        if isinstance(thing, tuple):
            waiting.extend(thing)
        elif isinstance(thing, msgspec.Struct):
            waiting.extend(getattr(thing, field) for field in thing.__struct_fields__)
    return total
