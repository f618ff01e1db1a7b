"""The record of a load, and the choice by name. Each load is in its own module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from shoal.filters.filter import Filter
from shoal.lab.bench.loads import hard, iot, mixed, stock, strings

Events: TypeAlias = list[dict[str, Any]]

STOCK: Final = "stock"


class MatchLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Filters and events. The id of a filter is its position; the first filters are a smaller load of the same kind."""

    name: str
    filters: list[Filter]
    events: Events
    words: str
    """Description of the load."""


_MAKERS: Final[dict[str, tuple[str, Callable[[int, int, int], tuple[list[Filter], Any]]]]] = {
    "hard": (hard.WORDS, hard.make),
    "iot": (iot.WORDS, iot.make),
    "strings": (strings.WORDS, strings.make),
    "mixed": (mixed.WORDS, mixed.make),
}
NAMES: Final = (STOCK, *_MAKERS)


def make(name: str, filters: int, events: int, seed: int, quotes: Path | None = None) -> MatchLoad:
    """The load of this name, with a number of filters and of events at most.

    `quotes` is the path of real quotes for `stock`; None for generated ones.
    """
    if name == STOCK:
        words, (made, found) = stock.words(quotes), stock.make(filters, events, seed, quotes)
    else:
        words, maker = _MAKERS[name]
        made, found = maker(filters, events, seed)
    return MatchLoad(name=name, filters=made, events=found, words=words)
