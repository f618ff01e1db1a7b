"""Matches a Redis pattern against a column of channel names, for the analyzer.

Owns a second implementation of the language in `shoal.wire.glob`, compiled by numba: every second the analyzer matches
each registered pattern against all active channels, which lie in one array of bytes. `glob_match` would need a bytes
object for each of them, and agents match the patterns of clients here too. A test checks that both give the same
answers, and both are checked against a real Redis. One rule is missing here because no pattern can meet it: a pattern
has at most `channel_name_bytes_max` bytes, too few for 1000 stars.

A pattern and names that were made to match slowly cost (length of pattern) x (length of name) steps, so the caller says
how many steps a match may take.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from shoal.wire.loop_source import Bytes, kernel, part

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
def match_names(
    names: Bytes, offsets: npt.NDArray[np.int32], pattern: Bytes, steps_max: int, matches: npt.NDArray[np.bool_]
) -> int:
    """Whether the pattern matches each name; name `i` is the bytes from `offsets[i]` to `offsets[i + 1]`. Returns the
    number of steps, inverted (`~`) if not all names were looked at: after `steps_max` steps the rest is left out."""
    steps = 0
    for row in range(matches.shape[0]):
        if steps > steps_max:
            return ~steps
        found, taken = match_name(names, offsets[row], offsets[row + 1], pattern)
        matches[row] = found
        steps += taken
    return steps


@part
def match_name(names: Bytes, start: int, end: int, pattern: Bytes) -> tuple[bool, int]:
    """Whether the pattern matches one name, and the number of steps. After a mismatch the last star takes one more
    byte."""
    if start == end:
        return bool(pattern.shape[0] == 0), 1
    size = int(pattern.shape[0])
    at = int(start)
    step = 0
    star_at = -1
    star_step = 0
    taken = 1
    while at < end:
        taken += 1
        if step < size and pattern[step] == _STAR:
            step += 1
            star_step = step
            star_at = at
            continue
        fits = False
        following = step
        if step < size:
            fits, following = match_byte(pattern, step, size, names[at])
            taken += following - step
        if fits:
            at += 1
            step = following
        elif star_at >= 0:
            star_at += 1
            at = star_at
            step = star_step
        else:
            return False, taken
    while step < size and pattern[step] == _STAR:
        step += 1
    return bool(step == size), taken


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
