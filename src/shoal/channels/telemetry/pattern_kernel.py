"""Matches a Redis pattern against a column of channel names, for the analyzer.

Owns a second implementation of the language in `shoal.wire.glob`, compiled by numba: every second the analyzer matches
each registered pattern against all active channels, which lie in one array of bytes. `glob_match` would need a bytes
object for each of them. A test checks that both give the same answers, and both are checked against a real Redis. One
rule is missing here because no pattern can meet it: a pattern has at most `channel_name_bytes_max` bytes, too few for
1000 stars.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from shoal.wire.raw_bytes import Bytes, kernel, part

_STAR: Final = ord("*")
_ANY: Final = ord("?")
_OPEN: Final = ord("[")
_CLOSE: Final = ord("]")
_NOT: Final = ord("^")
_TO: Final = ord("-")
_ESCAPE: Final = ord("\\")
_SIGN: Final = 0x80
"""Flipping the sign bit makes unsigned bytes compare as Redis compares the ends of a range: signed."""


@kernel
def match_names(names: Bytes, offsets: npt.NDArray[np.int32], pattern: Bytes) -> npt.NDArray[np.bool_]:
    """Whether the pattern matches each name; name `i` is the bytes from `offsets[i]` to `offsets[i + 1]`."""
    matches = np.zeros(offsets.shape[0] - 1, np.bool_)
    for row in range(matches.shape[0]):
        matches[row] = match_name(names, offsets[row], offsets[row + 1], pattern)
    return matches


@part
def match_name(names: Bytes, start: int, end: int, pattern: Bytes) -> bool:
    """Whether the pattern matches one name. After a mismatch the last star takes one more byte."""
    if start == end:
        return bool(pattern.shape[0] == 0)
    size = int(pattern.shape[0])
    at = int(start)
    step = 0
    star_at = -1
    star_step = 0
    while at < end:
        if step < size and pattern[step] == _STAR:
            step += 1
            star_step = step
            star_at = at
            continue
        fits = False
        following = step
        if step < size:
            fits, following = match_byte(pattern, step, size, names[at])
        if fits:
            at += 1
            step = following
        elif star_at >= 0:
            star_at += 1
            at = star_at
            step = star_step
        else:
            return False
    while step < size and pattern[step] == _STAR:
        step += 1
    return bool(step == size)


@part
def match_byte(pattern: Bytes, step: int, size: int, byte: np.uint8) -> tuple[bool, int]:
    """Whether one element of a pattern (no star) fits a byte, and where the next element begins."""
    if pattern[step] == _ANY:
        return True, step + 1
    if pattern[step] == _OPEN:
        return match_class(pattern, step + 1, size, byte)
    if pattern[step] == _ESCAPE and step + 1 < size:
        step += 1
    return pattern[step] == byte, step + 1


@part
def match_class(pattern: Bytes, step: int, size: int, byte: np.uint8) -> tuple[bool, int]:
    """Whether a class, from behind its opening bracket, contains a byte, and where the next element begins."""
    inverted = step < size and pattern[step] == _NOT
    if inverted:
        step += 1
    inside = False
    while step < size and pattern[step] != _CLOSE:
        if pattern[step] == _ESCAPE and step + 1 < size:
            inside |= pattern[step + 1] == byte
            step += 2
        elif step + 2 < size and pattern[step + 1] == _TO:
            first, last = pattern[step] ^ _SIGN, pattern[step + 2] ^ _SIGN
            inside |= min(first, last) <= byte ^ _SIGN <= max(first, last)
            step += 3
        else:
            inside |= pattern[step] == byte
            step += 1
    return inside != inverted, min(step + 1, size)
