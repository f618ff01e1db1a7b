"""Reading: an event comes into the context's row, and leaves it again.

Owns both, and the rows of a batch. How a map of names and values becomes a row is known in `rows`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import event_row as rows
from shoal.filters.index.intrinsics import f64_at, i64_at, u8_at, whole
from shoal.filters.index.kernel_context import (
    FAR,
    R_AUX,
    R_CELLS,
    R_FOUND,
    R_KINDS,
    R_NUMBERS,
    R_PLAIN,
    R_PRESENT,
    R_ROWS,
    R_SCRATCH,
    root,
)
from shoal.wire.rawbytes import PADDING_BYTES, kernel, part

BATCH: Final = 64
"""Events that there are rows for, if attributes are not very many."""
ATTRIBUTES_MAX: Final = 1 << 10
"""With more attributes there is one row."""
ROW_ROOTS: Final = (R_KINDS, R_NUMBERS, R_AUX, R_PRESENT, R_PLAIN, R_SCRATCH)
"""What a row is made of. `R_ROWS` has for each of them where the first is and how far they are apart, then for each row
how many attributes are present."""


@part
def rows_at(context: int) -> Any:
    """Where the rows are."""
    return i64_at(root(context, R_ROWS), FAR)


@kernel
def select_row(context: int, event: int) -> None:
    """Makes an event of a batch the one that is matched."""
    roots, places = i64_at(context, FAR), rows_at(context)
    for i, place in enumerate(ROW_ROOTS):
        roots[place] = places[2 * i] + event * places[2 * i + 1]
    roots[R_FOUND] = places[2 * len(ROW_ROOTS) + event]


@kernel
def read_row(context: int, event: int, data: int, size: int) -> int:
    """Reads an event of a batch from an address into its row; 0 or a negative code."""
    select_row(context, event)
    code = read_event(context, data, size)
    rows_at(context)[2 * len(ROW_ROOTS) + event] = root(context, R_FOUND)
    return code


@kernel
def clear_rows(context: int, count: int) -> None:
    """Makes the rows of a batch clean; the first is selected then."""
    for event in range(count - 1, -1, -1):
        select_row(context, event)
        clear(context)
        rows_at(context)[2 * len(ROW_ROOTS) + event] = 0


@kernel
def clear_cells(context: int) -> None:
    """Makes the row of cells clean."""
    present, own = i64_at(root(context, R_PRESENT), FAR), u8_at(root(context, R_CELLS), FAR)
    for i in range(root(context, R_FOUND)):
        own[present[i]] = 0


@kernel
def clear(context: int) -> None:
    """Makes the row clean for the next event."""
    clear_cells(context)
    present = i64_at(root(context, R_PRESENT), FAR)
    plain, kinds = f64_at(root(context, R_PLAIN), FAR), u8_at(root(context, R_KINDS), FAR)
    for i in range(root(context, R_FOUND)):
        plain[present[i]] = np.nan
        kinds[present[i]] = rows.ABSENT
    i64_at(context, FAR)[R_FOUND] = 0


@kernel
def read_event(context: int, event: int, size: int) -> int:
    """Reads the event of `size` bytes at an address into the row; 0 or a negative code."""
    if size + PADDING_BYTES > root(context, R_SCRATCH + 1):
        return rows.BAD_EVENT
    data, given = u8_at(root(context, R_SCRATCH), size), u8_at(event, size)
    for i in range(size):
        data[i] = given[i]
    found, code = rows.read_attributes(context, size)
    i64_at(context, FAR)[R_FOUND] = found
    if code < 0:
        clear(context)
    return whole(code)
