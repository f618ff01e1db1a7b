"""The matching index: filters in columns, and kernels that match a million of them.

Owns nothing itself; `Index` is the way in. Importing the package imports numba. Nothing is compiled before it is used,
and compiled kernels are cached on disk.
"""

from shoal.filters.index.hash_tables import ID_MAX
from shoal.filters.index.index import Index, Matches, Slices
from shoal.filters.index.snapshot import SNAPSHOT_MAGIC
from shoal.filters.index.wire_table import WireTable, batch_table, event_table, filter_table

__all__ = [
    "ID_MAX",
    "SNAPSHOT_MAGIC",
    "Index",
    "Matches",
    "Slices",
    "WireTable",
    "batch_table",
    "event_table",
    "filter_table",
]
