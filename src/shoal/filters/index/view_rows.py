"""View rows: the views of an attribute as the kernels see them.

Owns how the row of a view is found from that of its attribute, how a string is folded, and how an address becomes bits.
`shoal.filters.views` defines what views are; both compute the same. Never touches filters.

A view has a row of its own, like an attribute: its name in the table of names is that of the attribute and a mark of
three bytes. The attribute always has a row too. `R_VIEWS` is the number of views, and then, for each row, the rows of
its views, or -1.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index.hash_tables import T_DATA, T_ENDS, T_WORDS, find_string
from shoal.filters.index.intrinsics import UNBOUNDED, i64, i64_at, u8_at, u32_at
from shoal.filters.index.kernel_context import R_FOLDS, R_NAMES, R_SCRATCH, R_VIEWS, VIEW_KINDS, root
from shoal.wire.raw_bytes import kernel, part

FOLDED_VIEW: Final = 0
"""The first view of an attribute; the second is its address."""
ADDRESS_BYTES_MAX: Final = 1 + 128
VIEWS_FULL: Final = -13
"""Code: the scratch has no room for the views of an event."""
_MARK_BYTES: Final = 3
_DOT: Final = 0x2E
_COLON: Final = 0x3A
_ZERO: Final = 0x30
_GROUPS: Final = 8
"""Groups of 16 bits of an IPv6 address."""


@part
def views_at(context: int) -> Any:
    """The number of views, and the rows of the views."""
    return i64_at(root(context, R_VIEWS), UNBOUNDED)


@part
def is_view_name(data: int, start: int, length: int) -> bool:
    """Whether a name ends in a mark: U+FDD0 or U+FDD1."""
    if length < _MARK_BYTES:
        return False
    name, end = u8_at(data, UNBOUNDED), start + length
    return bool((name[end - 1] & 0xFE) == 0x90 and name[end - 2] == 0xB7 and name[end - 3] == 0xEF)


@kernel
def link_view(context: int, code: int) -> None:
    """Notes the row of a view with its attribute, if the name with this code is that of a view."""
    names = i64_at(context + 8 * R_NAMES, T_WORDS)
    ends, views = u32_at(names[T_ENDS], UNBOUNDED), views_at(context)
    start = i64(ends[code])
    length = i64(ends[code + 1]) - start
    if not is_view_name(names[T_DATA], start, length):
        return
    own = find_string(context + 8 * R_NAMES, names[T_DATA], start, length - _MARK_BYTES)
    place = 1 + VIEW_KINDS * own + (i64(u8_at(names[T_DATA], UNBOUNDED)[start + length - 1]) & 1)
    if own >= 0 and views[place] < 0:
        views[place] = code
        views[0] += 1


@kernel
def link_views(context: int, count: int) -> None:
    """Notes the rows of all views among the first `count` names."""
    for code in range(count):
        link_view(context, code)


@kernel
def folded(context: int, character: int) -> int:
    """The code point that one folds to."""
    count = root(context, R_FOLDS + 1)
    table = i64_at(root(context, R_FOLDS), UNBOUNDED)
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if table[middle] < character:
            low = middle + 1
        else:
            high = middle
    return i64(table[count + low]) if low < count and table[low] == character else character


@kernel
def fold_string(context: int, start: int, length: int, to: int) -> int:
    """Writes the folded form of a string in the scratch, which is UTF-8, to another place there. Returns its end."""
    text, at, end = u8_at(root(context, R_SCRATCH), UNBOUNDED), start, start + length
    while at < end:
        first = i64(text[at])
        if first < 0x80:
            text[to] = first + 32 if 0x41 <= first <= 0x5A else first
            at, to = at + 1, to + 1
            continue
        more = 1 if first < 0xE0 else (2 if first < 0xF0 else 3)
        character = first & (0x3F >> more)
        for i in range(1, more + 1):
            character = (character << 6) | (i64(text[at + i]) & 0x3F)
        at += more + 1
        character = folded(context, character)
        if character < 0x80:
            text[to] = character
            to += 1
            continue
        more = 1 if character < 0x800 else (2 if character < 0x10000 else 3)
        text[to] = ((0xFF00 >> (more + 1)) & 0xFF) | (character >> (6 * more))
        for i in range(1, more + 1):
            text[to + i] = 0x80 | ((character >> (6 * (more - i))) & 0x3F)
        to += more + 1
    return to


@kernel
def ipv4_of(data: int, at: int, end: int) -> int:
    """The 32 bits of an IPv4 address; -1 if the bytes are none."""
    text, value = u8_at(data, UNBOUNDED), 0
    for part_number in range(4):
        if part_number > 0:
            if at >= end or text[at] != _DOT:
                return -1
            at += 1
        octet, digits = 0, 0
        while at < end and _ZERO <= i64(text[at]) <= 0x39:
            if digits == 3 or (digits > 0 and octet == 0):
                return -1
            octet = 10 * octet + i64(text[at]) - _ZERO
            digits += 1
            at += 1
        if digits == 0 or octet > 255:
            return -1
        value = (value << 8) | octet
    return value if at == end else -1


@part
def hex_digit(byte: int) -> int:
    """The value of a hexadecimal digit; -1 if it is none."""
    if _ZERO <= byte <= 0x39:
        return byte - _ZERO
    lower = byte | 0x20
    return lower - 0x57 if 0x61 <= lower <= 0x66 else -1


@kernel
def ipv6_groups(data: int, at: int, end: int, groups: Any) -> bool:
    """Reads the eight groups of an IPv6 address. False if the bytes are none."""
    text, count, gap = u8_at(data, UNBOUNDED), 0, -1
    if at + 1 < end and text[at] == _COLON:
        if text[at + 1] != _COLON:
            return False
        gap, at = 0, at + 2
    while at < end:
        first, value, digits = at, 0, 0
        while at < end and digits <= 4 and hex_digit(i64(text[at])) >= 0:
            value = 16 * value + hex_digit(i64(text[at]))
            digits += 1
            at += 1
        if at < end and text[at] == _DOT:
            bits = ipv4_of(data, first, end)
            if bits < 0 or count > _GROUPS - 2:
                return False
            groups[count], groups[count + 1] = bits >> 16, bits & 0xFFFF
            count += 2
            break
        if digits == 0 or digits > 4 or count == _GROUPS:
            return False
        groups[count] = value
        count += 1
        if at == end:
            break
        at += 1
        if text[at - 1] != _COLON or at == end:
            return False
        if text[at] == _COLON:
            if gap >= 0:
                return False
            gap, at = count, at + 1
    if gap < 0:
        return count == _GROUPS
    if count == _GROUPS:
        return False
    behind = count - gap
    for i in range(behind):
        groups[_GROUPS - 1 - i] = groups[count - 1 - i]
    for i in range(gap, _GROUPS - behind):
        groups[i] = 0
    return True


@kernel
def put_address(data: int, start: int, length: int, to: int) -> int:
    """Writes a family bit and the bits of an address, a byte each, to another place in the data. Returns their end; -1
    if the string at `start` is not an address."""
    text, end = u8_at(data, UNBOUNDED), start + length
    bits = ipv4_of(data, start, end)
    if bits >= 0:
        text[to] = _ZERO
        for i in range(32):
            text[to + 1 + i] = _ZERO + ((bits >> (31 - i)) & 1)
        return to + 33
    groups = np.zeros(_GROUPS, np.int64)
    if length < 2 or not ipv6_groups(data, start, end, groups):
        return -1
    text[to] = _ZERO + 1
    for i in range(128):
        text[to + 1 + i] = _ZERO + ((groups[i >> 4] >> (15 - (i & 15))) & 1)
    return to + ADDRESS_BYTES_MAX
