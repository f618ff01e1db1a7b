"""Cells: many filters with several bounds, narrowed down to few before they are tested.

Owns how the SCAN run of a large cluster is laid out. The number line of each attribute is cut into up to 254 cells of
about equal weight, so that a bound is a byte. Each filter is filed under its narrowest attribute `a`, by the *coarse*
cells (eight of them) in which its interval on `a` starts and ends, then under its second narrowest attribute `b`:

    block (a, first coarse cell, last coarse cell)  ->  group b  ->  entries

An event visits the blocks whose interval contains its coarse cell. Within a group it compares bytes, 32 filters at a
time: first those of `b`, then of `a` and of the third attribute `c`; what is left is tested exactly. A byte never
refuses what the exact bounds accept.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shoal.filters.index import records
from shoal.filters.index.memory import whole
from shoal.filters.index.records import get_bits, get_float, item_words, width_words
from shoal.wire.rawbytes import kernel, part

FIRST_CELL: Final = 1
"""0 is the cell of an event without the attribute."""
EDGES_MAX: Final = 253
COARSE_SHIFT: Final = 5
COLUMNS: Final = 4
"""Byte columns: b low, b high, a low, a high."""

_SAMPLES_MAX: Final = 1 << 16
_BOUNDS_MAX: Final = 64


@part
def cell_of(edges: Any, first: int, last: int, value: float) -> int:
    """The cell of a number: one more than the edges that are not above it."""
    low, high = first, last
    while low < high:
        middle = (low + high) >> 1
        if edges[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return FIRST_CELL + low - first


@kernel
def bound_of(words: Any, at: int, width: int, upper: bool) -> float:
    """A float64 that is not inside the bound of an item."""
    if width <= records.F64:
        return get_float(words, at, width)
    bits = get_bits(words, at, 4)
    nearest = np.float64(bits) if width == records.UINT else np.float64(whole(bits))
    return float(np.nextafter(nearest, np.inf if upper else -np.inf))


@kernel
def bounds_of(words: Any, at: int, end: int, attributes: Any, lows: Any, highs: Any) -> int:
    """The intervals of a record's numeric attributes; how many they are."""
    count = 0
    while at < end:
        operator, width, attribute = whole(words[at]) & 0xFF, whole(words[at]) >> 8, whole(words[at + 1])
        if operator <= records.RANGE and operator not in (records.NE_NUMBER, records.EQ_NUMBER):
            if (count == 0 or attributes[count - 1] != attribute) and count < _BOUNDS_MAX:
                attributes[count], lows[count], highs[count] = attribute, -np.inf, np.inf
                count += 1
            if attributes[count - 1] == attribute:
                if operator in (records.GE, records.GT, records.RANGE):
                    lows[count - 1] = bound_of(words, at + 2, width, False)
                if operator in (records.LE, records.LT):
                    highs[count - 1] = bound_of(words, at + 2, width, True)
                if operator == records.RANGE:
                    highs[count - 1] = bound_of(words, at + 2 + width_words(width), width, True)
        at += item_words(words, at)
    return count


@kernel
def collect_bounds(words: Any, ends: Any, chosen: Any, out_attribute: Any, out_bound: Any) -> int:
    """The finite bounds of some records, with their attributes, until the arrays are full; how many."""
    attributes = np.empty(_BOUNDS_MAX, np.int64)
    lows, highs = np.empty(_BOUNDS_MAX), np.empty(_BOUNDS_MAX)
    to = 0
    for record in chosen:
        count = bounds_of(words, ends[record], ends[record + 1], attributes, lows, highs)
        if to + 2 * count > len(out_bound):
            break
        for i in range(count):
            for bound in (lows[i], highs[i]):
                if np.isfinite(bound):
                    out_attribute[to], out_bound[to] = attributes[i], bound
                    to += 1
    return to


def edges_of(words: Any, ends: Any, chosen: npt.NDArray[np.int64], attributes: int) -> tuple[Any, Any]:
    """The edges of all cells, and where those of each attribute start: quantiles of a sample of the bounds."""
    step = max(1, len(chosen) // _SAMPLES_MAX)
    out_attribute = np.empty(4 * _SAMPLES_MAX * 4, np.int32)
    out_bound = np.empty(len(out_attribute))
    count = collect_bounds(words, ends, chosen[::step], out_attribute, out_bound)
    order = np.lexsort((out_bound[:count], out_attribute[:count]))
    sorted_attribute, sorted_bound = out_attribute[order], out_bound[order]
    starts = np.zeros(attributes + 1, np.uint32)
    edges: list[npt.NDArray[np.float64]] = []
    for attribute in np.unique(sorted_attribute):
        first, last = np.searchsorted(sorted_attribute, [attribute, attribute + 1])
        bounds = sorted_bound[first:last]
        picks = np.unique(np.linspace(0, len(bounds) - 1, EDGES_MAX).astype(np.int64))
        own = np.unique(bounds[picks])
        edges.append(own)
        starts[attribute + 1] = len(own)
    return (np.concatenate(edges) if edges else np.empty(0)), np.cumsum(starts, dtype=np.uint32)


@kernel
def file_by_cells(
    words: Any, ends: Any, record_of: Any, chosen: Any, edges: Any, starts: Any, subs: Any, columns: Any, thirds: Any
) -> None:
    """For each chosen entry: its block and group (into `subs`, to sort by), its byte columns and its third attribute.
    Entries without a bound stay as they are."""
    attributes = np.empty(_BOUNDS_MAX, np.int64)
    lows, highs = np.empty(_BOUNDS_MAX), np.empty(_BOUNDS_MAX)
    for entry in chosen:
        record = record_of[entry]
        count = bounds_of(words, ends[record], ends[record + 1], attributes, lows, highs)
        if count == 0:
            continue
        cell_low, cell_high = np.empty(count, np.int64), np.empty(count, np.int64)
        for i in range(count):
            first, last = whole(starts[attributes[i]]), whole(starts[attributes[i] + 1])
            cell_low[i] = cell_of(edges, first, last, lows[i])
            cell_high[i] = cell_of(edges, first, last, highs[i])
        narrow = np.argsort(cell_high - cell_low, kind="mergesort")
        a, b, c = narrow[0], narrow[min(1, count - 1)], narrow[2 if count > 2 else 0]
        columns[0, entry], columns[1, entry] = cell_low[b], cell_high[b]
        columns[2, entry], columns[3, entry] = cell_low[a], cell_high[a]
        thirds[entry] = attributes[c] | (cell_low[c] << 16) | (cell_high[c] << 24)
        coarse = ((cell_low[a] >> COARSE_SHIFT) << 4) | (cell_high[a] >> COARSE_SHIFT)
        subs[entry] |= (
            (np.uint64(1) << np.uint64(59))
            | (np.uint64(attributes[a]) << np.uint64(40))
            | (np.uint64(coarse) << np.uint64(32))
            | np.uint64(attributes[b])
        )
