"""The pattern language of PSUBSCRIBE, exactly as Redis reads it.

Owns: the meaning of a Redis pattern (`*`, `?`, `[a-c]`, `[^x]`, escapes). Never touches channels' names or
rights.

The reference is `stringmatchlen` of Redis. Corners that it has and most globs have not:

- A pattern that is not empty never matches the empty string, not even `*`.
- `[` without `]` is a class up to the end of the pattern; `[^` alone is any one byte; `[]` matches nothing.
- `]` ends a class wherever it stands; a range whose ends are swapped is turned round.
- Ranges compare *signed* bytes (what C compilers give on x86-64), so `[a-\\xff]` is 0xff and 0x00 to 0x61.
- Since the fix of CVE-2024-31228 a pattern with more than 1000 `*` that are not at its end matches nothing.

A pattern is compiled to a regular expression in which everything between two stars is an atomic group: the
leftmost place of such a part is as good as any later one, so there is never a reason to go back, and a
hostile pattern costs at most (length of pattern) x (length of string).

The agent matches patterns against whole columns of names with `shoal.channels.telemetry.pattern_kernel`, a second
implementation for numba; a test checks that both agree.
"""

import re
from functools import lru_cache
from typing import Final

STARS_MAX: Final = 1000
"""Stars (not at the end) beyond which Redis gives up and says no."""

_NEVER: Final = re.compile(rb"(?!)")


def glob_match(pattern: bytes, string: bytes) -> bool:
    """Whether Redis would deliver a message on channel `string` to a subscriber of `pattern`."""
    return compile_glob(pattern).match(string) is not None


@lru_cache(maxsize=4096)
def compile_glob(pattern: bytes) -> re.Pattern[bytes]:
    """A regular expression whose `match(string)` is not None exactly when `pattern` matches `string`."""
    parts, ends_in_star = _parts(pattern)
    stars = len(parts) - 1
    if stars - ends_in_star > STARS_MAX:
        return _NEVER
    if ends_in_star:
        # A star at the end takes the rest, but nothing that is not empty matches the empty string.
        middle = b"".join(b"(?>.*?%s)" % part for part in parts[1:-1])
        not_empty = b"(?=.)" if parts[0] == b"" else b""
        return re.compile(not_empty + parts[0] + middle, re.DOTALL)
    if stars == 0:
        return re.compile(parts[0] + rb"\Z", re.DOTALL)
    middle = b"".join(b"(?>.*?%s)" % part for part in parts[1:-1])
    return re.compile(parts[0] + middle + b".*" + parts[-1] + rb"\Z", re.DOTALL)


def _parts(pattern: bytes) -> tuple[list[bytes], bool]:
    """The pattern cut at its stars, each part as a regular expression of fixed length; whether it ends in a
    star.
    """
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
    """The bytes that the class starting after `[` at `position` accepts, and where the pattern goes on."""
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
    """The bytes from `first` to `last`, in either direction, in the order of signed bytes."""
    low, high = sorted((first - 256 if first > 127 else first, last - 256 if last > 127 else last))
    return [value & 0xFF for value in range(low, high + 1)]


def _class_expression(members: set[int]) -> bytes:
    """A regular expression for one byte out of `members`."""
    if not members:
        return b"(?!)"
    if len(members) == 256:
        return b"."
    return b"[" + b"".join(rb"\x%02x" % member for member in sorted(members)) + b"]"
