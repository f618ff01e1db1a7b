"""What a contender of `shoal bench match` must be able to do, and the choice by name.

Owns the interface, the events as contenders are handed them, and which contenders there are. All start from an event's
bytes on the wire and end with the ids of the filters that match it, on one thread.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from shoal.filters.filter import Filter
from shoal.filters.index import WireTable, event_table
from shoal.filters.values import Event

Ids: TypeAlias = NDArray[np.uint32]

SHOAL: Final = "shoal"
NAIVE: Final = "naive"
OTHERS: Final = (NAIVE, "numpy", "polars", "duckdb")
BATCH: Final = 64
"""Events that a contender is handed at a time, if it takes batches. Of 32, 64, 128 and 256, small ones were best for
`shoal-many` with a million `stock` subscriptions, and all were alike with 100,000 `hard` ones."""


class Wire(NamedTuple):
    """Events as they come: one by one, and in batches."""

    each: Sequence[bytes]
    batches: Sequence[WireTable]

    @classmethod
    def of(cls, events: Sequence[Event]) -> Wire:
        """These events, in this order."""
        encode = msgspec.msgpack.Encoder().encode
        starts = range(0, len(events), BATCH)
        return cls(
            [encode(event) for event in events], [event_table(events[start : start + BATCH]) for start in starts]
        )


class Contender(Protocol):
    """Something that holds filters and matches events."""

    name: str
    batched: bool
    """Whether it is handed batches."""

    @property
    def nbytes(self) -> int:
        """What its filters take in memory."""

    def take(self, events: Any) -> int:
        """Matches one event, or one batch; returns how many ids it has found."""

    def ids(self, event: bytes) -> Ids:
        """What it finds for one event, in any order."""


class Maker(Protocol):
    """A module `match_*` of a contender."""

    WORDS: str

    def cannot(self, load: str) -> str | None:
        """Why a load is not for it; None if it is."""

    def make(self, filters: list[Filter]) -> Contender:
        """The contender, holding these filters under their places as ids."""


def find(name: str) -> Maker:
    """The contender of this name. Only its own module is imported."""
    return cast(Maker, importlib.import_module(f"shoal.bench.match_{name}"))


def nbytes_of(objects: list[Filter]) -> int:
    """What Python objects take in memory, with all that they refer to, each once."""
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
