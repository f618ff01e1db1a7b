"""Families of conjunctions that differ in one prefix, one suffix or one substring.

Owns how such texts are looked up. Never touches numbers. See `families` for what a family is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable
from typing import Final, Generic

from shoal.filters.conjunctions import Conjunction
from shoal.filters.constraints import Constraint, Present, Unlike
from shoal.filters.families import Member, ScanFamily
from shoal.filters.ranges import OneOf
from shoal.filters.string_bounds import common_prefix, is_below, prefix_end, shared_start
from shoal.filters.strings import Strings
from shoal.filters.values import Kind

PREFIX: Final = "prefix"
SUFFIX: Final = "suffix"
CONTAINS: Final = "contains"

_GRAM: Final = 3
"""Letters by which longer substrings are looked up; shorter ones are compared with all members."""


def text_shape(constraint: Strings) -> str | None:
    """Whether a constraint is one prefix, one suffix or one substring; None if it is anything else."""
    if constraint.prefix and constraint == Strings(prefix=constraint.prefix):
        return PREFIX
    if constraint.suffix and constraint == Strings(suffix=constraint.suffix):
        return SUFFIX
    if len(constraint.contains) == 1 and constraint == Strings(contains=constraint.contains):
        return CONTAINS
    return None


def _is_nearly_open(constraint: Strings) -> bool:
    """Whether bounds refuse nothing but the smallest strings: the empty one, as `!= ''` does, and rows of NULs. What
    strings end with or contain says nothing of how they begin, so no other bounds can cover it."""
    low, high = constraint.bounds
    return high is None and not low.strip("\0")


class AffixFamily(Generic[Member]):
    """Members by their prefix for one attribute, or by their suffix read backwards, in order. All other attributes have
    a single value. Those that cover a text are on one line: the longest is the nearest."""

    def __init__(self, attribute: str, shape: str) -> None:
        self._attribute = attribute
        self._is_prefix = shape == PREFIX
        self._texts: list[str] = []
        self._members: dict[str, tuple[Conjunction, Member]] = {}
        self._grams = _Grams(is_reversed=not self._is_prefix)

    def add(self, conjunction: Conjunction, member: Member) -> None:
        """See `Family`."""
        text = self._begin(conjunction.constraint(self._attribute))
        insort(self._texts, text)
        self._members[text] = (conjunction, member)
        self._grams.add(text)

    def remove(self, conjunction: Conjunction) -> None:
        """See `Family`."""
        text = self._begin(conjunction.constraint(self._attribute))
        del self._texts[bisect_left(self._texts, text)]
        del self._members[text]
        self._grams.remove(text)

    def covering(self, conjunction: Conjunction) -> Iterable[Member]:
        """See `Family`."""
        begin = self._begin(conjunction.constraint(self._attribute))
        while begin:
            place = bisect_right(self._texts, begin)
            if place == 0:
                break
            nearest = self._texts[place - 1]
            if begin.startswith(nearest):
                return [self._members[nearest][1]]
            begin = shared_start(begin, nearest)
        return []

    def covered(self, conjunction: Conjunction) -> Iterable[Member]:
        """See `Family`."""
        constraint = conjunction.constraint(self._attribute)
        low, high = "", None
        if isinstance(constraint, Strings):
            if constraint.suffix if self._is_prefix else not _is_nearly_open(constraint):
                return []
            grams = self._grams.rarest(constraint.contains)
            if grams is not None:
                return [member for mine, member in map(self._members.__getitem__, grams) if conjunction.covers(mine)]
            suffix = constraint.suffix[::-1]
            low, high = constraint.bounds if self._is_prefix else (suffix, prefix_end(suffix))
        elif constraint is not None and not isinstance(constraint, Present | Unlike):
            return []
        return self._longest_apart(conjunction, low, high)

    def members(self) -> Iterable[Member]:
        """See `Family`."""
        return [member for _, member in self._members.values()]

    def __len__(self) -> int:
        return len(self._texts)

    def _begin(self, constraint: Constraint | None) -> str:
        """What all strings of a constraint begin with, or end with, read backwards."""
        if isinstance(constraint, Strings):
            return common_prefix(*constraint.bounds) if self._is_prefix else constraint.suffix[::-1]
        if isinstance(constraint, OneOf) and constraint.kind is Kind.STRING:
            texts = [str(value) if self._is_prefix else str(value)[::-1] for value in constraint.values]
            return shared_start(min(texts), max(texts))
        return ""

    def _longest_apart(self, conjunction: Conjunction, low: str, high: str | None) -> Iterable[Member]:
        """Members between two texts that a conjunction covers, without those that begin like another one of them."""
        place = bisect_left(self._texts, low)
        while place < len(self._texts) and is_below(self._texts[place], high):
            text = self._texts[place]
            mine, member = self._members[text]
            place += 1
            if conjunction.covers(mine):
                yield member
                end = prefix_end(text)
                place = len(self._texts) if end is None else bisect_left(self._texts, end, place)


class ContainsFamily(ScanFamily[Member]):
    """Members by their substring for one attribute. All other attributes have a single value."""

    def __init__(self, attribute: str) -> None:
        super().__init__()
        self._attribute = attribute
        self._by_text: dict[str, Conjunction] = {}
        self._lengths: Counter[int] = Counter()
        self._grams = _Grams()

    def add(self, conjunction: Conjunction, member: Member) -> None:
        """See `Family`."""
        super().add(conjunction, member)
        text = self._parts(conjunction)[-1]
        self._by_text[text] = conjunction
        self._lengths[len(text)] += 1
        self._grams.add(text)

    def remove(self, conjunction: Conjunction) -> None:
        """See `Family`."""
        super().remove(conjunction)
        text = self._parts(conjunction)[-1]
        del self._by_text[text]
        self._lengths[len(text)] -= 1
        self._grams.remove(text)

    def _near(self, conjunction: Conjunction, *, above: bool) -> Iterable[Conjunction]:
        if above:
            return self._inside(self._parts(conjunction))
        constraint = conjunction.constraint(self._attribute)
        if constraint is None or isinstance(constraint, Present | Unlike):
            return self._members
        if not isinstance(constraint, Strings) or constraint.suffix or not _is_nearly_open(constraint):
            return ()
        grams = self._grams.rarest(constraint.contains)
        return self._members if grams is None else map(self._by_text.__getitem__, grams)

    def _inside(self, parts: Iterable[str]) -> Iterable[Conjunction]:
        """Members whose text is in one of the parts."""
        lengths = [length for length, count in self._lengths.items() if count]
        found = set()
        for part in parts:
            if len(part) * len(lengths) > len(self._by_text):
                found |= {mine for text, mine in self._by_text.items() if text in part}
                continue
            for length in lengths:
                for start in range(len(part) - length + 1):
                    mine = self._by_text.get(part[start : start + length])
                    if mine is not None:
                        found.add(mine)
        return found

    def _parts(self, conjunction: Conjunction) -> tuple[str, ...]:
        """Texts in one of which a substring must be that all strings of the attribute contain; substrings last."""
        constraint = conjunction.constraint(self._attribute)
        if isinstance(constraint, Strings):
            return (common_prefix(*constraint.bounds), constraint.suffix, *constraint.contains)
        if isinstance(constraint, OneOf) and constraint.kind is Kind.STRING:
            return (str(constraint.values[0]),)
        return ()


class _Grams:
    """Texts, which may be held backwards, by each three letters that are in them."""

    def __init__(self, *, is_reversed: bool = False) -> None:
        self._step = -1 if is_reversed else 1
        self._texts: dict[str, set[str]] = {}

    def add(self, text: str) -> None:
        """Take a text in."""
        for gram in _grams(text):
            self._texts.setdefault(gram, set()).add(text)

    def remove(self, text: str) -> None:
        """Let a text go."""
        for gram in _grams(text):
            self._texts[gram].remove(text)
            if not self._texts[gram]:
                del self._texts[gram]

    def rarest(self, parts: Iterable[str]) -> Iterable[str] | None:
        """Few texts, among which are all that contain each of the parts; None if the parts are too short to tell."""
        found = [self._texts.get(gram, set()) for part in parts for gram in _grams(part[:: self._step])]
        return min(found, key=len, default=None)


def _grams(text: str) -> set[str]:
    return {text[start : start + _GRAM] for start in range(len(text) - _GRAM + 1)}
