"""What stands for a value: a 64-bit hash that a filter and an event reach alike.

Owns how each kind of value is hashed: what a filter asks for by its record, and what an event has by its row. Kinds
have tags of their own, so that the number 1, the string '1' and `true` are different.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.filters.index import record_format as records
from shoal.filters.index.intrinsics import whole
from shoal.filters.index.record_format import get_bits, get_float
from shoal.wire.rawbytes import hash_pair, kernel, part

_FNV: Final = np.uint64(0x100000001B3)
FNV_START: Final = np.uint64(0xCBF29CE484222325)
_TAG_NUMBER: Final = np.uint64(0x10)
_TAG_EXOTIC: Final = np.uint64(0x20)
_TAG_STRING: Final = np.uint64(0x40)
_TAG_BOOLEAN: Final = np.uint64(0x80)


@part
def fnv(value: np.uint64, byte: int) -> np.uint64:
    """One more byte of a string into a hash that all its prefixes share."""
    return (value ^ np.uint64(byte)) * _FNV


@part
def number_value(bits: np.uint64, exotic: int) -> np.uint64:
    """What stands for a number: the bits of its float64, or its own if no float64 equals it."""
    return hash_pair(_TAG_NUMBER if exotic == 0 else _TAG_EXOTIC + np.uint64(exotic), bits)


@part
def string_value(code: int) -> np.uint64:
    """What stands for a whole string."""
    return hash_pair(_TAG_STRING, np.uint64(code))


@part
def boolean_value(code: int) -> np.uint64:
    """What stands for a boolean."""
    return hash_pair(_TAG_BOOLEAN, np.uint64(code))


@kernel
def part_value(data: Any, at: int, length: int) -> np.uint64:
    """What stands for up to four bytes of a string."""
    value = np.uint64(0)
    for i in range(length):
        value = (value << np.uint64(8)) | np.uint64(data[at + i])
    return hash_pair(np.uint64(length), value)


@part
def is_equality(operator: int) -> bool:
    """Whether an item asks for one value."""
    return operator in (records.EQ_NUMBER, records.EQ_STRING, records.EQ_BOOLEAN)


@kernel
def equal_value(words: Any, at: int) -> np.uint64:
    """The value that an item with an equality asks for."""
    operator, width = whole(words[at]) & 0xFF, whole(words[at]) >> 8
    if operator == records.EQ_STRING:
        return string_value(whole(get_bits(words, at + 2, 2)))
    if operator == records.EQ_BOOLEAN:
        return boolean_value(whole(words[at + 2]))
    if width > records.F64:
        return number_value(get_bits(words, at + 2, 4), width - records.F64)
    return number_value(np.float64(get_float(words, at + 2, width)).view(np.uint64), 0)


@kernel
def listed_value(words: Any, at: int, index: int) -> np.uint64:
    """One of the values that an item with a list asks for."""
    if (whole(words[at]) & 0xFF) == records.IN_STRINGS:
        return string_value(whole(get_bits(words, at + 3 + 2 * index, 2)))
    item = at + 3 + 5 * index
    width = whole(words[item])
    return number_value(get_bits(words, item + 1, 4), 0 if width == records.F64 else width - records.F64)


@kernel
def text_value(words: Any, at: int, texts: Any) -> np.uint64:
    """The value of a prefix, or of a suffix read backwards."""
    code = whole(get_bits(words, at + 2, 2))
    start, end = whole(texts[1][code]), whole(texts[1][code + 1])
    value = FNV_START
    if (whole(words[at]) & 0xFF) == records.PREFIX:
        for i in range(start, end):
            value = fnv(value, texts[0][i])
    else:
        for i in range(end - 1, start - 1, -1):
            value = fnv(value, texts[0][i])
    return value
