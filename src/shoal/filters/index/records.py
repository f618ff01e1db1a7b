"""Records: a conjunction as the matching kernels hold it.

Owns the form of records, and the step to one from a conjunction's wire form (msgpack of its canonical constraints). A
record is a row of items in 16-bit words:

    operator | width << 8,  attribute,  payload

Operators with a number take it in the shortest width that holds it exactly; a closed bound whose open neighbour is
shorter (`> 5` is `>= 5.000000000000001`) is kept as the open one. Strings are numbers of the table of texts. Equal
conjunctions have equal records within one index.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import rows
from shoal.filters.index.context import (
    FAR,
    R_ATTRIBUTES,
    R_AUX,
    R_NAMES,
    R_NUMBERS,
    R_SCRATCH,
    R_STRINGS,
    root,
)
from shoal.filters.index.memory import f64_at, i64_at, u16_at, whole
from shoal.filters.index.rows import CODE, EXOTIC, FLOOR
from shoal.filters.index.texts import NO_ROOM, intern_text
from shoal.wire.rawbytes import kernel, part

# Operators. Up to NUMERIC_LAST the payload is one number.
GE: Final = 1
GT: Final = 2
LE: Final = 3
LT: Final = 4
EQ_NUMBER: Final = 5
NE_NUMBER: Final = 6
RANGE: Final = 7
"""Two numbers of one width, both included."""
EQ_STRING: Final = 8
NE_STRING: Final = 9
PREFIX: Final = 10
SUFFIX: Final = 11
CONTAINS: Final = 12
NOT_PREFIX: Final = 13
NOT_SUFFIX: Final = 14
NOT_CONTAINS: Final = 15
AT_LEAST: Final = 16
"""String bounds: the string or greater ..."""
BELOW: Final = 17
"""... and smaller than the string."""
EQ_BOOLEAN: Final = 18
IS: Final = 19
EXISTS: Final = 20
ABSENT: Final = 21
IN_NUMBERS: Final = 22
IN_STRINGS: Final = 23
UNLIKE: Final = 1
"""As the width of ABSENT: absent, or no string, or a string for which the item holds that is named by the next word and
has its text behind it."""

# Widths of a number, and their words.
I16: Final = 0
F32: Final = 1
F64: Final = 2
INT: Final = 3
"""A signed 64-bit integer that no float64 equals."""
UINT: Final = 4
"""The same from 2**63 on."""

NO_WORDS: Final = -3
BAD_FILTER: Final = -4
TOO_MANY_NAMES: Final = -5

ITEM_WORDS_MAX: Final = 10
NAMES_MAX: Final = 65_000
WHOLE_MAX: Final = 2.0**53
"""Below it there is no whole number between two neighbouring float64."""

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
def width_words(width: int) -> int:
    """16-bit words of a number."""
    return 1 if width == I16 else (2 if width == F32 else 4)


@part
def width_of(value: float) -> int:
    """The shortest width that holds a float64 exactly."""
    if -32768.0 <= value <= 32767.0 and value == np.floor(value):
        return I16
    return F32 if np.float64(np.float32(value)) == value else F64


@part
def put_bits(words: Any, at: int, bits: np.uint64, count: int) -> None:
    """Writes the lowest `count` 16-bit words of some bits."""
    for i in range(count):
        words[at + i] = np.uint16((bits >> np.uint64(16 * i)) & np.uint64(0xFFFF))


@part
def get_bits(words: Any, at: int, count: int) -> np.uint64:
    """Reads `count` 16-bit words."""
    bits = np.uint64(0)
    for i in range(count):
        bits |= np.uint64(words[at + i]) << np.uint64(16 * i)
    return bits


@kernel
def put_float(words: int, at: int, width: int, value: float) -> int:
    """Writes a float64 that fits; where the next word goes. `words` is an address, here and below."""
    own = u16_at(words, FAR)
    if width == I16:
        own[at] = np.uint16(whole(value) & 0xFFFF)
    elif width == F32:
        put_bits(own, at, np.uint64(np.float32(value).view(np.uint32)), 2)
    else:
        put_bits(own, at, np.float64(value).view(np.uint64), 4)
    return at + width_words(width)


@part
def get_float(words: Any, at: int, width: int) -> float:
    """Reads a number of a width up to F64."""
    if width == I16:
        return np.float64(np.int16(words[at]))
    if width == F32:
        return np.float64(np.uint32(get_bits(words, at, 2)).view(np.float32))
    return np.uint64(get_bits(words, at, 4)).view(np.float64)


@part
def put_header(words: int, at: int, operator: int, width: int, attribute: int) -> int:
    """Begins an item; where its payload goes."""
    own = u16_at(words, FAR)
    own[at] = operator | (width << 8)
    own[at + 1] = attribute
    return at + 2


@part
def put_word(words: int, at: int, operator: int, attribute: int, word: int) -> int:
    """Writes an item whose payload is one word."""
    u16_at(words, FAR)[put_header(words, at, operator, 0, attribute)] = word
    return at + 3


@part
def put_code(words: int, at: int, operator: int, attribute: int, code: int) -> int:
    """Writes an item with the number of a string."""
    at = put_header(words, at, operator, 0, attribute)
    put_bits(u16_at(words, FAR), at, np.uint64(code), 2)
    return at + 2


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
        put_word(words, to + 5 * i, ABSENT | (UNLIKE << 8), attribute, operator)
        put_bits(own, to + 5 * i + 3, code, 2)
    return at, to + 5 * count


@kernel
def write_nobody(context: int, at: int, words: int, room: int, to: int) -> int:
    """Writes, last of all, that an attribute is absent which no event has, the one with the empty name; the next word
    or a negative code. A record with UNLIKE waits by it if there is nothing better: by the others it must not, since
    they say ABSENT and accept values too."""
    attribute = intern_text(context + 8 * R_NAMES, root(context, R_SCRATCH), at, 0)
    if attribute < 0:
        return NO_ROOM
    if attribute >= NAMES_MAX:
        return TOO_MANY_NAMES
    return put_header(words, to, ABSENT, 0, attribute) if to + 2 <= room else NO_WORDS


@kernel
def write_record(context: int, at: int, end: int, words: int, room: int, to: int) -> Any:
    """Reads a conjunction in the scratch and writes its record from word `to` on, of which there are `room`: (next byte
    or a negative code, next word)."""
    data = root(context, R_SCRATCH)
    has_unlike = False
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
            has_unlike = True
        else:
            return BAD_FILTER, to
        if at < 0:
            return at, to
    if has_unlike:
        to = write_nobody(context, at, words, room, to)
    return (at, to) if to >= 0 else (to, 0)


@part
def item_words(words: Any, at: int) -> int:
    """How many words the item at an index has."""
    operator, width = whole(words[at]) & 0xFF, whole(words[at]) >> 8
    if operator <= NE_NUMBER:
        return 2 + width_words(width)
    if operator == RANGE:
        return 2 + 2 * width_words(width)
    if operator <= BELOW:
        return 4
    if operator in (EQ_BOOLEAN, IS):
        return 3
    if operator == IN_NUMBERS:
        return 3 + 5 * whole(words[at + 2])
    if operator == IN_STRINGS:
        return 3 + 2 * whole(words[at + 2])
    return 5 if operator == ABSENT and width == UNLIKE else 2
