"""The Polars contender of `shoal bench match`: a data frame of filters, and an expression for each event.

The frame has a column for each test; filters without it hold what lets everything through. One thread, as everybody
here has: Polars is told before it is imported.
"""

from __future__ import annotations

import os
from typing import Any, Final

import msgspec
import numpy as np

from shoal.bench.match_columns import NOT_THERE, PATTERNS, Column, Test, columns_of
from shoal.bench.match_contender import Ids
from shoal.filters.filter import Filter
from shoal.filters.values import Value

WORDS: Final = "a data frame with a column for each test; for each event one expression over all of them; one thread"


def cannot(load: str) -> str | None:
    """It takes every load, if it is here."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    try:
        import polars  # noqa: F401
    except ImportError:
        return "Polars is not installed (pip install 'shoal[bench]')"
    return None


class Polars:
    """A data frame."""

    name = "polars"
    batched = False

    def __init__(self, filters: list[Filter]) -> None:
        import polars

        count = len(filters)
        self._polars = polars
        self._columns = [(column, column.everywhere(count)) for column in columns_of(filters)]
        self._frame = polars.DataFrame(
            {
                "id": np.arange(count, dtype=np.uint32),
                **{column.name: polars.Series(_dense(column, count)) for column, _ in self._columns},
            }
        )
        self._decode = msgspec.msgpack.Decoder(dict[str, str | int | float | bool]).decode

    @property
    def nbytes(self) -> int:
        """The columns."""
        return int(self._frame.estimated_size())

    def take(self, events: bytes) -> int:
        """Matches one event."""
        return len(self.ids(events))

    def ids(self, event: bytes) -> Ids:
        """What it finds for one event."""
        attributes = self._decode(event)
        tests = [self._expression(column, everywhere, attributes) for column, everywhere in self._columns]
        matching = self._polars.col("id").filter(self._polars.all_horizontal(*tests))
        return self._frame.select(matching)["id"].to_numpy()

    def _expression(self, column: Column, everywhere: bool, attributes: dict[str, Value]) -> Any:
        held, value = self._polars.col(column.name), column.operand(attributes)
        match column.test:
            case Test.LOW:
                return held <= value
            case Test.HIGH:
                return held >= value
            case Test.EQUAL:
                return held == value if everywhere else (held == value) | (held == NOT_THERE)
            case Test.PREFIX:
                return self._polars.lit(value).str.starts_with(held)
            case Test.SUFFIX:
                return self._polars.lit(value).str.ends_with(held)
        return self._polars.lit(value).str.contains(held, literal=True)


def _dense(column: Column, count: int) -> Any:
    dense = column.dense(count, column.open_end)
    return dense.tolist() if column.test in PATTERNS else dense


def make(filters: list[Filter]) -> Polars:
    """The contender, holding these filters."""
    return Polars(filters)
