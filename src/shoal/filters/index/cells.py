"""Cells: many filters with several bounds, narrowed down to few before they are tested.

Owns how the SCAN run of a large cluster is laid out. The number line of each attribute is cut into up to 254 cells of
about equal weight, so that a bound is a byte. Filters with bounds on the same narrowest three attributes are a *group*
(the narrowest two or one, where too few have the same three). Within a group they are boxes in a space of bytes, sorted
so that neighbours are near each other, in *chunks* of 32; each chunk has a box around its boxes:

    block (attribute a)  ->  group (a, b, c)  ->  boxes of 32 chunks  ->  boxes of 32 filters

An event compares the boxes of 32 chunks at once, then those of 32 filters, then the cells of up to two further
attributes. A byte never refuses what the exact bounds accept. It cannot accept in the cell of a bound; but where the
event's cell is strictly between those of the bounds, on all attributes, the filter matches, and nobody needs to look at
the bounds themselves.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import records
from shoal.filters.index.memory import whole
from shoal.filters.index.records import get_bits, get_float, item_words, width_words
from shoal.wire.rawbytes import background_kernel, hash_pair, kernel, part

FIRST_CELL: Final = 1
"""0 is the cell of an event without the attribute."""
EDGES_MAX: Final = 253
SIDES: Final = 3
"""Attributes by which entries are boxes."""
COLUMNS: Final = 2 * SIDES
"""Bytes of a box: low and high cell on each."""
FURTHER: Final = 2
"""Further attributes of an entry that have cells."""
GROUP_MIN: Final = 96
"""Entries that a group should have; with fewer it is worth to tell them apart by fewer attributes."""
GROUP_LEAST: Final = 16
"""Entries that a group must have; fewer are better tested one by one."""
LOW_16: Final = np.uint64(0xFFFF)
KEYS_MAX: Final = 1 << 18
"""Counters of attributes that entries have in common, for each number of them."""
UNDECIDED: Final = 0
"""Stands for a further attribute of an entry about which cells cannot say everything: no high cell is 0."""

_SAMPLES_MAX: Final = 1 << 16
_BOUNDS_MAX: Final = 64
_BOUNDS_PER_RECORD: Final = 16
"""Of a sample of records, on average; if they have more, the sample is smaller."""


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
def is_decided(words: Any, at: int, end: int) -> bool:
    """Whether all that a record asks for are bounds on numbers that are float64."""
    while at < end:
        operator, width = whole(words[at]) & 0xFF, whole(words[at]) >> 8
        if operator > records.RANGE or operator in (records.NE_NUMBER, records.EQ_NUMBER) or width > records.F64:
            return False
        at += item_words(words, at)
    return True


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


@background_kernel
def edges_of(words: Any, ends: Any, chosen: Any, attributes: int) -> Any:
    """The edges of all cells, and where those of each attribute start: quantiles of a sample of the bounds."""
    sample = chosen[:: max(1, len(chosen) // _SAMPLES_MAX)]
    owners = np.empty(_BOUNDS_PER_RECORD * len(sample) + 2 * _BOUNDS_MAX, np.int32)
    found = np.empty(len(owners))
    count = collect_bounds(words, ends, sample, owners, found)
    firsts = np.zeros(attributes + 1, np.int64)
    for i in range(count):
        firsts[owners[i] + 1] += 1
    for attribute in range(attributes):
        firsts[attribute + 1] += firsts[attribute]
    bounds, to = np.empty(count), firsts.copy()
    for i in range(count):
        bounds[to[owners[i]]] = found[i]
        to[owners[i]] += 1
    edges, starts, made = np.empty(min(count, EDGES_MAX * attributes)), np.zeros(attributes + 1, np.uint32), 0
    for attribute in range(attributes):
        own = np.sort(bounds[firsts[attribute] : firsts[attribute + 1]])
        picks, first = min(len(own), EDGES_MAX), made
        for i in range(picks):
            edge = own[i * (len(own) - 1) // max(1, picks - 1)]
            if made == first or edge > edges[made - 1]:
                edges[made] = edge
                made += 1
        starts[attribute + 1] = made
    return edges[:made], starts


@kernel
def narrowest(attributes: Any, widths: Any, count: int, sides: int) -> np.uint64:
    """The attributes with the smallest widths, in order, as one number of 48 bits; they come first in the arrays then,
    in that order. Missing ones are repeated."""
    for i in range(min(sides, count)):
        best = i
        for j in range(i + 1, count):
            if widths[j] < widths[best]:
                best = j
        swap(attributes, i, best)
        swap(widths, i, best)
    taken = min(sides, count)
    for i in range(1, taken):
        j = i
        while j > 0 and attributes[j - 1] > attributes[j]:
            swap(attributes, j - 1, j)
            swap(widths, j - 1, j)
            j -= 1
    key = np.uint64(0)
    for i in range(SIDES):
        key = (key << np.uint64(16)) | np.uint64(attributes[min(i, taken - 1)])
    return key


@part
def swap(array: Any, i: int, j: int) -> None:
    """Exchanges two items."""
    array[i], array[j] = array[j], array[i]


@kernel
def cells_of_record(
    words: Any, at: int, end: int, edges: Any, starts: Any, attributes: Any, lows: Any, highs: Any, cells: Any
) -> int:
    """The attributes of a record's bounds, and low | high << 8 | width << 16 of each in cells; how many they are."""
    count = bounds_of(words, at, end, attributes, lows, highs)
    for i in range(count):
        first, last = whole(starts[attributes[i]]), whole(starts[attributes[i] + 1])
        low, high = cell_of(edges, first, last, lows[i]), cell_of(edges, first, last, highs[i])
        cells[i] = low | (high << 8) | ((high - low) << 16)
    return count


@background_kernel
def count_keys(
    words: Any, ends: Any, record_of: Any, chosen: Any, edges: Any, starts: Any, hashes: Any, counts: Any
) -> None:
    """Counts, in a sketch for each number of sides, how many entries of a cluster have the same attributes there: by a
    sample of them."""
    step = max(1, len(chosen) // _SAMPLES_MAX)
    attributes, cells = np.empty(_BOUNDS_MAX, np.int64), np.empty(_BOUNDS_MAX, np.int64)
    lows, highs = np.empty(_BOUNDS_MAX), np.empty(_BOUNDS_MAX)
    for entry in chosen[::step]:
        record = record_of[entry]
        count = cells_of_record(words, ends[record], ends[record + 1], edges, starts, attributes, lows, highs, cells)
        for sides in range(min(SIDES, count), 0, -1):
            key = narrowest(attributes, cells, count, sides)
            counts[sides - 1, hash_pair(hashes[entry], key) % np.uint64(counts.shape[1])] += step


@background_kernel
def file_by_cells(
    words: Any, ends: Any, record_of: Any, chosen: Any, edges: Any, starts: Any, hashes: Any, counts: Any, subs: Any,
    columns: Any, further: Any,
) -> None:  # fmt: skip
    """For each chosen entry: its group (into `subs`, to sort by), its box and its further attributes. Entries without a
    bound stay as they are."""
    attributes, cells = np.empty(_BOUNDS_MAX, np.int64), np.empty(_BOUNDS_MAX, np.int64)
    lows, highs = np.empty(_BOUNDS_MAX), np.empty(_BOUNDS_MAX)
    for entry in chosen:
        record = record_of[entry]
        count = cells_of_record(words, ends[record], ends[record + 1], edges, starts, attributes, lows, highs, cells)
        if count == 0:
            continue
        sides = min(SIDES, count)
        while True:
            key = narrowest(attributes, cells, count, sides)
            common = counts[sides - 1, hash_pair(hashes[entry], key) % np.uint64(counts.shape[1])]
            if common >= (GROUP_MIN if sides > 1 else GROUP_LEAST) or sides == 1:
                break
            sides -= 1
        if common < GROUP_LEAST:
            continue
        subs[entry] |= (np.uint64(1) << np.uint64(59)) | key
        for i in range(SIDES):
            side = min(i, sides - 1)
            columns[entry, 2 * i], columns[entry, 2 * i + 1] = cells[side] & 0xFF, (cells[side] >> 8) & 0xFF
        decided = count <= sides + FURTHER and is_decided(words, ends[record], ends[record + 1])
        for i in range(FURTHER):
            further[entry, i] = UNDECIDED
            if decided or (i < FURTHER - 1 and sides + i < count):
                c = sides + i if sides + i < count else 0
                further[entry, i] = attributes[c] | ((cells[c] & 0xFFFF) << 16)


@part
def second_and_third(sub: np.uint64) -> np.uint64:
    """Those attributes of a group's key: the second | the third << 16."""
    return ((sub >> np.uint64(16)) & LOW_16) | ((sub & LOW_16) << np.uint64(16))
