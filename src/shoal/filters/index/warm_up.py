"""Warm-up: uses an index once in advance, because compiling its kernels takes a minute.

Owns a few filters and events that reach every kernel which takes long to compile.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import numpy as np

from shoal.filters.index import Index, WireTable, batch_table, event_table, filter_table
from shoal.filters.language import parse
from shoal.filters.values import Event

_FILTERS: Final = (
    "a < {0} and b > {0} and c <= {0}",
    "a = {0} and b < {0}",
    "name prefix 'n{0}' and a > {0}",
    "name = 'n{0}'",
    "a = {0} or b = {0}",
    "name wildcard 'n*{0}*x' and a is not {0}",
    "ignorecase(name) = 'N{0}'",
    "name cidr '10.0.0.{0}'",
)
_ROUNDS: Final = 100
"""More than enough range filters for a grid."""
_EVENT: Final[Event] = {"a": 1, "b": 2, "c": 3.5, "name": "n1"}


def warm_up(columns: bool = True) -> None:
    """Fills an index, changes it, matches with it, and discards it. `columns`: events come as Arrow batches too."""
    filters = [parse(text.format(number)) for number in range(_ROUNDS) for text in _FILTERS]
    index = Index()
    index.insert_many(np.arange(len(filters), dtype=np.uint32), filter_table(filters))
    index.settle()
    index.insert(len(filters), filters[0])
    index.remove(0)
    index.remove_many(range(1, 100))
    index.match(_EVENT)
    index.match_slices(_EVENT)
    parts = index.split(lambda ids: ids % 2)
    parts[0].merge(parts[1])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "filters.index"
        index.settle()
        index.save(path)
        table = _column_table() if columns else event_table([_EVENT, _EVENT])
        for each in (index, Index.open(path)):
            each.match_many(table)
            each.count_many(table)


def _column_table() -> WireTable:
    import pyarrow as pa

    return batch_table(pa.RecordBatch.from_pylist([_EVENT, _EVENT]))
