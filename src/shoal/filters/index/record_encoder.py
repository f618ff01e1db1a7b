"""Transcribing: a record of a conjunction's wire form.

Owns the step from the msgpack of a conjunction's canonical constraints to the items of its record. Strings and names of
attributes that are new are entered into the index's tables.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import event_row as rows
from shoal.filters.index.event_row import CODE, EXOTIC, FLOOR
from shoal.filters.index.hash_tables import NO_ROOM, intern_text
from shoal.filters.index.intrinsics import f64_at, i64_at, u16_at
from shoal.filters.index.kernel_context import (
    FAR,
    R_ATTRIBUTES,
    R_AUX,
    R_NAMES,
    R_NUMBERS,
    R_SCRATCH,
    R_STRINGS,
    root,
)
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
    NO_WORDS,
    NOT_CONTAINS,
    NOT_PREFIX,
    NOT_SUFFIX,
    PREFIX,
    RANGE,
    SUFFIX,
    TOO_MANY_NAMES,
    UINT,
    UNLIKE,
    WHOLE_MAX,
    get_bits,
    put_bits,
    put_code,
    put_float,
    put_header,
    put_word,
    width_of,
)
from shoal.wire.rawbytes import kernel, part

# Tags of the constraints on the wire: see `shoal.filters.constraints`.
_TAG_ABSENT: Final = 0
_TAG_PRESENT: Final = 1
_TAG_NUMBERS: Final = 2
_TAG_STRINGS: Final = 3
_TAG_ONE_OF: Final = 4
_TAG_UNLIKE: Final = 5

_STRINGS_FIELDS: Final = 10
"""Of a constraint on strings, its tag included."""

_MOST: Final = 1.7976931348623157e308


@part
def number_of(context: int) -> Any:
    """The number that was read last, in the row for attributes that nobody asks for: (floats, further fields)."""
    spare = root(context, R_ATTRIBUTES) - 1
    return f64_at(root(context, R_NUMBERS) + 16 * spare, 2), i64_at(root(context, R_AUX) + 32 * spare, 4)


@part
def read_number(context: int, at: int, end: int) -> int:
    """Reads a number of the scratch; where the next item starts, or a negative code."""
    spare = root(context, R_ATTRIBUTES) - 1
    number, aux = root(context, R_NUMBERS) + 16 * spare, root(context, R_AUX) + 32 * spare
    return rows.read_number(root(context, R_SCRATCH), at, end, number, aux)


@kernel
def put_number(context: int, words: int, at: int, operator: int, attribute: int) -> int:
    """Writes an item with the number that was read last."""
    floats, aux = number_of(context)
    if aux[EXOTIC] != 0:
        at = put_header(words, at, operator, INT if aux[EXOTIC] == 1 else UINT, attribute)
        put_bits(u16_at(words, FAR), at, np.uint64(aux[CODE]), 4)
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
    """The count of an array in the scratch and where its first item starts; -1 if there is none."""
    return rows.count_header(root(context, R_SCRATCH), at, end, 0x90, 0x9F, 0xDC)


@kernel
def write_numbers(context: int, at: int, end: int, words: int, room: int, to: int, attribute: int) -> Any:
    """Reads `low, high, [excluded]` and writes its items: (next byte or a negative code, next word)."""
    floats, aux = number_of(context)
    at = read_number(context, at, end)
    if at < 0:
        return BAD_FILTER, to
    low, low_exotic, low_bits = floats[FLOOR], aux[EXOTIC], aux[CODE]
    at = read_number(context, at, end)
    if at < 0:
        return BAD_FILTER, to
    high, high_exotic = floats[FLOOR], aux[EXOTIC]
    has_low, has_high = low_exotic != 0 or low > -_MOST, high_exotic != 0 or high < _MOST
    width = max(width_of(low), width_of(high))
    if has_low and has_high and low_exotic == 0 and high_exotic == 0 and width != F64:
        to = put_float(words, put_header(words, to, RANGE, width, attribute), width, low)
        to = put_float(words, to, width, high)
    else:
        if has_high:
            to = put_number(context, words, to, LE, attribute)
        if has_low:
            floats[FLOOR], aux[EXOTIC], aux[CODE] = low, low_exotic, low_bits
            to = put_number(context, words, to, GE, attribute)
    count, at = array_header(context, at, end)
    if count < 0:
        return BAD_FILTER, to
    if not (has_low or has_high):
        to = put_word(words, to, IS, attribute, rows.NUMBER)
    for _ in range(count):
        at = read_number(context, at, end)
        if at < 0 or to + ITEM_WORDS_MAX > room:
            return BAD_FILTER if at < 0 else NO_WORDS, to
        to = put_number(context, words, to, NE_NUMBER, attribute)
    return at, to


@kernel
def write_text(
    context: int, at: int, end: int, words: int, room: int, to: int, attribute: int, operator: int, empty_too: bool
) -> Any:
    """Reads one string, or null, and writes an item for it unless it is empty and that says nothing."""
    data = root(context, R_SCRATCH)
    if at < end and rows.byte_at(data, at) == 0xC0:
        return at + 1, to
    start, length = rows.text_header(data, at, end)
    if start < 0 or to + ITEM_WORDS_MAX > room:
        return BAD_FILTER if start < 0 else NO_WORDS, to
    if length > 0 or empty_too:
        code = intern_text(context + 8 * R_STRINGS, data, start, length)
        if code < 0:
            return NO_ROOM, to
        to = put_code(words, to, operator, attribute, code)
    return start + length, to


@kernel
def write_strings(context: int, at: int, end: int, words: int, room: int, to: int, attribute: int) -> Any:
    """Reads the nine fields of a constraint on strings and writes their items."""
    first = to
    for operator in (AT_LEAST, BELOW, PREFIX, SUFFIX):
        if at >= 0:
            at, to = write_text(context, at, end, words, room, to, attribute, operator, operator == BELOW)
    for operator in (CONTAINS, NE_STRING, NOT_PREFIX, NOT_SUFFIX, NOT_CONTAINS):
        if at < 0:
            break
        count, at = array_header(context, at, end)
        if count < 0:
            return BAD_FILTER, to
        for _ in range(count):
            at, to = write_text(context, at, end, words, room, to, attribute, operator, True)
            if at < 0:
                break
    if at >= 0 and to == first:
        to = put_word(words, to, IS, attribute, rows.STRING)
    return at, to


@kernel
def write_listed_string(context: int, at: int, end: int, words: int, to: int, attribute: int, alone: bool) -> Any:
    """Reads one string of a list and writes it: as an item if it is alone, else as a value of an item."""
    data = root(context, R_SCRATCH)
    start, length = rows.text_header(data, at, end)
    if start < 0:
        return BAD_FILTER, to
    code = intern_text(context + 8 * R_STRINGS, data, start, length)
    if code < 0:
        return NO_ROOM, to
    if alone:
        return start + length, put_code(words, to, EQ_STRING, attribute, code)
    put_bits(u16_at(words, FAR), to, np.uint64(code), 2)
    return start + length, to + 2


@kernel
def write_listed_number(context: int, at: int, end: int, words: int, to: int, attribute: int, alone: bool) -> Any:
    """The same of a number."""
    at = read_number(context, at, end)
    if at < 0:
        return BAD_FILTER, to
    if alone:
        return at, put_number(context, words, to, EQ_NUMBER, attribute)
    floats, aux = number_of(context)
    own = u16_at(words, FAR)
    own[to] = F64 if aux[EXOTIC] == 0 else (INT if aux[EXOTIC] == 1 else UINT)
    bits = np.float64(floats[FLOOR]).view(np.uint64) if aux[EXOTIC] == 0 else np.uint64(aux[CODE])
    put_bits(own, to + 1, bits, 4)
    return at, to + 5


@kernel
def write_one_of(context: int, at: int, end: int, words: int, room: int, to: int, attribute: int) -> Any:
    """Reads `[values], kind` and writes one item."""
    count, at = array_header(context, at, end)
    if count < 1 or at >= end:
        return BAD_FILTER, to
    if to + 3 + 5 * count > room:
        return NO_WORDS, to
    data = root(context, R_SCRATCH)
    tag = rows.byte_at(data, at)
    if tag in (0xC2, 0xC3):
        kind = rows.BOOLEAN if count == 2 else tag - 0xC2
        to = put_word(words, to, IS if count == 2 else EQ_BOOLEAN, attribute, kind)
        return at + count + 1, to  # kind is one byte
    start, _ = rows.text_header(data, at, end)
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
    """Reads `may be absent, strings` and writes an item for each text."""
    if at < end and rows.byte_at(root(context, R_SCRATCH), at) == 0xC2:
        to = put_header(words, to, EXISTS, 0, attribute)
    fields, at = array_header(context, at + 1, end)
    if fields != _STRINGS_FIELDS:
        return BAD_FILTER, to
    at, stop = write_strings(context, at + 1, end, words, room, to, attribute)
    count = (stop - to) // 4
    if at < 0 or 4 * count != stop - to or to + 5 * count > room:
        return at if at < 0 else (NO_WORDS if 4 * count == stop - to else BAD_FILTER), to
    own = u16_at(words, FAR)
    for i in range(count - 1, -1, -1):  # each becomes a word longer: the last one first
        operator, code = own[to + 4 * i], get_bits(own, to + 4 * i + 2, 2)
        put_word(words, to + 5 * i, UNLIKE, attribute, operator)
        put_bits(own, to + 5 * i + 3, code, 2)
    return at, to + 5 * count


@kernel
def write_record(context: int, at: int, end: int, words: int, room: int, to: int) -> Any:
    """Reads a conjunction in the scratch and writes its record from word `to` on, of which there are `room`: (next byte
    or a negative code, next word)."""
    data = root(context, R_SCRATCH)
    count, at = array_header(context, at, end)
    if count < 0:
        return BAD_FILTER, to
    for _ in range(count):
        pair, at = array_header(context, at, end)
        start, length = rows.text_header(data, at, end)
        if pair != 2 or start < 0:
            return BAD_FILTER, to
        if to + 4 * ITEM_WORDS_MAX > room:
            return NO_WORDS, to
        attribute = intern_text(context + 8 * R_NAMES, data, start, length)
        if attribute < 0:
            return NO_ROOM, to
        if attribute >= NAMES_MAX:
            return TOO_MANY_NAMES, to
        fields, at = array_header(context, start + length, end)
        if fields < 1 or at >= end:
            return BAD_FILTER, to
        tag = rows.byte_at(data, at)
        at += 1
        if tag == _TAG_NUMBERS:
            at, to = write_numbers(context, at, end, words, room, to, attribute)
        elif tag == _TAG_STRINGS:
            at, to = write_strings(context, at, end, words, room, to, attribute)
        elif tag == _TAG_ONE_OF:
            at, to = write_one_of(context, at, end, words, room, to, attribute)
        elif tag == _TAG_PRESENT:
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
