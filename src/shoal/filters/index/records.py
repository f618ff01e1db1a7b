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
from shoal.filters.index.memory import whole
from shoal.filters.index.rows import CODE, EXOTIC, FLOOR
from shoal.filters.index.texts import NO_ROOM, intern_text
from shoal.wire.rawbytes import Bytes, kernel, part

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

# Tags of the constraints on the wire: see `shoal.filters.constraints`.
_TAG_ABSENT: Final = 0
_TAG_PRESENT: Final = 1
_TAG_NUMBERS: Final = 2
_TAG_STRINGS: Final = 3
_TAG_ONE_OF: Final = 4

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
def put_float(words: Any, at: int, width: int, value: float) -> int:
    """Writes a float64 that fits; where the next word goes."""
    if width == I16:
        words[at] = np.uint16(whole(value) & 0xFFFF)
    elif width == F32:
        put_bits(words, at, np.uint64(np.float32(value).view(np.uint32)), 2)
    else:
        put_bits(words, at, np.float64(value).view(np.uint64), 4)
    return at + width_words(width)


@part
def get_float(words: Any, at: int, width: int) -> float:
    """Reads a number of a width up to F64."""
    if width == I16:
        return np.float64(np.int16(words[at]))
    if width == F32:
        return np.float64(np.uint32(get_bits(words, at, 2)).view(np.float32))
    return np.uint64(get_bits(words, at, 4)).view(np.float64)


@kernel
def put_header(words: Any, at: int, operator: int, width: int, attribute: int) -> int:
    """Begins an item; where its payload goes."""
    words[at] = operator | (width << 8)
    words[at + 1] = attribute
    return at + 2


@kernel
def put_number(words: Any, at: int, operator: int, attribute: int, numbers: Any, aux: Any) -> int:
    """Writes an item with the number that was read into (numbers, aux)."""
    if aux[0, EXOTIC] != 0:
        at = put_header(words, at, operator, INT if aux[0, EXOTIC] == 1 else UINT, attribute)
        put_bits(words, at, np.uint64(aux[0, CODE]), 4)
        return at + 4
    value = numbers[0, FLOOR]
    width = width_of(value)
    if width == F64 and operator in (GE, LE):
        neighbour = np.nextafter(value, -np.inf if operator == GE else np.inf)
        if width_of(neighbour) != F64:
            value, width, operator = neighbour, width_of(neighbour), operator + 1
    return put_float(words, put_header(words, at, operator, width, attribute), width, value)


@kernel
def put_code(words: Any, at: int, operator: int, attribute: int, code: int) -> int:
    """Writes an item with the number of a string."""
    at = put_header(words, at, operator, 0, attribute)
    put_bits(words, at, np.uint64(code), 2)
    return at + 2


@kernel
def write_numbers(data: Bytes, at: int, end: int, words: Any, to: int, attribute: int, numbers: Any, aux: Any) -> Any:
    """Reads `low, high, [excluded]` and writes its items: (next byte or a negative code, next word)."""
    at = rows.read_number(data, at, end, numbers, aux, 0)
    if at < 0:
        return BAD_FILTER, to
    low, low_exotic, low_bits = numbers[0, FLOOR], aux[0, EXOTIC], aux[0, CODE]
    at = rows.read_number(data, at, end, numbers, aux, 0)
    if at < 0:
        return BAD_FILTER, to
    high, high_exotic = numbers[0, FLOOR], aux[0, EXOTIC]
    has_low, has_high = low_exotic != 0 or low > -_MOST, high_exotic != 0 or high < _MOST
    width = max(width_of(low), width_of(high))
    if has_low and has_high and low_exotic == 0 and high_exotic == 0 and width != F64:
        to = put_float(words, put_header(words, to, RANGE, width, attribute), width, low)
        to = put_float(words, to, width, high)
    else:
        if has_high:
            to = put_number(words, to, LE, attribute, numbers, aux)
        if has_low:
            numbers[0, FLOOR], aux[0, EXOTIC], aux[0, CODE] = low, low_exotic, low_bits
            to = put_number(words, to, GE, attribute, numbers, aux)
    count, at = rows.count_header(data, at, end, 0x90, 0x9F, 0xDC)
    if count < 0:
        return BAD_FILTER, to
    if not (has_low or has_high):
        words[put_header(words, to, IS, 0, attribute)] = rows.NUMBER
        to += 3
    for _ in range(count):
        at = rows.read_number(data, at, end, numbers, aux, 0)
        if at < 0 or to + ITEM_WORDS_MAX > len(words):
            return BAD_FILTER if at < 0 else NO_WORDS, to
        to = put_number(words, to, NE_NUMBER, attribute, numbers, aux)
    return at, to


@kernel
def write_text(
    data: Bytes, at: int, end: int, texts: Any, words: Any, to: int, attribute: int, operator: int, empty_too: bool
) -> Any:
    """Reads one string, or null, and writes an item for it unless it is empty and that says nothing."""
    if at < end and data[at] == 0xC0:
        return at + 1, to
    start, length = rows.text_header(data, at, end)
    if start < 0 or to + ITEM_WORDS_MAX > len(words):
        return BAD_FILTER if start < 0 else NO_WORDS, to
    if length > 0 or empty_too:
        code = intern_text(texts[0], texts[1], texts[2], texts[3], data, start, length)
        if code < 0:
            return NO_ROOM, to
        to = put_code(words, to, operator, attribute, code)
    return start + length, to


@kernel
def write_strings(data: Bytes, at: int, end: int, texts: Any, words: Any, to: int, attribute: int) -> Any:
    """Reads the nine fields of a constraint on strings and writes their items."""
    first = to
    at, to = write_text(data, at, end, texts, words, to, attribute, AT_LEAST, False)
    if at >= 0:
        at, to = write_text(data, at, end, texts, words, to, attribute, BELOW, True)
    if at >= 0:
        at, to = write_text(data, at, end, texts, words, to, attribute, PREFIX, False)
    if at >= 0:
        at, to = write_text(data, at, end, texts, words, to, attribute, SUFFIX, False)
    for operator in (CONTAINS, NE_STRING, NOT_PREFIX, NOT_SUFFIX, NOT_CONTAINS):
        if at < 0:
            break
        count, at = rows.count_header(data, at, end, 0x90, 0x9F, 0xDC)
        if count < 0:
            return BAD_FILTER, to
        for _ in range(count):
            at, to = write_text(data, at, end, texts, words, to, attribute, operator, True)
            if at < 0:
                break
    if at >= 0 and to == first:
        words[put_header(words, to, IS, 0, attribute)] = rows.STRING
        to += 3
    return at, to


@kernel
def write_one_of(
    data: Bytes, at: int, end: int, texts: Any, words: Any, to: int, attribute: int, numbers: Any, aux: Any
) -> Any:
    """Reads `[values], kind` and writes one item."""
    count, at = rows.count_header(data, at, end, 0x90, 0x9F, 0xDC)
    if count < 1 or at >= end:
        return BAD_FILTER, to
    if to + 3 + 5 * count > len(words):
        return NO_WORDS, to
    tag = whole(data[at])
    if tag in (0xC2, 0xC3):
        kind = rows.BOOLEAN if count == 2 else tag - 0xC2
        words[put_header(words, to, IS if count == 2 else EQ_BOOLEAN, 0, attribute)] = kind
        return at + count + 1, to + 3  # kind is one byte
    start, _ = rows.text_header(data, at, end)
    if count > 1:
        to = put_header(words, to, IN_STRINGS if start >= 0 else IN_NUMBERS, 0, attribute)
        words[to] = count
        to += 1
    for _ in range(count):
        if start >= 0:
            start, length = rows.text_header(data, at, end)
            if start < 0:
                return BAD_FILTER, to
            code = intern_text(texts[0], texts[1], texts[2], texts[3], data, start, length)
            if code < 0:
                return NO_ROOM, to
            at = start + length
            if count > 1:
                put_bits(words, to, np.uint64(code), 2)
                to += 2
            else:
                to = put_code(words, to, EQ_STRING, attribute, code)
        else:
            at = rows.read_number(data, at, end, numbers, aux, 0)
            if at < 0:
                return BAD_FILTER, to
            if count > 1:
                words[to] = F64 if aux[0, EXOTIC] == 0 else (INT if aux[0, EXOTIC] == 1 else UINT)
                bits = np.float64(numbers[0, FLOOR]).view(np.uint64) if aux[0, EXOTIC] == 0 else np.uint64(aux[0, CODE])
                put_bits(words, to + 1, bits, 4)
                to += 5
            else:
                to = put_number(words, to, EQ_NUMBER, attribute, numbers, aux)
    return at + 1, to  # kind is one byte


@kernel
def write_record(
    data: Bytes, at: int, end: int, names: Any, texts: Any, words: Any, to: int, numbers: Any, aux: Any
) -> Any:
    """Reads a conjunction and writes its record: (next byte or a negative code, next word)."""
    count, at = rows.count_header(data, at, end, 0x90, 0x9F, 0xDC)
    if count < 0:
        return BAD_FILTER, to
    for _ in range(count):
        pair, at = rows.count_header(data, at, end, 0x90, 0x9F, 0xDC)
        start, length = rows.text_header(data, at, end)
        if pair != 2 or start < 0:
            return BAD_FILTER, to
        if to + 4 * ITEM_WORDS_MAX > len(words):
            return NO_WORDS, to
        attribute = intern_text(names[0], names[1], names[2], names[3], data, start, length)
        if attribute < 0:
            return NO_ROOM, to
        if attribute >= NAMES_MAX:
            return TOO_MANY_NAMES, to
        fields, at = rows.count_header(data, start + length, end, 0x90, 0x9F, 0xDC)
        if fields < 1 or at >= end:
            return BAD_FILTER, to
        tag = whole(data[at])
        at += 1
        if tag == _TAG_NUMBERS:
            at, to = write_numbers(data, at, end, words, to, attribute, numbers, aux)
        elif tag == _TAG_STRINGS:
            at, to = write_strings(data, at, end, texts, words, to, attribute)
        elif tag == _TAG_ONE_OF:
            at, to = write_one_of(data, at, end, texts, words, to, attribute, numbers, aux)
        elif tag == _TAG_PRESENT:
            to = put_header(words, to, EXISTS, 0, attribute)
        elif tag == _TAG_ABSENT:
            to = put_header(words, to, ABSENT, 0, attribute)
        else:
            return BAD_FILTER, to
        if at < 0:
            return at, to
    return at, to


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
    return 2
