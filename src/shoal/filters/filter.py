"""Filters: a disjunction of conjunctions, the condition of a subscription.

Owns the canonical disjunction and the reasoning about it. Never touches text: `language` reads it, `formatter` writes
it.

`covers` and `intersects` are always sound: True from `covers` and False from `intersects` are certain. For filters of
one conjunction they are complete wherever constraints are (the module `strings` lists the exceptions). A disjunction is
covered if each of its conjunctions is, by one conjunction or by several that differ in one attribute; other ways of
being covered are not seen (see `_covered_together`). Two disjunctions with one meaning may be unequal: `a = 1 or a = 2`
and `a in (1, 2)` are two filters, and `equal` returns True for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shoal.errors import EmptyFilterError, FilterError
from shoal.filters.conjunctions import Conjunction
from shoal.filters.constraints import KIND_CONSTRAINTS, Absent, Constraint, Exists, Unlike
from shoal.filters.formatter import filter_text, paper_text
from shoal.filters.ranges import BOOLEANS, Numbers, OneOf, numbers_of
from shoal.filters.strings import NUL, Strings, is_below, reaches
from shoal.filters.values import NUMBER_MAX, NUMBER_MIN, Event, Number, Value, succ


class Filter(msgspec.Struct, frozen=True, gc=False, array_like=True, cache_hash=True):
    """At least one conjunction, none of which covers another one, in order. `filter_of` makes one."""

    conjunctions: tuple[Conjunction, ...]

    def __post_init__(self) -> None:
        if type(self.conjunctions) is not tuple:
            raise FilterError(
                f"Filter() takes conjunctions, not {type(self.conjunctions).__name__}",
                do="read a filter from text with `shoal.filters.parse`",
            )

    def matches(self, event: Event) -> bool:
        """Whether some conjunction matches the event. None as a value means absence."""
        for conjunction in self.conjunctions:  # noqa: SIM110  # any() takes longer
            if conjunction.matches(event):
                return True
        return False

    def covers(self, other: Filter) -> bool:
        """Whether every event that `other` matches is certainly matched here."""
        check_filter(other)
        return all(
            any(mine.covers(theirs) for mine in self.conjunctions)
            or (len(self.conjunctions) > 1 and _covered_together(theirs, self.conjunctions))
            for theirs in other.conjunctions
        )

    def covers_by_parts(self, other: Filter) -> bool:
        """Whether each conjunction of `other` is covered by one conjunction here. This sees less than `covers`, but it
        is a partial order: transitive, and two filters that cover each other are equal."""
        return all(any(mine.covers(theirs) for mine in self.conjunctions) for theirs in other.conjunctions)

    def intersects(self, other: Filter) -> bool:
        """Whether some event may be matched by both. False is certain."""
        check_filter(other)
        return any(mine.intersects(theirs) for mine in self.conjunctions for theirs in other.conjunctions)

    def meet(self, other: Filter) -> Filter | None:
        """The filter that matches the events that both match. None if no event can match both."""
        check_filter(other)
        met = [mine.meet(theirs) for mine in self.conjunctions for theirs in other.conjunctions]
        left = [conjunction for conjunction in met if conjunction is not None]
        return filter_of(left) if left else None

    def equal(self, other: Filter) -> bool:
        """Whether both certainly match the same events. For single conjunctions `==` gives the same answer faster."""
        return self == check_filter(other) or (self.covers(other) and other.covers(self))

    def paper(self) -> str:
        """The papers' spelling, `[class,eq,'STOCK'],[volume,>,300000]`. FilterError if there are alternatives."""
        if len(self.conjunctions) > 1:
            raise FilterError("the papers' spelling has no `or`", do="use str() for a filter with alternatives")
        return paper_text(self.conjunctions[0])

    def __str__(self) -> str:
        return filter_text(self.conjunctions)


def check_filter(found: object) -> Filter:
    """The argument, if it is a filter. FilterError otherwise, for example for text."""
    if not isinstance(found, Filter):
        raise no_filter(found)
    return found


def no_filter(found: object) -> FilterError:
    """The error for an argument that is not a filter."""
    return FilterError(
        f"a filter is needed, not something of type {type(found).__name__}", do="make a filter from text with `parse`"
    )


def filter_of(conjunctions: Iterable[Conjunction | None]) -> Filter:
    """The filter of some conjunctions. None among them stands for a conjunction that nothing can satisfy.

    Raises EmptyFilterError if all are None.
    """
    kept: list[Conjunction] = []
    for conjunction in conjunctions:
        if conjunction is None or any(other.covers(conjunction) for other in kept):
            continue
        kept = [other for other in kept if not conjunction.covers(other)]
        kept.append(conjunction)
    if not kept:
        raise EmptyFilterError(
            "nothing can satisfy the filter", do="look for predicates on one attribute that exclude each other"
        )
    if len(kept) > 1:
        kept.sort(key=Conjunction.order)
    return Filter(tuple(kept))


def _covered_together(conjunction: Conjunction, others: Sequence[Conjunction]) -> bool:
    """Whether every event of a conjunction is certainly matched by one of several others, where no single one covers
    it.

    Conjunctions that differ in one attribute only are one union there: `a < 5 or a >= 5` is `a is number`. Intervals
    and points are lined up until they reach the end. Strings with a suffix, a substring or a negated prefix are left
    out. Unions that need two attributes at once (a square cut into four) are not seen to cover.
    """
    attributes = {attribute for other in others for attribute, _ in other.constraints}
    return any(
        _all_accepted(conjunction.constraint(attribute), _beside(conjunction, others, attribute))
        for attribute in sorted(attributes)
    )


def _beside(conjunction: Conjunction, others: Iterable[Conjunction], attribute: str) -> list[Constraint]:
    """The constraints on an attribute of those other conjunctions that cover the conjunction in all other
    attributes."""
    found: list[Constraint] = []
    for other in others:
        there = other.constraint(attribute)
        rest = Conjunction(tuple(item for item in other.constraints if item[0] != attribute))
        if there is not None and rest.covers(conjunction):
            found.extend(_apart(there) if isinstance(there, Unlike) else (there,))
    return found


def _all_accepted(wanted: Constraint | None, parts: Sequence[Constraint]) -> bool:
    """Whether each value of a constraint (None: any value, and absence) is accepted by one of the parts."""
    match wanted:
        case None:
            return _all_accepted(Absent(), parts) and _all_accepted(Exists(), parts)
        case Absent():
            return any(part.accepts(None) for part in parts)
        case Unlike():
            return all(_all_accepted(each, parts) for each in _apart(wanted))
        case Exists():
            return Exists() in parts or all(_all_accepted(kind, parts) for kind in KIND_CONSTRAINTS.values())
        case OneOf(values):
            return all(_is_accepted(value, parts) for value in values)
        case Numbers():
            return _numbers_accepted(wanted, parts)
        case Strings():
            return _strings_accepted(wanted, parts)


def _apart(unlike: Unlike) -> list[Constraint]:
    """A constraint on all kinds of values as one constraint per kind."""
    absence = [Absent()] if unlike.may_be_absent else []
    numbers = numbers_of(NUMBER_MIN, NUMBER_MAX, unlike.numbers)
    return [*absence, *([numbers] if numbers else []), BOOLEANS, unlike.strings]


def _is_accepted(value: Value, parts: Iterable[Constraint]) -> bool:
    return any(part.accepts(value) for part in parts)


def _numbers_accepted(wanted: Numbers, parts: Sequence[Constraint]) -> bool:
    intervals = [part for part in parts if isinstance(part, Numbers)]
    points = [part for part in parts if isinstance(part, OneOf)]
    number: Number | None = wanted.low
    while number is not None and number <= wanted.high:
        ends = [part.high for part in intervals if part.low <= number <= part.high]
        if not ends and wanted.accepts(number) and not _is_accepted(number, points):
            return False
        number = succ(max(ends, default=number))
    holes = {hole for part in intervals for hole in part.excluded if wanted.accepts(hole)}
    return all(_is_accepted(hole, parts) for hole in holes)


def _strings_accepted(wanted: Strings, parts: Sequence[Constraint]) -> bool:
    intervals = [part for part in parts if isinstance(part, Strings) and part.is_interval]
    points = [part for part in parts if isinstance(part, OneOf)]
    text, end = wanted.bounds
    while is_below(text, end):
        highs = [high for low, high in (part.bounds for part in intervals) if low <= text and is_below(text, high)]
        if any(reaches(high, end) for high in highs):
            break
        if not highs and not _is_accepted(text, points):
            return False
        text = max((high for high in highs if high is not None), default=text + NUL)
    holes = {hole for part in intervals for hole in part.excluded if wanted.accepts(hole)}
    return all(_is_accepted(hole, parts) for hole in holes)
