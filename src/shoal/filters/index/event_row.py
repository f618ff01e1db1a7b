"""Event rows: an event as the kernels see it.

Owns the step from an event's wire form (a MessagePack map of names to scalars) to a row, which holds the kind and the
value of each attribute that the index knows. Attributes that no filter names are skipped. Also owns the rows of a batch
and the check for UTF-8. Never touches filters.

A number is held as the nearest float64 below it and above it. The two are the same for nearly all numbers. A *wide*
integer, a 64-bit integer that no float64 equals, also keeps its own bits. So `low <= number` is `low <= floor`, and
`number <= high` is `ceil <= high`, exactly, for every bound that is a float64.

Functions that read return the index of the next byte, or a negative code.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index.hash_tables import find_string
from shoal.filters.index.intrinsics import UNBOUNDED, f64_at, i64, i64_at, swap_bytes, u8_at
from shoal.filters.index.kernel_context import (
    R_ATTRIBUTES,
    R_AUX,
    R_CELLS,
    R_FLOATS,
    R_KINDS,
    R_NAMES,
    R_NUMBERS,
    R_PRESENT,
    R_PRESENT_COUNT,
    R_ROWS,
    R_SCRATCH,
    R_STRINGS,
    ROW_ROOTS,
    VIEW_KINDS,
    root,
)
from shoal.filters.index.view_rows import (
    ADDRESS_BYTES_MAX,
    FOLDED_VIEW,
    VIEWS_FULL,
    fold_string,
    is_view_name,
    put_address,
    views_at,
)
from shoal.wire.raw_bytes import PADDING_BYTES, kernel, load_u64, part, tail_mask

ABSENT: Final = 0
NUMBER: Final = 1
STRING: Final = 2
BOOLEAN: Final = 3

FLOOR: Final = 0
CEIL: Final = 1

CODE: Final = 0
"""The code of a string, or -1 if the table does not have it; 0 or 1 for a boolean; the bits of a wide integer."""
WIDE: Final = 1
"""0 for a number that is a float64, 1 for a signed wide integer, 2 for an unsigned one."""
START: Final = 2
"""Where the bytes of a string start in the scratch ..."""
LENGTH: Final = 3
"""... and their number."""

BAD_EVENT: Final = -1
"""Code: the bytes are not an event."""
BAD_NUMBER: Final = -2
"""Code: NaN or infinity."""
HAS_ARRAY: Final = -14
"""Code: an attribute is an array. Its elements are matched one by one, as events of their own."""
_TWO_63: Final = 9223372036854775808.0
_TWO_64: Final = 18446744073709551616.0
_HIGH_BITS: Final = np.uint64(0x8080808080808080)


@part
def byte_at(data: int, at: int) -> int:
    """A byte of data at an address."""
    return i64(u8_at(data, UNBOUNDED)[at])


@part
def big_endian(data: int, at: int, width: int) -> np.uint64:
    """An unsigned integer of `width` (1, 2, 4 or 8) bytes. The data is padded."""
    return np.uint64(swap_bytes(load_u64(u8_at(data, UNBOUNDED), at)) >> np.uint64(64 - 8 * width))


@kernel
def string_header(data: int, at: int, end: int) -> tuple[int, int]:
    """Where the bytes of a MessagePack string start, and their number; -1 if there is no string, or it is cut short."""
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
        start, length = at + 1 + width, i64(big_endian(data, at + 1, width))
    if start < 0 or start + length > end:
        return -1, -1
    return start, length


@kernel
def count_header(data: int, at: int, end: int, fixed: int, fixed_max: int, wide: int) -> tuple[int, int]:
    """The count of a MessagePack map or array, and where its first item starts; -1 if there is none."""
    if at >= end:
        return -1, -1
    tag = byte_at(data, at)
    if fixed <= tag <= fixed_max:
        return tag - fixed, at + 1
    width = 2 if tag == wide else 4
    if tag not in (wide, wide + 1) or at + 1 + width > end:
        return -1, -1
    return i64(big_endian(data, at + 1, width)), at + 1 + width


@kernel
def put_integer(bits: int, unsigned: bool, number: int, aux: int) -> None:
    """Writes an integer to the addresses of a row's number and its further fields: as a float64 if one equals it,
    otherwise its neighbours and its bits. `unsigned`: the bits are those of an integer of 2**63 or more."""
    numbers, words = f64_at(number, 2), i64_at(aux, 4)
    words[WIDE] = 0
    if not unsigned and -9007199254740992 <= bits <= 9007199254740992:
        numbers[FLOOR] = numbers[CEIL] = float(bits)
        return
    nearest = float(np.uint64(bits)) if unsigned else float(bits)
    order = 0  # of the integer, compared with the nearest float
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
        order = 1 if bits > i64(nearest) else (-1 if bits < i64(nearest) else 0)
    numbers[FLOOR] = numbers[CEIL] = nearest
    if order != 0:
        words[WIDE] = 2 if unsigned else 1
        words[CODE] = bits
        if order > 0:
            numbers[CEIL] = np.nextafter(nearest, np.inf)
        else:
            numbers[FLOOR] = np.nextafter(nearest, -np.inf)


@kernel
def read_number(data: int, at: int, end: int, number: int, aux: int) -> int:
    """Reads a MessagePack number to the addresses of a row's number and its further fields."""
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
        bits = i64(big_endian(data, at + 1, width))
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
    i64_at(aux, 4)[WIDE] = 0
    return at + (9 if tag == 0xCB else 5)


@kernel
def read_value(context: int, at: int, end: int, row: int) -> int:
    """Reads a scalar from the scratch into a row. Null is absence."""
    data, kinds = root(context, R_SCRATCH), u8_at(root(context, R_KINDS), UNBOUNDED)
    aux = root(context, R_AUX) + 32 * row
    tag = byte_at(data, at)
    if tag == 0xC0:
        kinds[row] = ABSENT
        return at + 1
    if tag in (0xC2, 0xC3):
        kinds[row] = BOOLEAN
        i64_at(aux, 4)[CODE] = tag - 0xC2
        return at + 1
    start, length = string_header(data, at, end)
    if start >= 0:
        kinds[row] = STRING
        words = i64_at(aux, 4)
        words[CODE] = find_string(context + 8 * R_STRINGS, data, start, length)
        if words[CODE] < 0 and not is_utf8(data, start, length):
            return BAD_EVENT
        words[START], words[LENGTH] = start, length
        return start + length
    if 0x90 <= tag <= 0x9F or tag in (0xDC, 0xDD):
        return HAS_ARRAY
    kinds[row] = NUMBER
    number = root(context, R_NUMBERS) + 16 * row
    next_at = read_number(data, at, end, number, aux)
    if next_at >= 0 and i64_at(aux, 4)[WIDE] == 0:
        f64_at(root(context, R_FLOATS), UNBOUNDED)[row] = f64_at(number, 2)[FLOOR]
    return next_at


@kernel
def drop_present(present: Any, found: int, row: int) -> int:
    """Removes a row from the list of those present. Returns the number left."""
    for i in range(found):
        if present[i] == row:
            present[i] = present[found - 1]
            return found - 1
    return found


@kernel
def read_attributes(context: int, size: int) -> Any:
    """Reads the event in the scratch into the row, which must be clear. Returns (number of known attributes in
    `present`, 0 or a negative code)."""
    data, spare = root(context, R_SCRATCH), root(context, R_ATTRIBUTES) - 1  # for unknown attributes
    kinds, present = u8_at(root(context, R_KINDS), UNBOUNDED), i64_at(root(context, R_PRESENT), UNBOUNDED)
    count, at = count_header(data, 0, size, 0x80, 0x8F, 0xDE)
    if count < 0:
        return 0, BAD_EVENT
    found = 0
    for _ in range(count):
        start, length = string_header(data, at, size)
        if start < 0 or length == 0 or start + length >= size:
            return found, BAD_EVENT
        if is_view_name(data, start, length):
            return found, BAD_EVENT
        code = find_string(context + 8 * R_NAMES, data, start, length)
        if code < 0 and not is_utf8(data, start, length):
            return found, BAD_EVENT
        row = spare if code < 0 else code
        was = kinds[row]
        if was != ABSENT:  # given twice: the last value counts
            f64_at(root(context, R_FLOATS), UNBOUNDED)[row] = np.nan
        at = read_value(context, start + length, size, row)
        if code >= 0 and was == ABSENT and kinds[row] != ABSENT:
            present[found] = row
            found += 1
        elif code >= 0 and was != ABSENT and kinds[row] == ABSENT:
            found = drop_present(present, found, row)
        kinds[spare] = ABSENT
        if at < 0:
            return found, at
    return found, 0 if at == size else BAD_EVENT


@kernel
def add_views(context: int, size: int, found: int) -> Any:
    """Adds the views of the strings of the event to the row, and their bytes to the scratch. Returns (number of known
    attributes and views in `present`, 0 or a negative code)."""
    views = views_at(context)
    if views[0] == 0:
        return found, 0
    data, room = root(context, R_SCRATCH), root(context, R_SCRATCH + 1) - PADDING_BYTES
    kinds, present = u8_at(root(context, R_KINDS), UNBOUNDED), i64_at(root(context, R_PRESENT), UNBOUNDED)
    at = size
    for i in range(found):
        row = present[i]
        if kinds[row] != STRING:
            continue
        own = i64_at(root(context, R_AUX) + 32 * row, 4)
        start, length = own[START], own[LENGTH]
        for view in range(VIEW_KINDS):
            target = views[1 + VIEW_KINDS * row + view]
            if target < 0:
                continue
            if at + 2 * length + ADDRESS_BYTES_MAX > room:
                return found, VIEWS_FULL
            if view == FOLDED_VIEW:
                end = fold_string(context, start, length, at)
            else:
                end = put_address(data, start, length, at)
            if end < 0:
                continue
            words = i64_at(root(context, R_AUX) + 32 * target, 4)
            words[CODE] = find_string(context + 8 * R_STRINGS, data, at, end - at)
            words[START], words[LENGTH] = at, end - at
            kinds[target] = STRING
            present[found] = target
            found += 1
            at = end
    return found, 0


@part
def is_utf8(data: int, start: int, length: int) -> bool:
    """Whether some bytes of padded data at an address are UTF-8. Only strings that the index does not know are checked.
    Most of them are ASCII, which is seen eight bytes at a time."""
    words, done, high = u8_at(data, UNBOUNDED), 0, np.uint64(0)
    while done + 8 <= length:
        high |= load_u64(words, start + done)
        done += 8
    if done < length:
        high |= load_u64(words, start + done) & tail_mask(length - done)
    return bool(high & _HIGH_BITS == np.uint64(0)) or is_utf8_by_bytes(data, start, length)


@kernel
def is_utf8_by_bytes(data: int, start: int, length: int) -> bool:
    """The same byte by byte: no overlong forms, no surrogates, nothing above U+10FFFF."""
    text, at, end = u8_at(data, UNBOUNDED), start, start + length
    while at < end:
        first = i64(text[at])
        if first < 0x80:
            at += 1
            continue
        if not 0xC2 <= first <= 0xF4:
            return False
        more = 1 if first < 0xE0 else (2 if first < 0xF0 else 3)
        if at + more >= end:
            return False
        low = 0xA0 if first == 0xE0 else (0x90 if first == 0xF0 else 0x80)
        high = 0x9F if first == 0xED else (0x8F if first == 0xF4 else 0xBF)
        for i in range(1, more + 1):
            if not low <= i64(text[at + i]) <= high:
                return False
            low, high = 0x80, 0xBF
        at += more + 1
    return True


@part
def rows_at(context: int) -> Any:
    """Where the rows of a batch are."""
    return i64_at(root(context, R_ROWS), UNBOUNDED)


@kernel
def select_row(context: int, event: int) -> None:
    """Makes an event of a batch the current one."""
    roots, places = i64_at(context, UNBOUNDED), rows_at(context)
    for i, place in enumerate(ROW_ROOTS):
        roots[place] = places[2 * i] + event * places[2 * i + 1]
    roots[R_PRESENT_COUNT] = places[2 * len(ROW_ROOTS) + event]


@kernel
def read_row(context: int, event: int, data: int, size: int) -> int:
    """Reads an event of a batch from an address into its row. Returns 0 or a negative code."""
    select_row(context, event)
    code = read_event(context, data, size)
    rows_at(context)[2 * len(ROW_ROOTS) + event] = root(context, R_PRESENT_COUNT)
    return code


@kernel
def clear_rows(context: int, count: int) -> None:
    """Clears the rows of a batch, and selects the first."""
    for event in range(count - 1, -1, -1):
        select_row(context, event)
        clear_row(context)
        rows_at(context)[2 * len(ROW_ROOTS) + event] = 0


@kernel
def clear_cells(context: int) -> None:
    """Clears the row of cells."""
    present, own = i64_at(root(context, R_PRESENT), UNBOUNDED), u8_at(root(context, R_CELLS), UNBOUNDED)
    for i in range(root(context, R_PRESENT_COUNT)):
        own[present[i]] = 0


@kernel
def clear_row(context: int) -> None:
    """Clears the row for the next event."""
    clear_cells(context)
    present = i64_at(root(context, R_PRESENT), UNBOUNDED)
    plain, kinds = f64_at(root(context, R_FLOATS), UNBOUNDED), u8_at(root(context, R_KINDS), UNBOUNDED)
    for i in range(root(context, R_PRESENT_COUNT)):
        plain[present[i]] = np.nan
        kinds[present[i]] = ABSENT
    i64_at(context, UNBOUNDED)[R_PRESENT_COUNT] = 0


@kernel
def read_event(context: int, event: int, size: int) -> int:
    """Reads the event of `size` bytes at an address into the row. Returns 0 or a negative code."""
    if size + PADDING_BYTES > root(context, R_SCRATCH + 1):
        return BAD_EVENT
    data, given = u8_at(root(context, R_SCRATCH), size), u8_at(event, size)
    for i in range(size):
        data[i] = given[i]
    found, code = read_attributes(context, size)
    if code >= 0:
        found, code = add_views(context, size, found)
    i64_at(context, UNBOUNDED)[R_PRESENT_COUNT] = found
    if code < 0:
        clear_row(context)
    return i64(code)
