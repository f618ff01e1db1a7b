"""Choosing: which part of a filter leads an event to it.

Owns the choice, for each unique record of a segment, of its *signature* (attributes whose value, or presence, must be
just so) and of the *run* in which it waits within the cluster of all filters with the same signature and values:

    ALL     nothing is left to test                       the whole run matches
    LOW     one lower bound is left, sorted               a slice from the start matches
    HIGH    one upper bound is left, sorted               a slice up to the end matches
    NOT     one excluded number is left, sorted           all but a slice matches
    NOT_TEXT  one excluded string is left, sorted         the same
    SCAN    anything else                                 tested one by one, or by cells if there are many (`cells`)

Equalities make the best signatures: all of a filter's, if many filters have the same ones; else the two rarest
values; and one value where that would be too many pairs of attributes. Next a prefix or suffix (its bytes are the
value), then a window of up to four bytes of a contained string (the rarest), then each value of a list, then presence.
Where more than `CROWD_MAX` filters share what was chosen, a rarer string or list comes beside it, so that a value that
all ask for does not hide those that tell filters apart. A filter that has only bounds is in the cluster without a
signature.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import event_row as rows
from shoal.filters.index import record_format as records
from shoal.filters.index import signatures as weighing
from shoal.filters.index.intrinsics import whole
from shoal.filters.index.record_format import get_bits, get_float, item_words
from shoal.filters.index.signatures import S_ABSENT, S_EQUAL, S_EXISTS, S_KIND, S_PREFIX, S_SUFFIX
from shoal.filters.index.standing import equal_value, is_equality, listed_value
from shoal.wire.rawbytes import hash_pair, kernel

ALL: Final = 0
LOW: Final = 1
HIGH: Final = 2
NOT: Final = 3
NOT_TEXT: Final = 4
SORTED_LAST: Final = 4
SCAN: Final = 5

POPULAR_MIN: Final = 32
POPULAR_SHARE: Final = 64
"""All equalities of a filter are its signature if one in so many filters has the same ones."""
CROWD_MAX: Final = 64
"""Filters that may wait in one cluster before a further part is looked for that tells them apart."""
RARER: Final = 4
"""By so much a further part must be rarer than those that are there."""
LISTED_MAX: Final = 128
"""Values of a list that is a further part: each has an entry."""


@kernel
def best_presence(words: Any, at: int, end: int) -> int:
    """An item that asks for presence or, for want of one, absence; -1 if there is a bound on a number, or nothing."""
    best = -1
    while at < end:
        operator = whole(words[at]) & 0xFF
        if operator <= records.RANGE and operator != records.NE_NUMBER:
            return -1
        if operator != records.UNLIKE and (best < 0 or (whole(words[best]) & 0xFF) == records.ABSENT):
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
def is_implied(words: Any, at: int, end: int) -> bool:
    """Whether an item only says that there is a number, and the next one excludes one of them."""
    after = at + item_words(words, at)
    return (
        (whole(words[at]) & 0xFF) == records.IS
        and after < end
        and words[after + 1] == words[at + 1]
        and (whole(words[after]) & 0xFF) == records.NE_NUMBER
    )


@kernel
def run_of(words: Any, at: int, end: int, parts: Any, count: int) -> Any:
    """The run of a record within its cluster: (type, attribute, key)."""
    left, item = 0, -1
    while at < end:
        if not decided(words, at, parts, count) and not is_implied(words, at, end):
            left, item = left + 1, at
        at += item_words(words, at)
    if left == 0:
        return ALL, 0, 0.0
    operator, width, attribute = whole(words[item]) & 0xFF, whole(words[item]) >> 8, whole(words[item + 1])
    if left == 1 and operator == records.NE_STRING:
        return NOT_TEXT, attribute, float(get_bits(words, item + 2, 2))
    if left > 1 or width > records.F64 or operator > records.NE_NUMBER or operator == records.EQ_NUMBER:
        return SCAN, 0, 0.0
    key = get_float(words, item + 2, width)
    if operator == records.GE:
        return LOW, attribute, key
    if operator == records.GT:
        return LOW, attribute, np.nextafter(key, np.inf)
    if operator == records.LE:
        return HIGH, attribute, key
    if operator == records.LT:
        return HIGH, attribute, np.nextafter(key, -np.inf)
    return NOT, attribute, key


@kernel
def choose_equalities(
    words: Any, found: Any, count: int, string: int, texts: Any, values: Any, shapes: Any, popular: int, single: bool
) -> Any:
    """Which of some equalities lead to a record, and whether the string item does: (how many, its place or -1, how many
    filters may share them)."""
    if count == 0 or shapes[weighing.shape_of(words, found, count, string, texts) % np.uint64(len(shapes))] >= popular:
        crowd = weighing.least_crowd(words, found, count, values)
        if string >= 0:
            crowd = min(crowd, weighing.string_crowd(words, string, texts, values))
        return count, string, crowd
    if single:
        found[0], count = found[weighing.rarest(words, found, count, values)], 1
    else:
        count = weighing.two_rarest(words, found, count, values)
    crowd = weighing.least_crowd(words, found, count, values)
    if string >= 0 and crowd > CROWD_MAX:
        own = weighing.string_crowd(words, string, texts, values)
        if own * RARER < crowd:
            return 0 if single else count, string, own
    return count, -1, crowd


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

    If the second is not -1, the first value is that of the list's first value, and each of its values has an entry.
    """
    equalities, string, crowd = choose_equalities(
        words,
        found,
        weighing.equalities_of(words, at, end, found),
        weighing.best_string(words, at, end, texts),
        texts,
        values,
        shapes,
        popular,
        single,
    )
    alone = equalities == 0 and string < 0
    listed = weighing.best_list(words, at, end, values)
    if listed >= 0 and not alone:
        if (
            crowd <= CROWD_MAX
            or whole(words[listed + 2]) > LISTED_MAX
            or weighing.list_crowd(words, listed, values) * RARER >= crowd
        ):
            listed = -1
        elif single:
            equalities, string = 0, -1
    count = 0
    if listed >= 0:
        parts[count] = (S_EQUAL << 16) | whole(words[listed + 1])
        worth[count] = listed_value(words, listed, 0)
        count += 1
    for i in range(equalities):
        parts[count] = (S_EQUAL << 16) | whole(words[found[i] + 1])
        worth[count] = equal_value(words, found[i])
        count += 1
    if string >= 0:
        parts[count] = (weighing.string_part_kind(words, string, texts) << 16) | whole(words[string + 1])
        worth[count] = weighing.string_part_value(words, string, texts, values)
        count += 1
    if count > 0:
        return count, listed
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
