"""Constraints on strings: `Strings`.

Owns the canonical form of everything that a conjunction says about a string, and the arithmetic of intervals of
strings. Never touches other kinds of values.

Intervals are half-open, [low, high) in code point order; a `high` of None is no bound. The next string after `s` is `s`
followed by a NUL, so an interval is finite only if `high` is `low` followed by NULs. Every other interval contains all
strings that begin with some `q`. A prefix is an interval too, from itself to `prefix_end`.

Bounds, prefixes and negated prefixes are intervals and are folded into one interval with holes. What the interval does
not express stays beside it: one suffix, substrings, and the negations of both. An infinite set has room for anything in
the middle of its strings, so the parts cannot imply each other except as substrings of each other, and reasoning about
them one by one is complete. The exceptions:

- `meet` may not see that nothing is left, and so `intersects` may return True, for two or more `not contains`, or for
  `not contains` with bounds that are not those of a prefix (`s >= 'ab' and s < 'ad' and not s contains 'abb' and not s
  contains 'abc'` is empty).
- `covers` may return False, and two constraints with one meaning may differ, with several wildcards, or with a wildcard
  beside substrings, and where `not contains` rejects strings near
  a bound, or where a bound ends in NULs and a suffix or a substring rejects it.

Every answer is sound nevertheless, and `covers` is a partial order: transitive, and two constraints that cover each
other are equal. The poset of filters depends on that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.filters.predicates import Operator, Predicate, none_of
from shoal.filters.ranges import Numbers, OneOf, is_listed, one_of
from shoal.filters.values import Value, ValueKind
from shoal.filters.wildcards import affixes_imply, implies, matches, parts_of

if TYPE_CHECKING:
    from shoal.filters.constraints import Constraint


NUL: Final = "\0"
_LAST: Final = "\U0010ffff"
_BEFORE_SURROGATES: Final = "\ud7ff"
_BEHIND_SURROGATES: Final = "\ue000"


def prefix_end(prefix: str) -> str | None:
    """The first string after all those that begin with `prefix`; None if there is none."""
    stem = prefix.rstrip(_LAST)
    return stem[:-1] + _next(stem[-1]) if stem else None


def is_below(text: str, high: str | None) -> bool:
    """Whether a string is below an upper bound."""
    return high is None or text < high


def reaches(high: str | None, other: str | None) -> bool:
    """Whether an upper bound is at least as high as another one."""
    return high is None or (other is not None and other <= high)


def lower_of(high: str | None, other: str | None) -> str | None:
    """The stricter of two upper bounds."""
    return other if reaches(high, other) else high


def points(low: str, high: str | None) -> list[str] | None:
    """The strings of a finite interval; None if the interval is infinite."""
    if not is_below(low, high):
        return []
    steps = nuls_behind(low, high) if high is not None else None
    return None if steps is None else [low + NUL * step for step in range(steps)]


def nuls_behind(text: str, longer: str) -> int | None:
    """The number of NULs to append to `text` to get `longer`; None if that is not how they differ."""
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
    """The longest common prefix of two strings."""
    for place, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return one[:place]
    return min(one, other, key=len)


def _last_run(text: str) -> str:
    """The run of the last code point at the start of a string. Nothing sorts after it, so greater strings begin with it
    too."""
    return text[: len(text) - len(text.lstrip(_LAST))]


def _next(character: str) -> str:
    """The code point after one that is not the last. Surrogates are skipped."""
    return _BEHIND_SURROGATES if character == _BEFORE_SURROGATES else chr(ord(character) + 1)


class Strings(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=3):
    """The strings in [low, high) that begin with `prefix`, end with `suffix`, contain all of `contains`, match all of
    `wildcards`, and meet none of the negated conditions in the other fields. What a wildcard begins and ends with, and
    its parts, are in the other fields too, so that the index and `covers` use them; they are not printed.

    Canonical: infinite; a prefix has no bounds beside it; all lists are sorted; no part follows from the others.
    `strings_of` makes one.
    """

    low: str = ""
    high: str | None = None
    prefix: str = ""
    suffix: str = ""
    contains: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    not_prefix: tuple[str, ...] = ()
    not_suffix: tuple[str, ...] = ()
    not_contains: tuple[str, ...] = ()
    wildcards: tuple[str, ...] = ()
    not_wildcards: tuple[str, ...] = ()

    @property
    def bounds(self) -> tuple[str, str | None]:
        """The interval that contains all the strings, that of the prefix included."""
        return (self.prefix, prefix_end(self.prefix)) if self.prefix else (self.low, self.high)

    @property
    def is_interval(self) -> bool:
        """Whether the interval without `excluded` is the whole condition."""
        return self == Strings(self.low, self.high, self.prefix, excluded=self.excluded)

    def accepts(self, value: Value | None) -> bool:
        """Whether a value, or None for absence, is in the set."""
        return (
            isinstance(value, str)
            and value.startswith(self.prefix)
            and self.low <= value
            and (self.high is None or value < self.high)
            and _fits(value, self)
            and not is_listed(value, self.excluded)
            and not (self.not_prefix and value.startswith(self.not_prefix))
        )

    def covers(self, other: Constraint) -> bool:
        """Whether everything that `other` accepts is certainly accepted here."""
        if isinstance(other, OneOf):
            return all(map(self.accepts, other.values))
        return isinstance(other, Strings) and _covers(self, other)

    def intersects(self, other: Constraint) -> bool:
        """Whether both may accept some value. False is certain."""
        if isinstance(other, OneOf):
            return any(map(self.accepts, other.values))
        return self.meet(other) is not None

    def meet(self, other: Constraint) -> Constraint | None:
        """The strings that both accept. None if no string can satisfy both."""
        if isinstance(other, OneOf):
            return one_of(filter(self.accepts, other.values))
        if isinstance(other, Numbers):
            return None
        if not isinstance(other, Strings):
            return other.meet(self)
        low, high = self.bounds
        other_low, other_high = other.bounds
        if not (self.suffix.endswith(other.suffix) or other.suffix.endswith(self.suffix)):
            return None
        return strings_of(
            max(low, other_low),
            lower_of(high, other_high),
            suffix=max(self.suffix, other.suffix, key=len),
            contains=(*self.contains, *other.contains),
            excluded=(*self.excluded, *other.excluded),
            not_prefix=(*self.not_prefix, *other.not_prefix),
            not_suffix=(*self.not_suffix, *other.not_suffix),
            not_contains=(*self.not_contains, *other.not_contains),
            wildcards=(*self.wildcards, *other.wildcards),
            not_wildcards=(*self.not_wildcards, *other.not_wildcards),
        )

    def predicates(self, attribute: str) -> tuple[Predicate, ...]:
        """The shortest spelling."""
        found: list[tuple[Operator, str]] = []
        patterns = list(map(parts_of, self.wildcards))
        if self.prefix and not any(parts[0] == self.prefix for parts in patterns):
            found.append((Operator.PREFIX, self.prefix))
        if self.low:
            strict = self.low.endswith(NUL)
            found.append((Operator.GT, self.low[:-1]) if strict else (Operator.GE, self.low))
        if self.high is not None:
            closed = self.high.endswith(NUL)
            found.append((Operator.LE, self.high[:-1]) if closed else (Operator.LT, self.high))
        if self.suffix and not any(parts[-1] == self.suffix for parts in patterns):
            found.append((Operator.SUFFIX, self.suffix))
        found.extend(
            (Operator.CONTAINS, text)
            for text in self.contains
            if not any(text in part for parts in patterns for part in parts)
        )
        found.extend((Operator.WILDCARD, pattern) for pattern in self.wildcards)
        never = [(Operator.NOT_PREFIX, text) for text in self.not_prefix]
        never.extend((Operator.NOT_SUFFIX, text) for text in self.not_suffix)
        never.extend((Operator.NOT_CONTAINS, text) for text in self.not_contains)
        never.extend((Operator.NOT_WILDCARD, pattern) for pattern in self.not_wildcards)
        spelled = (
            *(Predicate(attribute, operator, text) for operator, text in found),
            *none_of(attribute, self.excluded),
            *(Predicate(attribute, operator, text) for operator, text in never),
        )
        return spelled or (Predicate(attribute, Operator.IS, ValueKind.STRING.word),)


def strings_of(
    low: str = "",
    high: str | None = None,
    *,
    suffix: str = "",
    contains: Iterable[str] = (),
    excluded: Iterable[str] = (),
    not_prefix: Iterable[str] = (),
    not_suffix: Iterable[str] = (),
    not_contains: Iterable[str] = (),
    wildcards: Iterable[str] = (),
    not_wildcards: Iterable[str] = (),
) -> Constraint | None:
    """The canonical set of the strings that meet all these conditions; None if it is certainly empty."""
    never_inside = _minimal(not_contains, _contains)
    never_first = _minimal(not_prefix, str.startswith, unless=never_inside)
    never_last = tuple(
        text
        for text in _minimal(not_suffix, str.endswith, unless=never_inside)
        if text.endswith(suffix) or suffix.endswith(text)
    )
    pattern = Strings(
        suffix=suffix,
        contains=tuple(contains),
        excluded=tuple(sorted(set(excluded))),
        not_prefix=never_first,
        not_suffix=never_last,
        not_contains=never_inside,
        wildcards=_narrowest(wildcards),
        not_wildcards=_widest(not_wildcards),
    )
    interval = _narrowed(low, high, pattern)
    if interval is None:
        return None
    low, high = interval
    finite = points(low, high)
    if finite is not None:
        return one_of(filter(pattern.accepts, finite))
    first = common_prefix(low, high)
    certain = (first, suffix, *pattern.contains)
    if any(text in part for text in never_inside for part in certain) or any(map(suffix.endswith, never_last)):
        return None
    if any(_surely_matches(first, pattern, never) for never in pattern.not_wildcards):
        return None
    is_prefix = low != "" and prefix_end(low) == high
    rest = Strings(
        low="" if is_prefix else low,
        high=None if is_prefix else high,
        prefix=low if is_prefix else "",
        suffix=suffix,
        contains=tuple(text for text in _maximal(pattern.contains) if text not in first and text not in suffix),
        not_prefix=tuple(text for text in never_first if low < text and is_below(text, high)),
        not_suffix=never_last,
        not_contains=never_inside,
    )
    if pattern.wildcards or pattern.not_wildcards:
        rest = msgspec.structs.replace(
            rest,
            wildcards=tuple(each for each in pattern.wildcards if not _surely_matches(first, rest, each)),
            not_wildcards=tuple(each for each in pattern.not_wildcards if not _never_matches(rest, each)),
        )
    return msgspec.structs.replace(rest, excluded=tuple(filter(rest.accepts, pattern.excluded)))


def strings_like(pattern: str) -> Constraint | None:
    """The strings that a wildcard matches."""
    parts = parts_of(pattern)
    if len(parts) == 1:
        return one_of(parts)
    head, *middle, tail = parts
    return strings_of(
        head,
        prefix_end(head) if head else None,
        suffix=tail,
        contains=middle,
        wildcards=() if middle and parts == ("", middle[0], "") else (pattern,),
    )


def never_like(pattern: str) -> dict[str, tuple[str, ...]]:
    """The strings that a wildcard does not match, as an argument of `strings_of` and `strings_without`."""
    match parts_of(pattern):
        case (text,):
            return {"excluded": (text,)}
        case (text, ""):
            return {"not_prefix": (text,)}
        case ("", text):
            return {"not_suffix": (text,)}
        case ("", text, ""):
            return {"not_contains": (text,)}
        case _:
            return {"not_wildcards": (pattern,)}


def strings_without(
    excluded: Iterable[str] = (),
    not_prefix: Iterable[str] = (),
    not_suffix: Iterable[str] = (),
    not_contains: Iterable[str] = (),
    not_wildcards: Iterable[str] = (),
) -> Strings:
    """The strings that meet none of the listed conditions, expressed by these lists alone: nothing becomes a bound.

    No text outside `excluded` is empty. So there are infinitely many such strings: for example those made of letters
    that occur in no list.
    """
    never_inside = _minimal(not_contains, _contains)
    rest = Strings(
        not_prefix=_minimal(not_prefix, str.startswith, unless=never_inside),
        not_suffix=_minimal(not_suffix, str.endswith, unless=never_inside),
        not_contains=never_inside,
    )
    patterns = tuple(each for each in _widest(not_wildcards) if not _never_matches(rest, each))
    rest = msgspec.structs.replace(rest, not_wildcards=patterns)
    return msgspec.structs.replace(rest, excluded=tuple(sorted(set(filter(rest.accepts, excluded)))))


def _fits(text: str, pattern: Strings) -> bool:
    """Whether a string has the suffix and the substrings, matches the wildcards, and none of the negated ones."""
    return (
        text.endswith(pattern.suffix)
        and not (pattern.not_suffix and text.endswith(pattern.not_suffix))
        and all(part in text for part in pattern.contains)
        and not any(part in text for part in pattern.not_contains)
        and not (pattern.wildcards and not all(matches(parts_of(each), text) for each in pattern.wildcards))
        and not (pattern.not_wildcards and any(matches(parts_of(each), text) for each in pattern.not_wildcards))
    )


def _narrowed(low: str, high: str | None, pattern: Strings) -> tuple[str, str | None] | None:
    """The canonical bounds of an interval under the conditions of `pattern`; None if nothing is left.

    A hole at an end moves that end. Which end represents strings that the suffix or a substring rejects is a
    convention: an upper end excludes them; a lower end includes them, unless all the others continue with a NUL.
    """
    while is_below(low, high):
        before = low, high
        for prefix in pattern.not_prefix:
            end = prefix_end(prefix)
            if prefix <= low and is_below(low, end):
                if end is None:
                    return None
                low = end
            elif is_below(prefix, high) and reaches(end, high):
                high = prefix
        if high is not None and high.endswith(NUL):
            last = high[:-1]
            if last in pattern.excluded or not _fits(last, pattern):
                high = last
        if _fits(low, pattern):
            low += NUL if low in pattern.excluded else ""
        elif high is not None and high <= low + "\1":
            low += NUL
        if low.endswith(NUL) and not _fits(low[:-1], pattern) and not (high is not None and high <= low[:-1] + "\1"):
            low = low[:-1]
        if (low, high) == before:
            return before
    return None


def _covers(self: Strings, other: Strings) -> bool:
    """`covers` between two infinite sets of strings."""
    low, high = self.bounds
    other_low, other_high = other.bounds
    if not (reaches(high, other_high) and other.suffix.endswith(self.suffix)):
        return False
    if low > other_low:
        steps = nuls_behind(other_low, low)
        if steps is None or any(other.accepts(other_low + NUL * step) for step in range(steps)):
            return False
    return (
        all(_surely_contains(other, text) for text in self.contains)
        and not any(map(other.accepts, self.excluded))
        and all(_never_begins(other, text) for text in self.not_prefix)
        and all(_never_ends(other, text) for text in self.not_suffix)
        and all(_never_contains(other, text) for text in self.not_contains)
        and all(_surely_matches(common_prefix(*other.bounds), other, pattern) for pattern in self.wildcards)
        and all(_never_matches(other, pattern) for pattern in self.not_wildcards)
    )


def _surely_contains(strings: Strings, text: str) -> bool:
    return (
        text in strings.suffix
        or any(text in part for part in strings.contains)
        or text in common_prefix(*strings.bounds)
    )


def _never_begins(strings: Strings, text: str) -> bool:
    low, high = strings.bounds
    end = prefix_end(text)
    apart = not is_below(text, high) or not is_below(low, end)
    return apart or text.startswith(strings.not_prefix) or _never_contains(strings, text)


def _never_ends(strings: Strings, text: str) -> bool:
    apart = not (text.endswith(strings.suffix) or strings.suffix.endswith(text))
    return apart or text.endswith(strings.not_suffix) or _never_contains(strings, text)


def _never_contains(strings: Strings, text: str) -> bool:
    return any(part in text for part in strings.not_contains)


def _surely_matches(first: str, strings: Strings, pattern: str) -> bool:
    """Whether all strings of a set, which begin with `first`, match a wildcard: by the prefix and the suffix, by one
    substring, or by one wildcard."""
    wide = parts_of(pattern)
    return (
        affixes_imply(first, strings.suffix, wide)
        or any(implies(("", text, ""), wide) for text in strings.contains)
        or any(each != pattern and implies(parts_of(each), wide) for each in strings.wildcards)
        or pattern in strings.wildcards
    )


def _never_matches(strings: Strings, pattern: str) -> bool:
    """Whether no string of a set matches a wildcard: by its beginning, its end, one of its parts, or by one wildcard
    that is excluded."""
    parts = parts_of(pattern)
    return (
        _never_begins(strings, parts[0])
        or _never_ends(strings, parts[-1])
        or any(_never_contains(strings, part) for part in parts)
        or any(implies(parts, parts_of(each)) for each in strings.not_wildcards)
    )


def _narrowest(patterns: Iterable[str]) -> tuple[str, ...]:
    """The wildcards that follow from no other one of them, sorted."""
    found = sorted(set(patterns))
    return tuple(
        each for each in found if not any(other != each and implies(parts_of(other), parts_of(each)) for other in found)
    )


def _widest(patterns: Iterable[str]) -> tuple[str, ...]:
    """The wildcards that imply no other one of them, sorted."""
    found = sorted(set(patterns))
    return tuple(
        each for each in found if not any(other != each and implies(parts_of(each), parts_of(other)) for other in found)
    )


def _contains(text: str, part: str) -> bool:
    return part in text


def _minimal(texts: Iterable[str], has: Callable[[str, str], bool], unless: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The texts that do not have another one of them, or one of `unless` anywhere inside, sorted."""
    found: list[str] = []
    for text in sorted(set(texts), key=len):
        if not any(has(text, other) for other in found) and not any(part in text for part in unless):
            found.append(text)
    return tuple(sorted(found))


def _maximal(texts: Iterable[str]) -> tuple[str, ...]:
    """The texts that are not part of another one of them, sorted."""
    found: list[str] = []
    for text in sorted(set(texts), key=len, reverse=True):
        if not any(text in other for other in found):
            found.append(text)
    return tuple(sorted(found))
