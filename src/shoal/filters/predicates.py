"""Predicates: one condition on one attribute, as written.

Owns the operators, the values that they take, and the record `Predicate`. Never touches text, or what predicates mean
together (see `constraints`).

    =  !=                       any value                   unknown for a value of another kind
    <  <=  >  >=                a number or a string        unknown for a value of another kind
    prefix  suffix  contains    a string                    unknown for a value that is not a string
    not prefix, not suffix, not contains                    their negations: a string too, or unknown
    in  not in                  values of one or more kinds     unknown for a value of a kind that is not listed
    is                          "number", "string" or "boolean": of this kind; false for another, unknown if absent
    exists  absent              no value; never unknown
    is not, is not prefix, is not suffix, is not contains
                                a string; false for a string that is or does so, true for all else; never unknown

Every other predicate is unknown for an absent attribute. Unknown never matches, and neither does its negation.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from shoal.errors import FilterError, FilterTooLargeError
from shoal.filters.values import KINDS, Value, canonical, problem_of, problem_of_name
from shoal.limits import DEFAULT_LIMITS, Limits

Operand: TypeAlias = Value | tuple[Value, ...] | None


class Operator(StrEnum):
    """The operator of a predicate; its text is the canonical spelling."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    PREFIX = "prefix"
    SUFFIX = "suffix"
    CONTAINS = "contains"
    NOT_PREFIX = "not prefix"
    NOT_SUFFIX = "not suffix"
    NOT_CONTAINS = "not contains"
    EXISTS = "exists"
    ABSENT = "absent"
    IN = "in"
    NOT_IN = "not in"
    IS = "is"
    IS_NOT = "is not"
    IS_NOT_PREFIX = "is not prefix"
    IS_NOT_SUFFIX = "is not suffix"
    IS_NOT_CONTAINS = "is not contains"


UNLIKE: Final[Mapping[Operator, Operator]] = {
    Operator.EQ: Operator.IS_NOT,
    Operator.PREFIX: Operator.IS_NOT_PREFIX,
    Operator.SUFFIX: Operator.IS_NOT_SUFFIX,
    Operator.CONTAINS: Operator.IS_NOT_CONTAINS,
}
"""The operator that is true wherever this one is not true: for other strings, other kinds of values, and absence."""

NEGATIONS: Final[Mapping[Operator, Operator]] = {
    one: other
    for a, b in (
        (Operator.EQ, Operator.NE),
        (Operator.LT, Operator.GE),
        (Operator.LE, Operator.GT),
        (Operator.PREFIX, Operator.NOT_PREFIX),
        (Operator.SUFFIX, Operator.NOT_SUFFIX),
        (Operator.CONTAINS, Operator.NOT_CONTAINS),
        (Operator.EXISTS, Operator.ABSENT),
        (Operator.IN, Operator.NOT_IN),
    )
    for one, other in ((a, b), (b, a))
} | {unlike: one for one, unlike in UNLIKE.items()}
"""The operator that is true where this one is false. If this one can be unknown, the other is unknown in the same
cases. `is` has no such operator."""

ORDERED: Final = frozenset({Operator.LT, Operator.LE, Operator.GT, Operator.GE})
TEXTUAL: Final = frozenset(
    {
        Operator.PREFIX,
        Operator.SUFFIX,
        Operator.CONTAINS,
        Operator.NOT_PREFIX,
        Operator.NOT_SUFFIX,
        Operator.NOT_CONTAINS,
        *UNLIKE.values(),
    }
)
_NEVER_EMPTY: Final = frozenset({Operator.IS_NOT_PREFIX, Operator.IS_NOT_SUFFIX, Operator.IS_NOT_CONTAINS})
BARE: Final = frozenset({Operator.EXISTS, Operator.ABSENT})
LISTING: Final = frozenset({Operator.IN, Operator.NOT_IN})


class Predicate(msgspec.Struct, frozen=True):
    """One condition. `predicate()` makes one and checks it; this record does not check.

    The value is None for `exists` and `absent`, a tuple for `in` and `not in`, the word of a kind for `is`.
    """

    attribute: str
    operator: Operator
    value: Operand = None


def predicate(attribute: str, operator: Operator, value: Operand = None, limits: Limits = DEFAULT_LIMITS) -> Predicate:
    """A checked predicate with canonical values. FilterError says why there is no such predicate."""
    if problem := problem_of_name(attribute, limits):
        raise FilterError(problem)
    if operator in BARE:
        if value is not None:
            raise FilterError(f"'{operator}' takes no value", do="leave the value out, or use '='")
        return Predicate(attribute, operator)
    if operator in LISTING:
        return Predicate(attribute, operator, _members(value, limits))
    if value is None or isinstance(value, tuple):
        raise FilterError(f"'{operator}' takes one value", do="use 'in' for several, 'exists' for none")
    checked = _checked(value, limits)
    if operator is Operator.IS and checked not in KINDS:
        raise FilterError("'is' takes the name of a kind", do="write number, string or boolean")
    if operator in TEXTUAL and not isinstance(checked, str):
        raise FilterError(f"'{operator}' takes a string, not {_spelled(checked)}", do="put the text in single quotes")
    if operator in _NEVER_EMPTY and not checked:
        advice = f"to exclude all strings, write {attribute} absent or {attribute} is number or {attribute} is boolean"
        raise FilterError(
            f"'{operator}' takes a text that is not empty, because every string has the empty one", do=advice
        )
    if operator in ORDERED and isinstance(checked, bool):
        raise FilterError(f"'{operator}' takes no boolean, because booleans have no order", do="use '=' or '!='")
    return Predicate(attribute, operator, checked)


def none_of(attribute: str, values: tuple[Value, ...]) -> tuple[Predicate, ...]:
    """The predicates that exclude some values of one kind; none if there are no values."""
    if len(values) > 1:
        return (Predicate(attribute, Operator.NOT_IN, values),)
    return tuple(Predicate(attribute, Operator.NE, value) for value in values)


def _members(value: Operand, limits: Limits) -> tuple[Value, ...]:
    if not isinstance(value, tuple) or not value:
        raise FilterError("'in' takes at least one value", do="write them in parentheses: in (1, 2)")
    if len(value) > limits.filter_in_values_max:
        raise FilterTooLargeError(
            f"'in' has {len(value)} values, more than filter_in_values_max={limits.filter_in_values_max}"
        )
    return tuple(_checked(member, limits) for member in value)


def _checked(value: Value, limits: Limits) -> Value:
    if problem := problem_of(value):
        raise FilterError(f"the value {problem}")
    if isinstance(value, str) and len(value.encode()) > limits.filter_string_bytes_max:
        raise FilterTooLargeError(
            f"a string is {len(value.encode())} bytes long, "
            f"more than filter_string_bytes_max={limits.filter_string_bytes_max}"
        )
    return canonical(value)


def _spelled(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
