"""Constraints on numbers, and finite sets of values: `Numbers` and `OneOf`.

Owns the canonical form of both. They are in one module because a finite set of numbers can be either. Never touches
strings that are not listed one by one, or text.

Numbers are points on the line of `shoal.filters.values`, where each has a next one. So every set that `=`, `!=`, `<`,
`in` and the others can describe is a closed interval without some of its points, or a finite set. Two such sets are
compared exactly: `covers`, `intersects` and `meet` are complete here. A finite set of numbers is a `Numbers` if fewer
points are missing between its ends than are in it (in practice: neighbours on the line), otherwise a `OneOf`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import force_setattr

from shoal.errors import FilterError
from shoal.filters.formatter import value_text
from shoal.filters.predicates import Operator, Predicate, none_of
from shoal.filters.values import NUMBER_MAX, NUMBER_MIN, Number, Value, ValueKind, kind_in, kind_of, pred, succ

if TYPE_CHECKING:
    from shoal.filters.constraints import Constraint

_FAR: Final = 4
"""If the ends of a set are further apart than this many times its size, in steps of the widest spacing between them,
more points are missing than present. The exact figure is 2; the rest allows for rounding."""


class Numbers(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """The numbers from `low` to `high`, both included, without those in `excluded`.

    Canonical: both ends are in the set, there are at least two numbers, and `excluded` is sorted and lies inside.
    `numbers_of` makes one.
    """

    low: Number = NUMBER_MIN
    high: Number = NUMBER_MAX
    excluded: tuple[Number, ...] = ()

    def accepts(self, value: Value | None) -> bool:
        """Whether a value, or None for absence, is in the set."""
        if value is None:
            return False
        kind = type(value)
        if kind is not int and kind is not float and (kind is str or kind_in(value) is not ValueKind.NUMBER):
            return False
        return self.low <= value <= self.high and not is_listed(value, self.excluded)  # type: ignore[operator]

    def covers(self, other: Constraint) -> bool:
        """Whether everything that `other` accepts is accepted here."""
        if isinstance(other, Numbers):
            return (
                self.low <= other.low
                and other.high <= self.high
                and not any(other.accepts(number) for number in self.excluded)
            )
        return isinstance(other, OneOf) and all(map(self.accepts, other.values))

    def intersects(self, other: Constraint) -> bool:
        """Whether both accept some value."""
        if isinstance(other, OneOf):
            return any(map(self.accepts, other.values))
        return self.meet(other) is not None

    def meet(self, other: Constraint) -> Constraint | None:
        """The set that both accept; None if it is empty."""
        if isinstance(other, Numbers):
            return numbers_of(max(self.low, other.low), min(self.high, other.high), (*self.excluded, *other.excluded))
        if isinstance(other, OneOf):
            return one_of(filter(self.accepts, other.values))
        return other.meet(self)

    def predicates(self, attribute: str) -> tuple[Predicate, ...]:
        """The shortest spelling."""
        found = [] if self.low == NUMBER_MIN else [_bound(attribute, self.low, Operator.GE, Operator.GT, pred)]
        if self.high != NUMBER_MAX:
            found.append(_bound(attribute, self.high, Operator.LE, Operator.LT, succ))
        found.extend(none_of(attribute, self.excluded))
        return tuple(found) or (Predicate(attribute, Operator.IS, ValueKind.NUMBER.word),)

    def first(self, count: int) -> Iterator[Number]:
        """The smallest numbers of the set, at most `count` of them."""
        number: Number | None = self.low
        while count > 0 and number is not None and number <= self.high:
            if not is_listed(number, self.excluded):
                yield number
                count -= 1
            number = succ(number)


class OneOf(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=4):
    """Listed values: sorted, of one kind, at least one. `=` makes a list of one value.

    `kind` is derived from the values. It is a field because True == 1 in Python, and the two sets are not equal.
    `one_of` makes one.
    """

    values: tuple[Value, ...]
    kind: ValueKind = ValueKind.NUMBER

    def __post_init__(self) -> None:
        if not self.values:
            raise FilterError("a list of values is empty")
        kind = kind_of(self.values[0])
        if kind is not self.kind:
            force_setattr(self, "kind", kind)

    def accepts(self, value: Value | None) -> bool:
        """Whether a value, or None for absence, is in the set."""
        values = self.values
        if len(values) == 1:
            return value == values[0] and kind_in(value) is self.kind
        return value is not None and kind_in(value) is self.kind and is_listed(value, values)

    def covers(self, other: Constraint) -> bool:
        """Whether everything that `other` accepts is accepted here."""
        if isinstance(other, Numbers):
            found = list(other.first(len(self.values) + 1))
            return len(found) <= len(self.values) and all(map(self.accepts, found))
        return isinstance(other, OneOf) and all(map(self.accepts, other.values))

    def intersects(self, other: Constraint) -> bool:
        """Whether both accept some value."""
        return any(map(other.accepts, self.values))

    def meet(self, other: Constraint) -> Constraint | None:
        """The set that both accept; None if it is empty."""
        return one_of(filter(other.accepts, self.values))

    def predicates(self, attribute: str) -> tuple[Predicate, ...]:
        """The shortest spelling."""
        if len(self.values) == 1:
            return (Predicate(attribute, Operator.EQ, self.values[0]),)
        if self.kind is ValueKind.BOOLEAN:
            return (Predicate(attribute, Operator.IS, ValueKind.BOOLEAN.word),)
        return (Predicate(attribute, Operator.IN, self.values),)


BOOLEANS: Final = OneOf((False, True))
"""What `is boolean` accepts."""


def is_listed(value: Value, values: tuple[Value, ...]) -> bool:
    """Whether a value is in a sorted tuple of values of its kind."""
    place = bisect_left(values, value)
    return place < len(values) and values[place] == value


def numbers_of(low: Number, high: Number, excluded: Iterable[Number] = ()) -> Numbers | OneOf | None:
    """The canonical set of the numbers from `low` to `high` without `excluded`; None if it is empty."""
    if low > high:
        return None
    holes = set(excluded)
    while low in holes:
        above = succ(low)
        if above is None or above > high:
            return None
        low = above
    while high in holes:
        below = pred(high)
        assert below is not None  # `low` is not a hole, so the loop ends there
        high = below
    if low == high:
        return OneOf((low,))
    interval = Numbers(low, high, tuple(sorted(hole for hole in holes if low < hole < high)))
    found = list(interval.first(len(interval.excluded) + 1))
    return interval if len(found) > len(interval.excluded) else OneOf(tuple(found))


def one_of(values: Iterable[Value]) -> OneOf | Numbers | None:
    """The canonical set of some values of one kind; None if there are none."""
    found = sorted(set(values))
    if not found:
        return None
    if len(found) > 1 and kind_of(found[0]) is ValueKind.NUMBER:
        return _listed_numbers(found)  # type: ignore[arg-type]  # all are numbers if the first one is
    return OneOf(tuple(found))


def _listed_numbers(values: list[Number]) -> OneOf | Numbers:
    """The canonical form of at least two sorted numbers."""
    low, high = values[0], values[-1]
    spacing = math.ulp(float(max(abs(low), abs(high))))
    if high - low <= _FAR * len(values) * spacing:
        missing = _missing(values)
        if len(missing) < len(values):
            return Numbers(low, high, tuple(missing))
    return OneOf(tuple(values))


def _missing(values: list[Number]) -> list[Number]:
    """The numbers between the first and the last of a list that are not in it, but no more of them than the list
    has."""
    present = set(values)
    missing: list[Number] = []
    number = succ(values[0])
    while number is not None and number < values[-1] and len(missing) < len(values):
        if number not in present:
            missing.append(number)
        number = succ(number)
    return missing


def _bound(
    attribute: str, end: Number, closed: Operator, strict: Operator, outside: Callable[[Number], Number | None]
) -> Predicate:
    """The shorter of `>= end` and `>` with the number before it; the same for upper bounds."""
    neighbour = outside(end)
    if neighbour is not None and len(value_text(neighbour)) < len(value_text(end)):
        return Predicate(attribute, strict, neighbour)
    return Predicate(attribute, closed, end)
