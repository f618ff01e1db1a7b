"""The grid: many filters with several bounds, narrowed down to a few before they are tested.

Owns how the entries of a grid run are grouped, ordered and packed; `grid_matcher` searches them. Never touches entries
without bounds on numbers.

The number line of each attribute is cut into up to 254 *cells* of about equal weight, so that a bound is a byte.
Filters with bounds on the same three narrowest attributes are a *group*; two or one attributes, where too few filters
share three. Within a group the filters are boxes in a space of bytes, ordered so that neighbours are close, in *chunks*
of 32. Each chunk has a box around its boxes:

    bucket (attribute a)  ->  group (a, b, c)  ->  boxes of 32 chunks  ->  boxes of 32 filters

An event is compared with the boxes of 32 chunks at once, then with those of 32 filters, then with the cells of up to
two further attributes. A byte never rejects what the exact bounds accept. In the cell of a bound it cannot decide; but
where the event's cell lies strictly between the cells of all bounds, the filter matches without an exact test.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from shoal.filters.index import record_format
from shoal.filters.index.intrinsics import VECTOR_BYTES, i64
from shoal.filters.index.record_format import get_bits, get_float, item_words, width_words
from shoal.wire.raw_bytes import background_kernel, hash_pair, kernel, part

FIRST_CELL: Final = 1
"""Cell 0 is that of an event without the attribute."""
EDGES_MAX: Final = 253
EDGE_BOUNDS: Final = 32
"""Bounds per edge of an attribute, so that edges take little room where filters are few."""
SIDES: Final = 3
"""Attributes of a box."""
COLUMNS: Final = 2 * SIDES
"""Bytes of a box: low and high cell for each attribute."""
FURTHER: Final = 2
"""Further attributes of an entry that have cells."""
GROUP_PREFERRED: Final = 96
"""A group with fewer entries than this is formed by fewer attributes."""
GROUP_MIN: Final = 16
"""With fewer entries than this there is no group: the entries are tested one by one."""
LOW_16: Final = np.uint64(0xFFFF)
KEYS_MAX: Final = 1 << 18
"""Counters of shared attributes, for each number of attributes."""
UNDECIDED: Final = 0
"""Stands for a further attribute that cells cannot decide: no high cell is 0."""
_SAMPLES_MAX: Final = 1 << 16
_SAMPLED_MIN: Final = 256
_SAMPLE_STEP: Final = 4
"""One in this many records is sampled for its bounds; fewer if there are very many, all while there are few."""
_BOUNDS_MAX: Final = 64
_BOUNDS_EXPECTED: Final = 5
"""Bounds per record; the arrays grow."""
_BOUNDS_PER_RECORD: Final = 16
"""Room per sampled record; if records have more bounds, the sample is smaller."""
CHUNK: Final = VECTOR_BYTES
CHUNKS_FEW: Final = 2
"""A group of at most this many chunks has no boxes around them: comparing those would cost as much as comparing the
chunks."""
CHUNK_BYTES: Final = CHUNK * (COLUMNS + 4 * FURTHER)


@part
def cell_of(edges: Any, first: int, last: int, value: float) -> int:
    """The cell of a number: one more than the number of edges that are not above it."""
    low, count = first, last - first
    while count > 0:
        half = (count + 1) >> 1
        low += half * i64(edges[low + half - 1] <= value)  # no branch, which could not be predicted
        count -= half
    return FIRST_CELL + low - first


@kernel
def bound_of(words: Any, at: int, width: int, upper: bool) -> float:
    """A float64 at or outside the bound of an item."""
    if width <= record_format.F64:
        return get_float(words, at, width)
    bits = get_bits(words, at, 4)
    nearest = np.float64(bits) if width == record_format.UINT else np.float64(i64(bits))
    return float(np.nextafter(nearest, np.inf if upper else -np.inf))


@kernel
def bounds_of(words: Any, at: int, end: int, attributes: Any, lows: Any, highs: Any) -> int:
    """Reads the intervals of a record's numeric attributes. Returns their number."""
    count = 0
    while at < end:
        operator, width, attribute = i64(words[at]) & 0xFF, i64(words[at]) >> 8, i64(words[at + 1])
        if operator <= record_format.RANGE and operator not in (record_format.NE_NUMBER, record_format.EQ_NUMBER):
            if (count == 0 or attributes[count - 1] != attribute) and count < _BOUNDS_MAX:
                attributes[count], lows[count], highs[count] = attribute, -np.inf, np.inf
                count += 1
            if attributes[count - 1] == attribute:
                if operator in (record_format.GE, record_format.GT, record_format.RANGE):
                    lows[count - 1] = bound_of(words, at + 2, width, False)
                if operator in (record_format.LE, record_format.LT):
                    highs[count - 1] = bound_of(words, at + 2, width, True)
                if operator == record_format.RANGE:
                    highs[count - 1] = bound_of(words, at + 2 + width_words(width), width, True)
        at += item_words(words, at)
    return count


@kernel
def is_decided(words: Any, at: int, end: int) -> bool:
    """Whether a record consists only of bounds that are float64."""
    while at < end:
        operator, width = i64(words[at]) & 0xFF, i64(words[at]) >> 8
        if (
            operator > record_format.RANGE
            or operator in (record_format.NE_NUMBER, record_format.EQ_NUMBER)
            or width > record_format.F64
        ):
            return False
        at += item_words(words, at)
    return True


@kernel
def collect_bounds(words: Any, ends: Any, chosen: Any, out_attribute: Any, out_bound: Any) -> int:
    """Collects the finite bounds of some records, with their attributes, until the arrays are full. Returns their
    number."""
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
    """The attributes of an entry with the narrowest intervals, in order, as a 48-bit key. They are moved to the front
    of the entry's attributes. Missing ones are repeated."""
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
    """Exchanges two elements."""
    array[i], array[j] = array[j], array[i]


class CellBounds(NamedTuple):
    """The bounds of some entries in cells. Those of the entry at place `i` are from `firsts[i]` to `firsts[i + 1]`."""

    firsts: Any
    attributes: Any
    cells: Any
    """Low cell | high cell << 8 | their distance << 16."""
    decided: Any
    """By place: whether the record consists only of bounds that are float64."""


@background_kernel
def measure_bounds(words: Any, ends: Any, chosen: Any, edges: Any, starts: Any) -> CellBounds:
    """The bounds of some records in cells."""
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
            first, last = i64(starts[attributes[i]]), i64(starts[attributes[i] + 1])
            low, high = cell_of(edges, first, last, lows[i]), cell_of(edges, first, last, highs[i])
            owners[to + i], found[to + i] = attributes[i], low | (high << 8) | ((high - low) << 16)
        to += count
        firsts[place + 1], decided[place] = to, is_decided(words, at, end)
    return CellBounds(firsts, owners, found, decided)


@background_kernel
def count_keys(measured: CellBounds, chosen: Any, hashes: Any, counts: Any) -> None:
    """Estimates from a sample, in a sketch for each number of attributes, how many entries of a cluster have the same
    narrowest attributes."""
    step = max(1, len(chosen) // _SAMPLES_MAX)
    for place in range(0, len(chosen), step):
        first, last = measured.firsts[place], measured.firsts[place + 1]
        for sides in range(min(SIDES, last - first), 0, -1):
            key = narrowest(measured.attributes, measured.cells, first, last, sides)
            counts[sides - 1, hash_pair(hashes[chosen[place]], key) % np.uint64(counts.shape[1])] += step


@background_kernel
def assign_groups(
    measured: CellBounds, chosen: Any, hashes: Any, counts: Any, subs: Any, columns: Any, further: Any
) -> None:
    """Assigns each chosen entry its group (in `subs`, which is sorted by), its box and its further attributes. Entries
    without a bound stay as they are."""
    attributes, cells = measured.attributes, measured.cells
    for place in range(len(chosen)):
        entry, first, last = chosen[place], measured.firsts[place], measured.firsts[place + 1]
        if first == last:
            continue
        sides = min(SIDES, last - first)
        while True:
            key = narrowest(attributes, cells, first, last, sides)
            common = counts[sides - 1, hash_pair(hashes[entry], key) % np.uint64(counts.shape[1])]
            if common >= (GROUP_PREFERRED if sides > 1 else GROUP_MIN) or sides == 1:
                break
            sides -= 1
        if common < GROUP_MIN:
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
                further[entry, i] = i64(attributes[at]) | ((i64(cells[at]) & 0xFFFF) << 16)


@part
def other_attributes(sub: np.uint64) -> np.uint64:
    """The attributes of a group's key after the first: the second | the third << 16."""
    return ((sub >> np.uint64(16)) & LOW_16) | ((sub & LOW_16) << np.uint64(16))


@kernel
def split_value(order: Any, first: int, last: int, columns: Any, column: int, half: int, counts: Any) -> Any:
    """(value, count): the first `half` entries of a range, ordered by one column, are those below the value and `count`
    of those equal to it."""
    counts[:] = 0
    for i in range(first, last):
        counts[columns[order[i], column]] += 1
    value, below = 0, 0
    while below + counts[value] < half:
        below += counts[value]
        value += 1
    return value, half - below


@kernel
def split_cost(order: Any, first: int, last: int, columns: Any, column: int, half: int, counts: Any, sides: int) -> Any:
    """(cost, value, count): the expected number of entries that an event is compared with if a range is split by one
    column: the size of each half times the volume of the box around it."""
    value, equal = split_value(order, first, last, columns, column, half, counts)
    lows, highs = np.full((2, 3), 255), np.zeros((2, 3), np.int64)
    taken = 0
    for i in range(first, last):
        entry = order[i]
        own = i64(columns[entry, column])
        after = 1
        if own < value:
            after = 0
        elif own == value and taken < equal:
            taken += 1
            after = 0
        for side in range(sides):
            lows[after, side] = min(lows[after, side], i64(columns[entry, 2 * side]))
            highs[after, side] = max(highs[after, side], i64(columns[entry, 2 * side + 1]))
    cost = 0.0
    for after in range(2):
        volume = 1.0
        for side in range(sides):
            volume *= highs[after, side] - lows[after, side] + 1
        cost += volume * (half if after == 0 else last - first - half)
    return cost, value, equal


@kernel
def split(order: Any, first: int, last: int, columns: Any, sides: int, counts: Any, moved: Any) -> int:
    """Splits a range of the order into two parts of whole chunks (but for the last), so that an event is in as few
    boxes as possible. Returns where the second part begins."""
    chunks = -(-(last - first) // CHUNK)
    half = CHUNK * (chunks // 2)
    best, best_column, best_value, best_equal = np.inf, 0, 0, 0
    for column in range(2 * sides):
        cost, value, equal = split_cost(order, first, last, columns, column, half, counts, sides)
        if cost < best:
            best, best_column, best_value, best_equal = cost, column, value, equal
    to, later, taken = first, 0, 0
    for i in range(first, last):
        entry = order[i]
        own = i64(columns[entry, best_column])
        if own < best_value or (own == best_value and taken < best_equal):
            taken += i64(own == best_value)
            order[to] = entry
            to += 1
        else:
            moved[later] = entry
            later += 1
    order[to:last] = moved[:later]
    return to


@background_kernel
def tile(groups: Any, count: int, order: Any, subs: Any, columns: Any) -> None:
    """Orders the entries of each group so that those of a chunk are close to each other."""
    most = 0
    for group in range(count):
        most = max(most, i64(groups[group, 2]))
    moved, counts, parts = np.empty(most, order.dtype), np.empty(256, np.int64), np.empty((64, 2), np.int64)
    for group in range(count):
        first, size = i64(groups[group, 1]), i64(groups[group, 2])
        sides = sides_of(subs[order[first]])
        parts[0, 0], parts[0, 1] = first, first + size
        waiting = 1
        while waiting > 0:
            waiting -= 1
            begin, end = parts[waiting]
            if end - begin <= CHUNK:
                continue
            middle = split(order, begin, end, columns, sides, counts, moved)
            parts[waiting, 0], parts[waiting, 1] = begin, middle
            parts[waiting + 1, 0], parts[waiting + 1, 1] = middle, end
            waiting += 2


@part
def sides_of(sub: np.uint64) -> int:
    """Number of different attributes in a group's key."""
    a, b, c = (sub >> np.uint64(32)) & LOW_16, (sub >> np.uint64(16)) & LOW_16, sub & LOW_16
    return 1 if a == b else 2 if b == c else 3


@background_kernel
def pack_groups(groups: Any, count: int, order: Any, columns: Any, further: Any) -> Any:
    """Packs the chunks of all groups and the boxes around them, as `segment_layout` describes. Returns both, and where
    the boxes of each group start; writes where the chunks of each group start."""
    starts = np.zeros(count + 1, np.int64)
    size = 0
    for group in range(count):
        chunks = -(-i64(groups[group, 2]) // CHUNK)
        groups[group, 3] = size // 64
        size += CHUNK_BYTES * chunks
        starts[group + 1] = starts[group] + chunk_boxes_bytes(chunks)
    packed, boxes = np.zeros(size, np.uint8), np.zeros(starts[count], np.uint8)
    for group in range(count):
        pack_group(groups[group], order, columns, further, packed, boxes[starts[group] :])
    return packed, boxes, starts


@kernel
def pack_group(group: Any, order: Any, columns: Any, further: Any, packed: Any, boxes: Any) -> None:
    """Packs the chunks of one group, and the boxes around them if there are more than a few."""
    words = packed.view(np.uint32)
    first, entries, at = i64(group[1]), i64(group[2]), 64 * i64(group[3])
    chunks = -(-entries // CHUNK)
    room = (chunks + CHUNK - 1) & ~(CHUNK - 1)
    for chunk in range(chunks):
        for column in range(0, COLUMNS, 2):
            low, high = 255, 0  # no cell is between 255 and 0
            for i in range(CHUNK):
                to = at + CHUNK_BYTES * chunk + CHUNK * column + i
                packed[to], packed[to + CHUNK] = 255, 0
                if CHUNK * chunk + i < entries:
                    entry = order[first + CHUNK * chunk + i]
                    packed[to], packed[to + CHUNK] = columns[entry, column], columns[entry, column + 1]
                    low, high = min(low, i64(packed[to])), max(high, i64(packed[to + CHUNK]))
            if chunks > CHUNKS_FEW:
                boxes[room * column + chunk], boxes[room * (column + 1) + chunk] = low, high
        for i in range(min(CHUNK, entries - CHUNK * chunk)):
            entry = order[first + CHUNK * chunk + i]
            for j in range(FURTHER):
                words[(at + CHUNK_BYTES * chunk + CHUNK * COLUMNS) // 4 + FURTHER * i + j] = further[entry, j]
    if chunks > CHUNKS_FEW:
        boxes[chunks:room] = 255


@part
def chunk_boxes_bytes(chunks: int) -> int:
    """Bytes of the boxes around the chunks of a group."""
    return COLUMNS * ((chunks + CHUNK - 1) & ~(CHUNK - 1)) if chunks > CHUNKS_FEW else 0
