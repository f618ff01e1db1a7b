"""The pattern language of PSUBSCRIBE, exactly as Redis reads it.

Owns the meaning of a Redis pattern (`*`, `?`, `[a-c]`, `[^x]`, escapes). It never checks channel names or permissions.

The reference is `stringmatchlen` of Redis. It differs from most globs:

- A non-empty pattern never matches the empty string, not even `*`.
- `[` without `]` is a class up to the end of the pattern; `[^` alone is any one byte; `[]` matches nothing.
- `]` always ends a class, even as its first byte; a range with swapped ends is reversed.
- Ranges compare *signed* bytes (as C compilers on x86-64 do), so `[a-\\xff]` is 0xff and 0x00 to 0x61.
- Since the fix of CVE-2024-31228, a pattern with more than 1000 `*` before its end matches nothing.

A pattern is compiled to a regular expression in which the text between two stars is an atomic group. The leftmost match
of a group is always as good as a later one, so the matcher never backtracks, and a hostile pattern costs at most
(length of pattern) x (length of string).

Agents match patterns against whole columns of names with `shoal.channels.telemetry.pattern_kernel`, a second
implementation for numba; a test checks that both agree.
"""

import re
from functools import lru_cache
from typing import Final

STARS_MAX: Final = 1000
"""Most stars before the end of a pattern; with more, Redis reports no match."""

_NEVER: Final = re.compile(rb"(?!)")


def glob_match(pattern: bytes, string: bytes) -> bool:
    """Return whether Redis delivers a message on channel `string` to a subscriber of `pattern`."""
    return compile_glob(pattern).match(string) is not None


@lru_cache(maxsize=4096)
def compile_glob(pattern: bytes) -> re.Pattern[bytes]:
    """Return a regular expression whose `match(string)` is not None exactly when `pattern` matches `string`."""
    parts, ends_in_star = _parts(pattern)
    stars = len(parts) - 1
    if stars - ends_in_star > STARS_MAX:
        return _NEVER
    if ends_in_star:
        # A star at the end takes the rest, but a non-empty pattern does not match the empty string.
        middle = b"".join(b"(?>.*?%s)" % part for part in parts[1:-1])
        not_empty = b"(?=.)" if parts[0] == b"" else b""
        return re.compile(not_empty + parts[0] + middle, re.DOTALL)
    if stars == 0:
        return re.compile(parts[0] + rb"\Z", re.DOTALL)
    middle = b"".join(b"(?>.*?%s)" % part for part in parts[1:-1])
    return re.compile(parts[0] + middle + b".*" + parts[-1] + rb"\Z", re.DOTALL)


def _parts(pattern: bytes) -> tuple[list[bytes], bool]:
    """Split the pattern at its stars into regular expressions of fixed length; also return whether it ends in a
    star."""
    parts: list[bytes] = []
    part = bytearray()
    position, end = 0, len(pattern)
    star = False
    while position < end:
        byte = pattern[position : position + 1]
        if byte == b"*":
            if not star:
                parts.append(bytes(part))
                part.clear()
            star = True
            position += 1
            continue
        star = False
        if byte == b"?":
            part += b"."
            position += 1
        elif byte == b"[":
            members, position = _class(pattern, position + 1)
            part += _class_expression(members)
        else:
            if byte == b"\\" and position + 1 < end:
                position += 1
            part += re.escape(pattern[position : position + 1])
            position += 1
    parts.append(bytes(part))
    return parts, star


def _class(pattern: bytes, position: int) -> tuple[set[int], int]:
    """Return the bytes that the class after `[` at `position` accepts, and the position after the class."""
    end = len(pattern)
    negated = pattern[position : position + 1] == b"^"
    if negated:
        position += 1
    members: set[int] = set()
    while position < end and pattern[position] != 0x5D:
        left = end - position
        if left >= 2 and pattern[position] == 0x5C:
            members.add(pattern[position + 1])
            position += 2
        elif left >= 3 and pattern[position + 1] == 0x2D:
            members.update(_signed_range(pattern[position], pattern[position + 2]))
            position += 3
        else:
            members.add(pattern[position])
            position += 1
    if negated:
        members = set(range(256)) - members
    return members, min(position + 1, end)


def _signed_range(first: int, last: int) -> list[int]:
    """Return the bytes from `first` to `last`, in either direction, in the order of signed bytes."""
    low, high = sorted((first - 256 if first > 127 else first, last - 256 if last > 127 else last))
    return [value & 0xFF for value in range(low, high + 1)]


def _class_expression(members: set[int]) -> bytes:
    """Return a regular expression for one byte of `members`."""
    if not members:
        return b"(?!)"
    if len(members) == 256:
        return b"."
    return b"[" + b"".join(rb"\x%02x" % member for member in sorted(members)) + b"]"
