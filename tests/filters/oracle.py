"""The slow evaluator: the truth of a predicate for an event, written down directly from the design.

It shares no code with what it checks. Answers are True, False, or None for unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shoal.filters.expansion import All, Any, Expression, Leaf, Not
from shoal.filters.predicates import Operator, Predicate
from shoal.filters.values import Event, Value

_COMPARE: dict[str, Callable[[object, object], bool]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,  # type: ignore[operator]
    "<=": lambda a, b: a <= b,  # type: ignore[operator]
    ">": lambda a, b: a > b,  # type: ignore[operator]
    ">=": lambda a, b: a >= b,  # type: ignore[operator]
    "prefix": lambda a, b: str(a).startswith(str(b)),
    "suffix": lambda a, b: str(a).endswith(str(b)),
    "contains": lambda a, b: str(b) in str(a),
    "not prefix": lambda a, b: not str(a).startswith(str(b)),
    "not suffix": lambda a, b: not str(a).endswith(str(b)),
    "not contains": lambda a, b: str(b) not in str(a),
}


def kind(value: Value) -> str:
    """The word for the kind of a value."""
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def says(predicate: Predicate, event: Event) -> bool | None:
    """The truth of a predicate for an event."""
    value = event.get(predicate.attribute)
    if predicate.operator is Operator.ABSENT:
        return value is None
    if predicate.operator is Operator.EXISTS:
        return value is not None
    if predicate.operator.startswith("is not"):
        like = _COMPARE[predicate.operator.removeprefix("is not").strip() or "="]
        return not (isinstance(value, str) and like(value, predicate.value))
    if value is None:
        return None
    if predicate.operator is Operator.IS:
        return kind(value) == predicate.value
    if isinstance(predicate.value, tuple):
        if kind(value) not in map(kind, predicate.value):
            return None
        listed = any(kind(one) == kind(value) and one == value for one in predicate.value)
        return listed == (predicate.operator is Operator.IN)
    if predicate.value is None or kind(value) != kind(predicate.value):
        return None
    return _COMPARE[predicate.operator](value, predicate.value)


def all_of(answers: Iterable[bool | None]) -> bool | None:
    """Three-valued `and`."""
    known = list(answers)
    if False in known:
        return False
    return None if None in known else True


def any_of(answers: Iterable[bool | None]) -> bool | None:
    """Three-valued `or`."""
    known = list(answers)
    if True in known:
        return True
    return None if None in known else False


def negation(answer: bool | None) -> bool | None:
    """Three-valued `not`."""
    return None if answer is None else not answer


def conjunction_matches(predicates: Iterable[Predicate], event: Event) -> bool:
    """Whether every predicate is true of the event."""
    return all_of(says(predicate, event) for predicate in predicates) is True


def truth(expression: Expression, event: Event) -> bool | None:
    """The truth of an expression for an event."""
    match expression:
        case Leaf(predicate):
            return says(predicate, event)
        case Not(part):
            return negation(truth(part, event))
        case All(parts):
            return all_of(truth(part, event) for part in parts)
        case Any(parts):
            return any_of(truth(part, event) for part in parts)
