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

from typing import Any, Final, NamedTuple

import numpy as np

from shoal.filters.index import record_format as records
from shoal.filters.index.intrinsics import whole
from shoal.filters.index.record_format import get_bits, get_float, item_words, width_words
from shoal.wire.rawbytes import background_kernel, hash_pair, kernel, part

FIRST_CELL: Final = 1
"""0 is the cell of an event without the attribute."""
EDGES_MAX: Final = 253
EDGE_BOUNDS: Final = 32
"""Bounds for which an attribute gets an edge, so that edges take little room where filters are few."""
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
_SAMPLED_MIN: Final = 256
_SAMPLE_STEP: Final = 4
"""Of so many records one is asked for its bounds, and of more if they are very many; but of each while they are few."""
_BOUNDS_MAX: Final = 64
_BOUNDS_EXPECTED: Final = 5
"""Of a record, on average; room for more is made."""
_BOUNDS_PER_RECORD: Final = 16
"""Of a sample of records, on average; if they have more, the sample is smaller."""


@part
def cell_of(edges: Any, first: int, last: int, value: float) -> int:
    """The cell of a number: one more than the edges that are not above it."""
    low, count = first, last - first
    while count > 0:
        half = (count + 1) >> 1
        low += half * whole(edges[low + half - 1] <= value)  # without a jump that nobody could foresee
        count -= half
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
    step = max(1, min(_SAMPLE_STEP, len(chosen) // _SAMPLED_MIN), len(chosen) // _SAMPLES_MAX)
    sample = chosen[::step]
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
        picks, first = min(-(-step * len(own) // EDGE_BOUNDS), EDGES_MAX, len(own)), made
        for i in range(picks):
            edge = own[i * (len(own) - 1) // max(1, picks - 1)]
            if made == first or edge > edges[made - 1]:
                edges[made] = edge
                made += 1
        starts[attribute + 1] = made
    return edges[:made], starts


@kernel
def narrowest(attributes: Any, cells: Any, first: int, last: int, sides: int) -> np.uint64:
    """The attributes of an entry whose bounds are nearest to each other, in order, as one number of 48 bits; they come
    first among the entry's then, in that order. Missing ones are repeated."""
    taken = min(sides, last - first)
    for i in range(first, first + taken):
        best = i
        for j in range(i + 1, last):
            if cells[j] < cells[best] or (cells[j] == cells[best] and attributes[j] < attributes[best]):
                best = j
        swap(attributes, i, best)
        swap(cells, i, best)
    for i in range(first + 1, first + taken):
        j = i
        while j > first and attributes[j - 1] > attributes[j]:
            swap(attributes, j - 1, j)
            swap(cells, j - 1, j)
            j -= 1
    key = np.uint64(0)
    for i in range(SIDES):
        key = (key << np.uint64(16)) | np.uint64(attributes[first + min(i, taken - 1)])
    return key


@part
def swap(array: Any, i: int, j: int) -> None:
    """Exchanges two items."""
    array[i], array[j] = array[j], array[i]


class Measured(NamedTuple):
    """The bounds of some entries in cells. Those of the entry at place `i` are from `firsts[i]` to `firsts[i + 1]`."""

    firsts: Any
    attributes: Any
    cells: Any
    """Low cell | high << 8 | how far they are apart << 16."""
    decided: Any
    """By place: whether bounds on numbers that are float64 are all that the record asks for."""


@background_kernel
def measure(words: Any, ends: Any, chosen: Any, edges: Any, starts: Any) -> Measured:
    """The bounds of some records."""
    firsts, decided = np.zeros(len(chosen) + 1, np.int64), np.zeros(len(chosen), np.bool_)
    owners = np.empty(_BOUNDS_EXPECTED * len(chosen) + _BOUNDS_MAX, np.uint16)
    found = np.empty(len(owners), np.uint32)
    attributes, lows, highs = np.empty(_BOUNDS_MAX, np.int64), np.empty(_BOUNDS_MAX), np.empty(_BOUNDS_MAX)
    to = 0
    for place in range(len(chosen)):
        at, end = ends[chosen[place]], ends[chosen[place] + 1]
        count = bounds_of(words, at, end, attributes, lows, highs)
        if to + count > len(owners):
            owners = np.concatenate((owners, np.empty_like(owners)))
            found = np.concatenate((found, np.empty_like(found)))
        for i in range(count):
            first, last = whole(starts[attributes[i]]), whole(starts[attributes[i] + 1])
            low, high = cell_of(edges, first, last, lows[i]), cell_of(edges, first, last, highs[i])
            owners[to + i], found[to + i] = attributes[i], low | (high << 8) | ((high - low) << 16)
        to += count
        firsts[place + 1], decided[place] = to, is_decided(words, at, end)
    return Measured(firsts, owners, found, decided)


@background_kernel
def count_keys(measured: Measured, chosen: Any, hashes: Any, counts: Any) -> None:
    """Counts, in a sketch for each number of sides, how many entries of a cluster have the same attributes there: by a
    sample of them."""
    step = max(1, len(chosen) // _SAMPLES_MAX)
    for place in range(0, len(chosen), step):
        first, last = measured.firsts[place], measured.firsts[place + 1]
        for sides in range(min(SIDES, last - first), 0, -1):
            key = narrowest(measured.attributes, measured.cells, first, last, sides)
            counts[sides - 1, hash_pair(hashes[chosen[place]], key) % np.uint64(counts.shape[1])] += step


@background_kernel
def file_by_cells(
    measured: Measured, chosen: Any, hashes: Any, counts: Any, subs: Any, columns: Any, further: Any
) -> None:
    """For each chosen entry: its group (into `subs`, to sort by), its box and its further attributes. Entries without a
    bound stay as they are."""
    attributes, cells = measured.attributes, measured.cells
    for place in range(len(chosen)):
        entry, first, last = chosen[place], measured.firsts[place], measured.firsts[place + 1]
        if first == last:
            continue
        sides = min(SIDES, last - first)
        while True:
            key = narrowest(attributes, cells, first, last, sides)
            common = counts[sides - 1, hash_pair(hashes[entry], key) % np.uint64(counts.shape[1])]
            if common >= (GROUP_MIN if sides > 1 else GROUP_LEAST) or sides == 1:
                break
            sides -= 1
        if common < GROUP_LEAST:
            continue
        subs[entry] |= (np.uint64(1) << np.uint64(59)) | key
        for i in range(SIDES):
            cell = cells[first + min(i, sides - 1)]
            columns[entry, 2 * i], columns[entry, 2 * i + 1] = cell & 0xFF, (cell >> 8) & 0xFF
        decided = last - first <= sides + FURTHER and measured.decided[place]
        for i in range(FURTHER):
            further[entry, i] = UNDECIDED
            at = first + sides + i
            if decided or (i < FURTHER - 1 and at < last):
                at = at if at < last else first
                further[entry, i] = whole(attributes[at]) | ((whole(cells[at]) & 0xFFFF) << 16)


@part
def second_and_third(sub: np.uint64) -> np.uint64:
    """Those attributes of a group's key: the second | the third << 16."""
    return ((sub >> np.uint64(16)) & LOW_16) | ((sub & LOW_16) << np.uint64(16))
