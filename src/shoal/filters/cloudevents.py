"""CloudEvents subscription filters (Subscriptions API, section "Filters") as another way to make a `Filter`.

Owns the dialects exact, prefix, suffix, all, any and not, as objects parsed from JSON. Never touches JSON text, or the
rest of a subscription object.

The specification has only true and false: `not` is the inverse of its argument, so it also matches events without the
attribute. Its values are strings, so an attribute that is not a string equals none of them, and `not` matches it too.
`is not` means both: `not` of exact type 'x' is `type is not 'x'`, one predicate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from shoal.errors import FilterError, FilterTooLargeError
from shoal.filters.expansion import All, Any, Expression, Leaf, expand
from shoal.filters.filter import Filter
from shoal.filters.predicates import UNLIKE, Operator, Predicate, predicate
from shoal.filters.values import Value
from shoal.limits import DEFAULT_LIMITS, Limits

_LEAVES: Final = {"exact": Operator.EQ, "prefix": Operator.PREFIX, "suffix": Operator.SUFFIX}
_DIALECTS: Final = (*_LEAVES, "all", "any", "not")
_SQL: Final = ("sql", "cesql")


def from_cloudevents(expression: object, limits: Limits = DEFAULT_LIMITS) -> Filter:
    """The filter of one filter expression, or of a list of expressions that must all be true (`filters`).

    Raises FilterError for what the specification does not allow, and for the optional SQL dialect.
    """
    reader = _Reader(limits)
    if isinstance(expression, Sequence) and not isinstance(expression, str | bytes):
        return expand(All(tuple(reader.read(each, negated=False, depth=1) for each in expression)), limits)
    return expand(reader.read(expression, negated=False, depth=1), limits)


class _Reader:
    """Reads filter expressions, and pushes their two-valued `not` down on the way."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def read(self, expression: object, *, negated: bool, depth: int) -> Expression:
        """The expression, or its inverse, with predicates at its leaves."""
        if depth > self._limits.filter_depth_max:
            raise FilterTooLargeError(
                f"more than {self._limits.filter_depth_max} nested filter expressions (filter_depth_max)"
            )
        dialect, body = _opened(expression)
        if operator := _LEAVES.get(dialect):
            return self._comparison(dialect, operator, body, negated=negated)
        if dialect == "not":
            return self.read(body, negated=not negated, depth=depth + 1)
        if not isinstance(body, Sequence) or isinstance(body, str | bytes) or not body:
            raise FilterError(f"'{dialect}' needs a list of at least one filter expression")
        parts = tuple(self.read(each, negated=negated, depth=depth + 1) for each in body)
        return All(parts) if (dialect == "all") != negated else Any(self._folded(parts))

    def _folded(self, parts: Iterable[Expression]) -> tuple[Expression, ...]:
        """Alternatives, with equalities of one attribute as lists of values."""
        values: dict[str, dict[Value, None]] = {}
        others: list[Expression] = []
        for part in parts:
            match part:
                case All((Leaf(Predicate(name, Operator.EQ, str(text))),)):
                    values.setdefault(name, {})[text] = None
                case _:
                    others.append(part)
        size = self._limits.filter_in_values_max
        lists = (
            Leaf(predicate(name, Operator.IN, tuple(islice(values[name], start, start + size)), self._limits))
            for name in values
            for start in range(0, len(values[name]), size)
        )
        return (*lists, *others)

    def _comparison(self, dialect: str, operator: Operator, body: object, *, negated: bool) -> Expression:
        if not isinstance(body, Mapping) or not body:
            raise FilterError(f"'{dialect}' needs an object of attribute names and strings")
        parts: list[Expression] = []
        for name, text in body.items():
            if not isinstance(text, str) or not text:
                raise FilterError(f"'{dialect}' compares with non-empty strings, not with {_shape(text)}")
            parts.append(Leaf(predicate(name, UNLIKE[operator] if negated else operator, text, self._limits)))
        return Any(tuple(parts)) if negated else All(tuple(parts))


def _opened(expression: object) -> tuple[str, object]:
    """The dialect of a filter expression, and its argument."""
    if not isinstance(expression, Mapping) or len(expression) != 1:
        raise FilterError(
            f"a filter expression is an object with one dialect, not {_shape(expression)}",
            do="write for example {'exact': {'type': 'com.example.created'}}",
        )
    [(dialect, body)] = expression.items()
    if dialect in _SQL:
        raise FilterError(
            "the dialect 'sql' (CloudEvents SQL) is not supported",
            do=f"use {', '.join(_DIALECTS)}, or Shoal's own language",
        )
    if not isinstance(dialect, str) or dialect not in _DIALECTS:
        raise FilterError(f"the dialect {dialect!r:.60} is unknown", do=f"use {', '.join(_DIALECTS)}")
    return dialect, body


def _shape(found: object) -> str:
    """How an error message describes an object of the wrong shape."""
    if isinstance(found, Mapping):
        return f"an object of {len(found)} members"
    if found is None or found == "":
        return "null" if found is None else "an empty string"
    name = type(found).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
