"""Loops over raw bytes that run in two ways: as plain Python, and compiled.

Owns the byte-level functions shared by the loops of the analyzer and of the filters' index (loads, hashing, comparing,
RESP lengths), and the marks `kernel` and `part`. It does not depend on channels and touches no socket.

A marked function stays a Python function, so that a process can run it without numba, which costs 90 MB and seconds.
`raw_bytes` tells numba about all marked functions; then compiled loops can call them too. Where Python can do better
than to run the same lines (`hashlib`), `part_from` and `kernel_from` mark a function of its own.

In Python words are NumPy scalars, which wrap around as compiled ones do: call the loops inside `wrapping()`.

`load_u64` may read up to 7 bytes past the requested range, so every buffer passed to these functions ends with
`PADDING_BYTES` unused bytes.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

if sys.byteorder != "little":  # the envelope and the word-wise loads below are little-endian
    raise ImportError("the loops need a little-endian machine")

PADDING_BYTES: Final = 8
NEED_MORE: Final = -2
MALFORMED: Final = -3

Bytes: TypeAlias = npt.NDArray[np.uint8]
Records: TypeAlias = Any
"""An array of records, or one record, whose fields are attributes (see `rows`)."""
Function = TypeVar("Function", bound=Callable[..., Any])

_WORD: Final = struct.Struct("<Q")
_PRIME_1: Final = np.uint64(0x9E3779B97F4A7C15)
_PRIME_2: Final = np.uint64(0xD6E8FEB86659FD93)
_FULL: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
_HALF: Final = np.uint64(32)
_CR: Final = 13
_LF: Final = 10
_MINUS: Final = 45
_ZERO: Final = 48
_NINE: Final = 57
_DIGITS_MAX: Final = 18


class Marked(NamedTuple):
    """A marked function: the one that Python calls, the one that is compiled, and whether that is inlined."""

    function: Callable[..., Any]
    source: Callable[..., Any]
    inline: bool


_marked: Final[list[Marked]] = []
_followers: Final[list[Callable[[Marked], None]]] = []


def follow_marks(follower: Callable[[Marked], None]) -> None:
    """Calls a function for each marked function, also for those that are marked later."""
    _followers.append(follower)
    for marked in _marked:
        follower(marked)


def _mark(source: Callable[..., Any], function: Function, inline: bool) -> Function:
    marked = Marked(function, source, inline)
    _marked.append(marked)
    for follower in _followers:
        follower(marked)
    return function


def part(function: Function) -> Function:
    """Marks a part of loops: inlined where it is compiled, because passing arrays costs more than the work."""
    return _mark(function, function, True)


def kernel(function: Function) -> Function:
    """Marks a loop that is compiled as a function of its own."""
    return _mark(function, function, False)


def part_from(source: Callable[..., Any]) -> Callable[[Function], Function]:
    """Marks a part that only Python runs; the compiled one is made from `source`."""
    return lambda function: _mark(source, function, True)


def kernel_from(source: Callable[..., Any]) -> Callable[[Function], Function]:
    """Marks a kernel that only Python runs; the compiled one is made from `source`."""
    return lambda function: _mark(source, function, False)


def wrapping() -> np.errstate:
    """The context in which loops run as Python: words wrap around without a warning."""
    return np.errstate(over="ignore")


def padded(data: bytes) -> Bytes:
    """A writable array of some bytes with the padding that the loads need."""
    array = np.zeros(len(data) + PADDING_BYTES, np.uint8)
    array[: len(data)] = np.frombuffer(data, np.uint8)
    return array


def load_u64(data: Bytes, at: int) -> np.uint64:
    """The 8 bytes at an index, little-endian, whatever the alignment."""
    return np.uint64(_WORD.unpack_from(data, at)[0])  # type: ignore[arg-type]


@part
def tail_mask(length: int) -> np.uint64:
    """Keeps the lowest `length` (1 to 7) bytes of a word."""
    return _FULL >> np.uint64(64 - 8 * length)


@part
def hash_words(data: Bytes, start: int, length: int, seed: np.uint64) -> np.uint64:
    """A 64-bit hash of some bytes. It is not cryptographic: names are compared after a match."""
    value = seed ^ (np.uint64(length) * _PRIME_2)
    at = start
    end = start + length
    while at + 8 <= end:
        value = (value ^ load_u64(data, at)) * _PRIME_1
        value ^= value >> _HALF
        at += 8
    if at < end:
        value = (value ^ (load_u64(data, at) & tail_mask(end - at))) * _PRIME_1
        value ^= value >> _HALF
    value *= _PRIME_2
    return value ^ (value >> _HALF)


@part
def hash_pair(first: np.uint64, second: np.uint64) -> np.uint64:
    """A 64-bit hash of two words."""
    value = (second ^ (first * _PRIME_2)) * _PRIME_1
    value ^= value >> _HALF
    value *= _PRIME_2
    return value ^ (value >> _HALF)


@part
def same_words(left: Bytes, left_at: int, right: Bytes, right_at: int, length: int) -> bool:
    """Whether two stretches of bytes are equal."""
    done = 0
    while done + 8 <= length:
        if load_u64(left, left_at + done) != load_u64(right, right_at + done):
            return False
        done += 8
    if done == length:
        return True
    difference = load_u64(left, left_at + done) ^ load_u64(right, right_at + done)
    return bool((difference & tail_mask(length - done)) == np.uint64(0))


@part
def read_length(data: Bytes, start: int, end: int) -> tuple[int, int]:
    """Parses a RESP length line: the number (-1 for null) and the index after the line.

    As strict as hiredis: digits only, no leading zero, `-1` the only negative number. The number is `NEED_MORE` if the
    line is incomplete at `end`, and `MALFORMED` if it cannot become a length.
    """
    at = start
    value = 0
    while at < end and _ZERO <= data[at] <= _NINE:
        if (at > start and value == 0) or at - start >= _DIGITS_MAX:
            return MALFORMED, start
        value = value * 10 + int(data[at]) - _ZERO
        at += 1
    if at == start and at < end and data[at] == _MINUS:
        if at + 1 < end and data[at + 1] != _ZERO + 1:
            return MALFORMED, start
        value = -1
        at += 2
    elif at == start and at < end:
        return MALFORMED, start
    if at < end and data[at] != _CR:
        return MALFORMED, start
    if at + 1 < end and data[at + 1] != _LF:
        return MALFORMED, start
    if at + 2 > end:
        return NEED_MORE, start
    return value, at + 2


@part
def is_line_end(data: Bytes, at: int) -> bool:
    """Whether CR LF is at an index; both bytes must be in the buffer."""
    return bool(data[at] == _CR and data[at + 1] == _LF)
