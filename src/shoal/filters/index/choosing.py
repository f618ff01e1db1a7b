"""Choosing: which part of a filter leads an event to it.

Owns the choice, for each unique record of a segment, of its *signature* (attributes whose value, or presence, must be
just so) and of the *run* in which it waits within the cluster of all filters with the same signature and values:

    ALL     nothing is left to test                       the whole run matches
    LOW     one lower bound is left, sorted               a slice from the start matches
    HIGH    one upper bound is left, sorted               a slice up to the end matches
    NOT     one excluded number is left, sorted           all but a slice matches
    SCAN    anything else                                 tested one by one, or by cells if there are many (`cells`)

Equalities make the best signatures: all of a filter's, if many filters have the same ones; else the two rarest
values; and one value where there would be more than `PAIRS_MAX` pairs of attributes. Next a prefix or suffix (its
bytes are the value), then a window of up to four bytes of a contained string (the rarest), then each value of a list,
then presence. A filter that has only bounds is in the cluster without a signature.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import records, rows
from shoal.filters.index.memory import whole
from shoal.filters.index.records import get_bits, get_float, item_words
from shoal.filters.index.standing import equal_value, is_equality, listed_value, part_value, text_value
from shoal.wire.rawbytes import hash_pair, kernel

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

ALL: Final = 0
LOW: Final = 1
HIGH: Final = 2
NOT: Final = 3
SCAN: Final = 4

PARTS: Final = 8
"""Attributes of a signature at most."""
PART_BYTES: Final = 4
LENGTH_MAX: Final = 4096
"""Bytes of a prefix or suffix that is a signature."""
PAIRS_MAX: Final = 512
POPULAR_MIN: Final = 32
POPULAR_SHARE: Final = 64
"""All equalities of a filter are its signature if one in so many filters has the same ones."""


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
    """Where the equalities of a record stand, the first `PARTS - 1`; how many they are."""
    count = 0
    while at < end and count < PARTS - 1:
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


@kernel
def survey(words: Any, ends: Any, chosen: Any, texts: Any, values: Any, shapes: Any) -> None:
    """Counts, in two sketches, how often each value of an equality (and each window of a contained string) is asked
    for, and each set of attributes with equalities."""
    found = np.empty(PARTS, np.int64)
    for record in chosen:
        at, end = ends[record], ends[record + 1]
        count = equalities_of(words, at, end, found)
        for j in range(count):
            item = found[j]
            values[hash_pair(np.uint64(words[item + 1]), equal_value(words, item)) % np.uint64(len(values))] += 1
        string = best_string(words, at, end, texts)
        if string >= 0 and (whole(words[string]) & 0xFF) == records.CONTAINS:
            code = whole(get_bits(words, string + 2, 2))
            start, stop = whole(texts[1][code]), whole(texts[1][code + 1])
            size = min(PART_BYTES, stop - start)
            for position in range(start, stop - size + 1):
                values[part_value(texts[0], position, size) % np.uint64(len(values))] += 1
        if count > 0:
            shapes[shape_of(words, found, count, string, texts) % np.uint64(len(shapes))] += 1


@kernel
def rarest_part(words: Any, at: int, texts: Any, values: Any) -> np.uint64:
    """The window of a contained string that the fewest filters share."""
    code = whole(get_bits(words, at + 2, 2))
    start, stop = whole(texts[1][code]), whole(texts[1][code + 1])
    size = min(PART_BYTES, stop - start)
    best = part_value(texts[0], start, size)
    for position in range(start + 1, stop - size + 1):
        value = part_value(texts[0], position, size)
        if values[value % np.uint64(len(values))] < values[best % np.uint64(len(values))]:
            best = value
    return best


@kernel
def two_rarest(words: Any, found: Any, count: int, values: Any) -> int:
    """Moves the two equalities with the rarest values to the front, in their order; how many are left."""
    if count <= 2:
        return count
    first, second = -1, -1
    rare, next_rare = whole(1 << 62), whole(1 << 62)
    for i in range(count):
        seen = whole(
            values[hash_pair(np.uint64(words[found[i] + 1]), equal_value(words, found[i])) % np.uint64(len(values))]
        )
        if seen < rare:
            first, second, rare, next_rare = i, first, seen, rare
        elif seen < next_rare:
            second, next_rare = i, seen
    low, high = found[min(first, second)], found[max(first, second)]
    found[0], found[1] = low, high
    return 2


@kernel
def rarest(words: Any, found: Any, count: int, values: Any) -> int:
    """The index of the equality with the rarest value."""
    best, rare = 0, whole(1 << 62)
    for i in range(count):
        seen = whole(
            values[hash_pair(np.uint64(words[found[i] + 1]), equal_value(words, found[i])) % np.uint64(len(values))]
        )
        if seen < rare:
            best, rare = i, seen
    return best


@kernel
def best_list(words: Any, at: int, end: int) -> int:
    """The item with the shortest list of values, or -1."""
    best, size = -1, whole(1 << 62)
    while at < end:
        if (whole(words[at]) & 0xFF) >= records.IN_NUMBERS and words[at + 2] < size:
            best, size = at, whole(words[at + 2])
        at += item_words(words, at)
    return best


@kernel
def best_presence(words: Any, at: int, end: int) -> int:
    """An item that asks for presence or, for want of one, absence; -1 if there is a bound on a number, or nothing."""
    best = -1
    while at < end:
        operator = whole(words[at]) & 0xFF
        if operator <= records.RANGE and operator != records.NE_NUMBER:
            return -1
        if best < 0 or (whole(words[best]) & 0xFF) == records.ABSENT:
            best = at
        at += item_words(words, at)
    return best


@kernel
def presence_part(words: Any, at: int) -> int:
    """What a signature asks by an item that is no equality: kind << 16 | attribute."""
    operator = whole(words[at]) & 0xFF
    kind = S_EXISTS if operator == records.EXISTS else (S_ABSENT if operator == records.ABSENT else S_KIND)
    return (kind << 16) | whole(words[at + 1])


@kernel
def presence_value(words: Any, at: int) -> np.uint64:
    """The value of `presence_part`."""
    operator = whole(words[at]) & 0xFF
    if operator in (records.EXISTS, records.ABSENT):
        return np.uint64(0)
    if operator == records.IS:
        return np.uint64(words[at + 2])
    return np.uint64(rows.NUMBER if operator == records.NE_NUMBER else rows.STRING)


@kernel
def decided(words: Any, at: int, parts: Any, count: int) -> bool:
    """Whether a signature alone decides an item."""
    operator, attribute = whole(words[at]) & 0xFF, whole(words[at + 1])
    for i in range(count):
        kind = whole(parts[i]) >> 16
        if (whole(parts[i]) & 0xFFFF) != attribute:
            continue
        if kind == S_EQUAL and (is_equality(operator) or operator >= records.IN_NUMBERS):
            return True
        if kind == S_PREFIX and operator == records.PREFIX:
            return True
        if kind == S_SUFFIX and operator == records.SUFFIX:
            return True
        if kind == S_KIND and operator == records.IS:
            return True
        if (kind == S_EXISTS and operator == records.EXISTS) or (kind == S_ABSENT and operator == records.ABSENT):
            return True
    return False


@kernel
def run_of(words: Any, at: int, end: int, parts: Any, count: int) -> Any:
    """The run of a record within its cluster: (type, attribute, key)."""
    left, item = 0, -1
    while at < end:
        if not decided(words, at, parts, count):
            left, item = left + 1, at
        at += item_words(words, at)
    if left == 0:
        return ALL, 0, 0.0
    operator, width = whole(words[item]) & 0xFF, whole(words[item]) >> 8
    if left > 1 or width > records.F64 or operator > records.NE_NUMBER or operator == records.EQ_NUMBER:
        return SCAN, 0, 0.0
    key, attribute = get_float(words, item + 2, width), whole(words[item + 1])
    if operator == records.GE:
        return LOW, attribute, key
    if operator == records.GT:
        return LOW, attribute, np.nextafter(key, np.inf)
    if operator == records.LE:
        return HIGH, attribute, key
    if operator == records.LT:
        return HIGH, attribute, np.nextafter(key, -np.inf)
    for i in range(count):
        if whole(parts[i]) == ((S_KIND << 16) | attribute):
            return NOT, attribute, key
    return SCAN, 0, 0.0


@kernel
def signature_of(
    words: Any,
    at: int,
    end: int,
    texts: Any,
    values: Any,
    shapes: Any,
    popular: int,
    single: bool,
    found: Any,
    parts: Any,
    worth: Any,
) -> Any:
    """The signature of a record: its parts (kind << 16 | attribute) and their values; (how many, item with a list).

    If the second is not -1, the last value is that of the list's first value, and each of its values has an entry.
    """
    equalities = equalities_of(words, at, end, found)
    string = best_string(words, at, end, texts)
    count = 0
    if equalities > 0:
        if shapes[shape_of(words, found, equalities, string, texts) % np.uint64(len(shapes))] < popular:
            string = -1
            if single:
                found[0], equalities = found[rarest(words, found, equalities, values)], 1
            else:
                equalities = two_rarest(words, found, equalities, values)
        for i in range(equalities):
            parts[count] = (S_EQUAL << 16) | whole(words[found[i] + 1])
            worth[count] = equal_value(words, found[i])
            count += 1
    if string >= 0:
        kind = string_part_kind(words, string, texts)
        parts[count] = (kind << 16) | whole(words[string + 1])
        worth[count] = rarest_part(words, string, texts, values) if kind > S_PART else text_value(words, string, texts)
        count += 1
    if count > 0:
        return count, -1
    listed = best_list(words, at, end)
    if listed >= 0:
        parts[0] = (S_EQUAL << 16) | whole(words[listed + 1])
        worth[0] = listed_value(words, listed, 0)
        return 1, listed
    presence = best_presence(words, at, end)
    if presence >= 0:
        parts[0] = presence_part(words, presence)
        worth[0] = presence_value(words, presence)
        return 1, -1
    return 0, -1


@kernel
def cluster_hash(seed: np.uint64, signature: int, worth: Any, count: int) -> np.uint64:
    """Stands for a cluster: a signature and its values."""
    value = hash_pair(seed, np.uint64(signature))
    for i in range(count):
        value = hash_pair(value, worth[i])
    return value
