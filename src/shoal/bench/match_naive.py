"""The naive contender of `shoal bench match`: every filter is asked, in Python."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from shoal.bench.match_contender import NAIVE, Ids, nbytes_of
from shoal.filters.filter import Filter

WORDS: Final = "Filter.matches of every filter, in Python"
_WEIGHED: Final = 10_000


def cannot(load: str) -> str | None:
    """It takes every load."""
    return None


class Naive:
    """A list of filters."""

    name = NAIVE
    batched = False

    def __init__(self, filters: list[Filter]) -> None:
        self._filters = list(filters)
        self._decode = msgspec.msgpack.Decoder(dict[str, str | int | float | bool]).decode

    @property
    def nbytes(self) -> int:
        """The list and everything in it, by a sample of it."""
        sample = self._filters[:_WEIGHED]
        return round(nbytes_of(sample) * len(self._filters) / len(sample))

    def take(self, events: bytes) -> int:
        """Matches one event."""
        return len(self.ids(events))

    def ids(self, event: bytes) -> Ids:
        """What it finds for one event."""
        attributes = self._decode(event)
        found = [place for place, each in enumerate(self._filters) if each.matches(attributes)]
        return np.array(found, dtype=np.uint32)


def make(filters: list[Filter]) -> Naive:
    """The contender, holding these filters."""
    return Naive(filters)
