"""What a load is, and the choice by name.

Owns the choice only: each load is in its own module.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from shoal.bench.loads import hard, iot, stock, strings
from shoal.filters.filter import Filter
from shoal.filters.values import Value

Events: TypeAlias = list[dict[str, Value]]

STOCK: Final = "stock"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Filters and events. The id of a filter is its place in the list, and the first of them are a smaller load."""

    name: str
    filters: list[Filter]
    events: Events
    words: str
    """What it is."""


_MAKERS: Final[dict[str, tuple[str, Callable[[int, int, int], tuple[list[Filter], Events]]]]] = {
    "hard": (hard.WORDS, hard.make),
    "iot": (iot.WORDS, iot.make),
    "strings": (strings.WORDS, strings.make),
}
NAMES: Final = (STOCK, *_MAKERS)


def make(name: str, filters: int, events: int, seed: int, quotes: Path | None = None) -> Load:
    """The load of this name, with that many filters and at most that many events.

    `quotes` is where the real quotes are, for `stock`; None for generated ones.
    """
    if name == STOCK:
        words, (made, found) = stock.words(quotes), stock.make(filters, events, seed, quotes)
    else:
        words, maker = _MAKERS[name]
        made, found = maker(filters, events, seed)
    return Load(name=name, filters=made, events=found, words=words)
