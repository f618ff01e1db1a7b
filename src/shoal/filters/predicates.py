"""Predicates: one condition on one attribute, as written.

Owns the operators, the values that they take, and the record `Predicate`. Never touches text, or what predicates mean
together (see `constraints`).

    =  !=                       any value                   unknown for a value of another kind
    <  <=  >  >=                a number or a string        unknown for a value of another kind
    prefix  suffix  contains    a string                    unknown for a value that is not a string
    wildcard                    a pattern (see `wildcards`) unknown for a value that is not a string
    not prefix, not suffix, not contains, not wildcard      their negations: a string too, or unknown
    in  not in                  values of one or more kinds     unknown for a value of a kind that is not listed
    is                          "number", "string" or "boolean": of this kind; false for another, unknown if absent
    exists  absent              no value; never unknown
    is not                      a string or a number; false for it, true for all else; never unknown
    is not prefix, is not suffix, is not contains, is not wildcard
                                a string; false for a string that does so, true for all else; never unknown

Every other predicate is unknown for an absent attribute. Unknown never matches, and neither does its negation. The
attribute of a predicate may be a view (see `views`): `ignorecase` takes strings only, and an address only `prefix`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from shoal.errors import FilterError, FilterTooLargeError
from shoal.filters.values import KINDS, MARKS, Value, ValueKind, canonical, native, problem_of, problem_of_name
from shoal.filters.views import ADDRESS, base_of, fold
from shoal.filters.wildcards import canonical_pattern
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
    WILDCARD = "wildcard"
    NOT_PREFIX = "not prefix"
    NOT_SUFFIX = "not suffix"
    NOT_CONTAINS = "not contains"
    NOT_WILDCARD = "not wildcard"
    EXISTS = "exists"
    ABSENT = "absent"
    IN = "in"
    NOT_IN = "not in"
    IS = "is"
    IS_NOT = "is not"
    IS_NOT_PREFIX = "is not prefix"
    IS_NOT_SUFFIX = "is not suffix"
    IS_NOT_CONTAINS = "is not contains"
    IS_NOT_WILDCARD = "is not wildcard"


UNLIKE: Final[Mapping[Operator, Operator]] = {
    Operator.EQ: Operator.IS_NOT,
    Operator.PREFIX: Operator.IS_NOT_PREFIX,
    Operator.SUFFIX: Operator.IS_NOT_SUFFIX,
    Operator.CONTAINS: Operator.IS_NOT_CONTAINS,
    Operator.WILDCARD: Operator.IS_NOT_WILDCARD,
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
        (Operator.WILDCARD, Operator.NOT_WILDCARD),
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
        Operator.WILDCARD,
        Operator.NOT_PREFIX,
        Operator.NOT_SUFFIX,
        Operator.NOT_CONTAINS,
        Operator.NOT_WILDCARD,
        *UNLIKE.values(),
    }
) - {Operator.IS_NOT}
WILD: Final = frozenset({Operator.WILDCARD, Operator.NOT_WILDCARD, Operator.IS_NOT_WILDCARD})
_NEVER_EMPTY: Final = frozenset(UNLIKE.values()) - {Operator.IS_NOT}
_ON_ADDRESSES: Final = frozenset({Operator.PREFIX, Operator.NOT_PREFIX, Operator.IS_NOT_PREFIX})
_MATCHES_ALL: Final = (("",), ("*",))
"""Texts that every string has, and patterns that every string matches."""
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
    if str(attribute)[-1:] in MARKS:
        return _on_view(attribute, operator, value, limits)
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
    if operator in WILD:
        checked = canonical_pattern(str(checked))
    if operator in _NEVER_EMPTY and checked in _MATCHES_ALL[operator is Operator.IS_NOT_WILDCARD]:
        advice = f"to exclude all strings, write {attribute} absent or {attribute} is number or {attribute} is boolean"
        raise FilterError(
            f"'{operator}' takes a text that is not empty, because every string has the empty one", do=advice
        )
    if operator in ORDERED and isinstance(checked, bool):
        raise FilterError(f"'{operator}' takes no boolean, because booleans have no order", do="use '=' or '!='")
    if operator is Operator.IS_NOT and isinstance(checked, bool):
        raise FilterError("'is not' takes a string or a number, not a boolean", do="use '!=', with 'or' and 'absent'")
    return Predicate(attribute, operator, checked)


def _on_view(attribute: str, operator: Operator, value: Operand, limits: Limits) -> Predicate:
    """A checked predicate on a view."""
    own = predicate(base_of(attribute), operator, value, limits)
    if attribute[-1] == ADDRESS:
        if operator not in _ON_ADDRESSES or set(str(own.value)) - {"0", "1"}:
            raise FilterError(f"'{operator}' cannot be used with an address", do="use cidr")
        return Predicate(attribute, operator, own.value)
    if operator is Operator.IS and own.value == ValueKind.STRING.word:
        return Predicate(attribute, operator, own.value)
    values = own.value if isinstance(own.value, tuple) else (own.value,)
    texts = tuple(fold(each) for each in values if isinstance(each, str))
    if len(texts) < len(values) or operator is Operator.IS:
        raise FilterError(f"ignorecase(...) is a string, and '{operator}' needs one here", do="leave ignorecase out")
    return Predicate(attribute, operator, texts if operator in LISTING else texts[0])


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
    value = native(value)
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
