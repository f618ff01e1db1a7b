"""The evaluator: the exact test of a record against the current event.

Owns the meaning of each item of a record, and the way from an entry to its record. Nothing is rounded: numbers are
compared as numbers, 64-bit integers included, and strings by their bytes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import event_row, record_format
from shoal.filters.index import segment_layout as layout
from shoal.filters.index.event_row import CODE, LENGTH, START, WIDE
from shoal.filters.index.intrinsics import UNBOUNDED, f64_at, i64, prefetch, u8_at, u16_at, u32_at
from shoal.filters.index.kernel_context import (
    R_FLOATS,
    R_SCRATCH,
    R_STRINGS,
    event_aux,
    event_ceil,
    event_floor,
    event_kind,
    root,
)
from shoal.filters.index.record_format import get_bits, get_float, item_words, width_words
from shoal.filters.index.segment_layout import part_address, u16_part, u32_part
from shoal.wire.raw_bytes import kernel, part, same_words

_STAR: Final = 0x2A
_ESCAPE: Final = 0x5C
_RECORDS_AHEAD: Final = 8
"""Entries between the one that is tested and the one whose record is prefetched."""


@kernel
def order_of_float(value: float, bits: np.uint64, unsigned: bool) -> int:
    """-1, 0 or 1: a float64 compared with a wide integer."""
    if not unsigned and i64(bits) < 0:
        if value >= -9007199254740992.0:
            return 1
        if value < -9223372036854775808.0:
            return -1
        return 1 if i64(value) > i64(bits) else -1
    if value <= 9007199254740992.0:
        return -1
    if value >= 18446744073709551616.0:
        return 1
    return 1 if np.uint64(value) > bits else -1


@kernel
def order_of(context: int, attribute: int, words: int, at: int, width: int) -> int:
    """-1, 0 or 1: the event's number compared exactly with the number of an item. `words` is an address."""
    item = u16_at(words, UNBOUNDED)
    wide = event_aux(context, attribute, WIDE)
    if width <= record_format.F64:
        bound = get_float(item, at, width)
        floor, ceil = event_floor(context, attribute), event_ceil(context, attribute)
        if ceil < bound or (ceil == bound and wide != 0):
            return -1
        if floor > bound or (floor == bound and wide != 0):
            return 1
        return 0
    bits = get_bits(item, at, 4)
    if wide == 0:
        return order_of_float(event_floor(context, attribute), bits, width == record_format.UINT)
    own = np.uint64(event_aux(context, attribute, CODE))
    if (wide == 2) != (width == record_format.UINT):
        return 1 if wide == 2 else -1
    if own == bits:
        return 0
    above = own > bits if width == record_format.UINT else i64(own) > i64(bits)
    return 1 if above else -1


@part
def holds_number(context: int, words: int, at: int, operator: int, width: int, attribute: int) -> bool:
    """Tests an item with one or two numbers against an event that has a number."""
    order = order_of(context, attribute, words, at + 2, width)
    if operator == record_format.GE:
        return order >= 0
    if operator == record_format.LE:
        return order <= 0
    if operator == record_format.GT:
        return order > 0
    if operator == record_format.LT:
        return order < 0
    if operator == record_format.EQ_NUMBER:
        return order == 0
    if operator == record_format.NE_NUMBER:
        return order != 0
    return order >= 0 and order_of(context, attribute, words, at + 2 + width_words(width), width) <= 0


@kernel
def order_of_bytes(left: int, length: int, right: int, right_length: int) -> int:
    """-1, 0 or 1: two strings compared by their bytes, which is the order of code points."""
    a, b = u8_at(left, UNBOUNDED), u8_at(right, UNBOUNDED)
    for i in range(min(length, right_length)):
        if a[i] != b[i]:
            return 1 if a[i] > b[i] else -1
    return (length > right_length) - (length < right_length)


@kernel
def has_part(text: int, length: int, wanted: int, size: int) -> bool:
    """Whether a string contains another one."""
    if size == 0:
        return True
    data, pattern = u8_at(text, UNBOUNDED), u8_at(wanted, UNBOUNDED)
    first = pattern[0]
    for i in range(length - size + 1):  # noqa: SIM110 (numba knows no generator in all() or any())
        if data[i] == first and same_words(data, i, pattern, 0, size):
            return True
    return False


@kernel
def is_like(text: int, length: int, wanted: int, size: int) -> bool:
    """Whether a string matches a wildcard (see `shoal.filters.wildcards`). Where it stops matching, the last star takes
    one more byte."""
    data, pattern = u8_at(text, UNBOUNDED), u8_at(wanted, UNBOUNDED)
    at, place, star, tried = 0, 0, -1, 0
    while at < length:
        if place < size and pattern[place] == _STAR:
            star, tried = place, at
            place += 1
            continue
        literal = place + 1 if place < size and pattern[place] == _ESCAPE else place
        if literal < size and pattern[literal] == data[at]:
            at, place = at + 1, literal + 1
            continue
        if star < 0:
            return False
        tried += 1
        at, place = tried, star + 1
    while place < size and pattern[place] == _STAR:
        place += 1
    return place == size


@kernel
def holds_string(context: int, words: int, at: int, operator: int, attribute: int) -> bool:
    """Tests an item with a string against an event that has a string."""
    code = i64(get_bits(u16_at(words, UNBOUNDED), at + 2, 2))
    if operator == record_format.EQ_STRING:
        return bool(event_aux(context, attribute, CODE) == code)
    if operator == record_format.NE_STRING:
        return bool(event_aux(context, attribute, CODE) != code)
    own, length = root(context, R_SCRATCH) + event_aux(context, attribute, START), event_aux(context, attribute, LENGTH)
    ends = u32_at(root(context, R_STRINGS + 2), UNBOUNDED)
    wanted = root(context, R_STRINGS) + i64(ends[code])
    size = i64(ends[code + 1]) - i64(ends[code])
    if operator in (record_format.PREFIX, record_format.NOT_PREFIX):
        found = size <= length and same_words(u8_at(own, UNBOUNDED), 0, u8_at(wanted, UNBOUNDED), 0, size)
        return found == (operator == record_format.PREFIX)
    if operator in (record_format.SUFFIX, record_format.NOT_SUFFIX):
        found = size <= length and same_words(u8_at(own, UNBOUNDED), length - size, u8_at(wanted, UNBOUNDED), 0, size)
        return found == (operator == record_format.SUFFIX)
    if operator in (record_format.CONTAINS, record_format.NOT_CONTAINS):
        return has_part(own, length, wanted, size) == (operator == record_format.CONTAINS)
    if operator in (record_format.WILDCARD, record_format.NOT_WILDCARD):
        return is_like(own, length, wanted, size) == (operator == record_format.WILDCARD)
    order = order_of_bytes(own, length, wanted, size)
    return order >= 0 if operator == record_format.AT_LEAST else order < 0


@kernel
def has_listed_value(context: int, words: int, at: int, place: int) -> bool:
    """Whether the event has the value at a place of an item's list."""
    item = u16_at(words, UNBOUNDED)
    operator, attribute = i64(item[at]) & 0xFF, i64(item[at + 1])
    kind = event_kind(context, attribute)
    if operator == record_format.IN_STRINGS:
        wanted = i64(get_bits(item, at + 3 + 2 * place, 2))
        return bool(kind == event_row.STRING and event_aux(context, attribute, CODE) == wanted)
    value = at + 3 + 5 * place
    return bool(kind == event_row.NUMBER) and order_of(context, attribute, words, value + 1, i64(item[value])) == 0


@kernel
def holds_one_of(context: int, words: int, at: int) -> bool:
    """Tests a list of values against the event."""
    for place in range(i64(u16_at(words, UNBOUNDED)[at + 2])):  # noqa: SIM110 (numba knows no generator in any())
        if has_listed_value(context, words, at, place):
            return True
    return False


@part
def holds_item(context: int, words: int, at: int) -> bool:
    """Tests one item against the event."""
    item = u16_at(words, UNBOUNDED)
    operator, width, attribute = i64(item[at]) & 0xFF, i64(item[at]) >> 8, i64(item[at + 1])
    kind = event_kind(context, attribute)
    if operator <= record_format.RANGE:
        return bool(kind == event_row.NUMBER) and holds_number(context, words, at, operator, width, attribute)
    if operator <= record_format.STRING_LAST:
        return bool(kind == event_row.STRING) and holds_string(context, words, at, operator, attribute)
    if operator == record_format.EQ_BOOLEAN:
        return bool(kind == event_row.BOOLEAN and event_aux(context, attribute, CODE) == item[at + 2])
    if operator == record_format.IS:
        return bool(kind == i64(item[at + 2]))
    if operator == record_format.EXISTS:
        return bool(kind != event_row.ABSENT)
    if operator == record_format.UNLIKE:
        return bool(kind != event_row.STRING) or holds_string(context, words, at + 1, i64(item[at + 2]), attribute)
    if operator == record_format.UNLIKE_NUMBER:
        return bool(kind != event_row.NUMBER) or order_of(context, attribute, words, at + 2, width) != 0
    if operator == record_format.ABSENT:
        return bool(kind == event_row.ABSENT)
    return holds_one_of(context, words, at)


@part
def holds_plain(value: float, bound: float, operator: int) -> bool:
    """Tests a number with an operator up to NE_NUMBER, both numbers being float64."""
    if operator == record_format.GE:
        return value >= bound
    if operator == record_format.LE:
        return value <= bound
    if operator == record_format.GT:
        return value > bound
    if operator == record_format.LT:
        return value < bound
    return (value == bound) == (operator == record_format.EQ_NUMBER)


@kernel
def holds(context: int, words: int, at: int, end: int) -> bool:
    """Tests a record, the words from `at` to `end` of those at an address, against the event. Items with numbers take a
    shortcut where all numbers are float64."""
    item, plain = u16_at(words, UNBOUNDED), f64_at(root(context, R_FLOATS), UNBOUNDED)
    while at < end:
        header = i64(item[at])
        operator, width = header & 0xFF, header >> 8
        value = plain[item[at + 1]]
        if operator > record_format.RANGE or width > record_format.F64 or value != value:
            if not holds_item(context, words, at):
                return False
            at += item_words(item, at)
            continue
        size = width_words(width)
        bound = get_float(item, at + 2, width)
        if operator == record_format.RANGE:
            if value < bound or value > get_float(item, at + 2 + size, width):
                return False
            at += size
        elif not holds_plain(value, bound, operator):
            return False
        at += 2 + size
    return True


@part
def record_holder(block: int, entry: int) -> Any:
    """(The entry that holds the record of an entry, the index of the value in its list that the entry stands for.)"""
    ends = u32_part(block, layout.P_WORD_ENDS)
    if ends[entry] & layout.REPEATED == 0:
        return entry, 0
    words, at = u16_part(block, layout.P_WORDS), i64(ends[entry] & layout.LOW_31)
    return i64(get_bits(words, at + 1, 2)), i64(words[at])


@part
def record_of(block: int, entry: int) -> Any:
    """The record of an entry: (its first word, one past its last, the index of the value in its list that the entry
    stands for)."""
    ends = u32_part(block, layout.P_WORD_ENDS)
    entry, place = record_holder(block, entry)
    return i64(ends[entry] & layout.LOW_31), i64(ends[entry + 1] & layout.LOW_31), place


@part
def prefetch_records(block: int, entry: int, last: int) -> None:
    """Prefetches for entries that are tested soon: first the place of a record that several entries share, later the
    record."""
    ends = u32_part(block, layout.P_WORD_ENDS)
    if entry + 2 * _RECORDS_AHEAD < last:
        holder, _ = record_holder(block, entry + 2 * _RECORDS_AHEAD)
        prefetch(part_address(block, layout.P_WORD_ENDS) + 4 * holder)
        holder, _ = record_holder(block, entry + _RECORDS_AHEAD)
        prefetch(part_address(block, layout.P_WORDS) + 2 * i64(ends[holder] & layout.LOW_31))


@part
def entry_holds(context: int, block: int, entry: int) -> bool:
    """Tests the record of an entry against the event."""
    at, end, _ = record_of(block, entry)
    return holds(context, part_address(block, layout.P_WORDS), at, end)
