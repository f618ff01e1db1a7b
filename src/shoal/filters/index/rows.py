"""Rows: an event as the matching kernels see it.

Owns the step from an event's wire form (a msgpack map of names to scalars) to a row: for each attribute that the
index knows, its kind and its value. Attributes that no filter names are skipped. A number is held as the nearest
float64 below and above it (the same one for nearly all numbers), and a 64-bit integer that no float64 equals also by
its own bits: so `low <= number` is `low <= floor`, `number <= high` is `ceil <= high`, exactly, for every bound that
is a float64.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index.memory import whole
from shoal.filters.index.texts import find_text
from shoal.wire.rawbytes import Bytes, kernel, part

ABSENT: Final = 0
NUMBER: Final = 1
STRING: Final = 2
BOOLEAN: Final = 3

FLOOR: Final = 0
CEIL: Final = 1

CODE: Final = 0
"""The string's number in the table or `NO_TEXT`; of a boolean 0 or 1; of an exotic integer its bits."""
EXOTIC: Final = 1
"""Of a number: 0 if it is a float64, else 1 for a signed and 2 for an unsigned 64-bit integer."""
START: Final = 2
LENGTH: Final = 3

BAD_EVENT: Final = -1
BAD_NUMBER: Final = -2

_TWO_63: Final = 9223372036854775808.0
_TWO_64: Final = 18446744073709551616.0


@part
def big_endian(data: Bytes, at: int, width: int) -> np.uint64:
    """An unsigned integer of `width` bytes."""
    value = np.uint64(0)
    for i in range(width):
        value = (value << np.uint64(8)) | np.uint64(data[at + i])
    return value


@kernel
def text_header(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Where the bytes of a msgpack string start and how many they are; -1 if there is none, or it is cut short."""
    if at >= end:
        return -1, -1
    tag = whole(data[at])
    start, length = -1, 0
    if 0xA0 <= tag <= 0xBF:
        start, length = at + 1, tag & 0x1F
    elif 0xD9 <= tag <= 0xDB:
        width = 1 << (tag - 0xD9)
        if at + 1 + width > end:
            return -1, -1
        start, length = at + 1 + width, whole(big_endian(data, at + 1, width))
    if start < 0 or start + length > end:
        return -1, -1
    return start, length


@kernel
def count_header(data: Bytes, at: int, end: int, fixed: int, fixed_max: int, wide: int) -> tuple[int, int]:
    """The count of a msgpack map or array and where its first item starts; -1 if there is none."""
    if at >= end:
        return -1, -1
    tag = whole(data[at])
    if fixed <= tag <= fixed_max:
        return tag - fixed, at + 1
    width = 2 if tag == wide else 4
    if tag not in (wide, wide + 1) or at + 1 + width > end:
        return -1, -1
    return whole(big_endian(data, at + 1, width)), at + 1 + width


@kernel
def put_integer(bits: int, unsigned: bool, numbers: Any, words: Any, row: int) -> None:
    """Writes an integer into a row: as a float64 where one equals it, else with its neighbours and its bits.
    `unsigned`: the bits stand for an integer of 2**63 or more."""
    if not unsigned and -9007199254740992 <= bits <= 9007199254740992:
        numbers[row, FLOOR] = numbers[row, CEIL] = float(bits)
        words[row, EXOTIC] = 0
        return
    nearest = float(np.uint64(bits)) if unsigned else float(bits)
    order = 0  # of the integer against the nearest float
    if unsigned:
        if nearest >= _TWO_64:
            order = -1
        else:
            rounded = np.uint64(nearest)
            exact = np.uint64(bits)
            order = 1 if exact > rounded else (-1 if exact < rounded else 0)
    elif nearest >= _TWO_63:
        order = -1
    else:
        order = 1 if bits > whole(nearest) else (-1 if bits < whole(nearest) else 0)
    numbers[row, FLOOR] = numbers[row, CEIL] = nearest
    words[row, EXOTIC] = 0
    if order != 0:
        words[row, EXOTIC] = 2 if unsigned else 1
        words[row, CODE] = bits
        if order > 0:
            numbers[row, CEIL] = np.nextafter(nearest, np.inf)
        else:
            numbers[row, FLOOR] = np.nextafter(nearest, -np.inf)


@kernel
def read_number(data: Bytes, at: int, end: int, numbers: Any, words: Any, row: int) -> int:
    """Reads a msgpack number into a row; where the next item starts, or a negative code."""
    tag = whole(data[at])
    if tag <= 0x7F:
        put_integer(whole(tag), False, numbers, words, row)
        return at + 1
    if tag >= 0xE0:
        put_integer(whole(tag - 256), False, numbers, words, row)
        return at + 1
    if 0xCC <= tag <= 0xD3:
        width = 1 << ((tag - 0xCC) & 3)
        if at + 1 + width > end:
            return BAD_EVENT
        raw = big_endian(data, at + 1, width)
        bits = whole(raw)
        if tag >= 0xD0:
            shift = whole(64 - 8 * width)
            put_integer((bits << shift) >> shift, False, numbers, words, row)
        else:
            put_integer(bits, bits < 0, numbers, words, row)
        return at + 1 + width
    if tag == 0xCB:
        if at + 9 > end:
            return BAD_EVENT
        value = np.uint64(big_endian(data, at + 1, 8)).view(np.float64)
    elif tag == 0xCA:
        if at + 5 > end:
            return BAD_EVENT
        value = np.float64(np.uint32(big_endian(data, at + 1, 4)).view(np.float32))
    else:
        return BAD_EVENT
    if not np.isfinite(value):
        return BAD_NUMBER
    numbers[row, FLOOR] = numbers[row, CEIL] = value + 0.0  # no -0.0
    words[row, EXOTIC] = 0
    return at + (9 if tag == 0xCB else 5)


@kernel
def read_value(data: Bytes, at: int, end: int, strings: Any, kinds: Any, numbers: Any, words: Any, row: int) -> int:
    """Reads a scalar into a row; where the next item starts, or a negative code. Null is absence."""
    tag = whole(data[at])
    if tag == 0xC0:
        kinds[row] = ABSENT
        return at + 1
    if tag in (0xC2, 0xC3):
        kinds[row] = BOOLEAN
        words[row, CODE] = tag - 0xC2
        return at + 1
    start, length = text_header(data, at, end)
    if start >= 0:
        kinds[row] = STRING
        words[row, CODE] = find_text(strings[0], strings[1], strings[2], data, start, length)
        words[row, START] = start
        words[row, LENGTH] = length
        return start + length
    kinds[row] = NUMBER
    return read_number(data, at, end, numbers, words, row)


@kernel
def read_event(
    data: Bytes, at: int, end: int, names: Any, strings: Any, kinds: Any, numbers: Any, words: Any, present: Any
) -> int:
    """Reads one event into a row; how many attributes that the index knows are `present`, or a negative code.

    `names` and `strings` are (data, ends, slots) of their tables. The row must be clean.
    """
    spare = len(kinds) - 1  # for attributes that nobody asks for
    count, at = count_header(data, at, end, 0x80, 0x8F, 0xDE)
    if count < 0:
        return BAD_EVENT
    found = 0
    for _ in range(count):
        start, length = text_header(data, at, end)
        if start < 0 or start + length >= end:
            for i in range(found):
                kinds[present[i]] = ABSENT
            return BAD_EVENT
        code = find_text(names[0], names[1], names[2], data, start, length)
        row = spare if code < 0 else code
        was = kinds[row]
        at = read_value(data, start + length, end, strings, kinds, numbers, words, row)
        if at < 0:
            kinds[row] = ABSENT if was == ABSENT else was
            for i in range(found):
                kinds[present[i]] = ABSENT
            return at
        if code >= 0 and was == ABSENT and kinds[row] != ABSENT:
            present[found] = row
            found += 1
    if at != end:
        for i in range(found):
            kinds[present[i]] = ABSENT
        return BAD_EVENT
    kinds[spare] = ABSENT
    return found
