"""The index: filters in columns, and kernels that match a million of them. Importing it imports numba; nothing is
compiled before it is used, and what was compiled once is kept on disk.
"""

from shoal.filters.index.index import Index
from shoal.filters.index.results import Matches, Slices
from shoal.filters.index.tables import WireTable, event_table, filter_table

__all__ = ["Index", "Matches", "Slices", "WireTable", "event_table", "filter_table"]
