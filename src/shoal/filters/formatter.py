"""The formatter: filters and predicates as text, in both spellings.

Owns the one spelling that is printed where the language reads several. Parsing the printed text gives the same filter.
Equal filters print equal text, because a number prints the same as int and as float. Never touches how a filter got its
predicates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import NoneType
from typing import TYPE_CHECKING, Final

from shoal.filters.predicates import UNLIKE, Operator, Predicate
from shoal.filters.values import INTEGER_MAX, INTEGER_MIN, MARKS, Value, ValueKind, kind_of
from shoal.filters.views import ADDRESS, FOLDED, network_text

if TYPE_CHECKING:
    from shoal.filters.conjunctions import Conjunction

RESERVED: Final = frozenset({"and", "or", "not", "true", "false"})
"""Words that are names only in double quotes, in any case."""

FOLDING: Final = "ignorecase"
"""The word before the name of an attribute whose case is ignored."""
CIDR: Final = "cidr"
"""The operator for an address in a network."""
TRUE_TEXT: Final = "true"
"""The conjunction without predicates: it matches every event."""

PLAIN_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*(?:[.-][A-Za-z0-9_]+)*"
"""A name that needs no quotes, as a regular expression."""
_plain_name: Final = re.compile(PLAIN_NAME)
_NEGATED: Final = {
    Operator.NOT_PREFIX: Operator.PREFIX,
    Operator.NOT_SUFFIX: Operator.SUFFIX,
    Operator.NOT_CONTAINS: Operator.CONTAINS,
    Operator.NOT_WILDCARD: Operator.WILDCARD,
}
_LIKE: Final = {unlike: operator for operator, unlike in UNLIKE.items() if operator is not Operator.EQ}
_JOINED_MAX: Final = 16
"""Values at most of a `not in` that is printed for two conjunctions."""
_EXAMPLES: Final = {ValueKind.NUMBER.word: "0", ValueKind.STRING.word: "''", ValueKind.BOOLEAN.word: "false"}
"""What the papers write after isPresent to name a kind."""


def name_text(name: str) -> str:
    """The name of an attribute, in double quotes if it needs them; of a folded one, with `ignorecase`."""
    if name[-1:] in MARKS:
        return f"{FOLDING}({name_text(name[:-1])})" if name[-1] == FOLDED else name_text(name[:-1])
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
    if predicate.attribute[-1] == ADDRESS:
        return f"{name} {_on_networks(operator)} {value_text(network_text(str(value)))}"
    if value is None:
        return f"{name} {operator}"
    if isinstance(value, tuple):
        return f"{name} {operator} {_list_text(value, ', ')}"
    return f"{name} {operator} {value if operator is Operator.IS else value_text(value)}"


def filter_text(conjunctions: Iterable[Conjunction]) -> str:
    """A disjunction of conjunctions in the infix spelling. `a not in (1, 'x')`, two conjunctions, is printed as
    written: `a != 1 or a != 'x'` means the same, and reads as if it were always true."""
    parts = [predicates_of(conjunction) for conjunction in conjunctions]
    while len(parts) > 1 and (joined := _with_joined_lists(parts)) != parts:
        parts = joined
    return " or ".join(" and ".join(map(predicate_text, part)) or TRUE_TEXT for part in parts)


def _with_joined_lists(parts: list[tuple[Predicate, ...]]) -> list[tuple[Predicate, ...]]:
    """Conjunctions, with each pair that differs only in values of different kinds that one attribute must not have as
    one."""
    found: list[tuple[Predicate, ...]] = []
    places: dict[tuple[Predicate, ...], int] = {}
    for part in parts:
        keys = {key: place for place in range(len(part)) if (key := _key_without_values(part, place))}
        joinable = [key for key in keys if key in places and _can_join(part, found[places[key]], keys[key])]
        if not joinable:
            places |= {key: len(found) for key in keys if key not in places}
            found.append(part)
            continue
        key = joinable[0]
        other, place = found[places[key]], keys[key]
        values = (*_excluded(other[place]), *_excluded(part[place]))
        found[places[key]] = (
            *part[:place],
            Predicate(part[place].attribute, Operator.NOT_IN, values),
            *part[place + 1 :],
        )
        places = {each: at for each, at in places.items() if at != places[key]}
    return found


def _key_without_values(part: tuple[Predicate, ...], place: int) -> tuple[Predicate, ...]:
    """A conjunction without the values that one of its predicates excludes; empty if it has others on the attribute."""
    own = part[place]
    if not _excluded(own) or sum(each.attribute == own.attribute for each in part) > 1:
        return ()
    return (*part[:place], Predicate(own.attribute, Operator.NOT_IN), *part[place + 1 :])


def _can_join(part: tuple[Predicate, ...], other: tuple[Predicate, ...], place: int) -> bool:
    mine, theirs = _excluded(part[place]), _excluded(other[place])
    return len(mine) + len(theirs) <= _JOINED_MAX and set(map(kind_of, mine)).isdisjoint(map(kind_of, theirs))


def _excluded(predicate: Predicate) -> tuple[Value, ...]:
    """The values that `!=` or `not in` excludes; empty for other predicates."""
    if predicate.operator is Operator.NE and not isinstance(predicate.value, tuple | NoneType):
        return (predicate.value,)
    return predicate.value if predicate.operator is Operator.NOT_IN and isinstance(predicate.value, tuple) else ()


def paper_text(conjunction: Conjunction) -> str:
    """A conjunction in the papers' spelling. `true` is the same in both."""
    return ",".join(map(_paper_predicate, predicates_of(conjunction))) or TRUE_TEXT


def predicates_of(conjunction: Conjunction) -> tuple[Predicate, ...]:
    """The shortest list of predicates that means the same as a conjunction, in the order of the attributes."""
    return tuple(
        predicate for attribute, constraint in conjunction.constraints for predicate in constraint.predicates(attribute)
    )


def _paper_predicate(predicate: Predicate) -> str:
    return f"[{','.join((name_text(predicate.attribute), *_paper_parts(predicate)))}]"


def _on_networks(operator: Operator) -> str:
    """The word for an operator on the bits of an address."""
    return operator.replace(Operator.PREFIX, CIDR)


def _list_text(values: Iterable[Value], separator: str) -> str:
    return f"({separator.join(value_text(each) for each in values)})"


def _paper_parts(predicate: Predicate) -> tuple[str, ...]:
    operator, value = predicate.operator, predicate.value
    if operator in _NEGATED:
        sign, operand = _paper_parts(Predicate(predicate.attribute, _NEGATED[operator], value))
        return f"not {sign}", operand
    if predicate.attribute[-1] == ADDRESS:
        return _on_networks(operator), value_text(network_text(str(value)))
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
    if operator in (Operator.PREFIX, Operator.SUFFIX, Operator.CONTAINS, Operator.WILDCARD):
        return f"str-{operator}", value_text(value)
    if operator is Operator.EQ and isinstance(value, str):
        return "eq", value_text(value)
    return operator.value, value_text(value)
