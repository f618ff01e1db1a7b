"""Records: a conjunction as the kernels hold it, a sequence of items in 16-bit words.

Owns the format of records, how items are written and read, sets of records with their ids, and the translation of
records between stores. `record_encoder` makes a record from a conjunction's wire form; `evaluator` tests one. An item
is

    operator | width << 8,  attribute,  payload

A number takes the shortest width that holds it exactly. A closed bound whose open neighbour is shorter is stored as the
open one (`>= 5.000000000000001` as `> 5`). Strings are codes of the string table. Within one store, equal conjunctions
have equal records.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.filters.index.hash_tables import STRING_BYTES, StringTable, intern_string
from shoal.filters.index.intrinsics import UNBOUNDED, i64, u16_at
from shoal.wire.raw_bytes import kernel, part

# Operators. Up to NE_NUMBER the payload is one number.
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
WILDCARD: Final = 16
NOT_WILDCARD: Final = 17
AT_LEAST: Final = 18
"""String bounds: this string or greater ..."""
BELOW: Final = 19
"""... and smaller than this string."""
STRING_LAST: Final = BELOW
"""Up to here, from `EQ_STRING` on, the payload is one string."""
EQ_BOOLEAN: Final = 20
IS: Final = 21
EXISTS: Final = 22
ABSENT: Final = 23
UNLIKE: Final = 24
"""Absent, or not a string, or a string for which a string operator holds: that operator is the next word, then its
string."""
UNLIKE_NUMBER: Final = 25
"""Absent, or not this number."""
IN_NUMBERS: Final = 26
IN_STRINGS: Final = 27
"""Lists come last: the number of values, then the values."""

# Widths of a number.
I16: Final = 0
F32: Final = 1
F64: Final = 2
INT: Final = 3
"""A signed 64-bit integer that no float64 equals."""
UINT: Final = 4
"""The same from 2**63 on."""

WORDS_FULL: Final = -3
"""Code: no room for another item."""
BAD_FILTER: Final = -4
"""Code: the bytes are not a filter."""
TOO_MANY_NAMES: Final = -5
"""Code: the store has `NAMES_MAX` attribute names."""

ITEM_WORDS_MAX: Final = 10
NAMES_MAX: Final = 65_000
WHOLE_MAX: Final = 2.0**53
"""Below this there is no integer between two neighbouring float64."""


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
    """Writes a float64 that fits the width. Returns the index of the next word. `words` is an address, here and
    below."""
    own = u16_at(words, UNBOUNDED)
    if width == I16:
        own[at] = np.uint16(i64(value) & 0xFFFF)
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
    """Starts an item. Returns the index of its payload."""
    own = u16_at(words, UNBOUNDED)
    own[at] = operator | (width << 8)
    own[at + 1] = attribute
    return at + 2


@part
def put_word(words: int, at: int, operator: int, attribute: int, word: int) -> int:
    """Writes an item whose payload is one word."""
    u16_at(words, UNBOUNDED)[put_header(words, at, operator, 0, attribute)] = word
    return at + 3


@part
def put_code(words: int, at: int, operator: int, attribute: int, code: int) -> int:
    """Writes an item with the code of a string."""
    at = put_header(words, at, operator, 0, attribute)
    put_bits(u16_at(words, UNBOUNDED), at, np.uint64(code), 2)
    return at + 2


@part
def item_words(words: Any, at: int) -> int:
    """Number of words of the item at an index."""
    operator, width = i64(words[at]) & 0xFF, i64(words[at]) >> 8
    if operator <= NE_NUMBER or operator == UNLIKE_NUMBER:
        return 2 + width_words(width)
    if operator == RANGE:
        return 2 + 2 * width_words(width)
    if operator <= STRING_LAST:
        return 4
    if operator in (EQ_BOOLEAN, IS):
        return 3
    if operator == IN_NUMBERS:
        return 3 + 5 * i64(words[at + 2])
    if operator == IN_STRINGS:
        return 3 + 2 * i64(words[at + 2])
    return 5 if operator == UNLIKE else 2


class RecordSet(NamedTuple):
    """Records with their ids: record `i` is `words[ends[i]:ends[i+1]]`, with the ids `ids[id_ends[i]:id_ends[i+1]]`."""

    words: npt.NDArray[np.uint16]
    ends: npt.NDArray[np.int64]
    ids: npt.NDArray[np.uint32]
    id_ends: npt.NDArray[np.int64]


@kernel
def _copy_selected(words: Any, ends: Any, ids: Any, id_ends: Any, wanted: Any, out: Any) -> int:
    """Copies the records that have a wanted id, with the wanted ids only. Returns the number of records."""
    made = 0
    for record in range(len(ends) - 1):
        to = out.id_ends[made]
        for i in range(id_ends[record], id_ends[record + 1]):
            if wanted[i]:
                out.ids[to] = ids[i]
                to += 1
        if to > out.id_ends[made]:
            word = out.ends[made]
            for i in range(ends[record], ends[record + 1]):
                out.words[word] = words[i]
                word += 1
            made += 1
            out.ends[made], out.id_ends[made] = word, to
    return made


def select_records(given: RecordSet, wanted: npt.NDArray[np.bool_]) -> RecordSet:
    """The records of the wanted ids; `wanted` has a boolean for each of `given.ids`."""
    out = RecordSet._make(np.zeros_like(column) for column in given)
    made = int(_copy_selected(*given, wanted, out))
    return RecordSet(
        out.words[: out.ends[made]], out.ends[: made + 1], out.ids[: out.id_ends[made]], out.id_ends[: made + 1]
    )


@kernel
def _translate_words(words: Any, ends: Any, names: Any, strings: Any) -> None:
    for record in range(len(ends) - 1):
        at, end = ends[record], ends[record + 1]
        while at < end:
            operator = i64(words[at]) & 0xFF
            words[at + 1] = names[words[at + 1]]
            if EQ_STRING <= operator <= STRING_LAST:
                put_bits(words, at + 2, np.uint64(strings[get_bits(words, at + 2, 2)]), 2)
            elif operator == UNLIKE:
                put_bits(words, at + 3, np.uint64(strings[get_bits(words, at + 3, 2)]), 2)
            elif operator == IN_STRINGS:
                for i in range(i64(words[at + 2])):
                    put_bits(words, at + 3 + 2 * i, np.uint64(strings[get_bits(words, at + 3 + 2 * i, 2)]), 2)
            at += item_words(words, at)


@kernel
def _intern_all(into: Any, from_data: Any, from_ends: Any, codes: Any) -> None:
    for code in range(len(codes)):
        start = i64(from_ends[code])
        length = i64(from_ends[code + 1]) - start
        codes[code] = intern_string(i64(into.ctypes.data), i64(from_data.ctypes.data), start, length)


def intern_strings(into: StringTable, other: StringTable) -> npt.NDArray[np.int64]:
    """Adds all strings of another table. Returns their codes here, by their codes there."""
    into.reserve(len(other), int(other.counters[STRING_BYTES]))
    codes = np.zeros(len(other), np.int64)
    _intern_all(into.addresses(), other.data, other.ends, codes)
    return codes


def translate_records(given: RecordSet, names: npt.NDArray[np.int64], strings: npt.NDArray[np.int64]) -> RecordSet:
    """The same records with other codes of names and strings."""
    words = given.words.copy()
    _translate_words(words, given.ends, names, strings)
    return given._replace(words=words)
