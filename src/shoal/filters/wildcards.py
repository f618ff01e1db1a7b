"""Wildcards: patterns in which `*` stands for any characters, or none.

Owns how a pattern is written and read, which strings it matches, and when one pattern implies another. Never touches
other conditions on strings.

`\\*` is a star and `\\\\` a backslash; a backslash before anything else is an error. Stars in a row are one star. A
pattern is held as its text, and is compared by its *parts*: the literal texts between the stars.

A pattern implies another one if the other one matches it as a string, with a character that no text has in place of
each star. That is exact, because the alphabet is larger than any pattern.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

from shoal.errors import FilterError

Parts: TypeAlias = tuple[str, ...]

STAR: Final = "*"
_ESCAPE: Final = "\\"
_STRANGE: Final = "\ud800"
"""A lone surrogate: no string has one."""


def canonical_pattern(text: str) -> str:
    """A pattern as it is held. FilterError if it is not a pattern."""
    return pattern_of(parts_of(text))


def pattern_of(parts: Parts) -> str:
    """The text of a pattern."""
    return STAR.join(part.replace(_ESCAPE, _ESCAPE * 2).replace(STAR, _ESCAPE + STAR) for part in parts)


@lru_cache(maxsize=4096)
def parts_of(text: str) -> Parts:
    """The literal texts before, between and after the stars. One part is a pattern without a star."""
    parts = [""]
    at = 0
    while at < len(text):
        character = text[at]
        if character == STAR:
            if parts[-1] or len(parts) == 1:
                parts.append("")
            at += 1
            continue
        if character == _ESCAPE:
            at += 1
            character = text[at : at + 1]
            if character not in (STAR, _ESCAPE):
                raise FilterError("a backslash in a wildcard stands before '*' or a backslash", do="write \\\\ for one")
        parts[-1] += character
        at += 1
    return tuple(parts)


def matches(parts: Parts, text: str) -> bool:
    """Whether a pattern matches a string."""
    head, tail = parts[0], parts[-1]
    if len(parts) == 1:
        return text == head
    if len(text) < len(head) + len(tail) or not text.startswith(head) or not text.endswith(tail):
        return False
    at, end = len(head), len(text) - len(tail)
    for part in parts[1:-1]:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def implies(narrow: Parts, wide: Parts) -> bool:
    """Whether a pattern matches every string that another one, `narrow`, matches."""
    return matches(wide, _STRANGE.join(narrow))


def affixes_imply(prefix: str, suffix: str, wide: Parts) -> bool:
    """Whether a pattern matches every string with this prefix and this suffix, which may overlap."""
    return matches(wide, prefix + _STRANGE + suffix) and all(
        matches(wide, prefix + suffix[shared:])
        for shared in range(1, min(len(prefix), len(suffix)) + 1)
        if prefix.endswith(suffix[:shared])
    )
