"""Holding: the exact test of a record against an event.

Owns what each item of a record asks of the event that has been read into the context. Nothing here is rounded:
numbers are compared as numbers, 64-bit integers included, and strings by their bytes.
"""

from __future__ import annotations

import numpy as np

from shoal.filters.index import event_row as rows
from shoal.filters.index import record_format as records
from shoal.filters.index.event_row import CODE, EXOTIC, LENGTH, START
from shoal.filters.index.intrinsics import f64_at, u8_at, u16_at, u32_at, whole
from shoal.filters.index.kernel_context import (
    FAR,
    R_PLAIN,
    R_SCRATCH,
    R_STRINGS,
    aux_of,
    ceil_of,
    floor_of,
    kind_of,
    root,
)
from shoal.filters.index.record_format import get_bits, get_float, item_words, width_words
from shoal.wire.rawbytes import kernel, part, same_words


@kernel
def order_of_float(value: float, bits: np.uint64, unsigned: bool) -> int:
    """-1, 0 or 1: a float64 against an integer that is no float64."""
    if not unsigned and whole(bits) < 0:
        if value >= -9007199254740992.0:
            return 1
        if value < -9223372036854775808.0:
            return -1
        return 1 if whole(value) > whole(bits) else -1
    if value <= 9007199254740992.0:
        return -1
    if value >= 18446744073709551616.0:
        return 1
    return 1 if np.uint64(value) > bits else -1


@kernel
def order_of(context: int, attribute: int, words: int, at: int, width: int) -> int:
    """-1, 0 or 1: the event's number against the number of an item, exactly. `words` is where the words stand."""
    item = u16_at(words, FAR)
    exotic = aux_of(context, attribute, EXOTIC)
    if width <= records.F64:
        bound = get_float(item, at, width)
        floor, ceil = floor_of(context, attribute), ceil_of(context, attribute)
        if ceil < bound or (ceil == bound and exotic != 0):
            return -1
        if floor > bound or (floor == bound and exotic != 0):
            return 1
        return 0
    bits = get_bits(item, at, 4)
    if exotic == 0:
        return order_of_float(floor_of(context, attribute), bits, width == records.UINT)
    own = np.uint64(aux_of(context, attribute, CODE))
    if (exotic == 2) != (width == records.UINT):
        return 1 if exotic == 2 else -1
    if own == bits:
        return 0
    above = own > bits if width == records.UINT else whole(own) > whole(bits)
    return 1 if above else -1


@part
def holds_number(context: int, words: int, at: int, operator: int, width: int, attribute: int) -> bool:
    """Tests an item with one number or two against an event that has a number."""
    order = order_of(context, attribute, words, at + 2, width)
    if operator == records.GE:
        return order >= 0
    if operator == records.LE:
        return order <= 0
    if operator == records.GT:
        return order > 0
    if operator == records.LT:
        return order < 0
    if operator == records.EQ_NUMBER:
        return order == 0
    if operator == records.NE_NUMBER:
        return order != 0
    return order >= 0 and order_of(context, attribute, words, at + 2 + width_words(width), width) <= 0


@kernel
def order_of_bytes(left: int, length: int, right: int, right_length: int) -> int:
    """-1, 0 or 1: two strings by their bytes, which is their order by code point."""
    a, b = u8_at(left, FAR), u8_at(right, FAR)
    for i in range(min(length, right_length)):
        if a[i] != b[i]:
            return 1 if a[i] > b[i] else -1
    return (length > right_length) - (length < right_length)


@kernel
def has_part(text: int, length: int, wanted: int, size: int) -> bool:
    """Whether a string contains another."""
    if size == 0:
        return True
    data, pattern = u8_at(text, FAR), u8_at(wanted, FAR)
    first = pattern[0]
    for i in range(length - size + 1):  # noqa: SIM110 (numba knows no generator in all() or any())
        if data[i] == first and same_words(data, i, pattern, 0, size):
            return True
    return False


@kernel
def holds_string(context: int, words: int, at: int, operator: int, attribute: int) -> bool:
    """Tests an item with a string against an event that has a string."""
    code = whole(get_bits(u16_at(words, FAR), at + 2, 2))
    if operator == records.EQ_STRING:
        return bool(aux_of(context, attribute, CODE) == code)
    if operator == records.NE_STRING:
        return bool(aux_of(context, attribute, CODE) != code)
    own, length = root(context, R_SCRATCH) + aux_of(context, attribute, START), aux_of(context, attribute, LENGTH)
    ends = u32_at(root(context, R_STRINGS + 2), FAR)
    wanted = root(context, R_STRINGS) + whole(ends[code])
    size = whole(ends[code + 1]) - whole(ends[code])
    if operator in (records.PREFIX, records.NOT_PREFIX):
        found = size <= length and same_words(u8_at(own, FAR), 0, u8_at(wanted, FAR), 0, size)
        return found == (operator == records.PREFIX)
    if operator in (records.SUFFIX, records.NOT_SUFFIX):
        found = size <= length and same_words(u8_at(own, FAR), length - size, u8_at(wanted, FAR), 0, size)
        return found == (operator == records.SUFFIX)
    if operator in (records.CONTAINS, records.NOT_CONTAINS):
        return has_part(own, length, wanted, size) == (operator == records.CONTAINS)
    order = order_of_bytes(own, length, wanted, size)
    return order >= 0 if operator == records.AT_LEAST else order < 0


@kernel
def is_listed(context: int, words: int, at: int, place: int) -> bool:
    """Whether an event has the value at a place of an item's list."""
    item = u16_at(words, FAR)
    operator, attribute = whole(item[at]) & 0xFF, whole(item[at + 1])
    kind = kind_of(context, attribute)
    if operator == records.IN_STRINGS:
        wanted = whole(get_bits(item, at + 3 + 2 * place, 2))
        return bool(kind == rows.STRING and aux_of(context, attribute, CODE) == wanted)
    value = at + 3 + 5 * place
    return bool(kind == rows.NUMBER) and order_of(context, attribute, words, value + 1, whole(item[value])) == 0


@kernel
def holds_one_of(context: int, words: int, at: int) -> bool:
    """Tests a list of values against an event."""
    for place in range(whole(u16_at(words, FAR)[at + 2])):  # noqa: SIM110 (numba knows no generator in any())
        if is_listed(context, words, at, place):
            return True
    return False


@part
def holds_item(context: int, words: int, at: int) -> bool:
    """Tests one item against the event."""
    item = u16_at(words, FAR)
    operator, width, attribute = whole(item[at]) & 0xFF, whole(item[at]) >> 8, whole(item[at + 1])
    kind = kind_of(context, attribute)
    if operator <= records.RANGE:
        return bool(kind == rows.NUMBER) and holds_number(context, words, at, operator, width, attribute)
    if operator <= records.BELOW:
        return bool(kind == rows.STRING) and holds_string(context, words, at, operator, attribute)
    if operator == records.EQ_BOOLEAN:
        return bool(kind == rows.BOOLEAN and aux_of(context, attribute, CODE) == item[at + 2])
    if operator == records.IS:
        return bool(kind == whole(item[at + 2]))
    if operator == records.EXISTS:
        return bool(kind != rows.ABSENT)
    if operator == records.UNLIKE:
        return bool(kind != rows.STRING) or holds_string(context, words, at + 1, whole(item[at + 2]), attribute)
    if operator == records.ABSENT:
        return bool(kind == rows.ABSENT)
    return holds_one_of(context, words, at)


@part
def holds_plain(value: float, bound: float, operator: int) -> bool:
    """Tests one number against a number that an operator up to NE_NUMBER gives, both float64."""
    if operator == records.GE:
        return value >= bound
    if operator == records.LE:
        return value <= bound
    if operator == records.GT:
        return value > bound
    if operator == records.LT:
        return value < bound
    return (value == bound) == (operator == records.EQ_NUMBER)


@kernel
def holds(context: int, words: int, at: int, end: int) -> bool:
    """Tests a record, from word `at` to `end` of the words at an address, against the event. Items with numbers take a
    short way where all of them are float64."""
    item, plain = u16_at(words, FAR), f64_at(root(context, R_PLAIN), FAR)
    while at < end:
        header = whole(item[at])
        operator, width = header & 0xFF, header >> 8
        value = plain[item[at + 1]]
        if operator > records.RANGE or width > records.F64 or value != value:
            if not holds_item(context, words, at):
                return False
            at += item_words(item, at)
            continue
        size = width_words(width)
        bound = get_float(item, at + 2, width)
        if operator == records.RANGE:
            if value < bound or value > get_float(item, at + 2 + size, width):
                return False
            at += size
        elif not holds_plain(value, bound, operator):
            return False
        at += 2 + size
    return True
