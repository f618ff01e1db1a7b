"""Families: similar conjunctions, kept so that the nearest ones above and below a new one are found quickly.

Owns the interface of a family and its five types. Never touches the order of filters: the poset decides with the
members that it gets from here.

The conjunctions of a family have the same attributes, the same values where a single value is required, and the same
shape elsewhere. `class = 'STOCK' and symbol = 'YHOO' and volume > x` is one family for all x, and a line: of its
members that cover a conjunction only the nearest can be a parent.

    ThresholdFamily   numbers between bounds: a line is searched by bisection, several bounds at once are scanned
    AffixFamily       one prefix, or one suffix: a sorted list of texts
    ContainsFamily    one substring: looked up by the parts of a text, or by its rarest three letters
    ListFamily        one list of values: looked up by its values
    ScanFamily        everything else: all members are compared
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from shoal.filters.conjunctions import Conjunction
from shoal.filters.constraints import Constraint, Exists, Unlike
from shoal.filters.ranges import Numbers, OneOf
from shoal.filters.strings import Strings, common_prefix, is_below, prefix_end, shared_start
from shoal.filters.values import NUMBER_MAX, NUMBER_MIN, Number, Value, ValueKind, kind_of

Member = TypeVar("Member")

# Shapes of constraints.
ABOVE: Final = "above"
BELOW: Final = "below"
BETWEEN: Final = "between"
NUMBER: Final = "number"
PREFIX: Final = "prefix"
SUFFIX: Final = "suffix"
CONTAINS: Final = "contains"

_Vector: TypeAlias = tuple[Number, ...]
_Extent: TypeAlias = tuple[Number, Number]
_LINE: Final = (NUMBER_MIN, NUMBER_MAX)
_GRAM: Final = 3
"""Letters by which longer substrings are looked up; shorter ones are compared with all members."""


class Family(Protocol[Member]):
    """Members by their conjunctions, which are all of one family and unique."""

    def add(self, conjunction: Conjunction, member: Member) -> None:
        """Adds a member."""

    def remove(self, conjunction: Conjunction) -> None:
        """Removes a member that is there."""

    def covering(self, conjunction: Conjunction) -> Iterable[Member]:
        """Members that cover a conjunction; at least those that cover no other such member."""

    def covered(self, conjunction: Conjunction) -> Iterable[Member]:
        """Members that a conjunction covers; at least those that no other such member covers."""

    def members(self) -> Iterable[Member]:
        """All members."""

    def __len__(self) -> int: ...


class ScanFamily(Generic[Member]):
    """Members in no order."""

    def __init__(self) -> None:
        self._members: dict[Conjunction, Member] = {}

    def add(self, conjunction: Conjunction, member: Member) -> None:
        """See `Family`."""
        self._members[conjunction] = member

    def remove(self, conjunction: Conjunction) -> None:
        """See `Family`."""
        del self._members[conjunction]

    def covering(self, conjunction: Conjunction) -> Iterable[Member]:
        """See `Family`."""
        return [self._members[mine] for mine in self._near(conjunction, above=True) if mine.covers(conjunction)]

    def covered(self, conjunction: Conjunction) -> Iterable[Member]:
        """See `Family`."""
        return [self._members[mine] for mine in self._near(conjunction, above=False) if conjunction.covers(mine)]

    def members(self) -> Iterable[Member]:
        """See `Family`."""
        return self._members.values()

    def __len__(self) -> int:
        return len(self._members)

    def _near(self, conjunction: Conjunction, *, above: bool) -> Iterable[Conjunction]:
        """Members that can cover a conjunction, or be covered by it. Additional ones only cost time."""
        return self._members


class ListFamily(ScanFamily[Member]):
    """Members by the values that they list for one attribute. All other attributes have a single value."""

    def __init__(self, attribute: str) -> None:
        super().__init__()
        self._attribute = attribute
        self._by_value: dict[tuple[ValueKind, Value], set[Conjunction]] = {}

    def add(self, conjunction: Conjunction, member: Member) -> None:
        """See `Family`."""
        super().add(conjunction, member)
        for key in self._keys(conjunction):
            self._by_value.setdefault(key, set()).add(conjunction)

    def remove(self, conjunction: Conjunction) -> None:
        """See `Family`."""
        super().remove(conjunction)
        for key in self._keys(conjunction):
            self._by_value[key].remove(conjunction)
            if not self._by_value[key]:
                del self._by_value[key]

    def _near(self, conjunction: Conjunction, *, above: bool) -> Iterable[Conjunction]:
        if not above and not isinstance(conjunction.constraint(self._attribute), OneOf):
            return self._members
        found = [self._by_value.get(key, set()) for key in self._keys(conjunction)]
        if above:
            return min(found, key=len, default=())
        return set().union(*found)

    def _keys(self, conjunction: Conjunction) -> list[tuple[ValueKind, Value]]:
        """Values that the attribute may have, and that all lists above must contain as well."""
        constraint = conjunction.constraint(self._attribute)
        if isinstance(constraint, Numbers):
            return [(ValueKind.NUMBER, constraint.low)]
        return [(kind_of(value), value) for value in constraint.values] if isinstance(constraint, OneOf) else []


def number_shape(constraint: Numbers) -> str | None:
    """On which sides an interval has bounds; None if it is more than an interval."""
    if constraint.excluded:
        return None
    if constraint.high == NUMBER_MAX:
        return NUMBER if constraint.low == NUMBER_MIN else ABOVE
    return BELOW if constraint.low == NUMBER_MIN else BETWEEN


class ThresholdFamily(Generic[Member]):
    """Members by the vector of their bounds, upper ones negated: one covers another if no component of its vector is
    larger.

    `shapes` are the attributes with bounds, and on which sides. All other attributes have a single value. With one
    bound the family is a line, and is searched by bisection. With more, all members on the right side of the first
    bound are examined.
    """

    def __init__(self, shapes: Iterable[tuple[str, str]]) -> None:
        self._shapes = tuple(shapes)
        self._vectors: list[_Vector] = []
        self._members: dict[_Vector, tuple[Conjunction, Member]] = {}

    def add(self, conjunction: Conjunction, member: Member) -> None:
        """See `Family`."""
        vector = self._own_vector(conjunction)
        insort(self._vectors, vector)
        self._members[vector] = (conjunction, member)

    def remove(self, conjunction: Conjunction) -> None:
        """See `Family`."""
        vector = self._own_vector(conjunction)
        del self._vectors[bisect_left(self._vectors, vector)]
        del self._members[vector]

    def covering(self, conjunction: Conjunction) -> Iterable[Member]:
        """See `Family`."""
        extents = []
        for attribute, _ in self._shapes:
            extent = _extent(conjunction.constraint(attribute))
            if extent is None:
                return []
            extents.append(extent)
        vector = self._vector(extents)
        end = bisect_right(self._vectors, vector)
        if len(vector) <= 1:
            return [self._members[nearest][1] for nearest in self._vectors[max(end - 1, 0) : end]]
        found: list[_Vector] = []
        for mine in reversed([mine for mine in self._vectors[:end] if mine[1] <= vector[1]]):
            if _all(operator.le, mine, vector) and not any(_all(operator.le, mine, nearer) for nearer in found):
                found.append(mine)
        return [self._members[mine][1] for mine in found]

    def covered(self, conjunction: Conjunction) -> Iterable[Member]:
        """See `Family`."""
        extents = []
        for attribute, shape in self._shapes:
            constraint = conjunction.constraint(attribute)
            extent = _LINE if constraint is None or isinstance(constraint, Exists | Unlike) else _extent(constraint)
            if extent is None or not _may_cover(extent, shape):
                return []
            extents.append(extent)
        vector = self._vector(extents)
        start = bisect_left(self._vectors, vector)
        found: list[_Vector] = []
        for place in range(start, len(self._vectors)):
            mine = self._vectors[place]
            if (
                _all(operator.ge, mine, vector)
                and not any(_all(operator.ge, mine, nearer) for nearer in found)
                and conjunction.covers(self._members[mine][0])
            ):
                found.append(mine)
                if len(vector) <= 1:
                    break
        return [self._members[mine][1] for mine in found]

    def next_on_line(self, conjunction: Conjunction) -> tuple[Conjunction, Member] | None:
        """The nearest member below a conjunction of this family; None if there is none, or if the family is not a
        line."""
        vector = self._own_vector(conjunction)
        place = bisect_right(self._vectors, vector)
        return self._members[self._vectors[place]] if len(vector) == 1 and place < len(self._vectors) else None

    def members(self) -> Iterable[Member]:
        """See `Family`."""
        return [member for _, member in self._members.values()]

    def __len__(self) -> int:
        return len(self._vectors)

    def _own_vector(self, conjunction: Conjunction) -> _Vector:
        constraints = (conjunction.constraint(attribute) for attribute, _ in self._shapes)
        return self._vector([_extent(constraint) or _LINE for constraint in constraints])

    def _vector(self, extents: Iterable[_Extent]) -> _Vector:
        vector: list[Number] = []
        for (low, high), (_, shape) in zip(extents, self._shapes, strict=True):
            if shape in (ABOVE, BETWEEN):
                vector.append(low)
            if shape in (BELOW, BETWEEN):
                vector.append(-high)
        return tuple(vector)


class Bounds(Generic[Member]):
    """All conjunctions by each bound that they have on a number, across families.

    What `a > 5` covers and `a > 6` does not has a bound between 5 and 6. So where the next member of a line is known,
    all children of a new one are between the two, and other families need not be searched.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], tuple[list[Number], dict[Number, dict[Conjunction, Member]]]] = {}

    def add(self, conjunction: Conjunction, member: Member) -> None:
        """Adds a conjunction."""
        for name, bound in _bounds(conjunction):
            numbers, members = self._lines.setdefault(name, ([], {}))
            if bound not in members:
                insort(numbers, bound)
                members[bound] = {}
            members[bound][conjunction] = member

    def remove(self, conjunction: Conjunction) -> None:
        """Removes a conjunction that is there."""
        for name, bound in _bounds(conjunction):
            numbers, members = self._lines[name]
            del members[bound][conjunction]
            if not members[bound]:
                del members[bound]
                del numbers[bisect_left(numbers, bound)]
                if not numbers:
                    del self._lines[name]

    def between(self, wide: Conjunction, narrow: Conjunction, limit: int) -> list[tuple[Conjunction, Member]] | None:
        """Everything that has a bound between those of two conjunctions of one line; None if there are more than
        `limit` such bounds."""
        for (name, start), (_, end) in zip(_bounds(wide), _bounds(narrow), strict=True):
            if start != end:
                numbers, members = self._lines[name]
                first, last = bisect_left(numbers, start), bisect_left(numbers, end)
                if last - first > limit:
                    return None
                return [item for number in numbers[first:last] for item in members[number].items()]
        return None


def _bounds(conjunction: Conjunction) -> Iterator[tuple[tuple[str, str], Number]]:
    """Attribute, side and place of each bound. Upper ones are negated, so that a larger one is always narrower."""
    for attribute, constraint in conjunction.constraints:
        extent = _extent(constraint)
        if extent is not None:
            low, high = extent
            if low != NUMBER_MIN:
                yield (attribute, ABOVE), low
            if high != NUMBER_MAX:
                yield (attribute, BELOW), -high


def _extent(constraint: Constraint | None) -> _Extent | None:
    """The smallest and the largest number of a constraint on numbers; None for any other constraint."""
    if isinstance(constraint, Numbers):
        return constraint.low, constraint.high
    if isinstance(constraint, OneOf) and constraint.kind is ValueKind.NUMBER:
        return constraint.values[0], constraint.values[-1]  # type: ignore[return-value]  # these are numbers
    return None


def _may_cover(extent: _Extent, shape: str) -> bool:
    """Whether an extent is open on the sides where constraints of a shape are open."""
    low, high = extent
    return (low == NUMBER_MIN or shape in (ABOVE, BETWEEN)) and (high == NUMBER_MAX or shape in (BELOW, BETWEEN))


def _all(compare: Callable[[Number, Number], bool], one: _Vector, other: _Vector) -> bool:
    return all(map(compare, one, other))


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
    """Whether bounds reject only the smallest strings: the empty one, as `!= ''` does, and runs of NULs. How strings
    end and what they contain says nothing about how they begin, so no other bounds can cover it."""
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
        elif constraint is not None and not isinstance(constraint, Exists | Unlike):
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
        if isinstance(constraint, OneOf) and constraint.kind is ValueKind.STRING:
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
        if constraint is None or isinstance(constraint, Exists | Unlike):
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
        """Texts one of which must contain a substring that all strings of the attribute contain; substrings last."""
        constraint = conjunction.constraint(self._attribute)
        if isinstance(constraint, Strings):
            return (common_prefix(*constraint.bounds), constraint.suffix, *constraint.contains)
        if isinstance(constraint, OneOf) and constraint.kind is ValueKind.STRING:
            return (str(constraint.values[0]),)
        return ()


class _Grams:
    """Texts, possibly reversed, by the sequences of three letters in them."""

    def __init__(self, *, is_reversed: bool = False) -> None:
        self._step = -1 if is_reversed else 1
        self._texts: dict[str, set[str]] = {}

    def add(self, text: str) -> None:
        """Adds a text."""
        for gram in _grams(text):
            self._texts.setdefault(gram, set()).add(text)

    def remove(self, text: str) -> None:
        """Removes a text."""
        for gram in _grams(text):
            self._texts[gram].remove(text)
            if not self._texts[gram]:
                del self._texts[gram]

    def rarest(self, parts: Iterable[str]) -> Iterable[str] | None:
        """A small set of texts that includes all that contain each of the parts; None if the parts are too short to
        tell."""
        found = [self._texts.get(gram, set()) for part in parts for gram in _grams(part[:: self._step])]
        return min(found, key=len, default=None)


def _grams(text: str) -> set[str]:
    return {text[start : start + _GRAM] for start in range(len(text) - _GRAM + 1)}
