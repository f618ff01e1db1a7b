"""The fold over rows with recorded arrival times, in the order of arrival.

Owns the order. A live reader folds rows when they arrive. A reader of a backlog or of micro-batches must fold them in
the same order; otherwise records that were in time would be dropped as late. So the same rows give the same windows in
any batches, as long as the batches are in the order of time.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from shoal.load.fold import WindowTimes, fold
from shoal.load.fold_state import FoldState
from shoal.load.kinds import Kinds
from shoal.load.reports import BATCH_SCHEMA
from shoal.load.window import LoadWindow


def fold_in_order(
    state: FoldState, batch: pa.RecordBatch | pa.Table, times: WindowTimes, kinds: Kinds
) -> tuple[list[LoadWindow], FoldState]:
    """The windows that a batch closes, oldest first, and the new state. The time is that of the latest arrival."""
    table = pa.table({name: batch[name] for name in BATCH_SCHEMA.names}).combine_chunks()
    arrived_s = table["arrived_s"].to_numpy()
    known = np.isfinite(arrived_s)
    arrived_s = np.where(known, arrived_s, arrived_s[known].max(initial=0.0))  # the fold drops a row without a time
    order = np.argsort(arrived_s, kind="stable")
    moments = arrived_s[order]
    table = table.take(pa.array(order)).combine_chunks()
    bounds = [*np.flatnonzero(np.diff(moments, prepend=-np.inf)).tolist(), len(moments)]
    windows: list[LoadWindow] = []
    for begin, end in pairwise(bounds):
        closed, state = fold(state, table.slice(begin, end - begin), float(moments[begin]), times, kinds)
        windows += closed
    return windows, state
