"""Intervals of strings: where they end, what they have in common, and when they are finite.

Owns the arithmetic of half-open intervals [low, high) in code point order; `high` None is no bound. Never touches
constraints.

The next string after `s` is `s` with a NUL behind it, so an interval is finite only if `high` is `low` with some NULs
behind it; every other interval holds all strings that begin with some `q`. A prefix is an interval too, from itself to
`prefix_end`.
"""

from __future__ import annotations

from typing import Final

NUL: Final = "\0"
_LAST: Final = "\U0010ffff"
_BEFORE_SURROGATES: Final = "\ud7ff"
_BEHIND_SURROGATES: Final = "\ue000"


def prefix_end(prefix: str) -> str | None:
    """The first string behind all those that begin with `prefix`; None if there is none."""
    stem = prefix.rstrip(_LAST)
    return stem[:-1] + _next(stem[-1]) if stem else None


def is_below(text: str, high: str | None) -> bool:
    """Whether a string is below an upper bound."""
    return high is None or text < high


def reaches(high: str | None, other: str | None) -> bool:
    """Whether one upper bound is at least as far up as another one."""
    return high is None or (other is not None and other <= high)


def lower_of(high: str | None, other: str | None) -> str | None:
    """The stricter one of two upper bounds."""
    return other if reaches(high, other) else high


def points(low: str, high: str | None) -> list[str] | None:
    """The strings of a finite interval; None if the interval is infinite."""
    if not is_below(low, high):
        return []
    steps = nuls_behind(low, high) if high is not None else None
    return None if steps is None else [low + NUL * step for step in range(steps)]


def nuls_behind(text: str, longer: str) -> int | None:
    """How many NULs make `longer` from `text`; None if they do not."""
    steps = len(longer) - len(text)
    return steps if steps >= 0 and longer == text + NUL * steps else None


def common_prefix(low: str, high: str | None) -> str:
    """What all strings of an interval begin with."""
    if high is None:
        return _last_run(low)
    place = len(shared_start(low, high))
    if place == len(low):
        return low
    if place + 1 == len(high) and _next(low[place]) == high[place]:
        return low[: place + 1] + _last_run(low[place + 1 :])
    return low[:place]


def shared_start(one: str, other: str) -> str:
    """What two strings both begin with."""
    for place, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return one[:place]
    return min(one, other, key=len)


def _last_run(text: str) -> str:
    """The last code points that a string begins with: nothing sorts behind them, so they stay."""
    return text[: len(text) - len(text.lstrip(_LAST))]


def _next(character: str) -> str:
    """The code point behind one that is not the last; surrogates are no characters of a string."""
    return _BEHIND_SURROGATES if character == _BEFORE_SURROGATES else chr(ord(character) + 1)
