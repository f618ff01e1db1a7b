"""Signatures: which values of a filter lead an event to it.

Owns the hashes of values, which a filter and an event compute alike; the sketches that estimate how many filters
require a value; and the choice, for each unique record of a segment, of its *signature* and its run. A signature is a
set of attributes that must have one value each, or be present. The filters with the same signature and the same values
are a *cluster*, and an event finds the cluster by its hash. Never touches the bytes of a segment.

Equalities make the best signatures: all equalities of a filter, if many filters have the same attributes; otherwise the
two with the rarest values; or only one, where pairs would make too many signatures. Next best is a prefix or suffix
(its bytes are the value), then a window of up to four bytes of a contained string (the rarest), then each value of a
list, then presence. Where more than `SHARED_MAX` filters share what was chosen, a rarer string or list is added, so
that a value that most filters require does not hide the values that tell them apart. A filter that has only bounds is
in the cluster with the empty signature.

Kinds of values have different tags in a hash: the number 1, the string '1' and `true` differ. A sketch may count too
many, never too few.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import event_row, record_format
from shoal.filters.index import segment_layout as layout
from shoal.filters.index.intrinsics import i64
from shoal.filters.index.record_format import get_bits, get_float, item_words
from shoal.filters.index.segment_layout import S_ABSENT, S_EQUAL, S_EXISTS, S_KIND, S_PREFIX, S_SUFFIX
from shoal.wire.raw_bytes import background_kernel, hash_pair, kernel, part

_FNV: Final = np.uint64(0x100000001B3)
FNV_START: Final = np.uint64(0xCBF29CE484222325)
_TAG_NUMBER: Final = np.uint64(0x10)
_TAG_WIDE: Final = np.uint64(0x20)
_TAG_STRING: Final = np.uint64(0x40)
_TAG_BOOLEAN: Final = np.uint64(0x80)
SIGNATURE_PARTS_MAX: Final = 8
"""Attributes of a signature at most."""
EQUALITIES_MAX: Final = SIGNATURE_PARTS_MAX - 2
"""Equalities of a signature at most, because a list and a string may be added."""
WINDOW_BYTES: Final = 4
"""Bytes of a window at most."""
AFFIX_BYTES_MAX: Final = 4096
"""Bytes at most of a prefix or suffix that is part of a signature."""
FREQUENCY_MAX: Final = 1 << 62
"""More than any frequency."""
POPULAR_MIN: Final = 32
POPULAR_SHARE: Final = 64
"""All equalities of a filter are its signature if at least one in this many filters has the same attributes."""
SHARED_MAX: Final = 64
"""If more filters than this share a signature and its values, another part is added that tells them apart."""
RARER_FACTOR: Final = 4
"""An added part must be this many times rarer than the parts before."""
LISTED_MAX: Final = 128
"""Values at most of a list that is an added part: each value needs an entry."""


@part
def fnv(value: np.uint64, byte: int) -> np.uint64:
    """Adds a byte to a hash of a string. The hash of a prefix is an intermediate result."""
    return (value ^ np.uint64(byte)) * _FNV


@part
def number_hash(bits: np.uint64, wide: int) -> np.uint64:
    """The hash of a number: of the bits of its float64, or of its own bits if it is a wide integer."""
    return hash_pair(_TAG_NUMBER if wide == 0 else _TAG_WIDE + np.uint64(wide), bits)


@part
def string_hash(code: int) -> np.uint64:
    """The hash of a whole string."""
    return hash_pair(_TAG_STRING, np.uint64(code))


@part
def boolean_hash(code: int) -> np.uint64:
    """The hash of a boolean."""
    return hash_pair(_TAG_BOOLEAN, np.uint64(code))


@kernel
def window_hash(data: Any, at: int, length: int) -> np.uint64:
    """The hash of up to four bytes of a string."""
    value = np.uint64(0)
    for i in range(length):
        value = (value << np.uint64(8)) | np.uint64(data[at + i])
    return hash_pair(np.uint64(length), value)


@part
def is_equality(operator: int) -> bool:
    """Whether an item requires one value."""
    return operator in (record_format.EQ_NUMBER, record_format.EQ_STRING, record_format.EQ_BOOLEAN)


@kernel
def equality_hash(words: Any, at: int) -> np.uint64:
    """The hash of the value that an item with an equality requires."""
    operator, width = i64(words[at]) & 0xFF, i64(words[at]) >> 8
    if operator == record_format.EQ_STRING:
        return string_hash(i64(get_bits(words, at + 2, 2)))
    if operator == record_format.EQ_BOOLEAN:
        return boolean_hash(i64(words[at + 2]))
    if width > record_format.F64:
        return number_hash(get_bits(words, at + 2, 4), width - record_format.F64)
    return number_hash(np.float64(get_float(words, at + 2, width)).view(np.uint64), 0)


@kernel
def listed_hash(words: Any, at: int, index: int) -> np.uint64:
    """The hash of one of the values of an item with a list."""
    if (i64(words[at]) & 0xFF) == record_format.IN_STRINGS:
        return string_hash(i64(get_bits(words, at + 3 + 2 * index, 2)))
    item = at + 3 + 5 * index
    width = i64(words[item])
    return number_hash(get_bits(words, item + 1, 4), 0 if width == record_format.F64 else width - record_format.F64)


@kernel
def affix_hash(words: Any, at: int, strings: Any) -> np.uint64:
    """The hash of a prefix, or of a suffix read backwards."""
    code = i64(get_bits(words, at + 2, 2))
    start, end = i64(strings[1][code]), i64(strings[1][code + 1])
    value = FNV_START
    if (i64(words[at]) & 0xFF) == record_format.PREFIX:
        for i in range(start, end):
            value = fnv(value, strings[0][i])
    else:
        for i in range(end - 1, start - 1, -1):
            value = fnv(value, strings[0][i])
    return value


@kernel
def string_length(words: Any, at: int, strings: Any) -> int:
    """Bytes of the string of an item."""
    code = i64(get_bits(words, at + 2, 2))
    return i64(strings[1][code + 1]) - i64(strings[1][code])


@kernel
def best_string_item(words: Any, at: int, end: int, strings: Any) -> int:
    """The item with the longest prefix, suffix or contained string, or -1. A prefix or suffix counts double."""
    best, size = -1, 0
    while at < end:
        operator = i64(words[at]) & 0xFF
        if operator in (record_format.PREFIX, record_format.SUFFIX, record_format.CONTAINS):
            length = string_length(words, at, strings) * (1 if operator == record_format.CONTAINS else 2)
            if length > size:
                best, size = at, length
        at += item_words(words, at)
    return best


@kernel
def string_part_kind(words: Any, at: int, strings: Any) -> int:
    """The kind of signature part that a string item makes. A very long prefix or suffix makes a window."""
    operator, length = i64(words[at]) & 0xFF, string_length(words, at, strings)
    if operator == record_format.PREFIX and length <= AFFIX_BYTES_MAX:
        return layout.S_PREFIX
    if operator == record_format.SUFFIX and length <= AFFIX_BYTES_MAX:
        return layout.S_SUFFIX
    return layout.S_WINDOW + min(WINDOW_BYTES, length)


@kernel
def find_equalities(words: Any, at: int, end: int, found: Any) -> int:
    """Finds the equalities of a record, at most `EQUALITIES_MAX`. Returns their number."""
    count = 0
    while at < end and count < EQUALITIES_MAX:
        if is_equality(i64(words[at]) & 0xFF):
            found[count] = at
            count += 1
        at += item_words(words, at)
    return count


@kernel
def shape_of(words: Any, found: Any, count: int, string: int, strings: Any) -> np.uint64:
    """A hash of the attributes of all equalities and of the best string item."""
    shape = np.uint64(count)
    for i in range(count):
        shape = hash_pair(shape, np.uint64(words[found[i] + 1]))
    if string >= 0:
        kind = np.uint64(string_part_kind(words, string, strings) << 16)
        shape = hash_pair(shape, kind | np.uint64(words[string + 1]))
    return shape


@part
def attribute_hash(words: Any, at: int, value: np.uint64) -> np.uint64:
    """A hash of an item's attribute and a value."""
    return hash_pair(np.uint64(words[at + 1]), value)


@part
def count_value(values: Any, value: np.uint64) -> None:
    """Counts a value in two counters, because a rare value seldom shares both with a frequent one."""
    half = np.uint64(len(values) // 2)
    values[value % half] += 1
    values[half + (value >> np.uint64(32)) % half] += 1


@part
def value_count(values: Any, value: np.uint64) -> int:
    """How often a value was counted, or more."""
    half = np.uint64(len(values) // 2)
    return min(i64(values[value % half]), i64(values[half + (value >> np.uint64(32)) % half]))


@background_kernel
def count_values(words: Any, ends: Any, chosen: Any, strings: Any, values: Any, shapes: Any) -> None:
    """Counts in two sketches how often each value of an equality or a list is required (also prefixes, suffixes and
    windows of contained strings), and each set of attributes with equalities."""
    found = np.empty(SIGNATURE_PARTS_MAX, np.int64)
    for record in chosen:
        at, end = ends[record], ends[record + 1]
        equalities = find_equalities(words, at, end, found)
        for j in range(equalities):
            count_value(values, attribute_hash(words, found[j], equality_hash(words, found[j])))
        string = best_string_item(words, at, end, strings)
        if string >= 0:
            count_string(words, string, strings, values)
        if equalities > 0:
            shapes[shape_of(words, found, equalities, string, strings) % np.uint64(len(shapes))] += 1
        while at < end:
            if (i64(words[at]) & 0xFF) >= record_format.IN_NUMBERS:
                for i in range(i64(words[at + 2])):
                    count_value(values, attribute_hash(words, at, listed_hash(words, at, i)))
            at += item_words(words, at)


@kernel
def count_string(words: Any, at: int, strings: Any, values: Any) -> None:
    """Counts what a string item requires."""
    if string_part_kind(words, at, strings) <= layout.S_WINDOW:
        count_value(values, attribute_hash(words, at, affix_hash(words, at, strings)))
        return
    code = i64(get_bits(words, at + 2, 2))
    start, stop = i64(strings[1][code]), i64(strings[1][code + 1])
    size = min(WINDOW_BYTES, stop - start)
    for position in range(start, stop - size + 1):
        count_value(values, window_hash(strings[0], position, size))


@kernel
def rarest_window(words: Any, at: int, strings: Any, values: Any) -> np.uint64:
    """The hash of the window of a contained string that the fewest filters share."""
    code = i64(get_bits(words, at + 2, 2))
    start, stop = i64(strings[1][code]), i64(strings[1][code + 1])
    size = min(WINDOW_BYTES, stop - start)
    best = window_hash(strings[0], start, size)
    for position in range(start + 1, stop - size + 1):
        value = window_hash(strings[0], position, size)
        if value_count(values, value) < value_count(values, best):
            best = value
    return best


@kernel
def string_part_hash(words: Any, at: int, strings: Any, values: Any) -> np.uint64:
    """The hash of a string item as a part of a signature."""
    if string_part_kind(words, at, strings) > layout.S_WINDOW:
        return rarest_window(words, at, strings, values)
    return affix_hash(words, at, strings)


@kernel
def string_frequency(words: Any, at: int, strings: Any, values: Any) -> int:
    """Estimated number of filters that require the same by a string item."""
    value = string_part_hash(words, at, strings, values)
    if string_part_kind(words, at, strings) > layout.S_WINDOW:
        return value_count(values, value)
    return value_count(values, attribute_hash(words, at, value))


@part
def equality_frequency(words: Any, at: int, values: Any) -> int:
    """Estimated number of filters that require the same value by an equality."""
    return value_count(values, attribute_hash(words, at, equality_hash(words, at)))


@kernel
def least_frequency(words: Any, found: Any, count: int, values: Any) -> int:
    """Estimated number of filters that have the same values for some equalities."""
    frequency = FREQUENCY_MAX
    for i in range(count):
        frequency = min(frequency, equality_frequency(words, found[i], values))
    return frequency


@kernel
def list_frequency(words: Any, at: int, values: Any) -> int:
    """Estimated number of filters that require the most frequent value of a list."""
    frequency = 0
    for i in range(i64(words[at + 2])):
        frequency = max(frequency, value_count(values, attribute_hash(words, at, listed_hash(words, at, i))))
    return frequency


@kernel
def move_two_rarest(words: Any, found: Any, count: int, values: Any) -> int:
    """Moves the two equalities with the rarest values to the front, in their order. Returns how many are left."""
    if count <= 2:
        return count
    first, second = -1, -1
    least, next_least = FREQUENCY_MAX, FREQUENCY_MAX
    for i in range(count):
        frequency = equality_frequency(words, found[i], values)
        if frequency < least:
            first, second, least, next_least = i, first, frequency, least
        elif frequency < next_least:
            second, next_least = i, frequency
    low, high = found[min(first, second)], found[max(first, second)]
    found[0], found[1] = low, high
    return 2


@kernel
def rarest_equality(words: Any, found: Any, count: int, values: Any) -> int:
    """The index of the equality with the rarest value."""
    best, least = 0, FREQUENCY_MAX
    for i in range(count):
        frequency = equality_frequency(words, found[i], values)
        if frequency < least:
            best, least = i, frequency
    return best


@kernel
def best_list_item(words: Any, at: int, end: int, values: Any) -> int:
    """The item with the list whose most frequent value the fewest filters require, or -1."""
    best, least = -1, FREQUENCY_MAX
    while at < end:
        if (i64(words[at]) & 0xFF) >= record_format.IN_NUMBERS:
            frequency = list_frequency(words, at, values)
            if frequency < least:
                best, least = at, frequency
        at += item_words(words, at)
    return best


@kernel
def best_presence_item(words: Any, at: int, end: int) -> int:
    """An item that requires presence or, failing that, absence; -1 if there is a bound on a number, or no such item."""
    best = -1
    while at < end:
        operator = i64(words[at]) & 0xFF
        if operator <= record_format.RANGE and operator != record_format.NE_NUMBER:
            return -1
        if operator not in (record_format.UNLIKE, record_format.UNLIKE_NUMBER) and (
            best < 0 or (i64(words[best]) & 0xFF) == record_format.ABSENT
        ):
            best = at
        at += item_words(words, at)
    return best


@kernel
def presence_part(words: Any, at: int) -> int:
    """The signature part of an item that is not an equality: kind << 16 | attribute."""
    operator = i64(words[at]) & 0xFF
    kind = S_EXISTS if operator == record_format.EXISTS else (S_ABSENT if operator == record_format.ABSENT else S_KIND)
    return (kind << 16) | i64(words[at + 1])


@kernel
def presence_value(words: Any, at: int) -> np.uint64:
    """The value of `presence_part`."""
    operator = i64(words[at]) & 0xFF
    if operator in (record_format.EXISTS, record_format.ABSENT):
        return np.uint64(0)
    if operator == record_format.IS:
        return np.uint64(words[at + 2])
    return np.uint64(event_row.NUMBER if operator == record_format.NE_NUMBER else event_row.STRING)


@kernel
def is_decided_by_signature(words: Any, at: int, parts: Any, count: int) -> bool:
    """Whether the signature alone decides an item."""
    operator, attribute = i64(words[at]) & 0xFF, i64(words[at + 1])
    for i in range(count):
        kind = i64(parts[i]) >> 16
        if (i64(parts[i]) & 0xFFFF) != attribute:
            continue
        if kind == S_EQUAL and (is_equality(operator) or operator >= record_format.IN_NUMBERS):
            return True
        if kind == S_PREFIX and operator == record_format.PREFIX:
            return True
        if kind == S_SUFFIX and operator == record_format.SUFFIX:
            return True
        if kind == S_KIND and operator == record_format.IS:
            return True
        if (kind == S_EXISTS and operator == record_format.EXISTS) or (
            kind == S_ABSENT and operator == record_format.ABSENT
        ):
            return True
    return False


@kernel
def is_implied(words: Any, at: int, end: int) -> bool:
    """Whether an item only requires a number, and the next item excludes one."""
    after = at + item_words(words, at)
    return (
        (i64(words[at]) & 0xFF) == record_format.IS
        and after < end
        and words[after + 1] == words[at + 1]
        and (i64(words[after]) & 0xFF) == record_format.NE_NUMBER
    )


@kernel
def run_of(words: Any, at: int, end: int, parts: Any, count: int) -> Any:
    """The run of a record in its cluster: (type, attribute, key)."""
    left, item = 0, -1
    while at < end:
        if not is_decided_by_signature(words, at, parts, count) and not is_implied(words, at, end):
            left, item = left + 1, at
        at += item_words(words, at)
    if left == 0:
        return layout.RUN_ALL, 0, 0.0
    operator, width, attribute = i64(words[item]) & 0xFF, i64(words[item]) >> 8, i64(words[item + 1])
    if left == 1 and operator == record_format.NE_STRING:
        return layout.RUN_NOT_STRING, attribute, float(get_bits(words, item + 2, 2))
    if (
        left > 1
        or width > record_format.F64
        or operator > record_format.NE_NUMBER
        or operator == record_format.EQ_NUMBER
    ):
        return layout.RUN_SCAN, 0, 0.0
    key = get_float(words, item + 2, width)
    if operator == record_format.GE:
        return layout.RUN_LOW, attribute, key
    if operator == record_format.GT:
        return layout.RUN_LOW, attribute, np.nextafter(key, np.inf)
    if operator == record_format.LE:
        return layout.RUN_HIGH, attribute, key
    if operator == record_format.LT:
        return layout.RUN_HIGH, attribute, np.nextafter(key, -np.inf)
    return layout.RUN_NOT, attribute, key


@kernel
def choose_equalities(
    words: Any, found: Any, count: int, string: int, strings: Any, values: Any, shapes: Any, popular: int, single: bool
) -> Any:
    """Which equalities of a record are in its signature, and whether the string item is. Returns (number of equalities,
    place of the string item or -1, estimated number of filters that share them)."""
    if count == 0 or shapes[shape_of(words, found, count, string, strings) % np.uint64(len(shapes))] >= popular:
        frequency = least_frequency(words, found, count, values)
        if string >= 0:
            frequency = min(frequency, string_frequency(words, string, strings, values))
        return count, string, frequency
    if single:
        found[0], count = found[rarest_equality(words, found, count, values)], 1
    else:
        count = move_two_rarest(words, found, count, values)
    frequency = least_frequency(words, found, count, values)
    if string >= 0 and frequency > SHARED_MAX:
        own = string_frequency(words, string, strings, values)
        if own * RARER_FACTOR < frequency:
            return 0 if single else count, string, own
    return count, -1, frequency


@kernel
def signature_of(
    words: Any,
    at: int,
    end: int,
    strings: Any,
    values: Any,
    shapes: Any,
    popular: int,
    single: bool,
    found: Any,
    parts: Any,
    hashes: Any,
) -> Any:
    """The signature of a record: its parts (kind << 16 | attribute) and the hashes of their values. Returns (number of
    parts, item with a list or -1).

    If there is a list, the first hash is that of its first value, and each value of the list gets an entry.
    """
    equalities, string, frequency = choose_equalities(
        words,
        found,
        find_equalities(words, at, end, found),
        best_string_item(words, at, end, strings),
        strings,
        values,
        shapes,
        popular,
        single,
    )
    alone = equalities == 0 and string < 0
    listed = best_list_item(words, at, end, values)
    if listed >= 0 and not alone:
        if (
            frequency <= SHARED_MAX
            or i64(words[listed + 2]) > LISTED_MAX
            or list_frequency(words, listed, values) * RARER_FACTOR >= frequency
        ):
            listed = -1
        elif single:
            equalities, string = 0, -1
    count = 0
    if listed >= 0:
        parts[count] = (S_EQUAL << 16) | i64(words[listed + 1])
        hashes[count] = listed_hash(words, listed, 0)
        count += 1
    for i in range(equalities):
        parts[count] = (S_EQUAL << 16) | i64(words[found[i] + 1])
        hashes[count] = equality_hash(words, found[i])
        count += 1
    if string >= 0:
        parts[count] = (string_part_kind(words, string, strings) << 16) | i64(words[string + 1])
        hashes[count] = string_part_hash(words, string, strings, values)
        count += 1
    if count > 0:
        return count, listed
    presence = best_presence_item(words, at, end)
    if presence >= 0:
        parts[0] = presence_part(words, presence)
        hashes[0] = presence_value(words, presence)
        return 1, -1
    return 0, -1


@kernel
def cluster_hash(seed: np.uint64, signature: int, hashes: Any, count: int) -> np.uint64:
    """The hash of a cluster: a signature and its values."""
    value = hash_pair(seed, np.uint64(signature))
    for i in range(count):
        value = hash_pair(value, hashes[i])
    return value
