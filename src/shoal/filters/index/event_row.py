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

from shoal.filters.index.hash_tables import find_text
from shoal.filters.index.intrinsics import f64_at, i64_at, swap_bytes, u8_at, whole
from shoal.filters.index.kernel_context import (
    FAR,
    R_ATTRIBUTES,
    R_AUX,
    R_KINDS,
    R_NAMES,
    R_NUMBERS,
    R_PLAIN,
    R_PRESENT,
    R_SCRATCH,
    R_STRINGS,
    root,
)
from shoal.filters.index.utf8 import is_utf8
from shoal.wire.rawbytes import kernel, load_u64, part

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
def byte_at(data: int, at: int) -> int:
    """A byte of some data, which is given by its address."""
    return whole(u8_at(data, FAR)[at])


@part
def big_endian(data: int, at: int, width: int) -> np.uint64:
    """An unsigned integer of `width` (1, 2, 4 or 8) bytes. Behind the data is padding."""
    return np.uint64(swap_bytes(load_u64(u8_at(data, FAR), at)) >> np.uint64(64 - 8 * width))


@kernel
def text_header(data: int, at: int, end: int) -> tuple[int, int]:
    """Where the bytes of a msgpack string start and how many they are; -1 if there is none, or it is cut short."""
    if at >= end:
        return -1, -1
    tag = byte_at(data, at)
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
def count_header(data: int, at: int, end: int, fixed: int, fixed_max: int, wide: int) -> tuple[int, int]:
    """The count of a msgpack map or array and where its first item starts; -1 if there is none."""
    if at >= end:
        return -1, -1
    tag = byte_at(data, at)
    if fixed <= tag <= fixed_max:
        return tag - fixed, at + 1
    width = 2 if tag == wide else 4
    if tag not in (wide, wide + 1) or at + 1 + width > end:
        return -1, -1
    return whole(big_endian(data, at + 1, width)), at + 1 + width


@kernel
def put_integer(bits: int, unsigned: bool, number: int, aux: int) -> None:
    """Writes an integer at the addresses of a row's number and its further fields: as a float64 where one equals it,
    else with its neighbours and its bits. `unsigned`: the bits stand for an integer of 2**63 or more."""
    numbers, words = f64_at(number, 2), i64_at(aux, 4)
    words[EXOTIC] = 0
    if not unsigned and -9007199254740992 <= bits <= 9007199254740992:
        numbers[FLOOR] = numbers[CEIL] = float(bits)
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
    numbers[FLOOR] = numbers[CEIL] = nearest
    if order != 0:
        words[EXOTIC] = 2 if unsigned else 1
        words[CODE] = bits
        if order > 0:
            numbers[CEIL] = np.nextafter(nearest, np.inf)
        else:
            numbers[FLOOR] = np.nextafter(nearest, -np.inf)


@kernel
def read_number(data: int, at: int, end: int, number: int, aux: int) -> int:
    """Reads a msgpack number to the addresses of a row's; where the next item starts, or a negative code."""
    tag = byte_at(data, at)
    if tag <= 0x7F:
        put_integer(tag, False, number, aux)
        return at + 1
    if tag >= 0xE0:
        put_integer(tag - 256, False, number, aux)
        return at + 1
    if 0xCC <= tag <= 0xD3:
        width = 1 << ((tag - 0xCC) & 3)
        if at + 1 + width > end:
            return BAD_EVENT
        bits = whole(big_endian(data, at + 1, width))
        if tag >= 0xD0:
            shift = 64 - 8 * width
            put_integer((bits << shift) >> shift, False, number, aux)
        else:
            put_integer(bits, bits < 0, number, aux)
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
    numbers = f64_at(number, 2)
    numbers[FLOOR] = numbers[CEIL] = value + 0.0  # no -0.0
    i64_at(aux, 4)[EXOTIC] = 0
    return at + (9 if tag == 0xCB else 5)


@kernel
def read_value(context: int, at: int, end: int, row: int) -> int:
    """Reads a scalar of the scratch into a row; where the next item starts, or a negative code. Null is absence."""
    data, kinds = root(context, R_SCRATCH), u8_at(root(context, R_KINDS), FAR)
    aux = root(context, R_AUX) + 32 * row
    tag = byte_at(data, at)
    if tag == 0xC0:
        kinds[row] = ABSENT
        return at + 1
    if tag in (0xC2, 0xC3):
        kinds[row] = BOOLEAN
        i64_at(aux, 4)[CODE] = tag - 0xC2
        return at + 1
    start, length = text_header(data, at, end)
    if start >= 0:
        kinds[row] = STRING
        words = i64_at(aux, 4)
        words[CODE] = find_text(context + 8 * R_STRINGS, data, start, length)
        if words[CODE] < 0 and not is_utf8(data, start, length):
            return BAD_EVENT
        words[START], words[LENGTH] = start, length
        return start + length
    kinds[row] = NUMBER
    number = root(context, R_NUMBERS) + 16 * row
    next_at = read_number(data, at, end, number, aux)
    if next_at >= 0 and i64_at(aux, 4)[EXOTIC] == 0:
        f64_at(root(context, R_PLAIN), FAR)[row] = f64_at(number, 2)[FLOOR]
    return next_at


@kernel
def without(present: Any, found: int, row: int) -> int:
    """Takes a row out of those that are present; how many are left."""
    for i in range(found):
        if present[i] == row:
            present[i] = present[found - 1]
            return found - 1
    return found


@kernel
def read_attributes(context: int, size: int) -> Any:
    """Reads the event in the scratch into the row, which must be clean: (how many attributes that the index knows are
    `present`, 0 or a negative code)."""
    data, spare = root(context, R_SCRATCH), root(context, R_ATTRIBUTES) - 1  # for attributes that nobody asks for
    kinds, present = u8_at(root(context, R_KINDS), FAR), i64_at(root(context, R_PRESENT), FAR)
    count, at = count_header(data, 0, size, 0x80, 0x8F, 0xDE)
    if count < 0:
        return 0, BAD_EVENT
    found = 0
    for _ in range(count):
        start, length = text_header(data, at, size)
        if start < 0 or length == 0 or start + length >= size:
            return found, BAD_EVENT
        code = find_text(context + 8 * R_NAMES, data, start, length)
        if code < 0 and not is_utf8(data, start, length):
            return found, BAD_EVENT
        row = spare if code < 0 else code
        was = kinds[row]
        if was != ABSENT:  # said twice: the last one counts
            f64_at(root(context, R_PLAIN), FAR)[row] = np.nan
        at = read_value(context, start + length, size, row)
        if code >= 0 and was == ABSENT and kinds[row] != ABSENT:
            present[found] = row
            found += 1
        elif code >= 0 and was != ABSENT and kinds[row] == ABSENT:
            found = without(present, found, row)
        kinds[spare] = ABSENT
        if at < 0:
            return found, at
    return found, 0 if at == size else BAD_EVENT
