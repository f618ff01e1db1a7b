"""Records: a conjunction as the matching kernels hold it.

Owns the form of records, and how their items are written and read; `transcribing` makes one of a conjunction's wire
form. A record is a row of items in 16-bit words:

    operator | width << 8,  attribute,  payload

Operators with a number take it in the shortest width that holds it exactly; a closed bound whose open neighbour is
shorter (`> 5` is `>= 5.000000000000001`) is kept as the open one. Strings are numbers of the table of texts. Equal
conjunctions have equal records within one index.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index.intrinsics import u16_at, whole
from shoal.filters.index.kernel_context import (
    FAR,
)
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
UNLIKE: Final = 22
"""Absent, or no string, or a string for which an operator of strings holds: that is the next word, then its text."""
IN_NUMBERS: Final = 23
IN_STRINGS: Final = 24
"""Lists are the last ones: of how many values, then those."""

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
    return 5 if operator == UNLIKE else 2
