"""Families of conjunctions that differ in the bounds of numbers.

Owns their vectors of bounds. Never touches text. See `families` for what a family is.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, TypeAlias

from shoal.filters.conjunctions import Conjunction
from shoal.filters.constraints import Constraint, Present, Unlike
from shoal.filters.families import Member
from shoal.filters.ranges import Numbers, OneOf
from shoal.filters.values import NUMBER_MAX, NUMBER_MIN, Kind, Number

ABOVE: Final = "above"
BELOW: Final = "below"
BETWEEN: Final = "between"
NUMBER: Final = "number"

_Vector: TypeAlias = tuple[Number, ...]
_Extent: TypeAlias = tuple[Number, Number]
_LINE: Final = (NUMBER_MIN, NUMBER_MAX)


def number_shape(constraint: Numbers) -> str | None:
    """On which sides an interval has bounds; None if it is more than an interval."""
    if constraint.excluded:
        return None
    if constraint.high == NUMBER_MAX:
        return NUMBER if constraint.low == NUMBER_MIN else ABOVE
    return BELOW if constraint.low == NUMBER_MIN else BETWEEN


class ThresholdFamily(Generic[Member]):
    """Members by the vector of their bounds, upper ones negated: one covers another if no part of its vector is larger.

    `shapes` are the attributes with bounds, and on which sides. All other attributes have a single value. With one
    bound the family is a line, and is searched by halving. With more, all members on the right side of the first bound
    are looked at.
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
            extent = _LINE if constraint is None or isinstance(constraint, Present | Unlike) else _extent(constraint)
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
        """The nearest member below a conjunction of this family; None if there is none, or if this is no line."""
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
    """All conjunctions by each bound that they have on a number, whatever their families.

    What `a > 5` covers and `a > 6` does not has a bound between 5 and 6. So where the next one of a line is known, all
    that a new one can get as a child stands between the two, and other families need not be asked.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], tuple[list[Number], dict[Number, dict[Conjunction, Member]]]] = {}

    def add(self, conjunction: Conjunction, member: Member) -> None:
        """Take one in."""
        for name, bound in _bounds(conjunction):
            numbers, members = self._lines.setdefault(name, ([], {}))
            if bound not in members:
                insort(numbers, bound)
                members[bound] = {}
            members[bound][conjunction] = member

    def remove(self, conjunction: Conjunction) -> None:
        """Let one go that is there."""
        for name, bound in _bounds(conjunction):
            numbers, members = self._lines[name]
            del members[bound][conjunction]
            if not members[bound]:
                del members[bound]
                del numbers[bisect_left(numbers, bound)]
                if not numbers:
                    del self._lines[name]

    def between(self, wide: Conjunction, narrow: Conjunction, limit: int) -> list[tuple[Conjunction, Member]] | None:
        """All that has a bound from that of one conjunction up to that of another, of the same line; None if that are
        more than `limit` bounds."""
        for (name, start), (_, end) in zip(_bounds(wide), _bounds(narrow), strict=True):
            if start != end:
                numbers, members = self._lines[name]
                first, last = bisect_left(numbers, start), bisect_left(numbers, end)
                if last - first > limit:
                    return None
                return [item for number in numbers[first:last] for item in members[number].items()]
        return None


def _bounds(conjunction: Conjunction) -> Iterator[tuple[tuple[str, str], Number]]:
    """Attribute, side and place of each bound; upper ones negated, so that a larger one is always narrower."""
    for attribute, constraint in conjunction.constraints:
        extent = _extent(constraint)
        if extent is not None:
            low, high = extent
            if low != NUMBER_MIN:
                yield (attribute, ABOVE), low
            if high != NUMBER_MAX:
                yield (attribute, BELOW), -high


def _extent(constraint: Constraint | None) -> _Extent | None:
    """The smallest and the largest number of a constraint on numbers; None of every other one."""
    if isinstance(constraint, Numbers):
        return constraint.low, constraint.high
    if isinstance(constraint, OneOf) and constraint.kind is Kind.NUMBER:
        return constraint.values[0], constraint.values[-1]  # type: ignore[return-value]  # they are numbers
    return None


def _may_cover(extent: _Extent, shape: str) -> bool:
    """Whether an extent has no end where constraints of a shape have none."""
    low, high = extent
    return (low == NUMBER_MIN or shape in (ABOVE, BETWEEN)) and (high == NUMBER_MAX or shape in (BELOW, BETWEEN))


def _all(compare: Callable[[Number, Number], bool], one: _Vector, other: _Vector) -> bool:
    return all(map(compare, one, other))
