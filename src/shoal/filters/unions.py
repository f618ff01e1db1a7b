"""Covering by several conjunctions together, where no single one of them covers.

Owns one question: do constraints on one attribute, taken together, accept all that another one accepts. Never touches
the order of the poset, which does without (see `Filter.covers_by_parts`).

Conjunctions that differ in one attribute only are one union there: `a < 5 or a >= 5` is `a is number`. Intervals and
points are laid side by side until they reach the end. Strings with a suffix, a substring or a negated prefix are left
out, and so are unions that need two attributes at once (a square cut in four): they are not seen to be covered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.filters.conjunctions import Conjunction
from shoal.filters.constraints import KIND_CONSTRAINTS, Absent, Constraint, Present, Unlike
from shoal.filters.ranges import BOOLEANS, Numbers, OneOf
from shoal.filters.string_bounds import NUL, is_below, reaches
from shoal.filters.strings import Strings
from shoal.filters.values import Number, Value, succ


def covered_together(conjunction: Conjunction, others: Sequence[Conjunction]) -> bool:
    """Whether every event of a conjunction is certainly matched by one of several others."""
    attributes = {attribute for other in others for attribute, _ in other.constraints}
    return any(
        _all_accepted(conjunction.constraint(attribute), _beside(conjunction, others, attribute))
        for attribute in sorted(attributes)
    )


def _beside(conjunction: Conjunction, others: Iterable[Conjunction], attribute: str) -> list[Constraint]:
    """What those others say of an attribute that cover the conjunction in all the rest."""
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
            return _all_accepted(Absent(), parts) and _all_accepted(Present(), parts)
        case Absent():
            return any(part.accepts(None) for part in parts)
        case Unlike():
            return all(_all_accepted(each, parts) for each in _apart(wanted))
        case Present():
            return Present() in parts or all(_all_accepted(kind, parts) for kind in KIND_CONSTRAINTS.values())
        case OneOf(values):
            return all(_is_accepted(value, parts) for value in values)
        case Numbers():
            return _numbers_accepted(wanted, parts)
        case Strings():
            return _strings_accepted(wanted, parts)


def _apart(unlike: Unlike) -> list[Constraint]:
    """A constraint on all kinds of values as one for each kind."""
    absence = [Absent()] if unlike.may_be_absent else []
    return [*absence, Numbers(), BOOLEANS, unlike.strings]


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
