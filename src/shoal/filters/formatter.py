"""The formatter: filters and predicates as text, in both spellings.

Owns the one spelling that is printed where the language reads several. Parsing the printed text gives the same filter.
Equal filters print equal text, because a number prints the same as int and as float. Never touches how a filter got its
predicates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from shoal.filters.predicates import UNLIKE, Operator, Predicate
from shoal.filters.values import INTEGER_MAX, INTEGER_MIN, Value, ValueKind

if TYPE_CHECKING:
    from shoal.filters.conjunctions import Conjunction

RESERVED: Final = frozenset({"and", "or", "not", "true", "false"})
"""Words that are names only in double quotes, in any case."""

TRUE_TEXT: Final = "true"
"""The conjunction without predicates: it matches every event."""

PLAIN_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*(?:[.-][A-Za-z0-9_]+)*"
"""A name that needs no quotes, as a regular expression."""
_plain_name: Final = re.compile(PLAIN_NAME)
_NEGATED: Final = {
    Operator.NOT_PREFIX: Operator.PREFIX,
    Operator.NOT_SUFFIX: Operator.SUFFIX,
    Operator.NOT_CONTAINS: Operator.CONTAINS,
}
_LIKE: Final = {unlike: operator for operator, unlike in UNLIKE.items() if operator is not Operator.EQ}
_EXAMPLES: Final = {ValueKind.NUMBER.word: "0", ValueKind.STRING.word: "''", ValueKind.BOOLEAN.word: "false"}
"""What the papers write after isPresent to name a kind."""


def name_text(name: str) -> str:
    """The name of an attribute, in double quotes if it needs them."""
    if _plain_name.fullmatch(name) and name.lower() not in RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def value_text(value: Value) -> str:
    """A value as the language reads it."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and INTEGER_MIN <= value <= INTEGER_MAX:
        return str(int(value))
    return repr(value)


def predicate_text(predicate: Predicate) -> str:
    """A predicate in the infix spelling."""
    name, operator, value = name_text(predicate.attribute), predicate.operator, predicate.value
    if operator in _NEGATED:
        return f"not {predicate_text(Predicate(predicate.attribute, _NEGATED[operator], value))}"
    if value is None:
        return f"{name} {operator}"
    if isinstance(value, tuple):
        return f"{name} {operator} {_list_text(value, ', ')}"
    return f"{name} {operator} {value if operator is Operator.IS else value_text(value)}"


def filter_text(conjunctions: Iterable[Conjunction]) -> str:
    """A disjunction of conjunctions in the infix spelling."""
    return " or ".join(map(_infix_conjunction, conjunctions))


def paper_text(conjunction: Conjunction) -> str:
    """A conjunction in the papers' spelling. `true` is the same in both."""
    return ",".join(map(_paper_predicate, predicates_of(conjunction))) or TRUE_TEXT


def predicates_of(conjunction: Conjunction) -> tuple[Predicate, ...]:
    """The shortest list of predicates that means the same as a conjunction, in the order of the attributes."""
    return tuple(
        predicate for attribute, constraint in conjunction.constraints for predicate in constraint.predicates(attribute)
    )


def _infix_conjunction(conjunction: Conjunction) -> str:
    return " and ".join(map(predicate_text, predicates_of(conjunction))) or TRUE_TEXT


def _paper_predicate(predicate: Predicate) -> str:
    return f"[{','.join((name_text(predicate.attribute), *_paper_parts(predicate)))}]"


def _list_text(values: Iterable[Value], separator: str) -> str:
    return f"({separator.join(value_text(each) for each in values)})"


def _paper_parts(predicate: Predicate) -> tuple[str, ...]:
    operator, value = predicate.operator, predicate.value
    if operator in _NEGATED:
        sign, operand = _paper_parts(Predicate(predicate.attribute, _NEGATED[operator], value))
        return f"not {sign}", operand
    if operator in _LIKE:
        sign, operand = _paper_parts(Predicate(predicate.attribute, _LIKE[operator], value))
        return f"is not {sign}", operand
    if operator is Operator.EXISTS:
        return "=", "*"
    if value is None:
        return (operator.value,)
    if isinstance(value, tuple):
        return operator.value, _list_text(value, ",")
    if operator is Operator.IS:
        return "isPresent", _EXAMPLES[str(value)]
    if operator in (Operator.PREFIX, Operator.SUFFIX, Operator.CONTAINS):
        return f"str-{operator}", value_text(value)
    if operator is Operator.EQ and isinstance(value, str):
        return "eq", value_text(value)
    return operator.value, value_text(value)
