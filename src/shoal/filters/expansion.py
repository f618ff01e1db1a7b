"""Expansion: turns `and`, `or` and `not` over predicates into a bounded number of conjunctions.

Owns the expression tree, three-valued negation, and the limits on what a tree may become. Never touches text: the
language and the CloudEvents reader pass their trees here.

`not` is pushed down to the predicates (De Morgan), where it becomes an operator that is true where the original is
false, and unknown where the original is unknown. The rest has only `and` and `or`, and is distributed conjunction by
conjunction. Alternatives that nothing can satisfy, and duplicates, are dropped at once, and the limits are checked at
every step, so that a tree that would explode is rejected before it does. The work is limited as well
(`filter_work_max`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, TypeAlias

import msgspec

from shoal.errors import EmptyFilterError, FilterTooLargeError
from shoal.filters.conjunctions import Conjunction, conjunction_of
from shoal.filters.filter import Filter, filter_of
from shoal.filters.formatter import predicate_text, predicates_of
from shoal.filters.predicates import LISTING, NEGATIONS, Operand, Operator, Predicate, none_of
from shoal.filters.values import KINDS, MARKS, Value, ValueKind, kind_of
from shoal.limits import DEFAULT_LIMITS, Limits


class Leaf(msgspec.Struct, frozen=True):
    """One predicate, and its position if it came from text."""

    predicate: Predicate
    position: int | None = None


class All(msgspec.Struct, frozen=True):
    """`and`: every part is true. Without parts it is `true`. The position, here and below, is that of the first
    operator."""

    parts: tuple[Expression, ...]
    position: int | None = None


class Any(msgspec.Struct, frozen=True):
    """`or`: at least one part is true. Without parts nothing satisfies it."""

    parts: tuple[Expression, ...]
    position: int | None = None


class Not(msgspec.Struct, frozen=True):
    """`not`: the part is false. Unknown is not enough."""

    part: Expression


Expression: TypeAlias = Leaf | All | Any | Not

_Alternatives: TypeAlias = dict[Conjunction, tuple[Leaf, ...]]
"""Conjunctions, each with the predicates that it was made from."""

_SMALLER: Final = "use fewer alternatives inside 'and', 'in' instead of 'or', or several subscriptions"
"""Advice for a filter that is too large."""

_SPELLED: Final = 16
"""The printed text may have this many times the bytes of the original: `1e19` has twenty digits, a character four
bytes."""

_SLACK: Final = 2
"""A step may hold this many times what the limits allow, before covered alternatives are dropped."""

_CHEAP: Final = 4096
"""Covered alternatives are dropped at every step that costs at most this much work."""


def expand(expression: Expression, limits: Limits = DEFAULT_LIMITS, text: str | None = None) -> Filter:
    """The filter that an expression means. `text`, if it came from one, is for error messages."""
    budget = _Budget(limits, text)
    expansion = _Expansion(budget)
    alternatives = expansion.alternatives(expression, negated=False)
    if not alternatives:
        raise expansion.empty()
    filter_ = filter_of(alternatives)
    try:
        budget.check(predicates=sum(len(predicates_of(each)) for each in filter_.conjunctions))
        _check_spelling(filter_, limits, text)
    except FilterTooLargeError as error:
        _point_at(error, expression)
        raise
    return filter_


def _check_spelling(filter_: Filter, limits: Limits, text: str | None) -> None:
    """Rejects a filter whose printed text would exceed the limits for reading it. Short texts need no check: each
    conjunction prints at most `_SPELLED` times as long."""
    shortest = min(limits.filter_string_bytes_max, limits.filter_text_bytes_max, limits.filter_in_values_max)
    if text is not None and _SPELLED * len(text) * len(filter_.conjunctions) <= shortest:
        return
    spelled = [predicate.value for each in filter_.conjunctions for predicate in predicates_of(each)]
    lists = [value for value in spelled if isinstance(value, tuple)]
    strings = [value for value in (*spelled, *chain.from_iterable(lists)) if isinstance(value, str)]
    printed = [str(filter_)] if len(filter_.conjunctions) > 1 else [str(filter_), filter_.paper()]
    for what, sizes, limit, name in (
        ("bytes of text", map(_bytes, printed), limits.filter_text_bytes_max, "filter_text_bytes_max"),
        ("bytes in a string", map(_bytes, strings), limits.filter_string_bytes_max, "filter_string_bytes_max"),
        ("values of one 'in'", map(len, lists), limits.filter_in_values_max, "filter_in_values_max"),
    ):
        if (size := max(sizes, default=0)) > limit:
            raise FilterTooLargeError(
                f"the filter takes {size} {what} when it is written out as conjunctions, more than {name}={limit}",
                do=_SMALLER,
                text=text,
            )


def _bytes(text: str) -> int:
    return len(text.encode())


def _point_at(error: FilterTooLargeError, expression: Expression) -> None:
    """Sets the position of the expression that became too large, unless something inside it is to blame."""
    while isinstance(expression, Not):
        expression = expression.part
    if error.position is None:
        error.position = expression.position


def _as_literal(expression: Expression, *, negated: bool) -> list[tuple[Leaf, ...]]:
    """`_literal` of an expression that is a predicate under any number of `not`; empty for any other expression."""
    while isinstance(expression, Not):
        expression, negated = expression.part, not negated
    return _literal(expression, negated=negated) if isinstance(expression, Leaf) else []


def _literal(leaf: Leaf, *, negated: bool) -> list[tuple[Leaf, ...]]:
    """A predicate or its negation: alternatives, each a conjunction of predicates that one constraint can express."""
    name, operator, value = leaf.predicate.attribute, leaf.predicate.operator, leaf.predicate.value
    values: Iterable[Operand] = (value,)
    if operator is Operator.IS and negated and name[-1] in MARKS:
        return []  # a view is a string or absent
    if operator is Operator.IS and negated:
        values = (other for other in KINDS if other != value)
    elif negated:
        operator = NEGATIONS[operator]
    if operator in LISTING and isinstance(value, tuple):
        values = _by_kind(value)
    return [(Leaf(Predicate(name, operator, each), leaf.position),) for each in values]


def _by_kind(members: Sequence[Value]) -> Iterable[tuple[Value, ...]]:
    for kind in ValueKind:
        if of_kind := tuple(member for member in members if kind_of(member) is kind):
            yield of_kind


class _Budget:
    """What an expansion may still cost, and the errors for one that costs more."""

    def __init__(self, limits: Limits, text: str | None) -> None:
        self.text = text
        self.predicates_max = limits.filter_predicates_max
        self.conjunctions_max = limits.filter_conjunctions_max
        self._work_max = self._work_left = limits.filter_work_max

    def spend(self, work: int) -> None:
        """Accounts for work before it is done, in values to look at."""
        self._work_left -= work
        if self._work_left < 0:
            raise self._exceeded(self._work_max, "steps to expand", "filter_work_max")

    def check(self, *, conjunctions: int = 0, predicates: int = 0) -> None:
        """Rejects more of either than a filter may have."""
        if conjunctions > self.conjunctions_max:
            raise self._exceeded(self.conjunctions_max, "conjunctions", "filter_conjunctions_max")
        if predicates > self.predicates_max:
            raise self._exceeded(self.predicates_max, "predicates", "filter_predicates_max")

    def _exceeded(self, limit: int, what: str, name: str) -> FilterTooLargeError:
        return FilterTooLargeError(
            f"the filter takes more than {limit} {what} ({name})",
            do=_SMALLER,
            text=self.text,
        )


class _Step:
    """The alternatives that one `or` or `and` has found so far. Growing far beyond the limits is an error."""

    def __init__(self, budget: _Budget) -> None:
        self._budget = budget
        self._found: _Alternatives = {}
        self._predicates = 0

    def add(self, conjunction: Conjunction, leaves: tuple[Leaf, ...]) -> None:
        """Adds an alternative, unless it is there already."""
        if conjunction in self._found:
            return
        self._found[conjunction] = leaves
        self._predicates += len(predicates_of(conjunction))
        self._budget.check(conjunctions=len(self._found) // _SLACK, predicates=self._predicates // _SLACK)
        self._budget.check(predicates=len(leaves))

    def result(self) -> _Alternatives:
        """All alternatives. Covered ones are dropped where that is cheap, or needed to stay within the limits."""
        found, budget = self._found, self._budget
        work = len(found) * _work_of(found)
        if work <= _CHEAP or len(found) > budget.conjunctions_max or self._predicates > budget.predicates_max:
            budget.spend(work)
            found = {each: found[each] for each in filter_of(found).conjunctions} if len(found) > 1 else found
            budget.check(conjunctions=len(found), predicates=sum(len(predicates_of(each)) for each in found))
        return found


def _work_of(alternatives: _Alternatives) -> int:
    """Approximate number of values to look at when comparing all of these with one other conjunction.

    The values of a list are looked at one by one, but each of several predicates on an attribute together with all the
    others.
    """
    work = len(alternatives)
    for conjunction in alternatives:
        for attribute, constraint in conjunction.constraints:
            predicates = constraint.predicates(attribute)
            lists = [each.value for each in predicates if isinstance(each.value, tuple)]
            work += sum(map(len, lists)) + (len(predicates) - len(lists)) ** 2
    return work


class _Expansion:
    """One run: its budget, and the first contradiction that it met."""

    def __init__(self, budget: _Budget) -> None:
        self._budget = budget
        self._contradiction: tuple[Leaf, ...] = ()
        self._never: int | None = None
        """Position of the first negated `true`."""

    def alternatives(self, expression: Expression, *, negated: bool) -> _Alternatives:
        """The conjunctions whose disjunction is the expression, or its negation. There may be none."""
        try:
            return self._alternatives(expression, negated=negated)
        except FilterTooLargeError as error:
            _point_at(error, expression)
            raise

    def _alternatives(self, expression: Expression, *, negated: bool) -> _Alternatives:
        match expression:
            case Leaf():
                return self._union(self._conjunction(leaves) for leaves in _literal(expression, negated=negated))
            case Not(part):
                return self.alternatives(part, negated=not negated)
            case All(parts) if not negated:
                return self._product(parts, negated=False)
            case Any(parts) if negated:
                return self._product(parts, negated=True)
            case All(parts) | Any(parts):
                if not parts and self._never is None:
                    self._never = expression.position
                return self._union(self.alternatives(part, negated=negated) for part in parts)

    def empty(self) -> EmptyFilterError:
        """The error for a filter without alternatives, with the predicates that are to blame."""
        core = _core(self._contradiction)
        said = [f"`{predicate_text(_to_blame(leaf, core))}`" for leaf in core]
        match said:
            case []:
                why = "`not true` is never true"
            case [one]:
                why = f"no value satisfies {one}"
            case [*others, last]:
                why = f"{', '.join(others)} and {last} contradict each other"
        return EmptyFilterError(
            f"nothing can satisfy the filter: {why}",
            text=self._budget.text,
            position=core[-1].position if core else self._never,
        )

    def _union(self, parts: Iterable[_Alternatives]) -> _Alternatives:
        step = _Step(self._budget)
        for part in parts:
            for conjunction, leaves in part.items():
                step.add(conjunction, leaves)
        return step.result()

    def _product(self, parts: Iterable[Expression], *, negated: bool) -> _Alternatives:
        """The alternatives that satisfy all parts: plain conjunctions of predicates in one go, then the others."""
        plain: list[Leaf] = []
        others: list[Expression] = []
        for part in parts:
            literal = _as_literal(part, negated=negated)
            if len(literal) == 1:
                plain.extend(literal[0])
            else:
                others.append(part)
        found = self._conjunction(tuple(plain))
        for part in others:
            if not found:
                break
            found = self._joined(found, self.alternatives(part, negated=negated))
        return found

    def _joined(self, left: _Alternatives, right: _Alternatives) -> _Alternatives:
        self._budget.spend(len(left) * _work_of(right) + len(right) * _work_of(left))
        step = _Step(self._budget)
        for one, leaves in left.items():
            for other, others in right.items():
                both = one.meet(other)
                if both is not None:
                    step.add(both, leaves + others)
                elif not self._contradiction:
                    self._contradiction = leaves + others
        return step.result()

    def _conjunction(self, leaves: tuple[Leaf, ...]) -> _Alternatives:
        self._budget.check(predicates=len(leaves))
        conjunction = conjunction_of(leaf.predicate for leaf in leaves)
        if conjunction is None:
            self._contradiction = self._contradiction or leaves
            return {}
        return {conjunction: leaves}


def _to_blame(leaf: Leaf, core: Sequence[Leaf]) -> Predicate:
    """Of a `not in` among contradicting predicates, the values that the others would accept."""
    name, operator, values = leaf.predicate.attribute, leaf.predicate.operator, leaf.predicate.value
    others = conjunction_of(other.predicate for other in core if other is not leaf)
    constraint = others and others.constraint(name)
    if operator is not Operator.NOT_IN or not isinstance(values, tuple) or not constraint:
        return leaf.predicate
    needed = none_of(name, tuple(value for value in values if constraint.accepts(value)))
    return needed[0] if needed else leaf.predicate


def _core(leaves: Sequence[Leaf]) -> list[Leaf]:
    """A minimal contradicting subset of contradicting predicates, in their order.

    The first predicate that contradicts those before it belongs to the subset; the search repeats with the predicates
    found so far in front.
    """
    core: list[Leaf] = []
    for _ in leaves:
        met = conjunction_of(leaf.predicate for leaf in core)
        if met is None:
            break
        for leaf in leaves:
            single = conjunction_of((leaf.predicate,))
            met = None if single is None or met is None else met.meet(single)
            if met is None:
                core.append(leaf)
                break
    in_order = [leaf for leaf in leaves if any(leaf is found for found in core)]
    return sorted(in_order, key=lambda leaf: leaf.position or 0)
