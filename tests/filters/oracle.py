"""The slow evaluator: the truth of a predicate for an event, written down directly from the design.

It shares no code with what it checks. Answers are True, False, or None for unknown.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable

from shoal.filters.expansion import All, Any, Expression, Leaf, Not
from shoal.filters.predicates import Operator, Predicate
from shoal.filters.values import Event, Value
from shoal.filters.views import ADDRESS, FOLDED

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
    "wildcard": lambda a, b: is_like(str(a), str(b)),
    "not prefix": lambda a, b: not str(a).startswith(str(b)),
    "not suffix": lambda a, b: not str(a).endswith(str(b)),
    "not contains": lambda a, b: str(b) not in str(a),
    "not wildcard": lambda a, b: not is_like(str(a), str(b)),
}


def is_like(text: str, pattern: str) -> bool:
    """Whether a string matches a wildcard."""
    pieces = re.findall(r"\\[*\\]|[^\\]", pattern, re.DOTALL)
    expression = "".join(".*" if piece == "*" else re.escape(piece[-1]) for piece in pieces)
    return re.fullmatch(expression, text, re.DOTALL) is not None


def without_case(text: str) -> str:
    """A string whose case does not matter."""
    return "".join(one if len(one := each.casefold()) == 1 else each for each in text)


def bits(text: str) -> str | None:
    """The bits of an address, after one for its family."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    width = 32 if address.version == 4 else 128
    return ("0" if width == 32 else "1") + bin(int(address))[2:].rjust(width, "0")


def value_of(event: Event, attribute: str) -> Value | None:
    """What a predicate on an attribute, or on a view of one, is about."""
    if attribute[-1] not in (FOLDED, ADDRESS):
        return event.get(attribute)
    value = event.get(attribute[:-1])
    if not isinstance(value, str):
        return None
    return without_case(value) if attribute[-1] == FOLDED else bits(value)


def kind(value: Value) -> str:
    """The word for the kind of a value."""
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def says(predicate: Predicate, event: Event) -> bool | None:
    """The truth of a predicate for an event."""
    value = value_of(event, predicate.attribute)
    if predicate.operator is Operator.ABSENT:
        return value is None
    if predicate.operator is Operator.EXISTS:
        return value is not None
    if predicate.operator.startswith("is not"):
        like = _COMPARE[predicate.operator.removeprefix("is not").strip() or "="]
        same = value is not None and kind(value) == kind(predicate.value)  # type: ignore[arg-type]
        return not (same and like(value, predicate.value))
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
