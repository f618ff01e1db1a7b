"""Constraints: everything that a conjunction says about one attribute, in canonical form.

Owns the union of the types of constraints, and how predicates become one. Never touches other attributes: attributes
are independent.

    Absent      the attribute is missing
    Exists      the attribute has a value of any kind
    Numbers     a closed interval of numbers without some points
    Strings     an interval of strings, with required and excluded prefixes, suffixes and substrings
    OneOf       one of the listed values, which are of one kind; booleans are always this
    Unlike      anything, perhaps absence too, except listed numbers and strings that meet a listed condition

Two constraints that accept the same values are equal. `covers` and `intersects` are always sound: True from `covers`,
False from `intersects` and None from `meet` are certain. They are complete for all constraints except some on strings,
which the module `strings` lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from shoal.errors import FilterError
from shoal.filters.predicates import Operator, Predicate
from shoal.filters.ranges import BOOLEANS, Numbers, OneOf, is_listed, numbers_of, one_of
from shoal.filters.strings import NUL, Strings, never_like, prefix_end, strings_like, strings_of, strings_without
from shoal.filters.values import NUMBER_MAX, NUMBER_MIN, Number, Value, ValueKind, kind_in, kind_of, pred, succ


class Absent(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=0):
    """The attribute is missing."""

    def accepts(self, value: Value | None) -> bool:
        """Whether the value is None, which stands for absence."""
        return value is None

    def covers(self, other: Constraint) -> bool:
        """Whether `other` requires absence too."""
        return isinstance(other, Absent)

    def intersects(self, other: Constraint) -> bool:
        """Whether `other` accepts absence too."""
        return other.accepts(None)

    def meet(self, other: Constraint) -> Constraint | None:
        """Absence, or None if `other` requires a value."""
        return self if other.accepts(None) else None

    def predicates(self, attribute: str) -> tuple[Predicate, ...]:
        """The shortest spelling."""
        return (Predicate(attribute, Operator.ABSENT),)


class Exists(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=1):
    """The attribute has a value, of any kind."""

    def accepts(self, value: Value | None) -> bool:
        """Whether there is a value."""
        return value is not None

    def covers(self, other: Constraint) -> bool:
        """Whether `other` requires a value."""
        return not other.accepts(None)

    def intersects(self, other: Constraint) -> bool:
        """Whether `other` accepts some value."""
        return not isinstance(other, Absent)

    def meet(self, other: Constraint) -> Constraint | None:
        """The other constraint restricted to values; None if it requires absence."""
        if isinstance(other, Unlike):
            return Unlike(False, other.strings, other.numbers)
        return None if isinstance(other, Absent) else other

    def predicates(self, attribute: str) -> tuple[Predicate, ...]:
        """The shortest spelling."""
        return (Predicate(attribute, Operator.EXISTS),)


class Unlike(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=5):
    """Booleans, the strings of `strings`, all numbers but `numbers`, and absence if `may_be_absent`.

    Canonical: `strings` consists of excluded texts, prefixes, suffixes, substrings and wildcards only, and `numbers` is
    sorted; there is at least one of all of them. `strings_without` makes `strings`.
    """

    may_be_absent: bool
    strings: Strings
    numbers: tuple[Number, ...] = ()

    def accepts(self, value: Value | None) -> bool:
        """Whether a value, or None for absence, meets none of the listed conditions."""
        if isinstance(value, str):
            return self.strings.accepts(value)
        if value is None:
            return self.may_be_absent
        return not self.numbers or kind_in(value) is not ValueKind.NUMBER or not is_listed(value, self.numbers)

    def covers(self, other: Constraint) -> bool:
        """Whether everything that `other` accepts is certainly accepted here."""
        match other:
            case Absent():
                return self.may_be_absent
            case Exists():
                return False
            case Unlike(may_be_absent, strings, numbers):
                return (
                    self.may_be_absent >= may_be_absent
                    and set(self.numbers).issubset(numbers)
                    and self.strings.covers(strings)
                )
            case Numbers():
                return not any(map(other.accepts, self.numbers))
            case Strings():
                return self.strings.covers(other)
            case OneOf(values):
                return all(map(self.accepts, values))

    def intersects(self, other: Constraint) -> bool:
        """Whether both may accept some value or absence. False is certain."""
        return self.meet(other) is not None

    def meet(self, other: Constraint) -> Constraint | None:
        """The constraint that accepts what both accept. None if no value can satisfy both."""
        match other:
            case Unlike(may_be_absent, strings, numbers):
                return Unlike(
                    self.may_be_absent and may_be_absent,
                    _without_both(self.strings, strings),
                    tuple(sorted({*self.numbers, *numbers})),
                )
            case Numbers(low, high, excluded):
                return numbers_of(low, high, (*excluded, *self.numbers))
            case Strings():
                return self.strings.meet(other)
            case Absent() | Exists() | OneOf():
                return other.meet(self)

    def predicates(self, attribute: str) -> tuple[Predicate, ...]:
        """The shortest spelling."""
        found = [] if self.may_be_absent else [Predicate(attribute, Operator.EXISTS)]
        found.extend(Predicate(attribute, Operator.IS_NOT, number) for number in self.numbers)
        for operator, texts in (
            (Operator.IS_NOT, self.strings.excluded),
            (Operator.IS_NOT_PREFIX, self.strings.not_prefix),
            (Operator.IS_NOT_SUFFIX, self.strings.not_suffix),
            (Operator.IS_NOT_CONTAINS, self.strings.not_contains),
            (Operator.IS_NOT_WILDCARD, self.strings.not_wildcards),
        ):
            found.extend(Predicate(attribute, operator, text) for text in texts)
        return tuple(found)


def _without_both(one: Strings, other: Strings) -> Strings:
    return strings_without(
        one.excluded + other.excluded,
        one.not_prefix + other.not_prefix,
        one.not_suffix + other.not_suffix,
        one.not_contains + other.not_contains,
        one.not_wildcards + other.not_wildcards,
    )


Constraint: TypeAlias = Absent | Exists | Numbers | Strings | OneOf | Unlike

KIND_CONSTRAINTS: Final[Mapping[str, Constraint]] = {
    ValueKind.NUMBER.word: Numbers(),
    ValueKind.STRING.word: Strings(),
    ValueKind.BOOLEAN.word: BOOLEANS,
}
"""What `is` accepts, by the word after it."""


def constraint_of(predicates: Iterable[Predicate]) -> Constraint | None:
    """The constraint that several predicates on one attribute form; None if no value satisfies them all.

    At least one predicate is needed; FilterError otherwise.
    """
    met: Constraint | None = None
    for predicate in predicates:
        single = _single(predicate)
        met = single if met is None or single is None else met.meet(single)
        if met is None:
            return None
    if met is None:
        raise FilterError("a constraint needs at least one predicate")
    return met


def order_of(constraint: Constraint) -> tuple[Any, ...]:
    """A sort key for constraints of all types. Equal constraints have equal keys."""
    match constraint:
        case Absent():
            return (0,)
        case Exists():
            return (1,)
        case OneOf(values, kind):
            return (2, kind, values)
        case Numbers():
            return (3, constraint.low, constraint.high, constraint.excluded)
        case Strings(low, high):
            return (4, low, high is None, high or "", *msgspec.structs.astuple(constraint)[2:])
        case Unlike(may_be_absent, strings, numbers):
            return (5, may_be_absent, numbers, *order_of(strings))


def _single(predicate: Predicate) -> Constraint | None:
    """The constraint of one predicate."""
    operator, value = predicate.operator, predicate.value
    if operator is Operator.EXISTS:
        return Exists()
    if operator is Operator.ABSENT:
        return Absent()
    if isinstance(value, tuple):
        return _listed(operator, value)
    if operator is Operator.IS:
        return KIND_CONSTRAINTS[str(value)]
    if operator is Operator.EQ and value is not None:
        return OneOf((value,))
    if isinstance(value, bool):
        return OneOf((not value,))
    if isinstance(value, str):
        return _ON_STRINGS[operator](value)
    if value is None:
        raise FilterError(f"'{operator}' takes a value")
    return _on_number(operator, value)


def _listed(operator: Operator, values: tuple[Value, ...]) -> Constraint | None:
    """The constraint of `in` or `not in` with values of one kind."""
    if len(set(map(kind_of, values))) > 1:
        raise FilterError(
            f"'{operator}' lists values of several kinds in one conjunction", do="make one conjunction for each kind"
        )
    if operator is Operator.IN:
        return one_of(values)
    if isinstance(values[0], bool):
        return one_of({False, True}.difference(values))
    texts = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if not isinstance(value, str)]
    return strings_of(excluded=texts) if texts else numbers_of(NUMBER_MIN, NUMBER_MAX, numbers)


def _on_number(operator: Operator, number: Number) -> Constraint | None:
    low: Number | None = NUMBER_MIN
    high: Number | None = NUMBER_MAX
    excluded: tuple[Number, ...] = ()
    match operator:
        case Operator.NE:
            excluded = (number,)
        case Operator.LT:
            high = pred(number)
        case Operator.LE:
            high = number
        case Operator.GT:
            low = succ(number)
        case Operator.GE:
            low = number
        case Operator.IS_NOT:
            return Unlike(True, strings_without(), (number,))
        case _:
            raise FilterError(f"'{operator}' takes a string")
    return None if low is None or high is None else numbers_of(low, high, excluded)


_ON_STRINGS: Final[Mapping[Operator, Callable[[str], Constraint | None]]] = {
    Operator.NE: lambda text: strings_of(excluded=(text,)),
    Operator.LT: lambda text: strings_of(high=text),
    Operator.LE: lambda text: strings_of(high=text + NUL),
    Operator.GT: lambda text: strings_of(low=text + NUL),
    Operator.GE: lambda text: strings_of(low=text),
    Operator.PREFIX: lambda text: strings_of(low=text, high=prefix_end(text)),
    Operator.SUFFIX: lambda text: strings_of(suffix=text),
    Operator.CONTAINS: lambda text: strings_of(contains=(text,)),
    Operator.WILDCARD: strings_like,
    Operator.NOT_PREFIX: lambda text: strings_of(not_prefix=(text,)),
    Operator.NOT_SUFFIX: lambda text: strings_of(not_suffix=(text,)),
    Operator.NOT_CONTAINS: lambda text: strings_of(not_contains=(text,)),
    Operator.NOT_WILDCARD: lambda text: strings_of(**never_like(text)),  # type: ignore[arg-type]
    Operator.IS_NOT: lambda text: Unlike(True, strings_without(excluded=(text,))),
    Operator.IS_NOT_PREFIX: lambda text: Unlike(True, strings_without(not_prefix=(text,))),
    Operator.IS_NOT_SUFFIX: lambda text: Unlike(True, strings_without(not_suffix=(text,))),
    Operator.IS_NOT_CONTAINS: lambda text: Unlike(True, strings_without(not_contains=(text,))),
    Operator.IS_NOT_WILDCARD: lambda text: Unlike(True, strings_without(**never_like(text))),
}
