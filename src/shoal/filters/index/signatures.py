"""Weighing: what of a filter could lead an event to it, and how many others ask for the same.

Owns the kinds of parts that a signature can have, where a record has them, and the sketches by which they are compared:
counters of values that are asked for, and of sets of attributes. A sketch may count too many, never too few.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import record_format as records
from shoal.filters.index.intrinsics import whole
from shoal.filters.index.record_format import get_bits, item_words
from shoal.filters.index.standing import equal_value, is_equality, listed_value, part_value, text_value
from shoal.wire.rawbytes import background_kernel, hash_pair, kernel, part

# What a signature asks of an attribute. Up to FIXED_LAST an event has one value for it, beyond it several.
S_EQUAL: Final = 1
S_EXISTS: Final = 2
S_KIND: Final = 3
S_ABSENT: Final = 4
FIXED_LAST: Final = 4
S_PREFIX: Final = 5
S_SUFFIX: Final = 6
S_PART: Final = 6
"""S_PART + n: n bytes (1 to 4) somewhere in the string."""

PARTS: Final = 8
"""Attributes of a signature at most."""
EQUALITIES_MAX: Final = PARTS - 2
"""Equalities of a signature at most: a list and a string may come beside them."""
PART_BYTES: Final = 4
LENGTH_MAX: Final = 4096
"""Bytes of a prefix or suffix that is a signature."""
NO_CROWD: Final = 1 << 62


@kernel
def text_length(words: Any, at: int, texts: Any) -> int:
    """Bytes of the string of an item."""
    code = whole(get_bits(words, at + 2, 2))
    return whole(texts[1][code + 1]) - whole(texts[1][code])


@kernel
def best_string(words: Any, at: int, end: int, texts: Any) -> int:
    """The item with the longest prefix, suffix or contained string, or -1; a prefix counts double."""
    best, size = -1, 0
    while at < end:
        operator = whole(words[at]) & 0xFF
        if operator in (records.PREFIX, records.SUFFIX, records.CONTAINS):
            length = text_length(words, at, texts) * (1 if operator == records.CONTAINS else 2)
            if length > size:
                best, size = at, length
        at += item_words(words, at)
    return best


@kernel
def string_part_kind(words: Any, at: int, texts: Any) -> int:
    """What a signature asks by a string item: of a very long prefix or suffix a part."""
    operator, length = whole(words[at]) & 0xFF, text_length(words, at, texts)
    if operator == records.PREFIX and length <= LENGTH_MAX:
        return S_PREFIX
    if operator == records.SUFFIX and length <= LENGTH_MAX:
        return S_SUFFIX
    return S_PART + min(PART_BYTES, length)


@kernel
def equalities_of(words: Any, at: int, end: int, found: Any) -> int:
    """Where the equalities of a record stand, the first `EQUALITIES_MAX`; how many they are."""
    count = 0
    while at < end and count < EQUALITIES_MAX:
        if is_equality(whole(words[at]) & 0xFF):
            found[count] = at
            count += 1
        at += item_words(words, at)
    return count


@kernel
def shape_of(words: Any, found: Any, count: int, string: int, texts: Any) -> np.uint64:
    """Stands for the attributes of all equalities and of the best string item."""
    shape = np.uint64(count)
    for i in range(count):
        shape = hash_pair(shape, np.uint64(words[found[i] + 1]))
    if string >= 0:
        kind = np.uint64(string_part_kind(words, string, texts) << 16)
        shape = hash_pair(shape, kind | np.uint64(words[string + 1]))
    return shape


@part
def asked(words: Any, at: int, value: np.uint64) -> np.uint64:
    """Stands for a value that an item asks of its attribute."""
    return hash_pair(np.uint64(words[at + 1]), value)


@part
def tally(values: Any, value: np.uint64) -> None:
    """Counts a value once more, in two counters: rare ones seldom share both with one that everybody asks for."""
    half = np.uint64(len(values) // 2)
    values[value % half] += 1
    values[half + (value >> np.uint64(32)) % half] += 1


@part
def tallied(values: Any, value: np.uint64) -> int:
    """How often a value was counted, or somewhat more."""
    half = np.uint64(len(values) // 2)
    return min(whole(values[value % half]), whole(values[half + (value >> np.uint64(32)) % half]))


@background_kernel
def survey(words: Any, ends: Any, chosen: Any, texts: Any, values: Any, shapes: Any) -> None:
    """Counts, in two sketches, how often each value of an equality or a list (and each prefix, suffix and window of a
    contained string) is asked for, and each set of attributes with equalities."""
    found = np.empty(PARTS, np.int64)
    for record in chosen:
        at, end = ends[record], ends[record + 1]
        equalities = equalities_of(words, at, end, found)
        for j in range(equalities):
            tally(values, asked(words, found[j], equal_value(words, found[j])))
        string = best_string(words, at, end, texts)
        if string >= 0:
            survey_string(words, string, texts, values)
        if equalities > 0:
            shapes[shape_of(words, found, equalities, string, texts) % np.uint64(len(shapes))] += 1
        while at < end:
            if (whole(words[at]) & 0xFF) >= records.IN_NUMBERS:
                for i in range(whole(words[at + 2])):
                    tally(values, asked(words, at, listed_value(words, at, i)))
            at += item_words(words, at)


@kernel
def survey_string(words: Any, at: int, texts: Any, values: Any) -> None:
    """Counts what a string item asks for."""
    if string_part_kind(words, at, texts) <= S_PART:
        tally(values, asked(words, at, text_value(words, at, texts)))
        return
    code = whole(get_bits(words, at + 2, 2))
    start, stop = whole(texts[1][code]), whole(texts[1][code + 1])
    size = min(PART_BYTES, stop - start)
    for position in range(start, stop - size + 1):
        tally(values, part_value(texts[0], position, size))


@kernel
def rarest_part(words: Any, at: int, texts: Any, values: Any) -> np.uint64:
    """The window of a contained string that the fewest filters share."""
    code = whole(get_bits(words, at + 2, 2))
    start, stop = whole(texts[1][code]), whole(texts[1][code + 1])
    size = min(PART_BYTES, stop - start)
    best = part_value(texts[0], start, size)
    for position in range(start + 1, stop - size + 1):
        value = part_value(texts[0], position, size)
        if tallied(values, value) < tallied(values, best):
            best = value
    return best


@kernel
def string_part_value(words: Any, at: int, texts: Any, values: Any) -> np.uint64:
    """The value by which a string item is part of a signature."""
    if string_part_kind(words, at, texts) > S_PART:
        return rarest_part(words, at, texts, values)
    return text_value(words, at, texts)


@kernel
def string_crowd(words: Any, at: int, texts: Any, values: Any) -> int:
    """How many filters ask for the same by a string item."""
    value = string_part_value(words, at, texts, values)
    if string_part_kind(words, at, texts) > S_PART:
        return tallied(values, value)
    return tallied(values, asked(words, at, value))


@part
def equal_crowd(words: Any, at: int, values: Any) -> int:
    """How many filters ask for the same value by an item with an equality."""
    return tallied(values, asked(words, at, equal_value(words, at)))


@kernel
def least_crowd(words: Any, found: Any, count: int, values: Any) -> int:
    """How many filters there may be that have the same values for some equalities."""
    crowd = NO_CROWD
    for i in range(count):
        crowd = min(crowd, equal_crowd(words, found[i], values))
    return crowd


@kernel
def list_crowd(words: Any, at: int, values: Any) -> int:
    """How many filters ask for the most common value of a list."""
    crowd = 0
    for i in range(whole(words[at + 2])):
        crowd = max(crowd, tallied(values, asked(words, at, listed_value(words, at, i))))
    return crowd


@kernel
def two_rarest(words: Any, found: Any, count: int, values: Any) -> int:
    """Moves the two equalities with the rarest values to the front, in their order; how many are left."""
    if count <= 2:
        return count
    first, second = -1, -1
    rare, next_rare = NO_CROWD, NO_CROWD
    for i in range(count):
        crowd = equal_crowd(words, found[i], values)
        if crowd < rare:
            first, second, rare, next_rare = i, first, crowd, rare
        elif crowd < next_rare:
            second, next_rare = i, crowd
    low, high = found[min(first, second)], found[max(first, second)]
    found[0], found[1] = low, high
    return 2


@kernel
def rarest(words: Any, found: Any, count: int, values: Any) -> int:
    """The index of the equality with the rarest value."""
    best, rare = 0, NO_CROWD
    for i in range(count):
        crowd = equal_crowd(words, found[i], values)
        if crowd < rare:
            best, rare = i, crowd
    return best


@kernel
def best_list(words: Any, at: int, end: int, values: Any) -> int:
    """The item with a list whose most common value the fewest filters ask for, or -1."""
    best, least = -1, NO_CROWD
    while at < end:
        if (whole(words[at]) & 0xFF) >= records.IN_NUMBERS:
            crowd = list_crowd(words, at, values)
            if crowd < least:
                best, least = at, crowd
        at += item_words(words, at)
    return best
