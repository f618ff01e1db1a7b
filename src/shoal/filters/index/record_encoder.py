"""The record encoder: makes a record from the wire form of a filter.

Owns the step from the MessagePack of canonical constraints to items of a record. New strings and attribute names are
added to the tables of the store. Never touches the buffer or segments.

Functions that write items return (index of the next byte or a negative code, index of the next word).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import event_row, record_format
from shoal.filters.index.event_row import CODE, FLOOR, WIDE
from shoal.filters.index.hash_tables import TABLE_FULL, intern_string
from shoal.filters.index.intrinsics import UNBOUNDED, f64_at, i64, i64_at, u8_at, u16_at
from shoal.filters.index.kernel_context import R_ATTRIBUTES, R_AUX, R_NAMES, R_NUMBERS, R_SCRATCH, R_STRINGS, root
from shoal.filters.index.record_format import (
    ABSENT,
    AT_LEAST,
    BAD_FILTER,
    BELOW,
    CONTAINS,
    EQ_BOOLEAN,
    EQ_NUMBER,
    EQ_STRING,
    EXISTS,
    F64,
    GE,
    IN_NUMBERS,
    IN_STRINGS,
    INT,
    IS,
    ITEM_WORDS_MAX,
    LE,
    NAMES_MAX,
    NE_NUMBER,
    NE_STRING,
    NOT_CONTAINS,
    NOT_PREFIX,
    NOT_SUFFIX,
    NOT_WILDCARD,
    PREFIX,
    RANGE,
    SUFFIX,
    TOO_MANY_NAMES,
    UINT,
    UNLIKE,
    UNLIKE_NUMBER,
    WHOLE_MAX,
    WILDCARD,
    WORDS_FULL,
    get_bits,
    put_bits,
    put_code,
    put_float,
    put_header,
    put_word,
    width_of,
)
from shoal.filters.index.view_rows import is_view_name, link_view
from shoal.wire.raw_bytes import PADDING_BYTES, kernel, part

# Tags of the constraints on the wire: see `shoal.filters.constraints`.
_TAG_ABSENT: Final = 0
_TAG_EXISTS: Final = 1
_TAG_NUMBERS: Final = 2
_TAG_STRINGS: Final = 3
_TAG_ONE_OF: Final = 4
_TAG_UNLIKE: Final = 5
_STRINGS_FIELDS: Final = 12
"""Fields of a constraint on strings, with its tag."""
_FLOAT_MAX: Final = 1.7976931348623157e308
RECORD_WORDS_MAX: Final = 1 << 16
"""Words of a record at most, and of a buffer of records."""
HAS_ALTERNATIVES: Final = -6
"""Code: the filter has several conjunctions."""
SCRATCH_FULL: Final = -8
"""Code: the filter is larger than the scratch."""
RECORD_TOO_LARGE: Final = -10
"""Code: the record has more than `RECORD_WORDS_MAX` words."""


@part
def last_number(context: int) -> Any:
    """The number that was read last, in the row for unknown attributes: (floats, further fields)."""
    spare = root(context, R_ATTRIBUTES) - 1
    return f64_at(root(context, R_NUMBERS) + 16 * spare, 2), i64_at(root(context, R_AUX) + 32 * spare, 4)


@part
def read_filter_number(context: int, at: int, end: int) -> int:
    """Reads a number from the scratch. Returns the index of the next byte, or a negative code."""
    if at >= end:
        return BAD_FILTER
    spare = root(context, R_ATTRIBUTES) - 1
    number, aux = root(context, R_NUMBERS) + 16 * spare, root(context, R_AUX) + 32 * spare
    return event_row.read_number(root(context, R_SCRATCH), at, end, number, aux)


@kernel
def put_number(context: int, words: int, at: int, operator: int, attribute: int) -> int:
    """Writes an item with the number that was read last."""
    floats, aux = last_number(context)
    if aux[WIDE] != 0:
        at = put_header(words, at, operator, INT if aux[WIDE] == 1 else UINT, attribute)
        put_bits(u16_at(words, UNBOUNDED), at, np.uint64(aux[CODE]), 4)
        return at + 4
    value = floats[FLOOR]
    width = width_of(value)
    if width == F64 and operator in (GE, LE) and abs(value) < WHOLE_MAX:
        neighbour = np.nextafter(value, -np.inf if operator == GE else np.inf)
        if width_of(neighbour) != F64:
            value, width, operator = neighbour, width_of(neighbour), operator + 1
    return put_float(words, put_header(words, at, operator, width, attribute), width, value)


@part
def array_header(context: int, at: int, end: int) -> tuple[int, int]:
    """The count of an array in the scratch, and where its first item starts; -1 if there is none, or if there are fewer
    bytes than items."""
    count, first = event_row.count_header(root(context, R_SCRATCH), at, end, 0x90, 0x9F, 0xDC)
    return (count, first) if count <= end - first else (-1, -1)


@part
def text_header(context: int, at: int, end: int) -> tuple[int, int]:
    """Where a string in the scratch starts, and the number of its bytes; -1 if there is none, or if it is not UTF-8."""
    data = root(context, R_SCRATCH)
    start, length = event_row.string_header(data, at, end)
    return (start, length) if start >= 0 and event_row.is_utf8(data, start, length) else (-1, -1)


@kernel
def write_numbers(context: int, at: int, end: int, words: int, room: int, to: int, attribute: int) -> Any:
    """Reads `low, high, [excluded]` and writes its items."""
    floats, aux = last_number(context)
    at = read_filter_number(context, at, end)
    if at < 0:
        return BAD_FILTER, to
    low, low_wide, low_bits = floats[FLOOR], aux[WIDE], aux[CODE]
    at = read_filter_number(context, at, end)
    if at < 0:
        return BAD_FILTER, to
    high, high_wide = floats[FLOOR], aux[WIDE]
    has_low, has_high = low_wide != 0 or low > -_FLOAT_MAX, high_wide != 0 or high < _FLOAT_MAX
    width = max(width_of(low), width_of(high))
    if has_low and has_high and low_wide == 0 and high_wide == 0 and width != F64:
        to = put_float(words, put_header(words, to, RANGE, width, attribute), width, low)
        to = put_float(words, to, width, high)
    else:
        if has_high:
            to = put_number(context, words, to, LE, attribute)
        if has_low:
            floats[FLOOR], aux[WIDE], aux[CODE] = low, low_wide, low_bits
            to = put_number(context, words, to, GE, attribute)
    count, at = array_header(context, at, end)
    if count < 0:
        return BAD_FILTER, to
    if not (has_low or has_high):
        to = put_word(words, to, IS, attribute, event_row.NUMBER)
    for _ in range(count):
        at = read_filter_number(context, at, end)
        if at < 0 or to + ITEM_WORDS_MAX > room:
            return BAD_FILTER if at < 0 else WORDS_FULL, to
        to = put_number(context, words, to, NE_NUMBER, attribute)
    return at, to


@kernel
def write_string_item(
    context: int, at: int, end: int, words: int, room: int, to: int, attribute: int, operator: int, empty_too: bool
) -> Any:
    """Reads a string, or null, and writes an item for it, unless it is empty and therefore no condition."""
    data = root(context, R_SCRATCH)
    if at < end and event_row.byte_at(data, at) == 0xC0:
        return at + 1, to
    start, length = text_header(context, at, end)
    if start < 0 or to + ITEM_WORDS_MAX > room:
        return BAD_FILTER if start < 0 else WORDS_FULL, to
    if length > 0 or empty_too:
        code = intern_string(context + 8 * R_STRINGS, data, start, length)
        if code < 0:
            return TABLE_FULL, to
        to = put_code(words, to, operator, attribute, code)
    return start + length, to


@kernel
def write_strings(context: int, at: int, end: int, words: int, room: int, to: int, attribute: int) -> Any:
    """Reads the fields of a constraint on strings and writes their items."""
    first = to
    for operator in (AT_LEAST, BELOW, PREFIX, SUFFIX):
        if at >= 0:
            at, to = write_string_item(context, at, end, words, room, to, attribute, operator, operator == BELOW)
    for operator in (CONTAINS, NE_STRING, NOT_PREFIX, NOT_SUFFIX, NOT_CONTAINS, WILDCARD, NOT_WILDCARD):
        if at < 0:
            break
        count, at = array_header(context, at, end)
        if count < 0:
            return BAD_FILTER, to
        for _ in range(count):
            at, to = write_string_item(context, at, end, words, room, to, attribute, operator, True)
            if at < 0:
                break
    if at >= 0 and to == first:
        to = put_word(words, to, IS, attribute, event_row.STRING)
    return at, to


@kernel
def write_listed_string(context: int, at: int, end: int, words: int, to: int, attribute: int, alone: bool) -> Any:
    """Reads a string of a list and writes it: as an item if it is the only one, otherwise as a value of an item."""
    data = root(context, R_SCRATCH)
    start, length = text_header(context, at, end)
    if start < 0:
        return BAD_FILTER, to
    code = intern_string(context + 8 * R_STRINGS, data, start, length)
    if code < 0:
        return TABLE_FULL, to
    if alone:
        return start + length, put_code(words, to, EQ_STRING, attribute, code)
    put_bits(u16_at(words, UNBOUNDED), to, np.uint64(code), 2)
    return start + length, to + 2


@kernel
def write_listed_number(context: int, at: int, end: int, words: int, to: int, attribute: int, alone: bool) -> Any:
    """The same for a number."""
    at = read_filter_number(context, at, end)
    if at < 0:
        return BAD_FILTER, to
    if alone:
        return at, put_number(context, words, to, EQ_NUMBER, attribute)
    floats, aux = last_number(context)
    own = u16_at(words, UNBOUNDED)
    own[to] = F64 if aux[WIDE] == 0 else (INT if aux[WIDE] == 1 else UINT)
    bits = np.float64(floats[FLOOR]).view(np.uint64) if aux[WIDE] == 0 else np.uint64(aux[CODE])
    put_bits(own, to + 1, bits, 4)
    return at, to + 5


@kernel
def write_one_of(context: int, at: int, end: int, words: int, room: int, to: int, attribute: int) -> Any:
    """Reads `[values], kind` and writes one item."""
    count, at = array_header(context, at, end)
    if count < 1 or at >= end:
        return BAD_FILTER, to
    if to + 3 + 5 * count > room:
        return WORDS_FULL, to
    data = root(context, R_SCRATCH)
    tag = event_row.byte_at(data, at)
    if tag in (0xC2, 0xC3):
        kind = event_row.BOOLEAN if count == 2 else tag - 0xC2
        to = put_word(words, to, IS if count == 2 else EQ_BOOLEAN, attribute, kind)
        return at + count + 1, to  # kind is one byte
    start, _ = event_row.string_header(data, at, end)
    if count > 1:
        to = put_word(words, to, IN_STRINGS if start >= 0 else IN_NUMBERS, attribute, count)
    for _ in range(count):
        if start >= 0:
            at, to = write_listed_string(context, at, end, words, to, attribute, count == 1)
        else:
            at, to = write_listed_number(context, at, end, words, to, attribute, count == 1)
        if at < 0:
            return at, to
    return at + 1, to  # kind is one byte


@kernel
def write_unlike(context: int, at: int, end: int, words: int, room: int, to: int, attribute: int) -> Any:
    """Reads `may be absent, strings, numbers` and writes an item for each string and each number."""
    if at < end and event_row.byte_at(root(context, R_SCRATCH), at) == 0xC2:
        to = put_header(words, to, EXISTS, 0, attribute)
    fields, at = array_header(context, at + 1, end)
    if fields != _STRINGS_FIELDS:
        return BAD_FILTER, to
    at, stop = write_strings(context, at + 1, end, words, room, to, attribute)
    if stop == to + 3:  # no condition on strings: what was written says that there is one
        stop = to
    count = (stop - to) // 4
    if at < 0 or 4 * count != stop - to or to + 5 * count > room:
        return at if at < 0 else (WORDS_FULL if 4 * count == stop - to else BAD_FILTER), to
    own = u16_at(words, UNBOUNDED)
    for i in range(count - 1, -1, -1):  # each item grows by a word, so the last one moves first
        operator, code = own[to + 4 * i], get_bits(own, to + 4 * i + 2, 2)
        put_word(words, to + 5 * i, UNLIKE, attribute, operator)
        put_bits(own, to + 5 * i + 3, code, 2)
    to += 5 * count
    count, at = array_header(context, at, end)
    for _ in range(count):
        at = read_filter_number(context, at, end)
        if at < 0 or to + ITEM_WORDS_MAX > room:
            return BAD_FILTER if at < 0 else WORDS_FULL, to
        to = put_number(context, words, to, UNLIKE_NUMBER, attribute)
    return at if count >= 0 else BAD_FILTER, to


@kernel
def write_record(context: int, at: int, end: int, words: int, room: int, to: int) -> Any:
    """Reads a conjunction in the scratch and writes its record from word `to` on, of `room` words."""
    data = root(context, R_SCRATCH)
    count, at = array_header(context, at, end)
    if count < 0:
        return BAD_FILTER, to
    for _ in range(count):
        pair, at = array_header(context, at, end)
        if pair != 2:
            return BAD_FILTER, to
        start, length = text_header(context, at, end)
        if start < 0:
            return BAD_FILTER, to
        if to + 4 * ITEM_WORDS_MAX > room:
            return WORDS_FULL, to
        if is_view_name(data, start, length) and intern_string(context + 8 * R_NAMES, data, start, length - 3) < 0:
            return TABLE_FULL, to
        attribute = intern_string(context + 8 * R_NAMES, data, start, length)
        if attribute < 0:
            return TABLE_FULL, to
        if attribute >= NAMES_MAX:
            return TOO_MANY_NAMES, to
        link_view(context, attribute)
        fields, at = array_header(context, start + length, end)
        if fields < 1 or at >= end:
            return BAD_FILTER, to
        tag = event_row.byte_at(data, at)
        at += 1
        if tag == _TAG_NUMBERS:
            at, to = write_numbers(context, at, end, words, room, to, attribute)
        elif tag == _TAG_STRINGS:
            at, to = write_strings(context, at, end, words, room, to, attribute)
        elif tag == _TAG_ONE_OF:
            at, to = write_one_of(context, at, end, words, room, to, attribute)
        elif tag == _TAG_EXISTS:
            to = put_header(words, to, EXISTS, 0, attribute)
        elif tag == _TAG_ABSENT:
            to = put_header(words, to, ABSENT, 0, attribute)
        elif tag == _TAG_UNLIKE:
            at, to = write_unlike(context, at, end, words, room, to, attribute)
        else:
            return BAD_FILTER, to
        if at < 0:
            return at, to
    return at, to


@kernel
def conjunction_start(data: int, end: int) -> int:
    """Where the only conjunction of the filter at an address starts; a negative code if it has several, or is not a
    filter."""
    if end < 3 or event_row.byte_at(data, 0) != 0x91:
        return record_format.BAD_FILTER
    if event_row.byte_at(data, 1) != 0x91:
        return HAS_ALTERNATIVES
    return 3 if event_row.byte_at(data, 2) == 0x91 else record_format.BAD_FILTER


@kernel
def encode_filter(context: int, wire: int, size: int, words: int, room: int, to: int) -> int:
    """Writes the record of the filter of `size` bytes at an address. Returns the index of the next word, or a negative
    code."""
    if size + PADDING_BYTES > root(context, R_SCRATCH + 1):
        return SCRATCH_FULL
    scratch, given = u8_at(root(context, R_SCRATCH), size), u8_at(wire, size)
    for i in range(size):
        scratch[i] = given[i]
    at = conjunction_start(root(context, R_SCRATCH), size)
    if at < 0:
        return i64(at)
    at, to = write_record(context, at, size, words, room, to)
    if at < 0:
        return i64(at)
    return to if at == size else record_format.BAD_FILTER


@kernel
def encode_table(context: int, data: Any, offsets: Any, first: int, words: Any, ends: Any) -> Any:
    """Writes the records of a table of filters from `first` on. Returns (the next filter, 0 or a negative code)."""
    wires, to_words, room = i64(data.ctypes.data), i64(words.ctypes.data), len(words)
    for item in range(first, len(offsets) - 1):
        size = i64(offsets[item + 1] - offsets[item])
        to = encode_filter(context, wires + i64(offsets[item]), size, to_words, room, ends[item])
        if to < 0:
            return item, to
        if to - ends[item] > RECORD_WORDS_MAX:
            return item, RECORD_TOO_LARGE
        ends[item + 1] = to
    return len(offsets) - 1, 0
