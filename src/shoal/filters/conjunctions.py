"""Conjunctions: predicates that must all be true of an event, as one constraint per attribute.

Owns how constraints on several attributes combine. Never touches what a constraint accepts, or disjunctions.

Attributes are independent, and no constraint accepts everything. So one conjunction covers another exactly if it
constrains no other attributes, and each of its constraints covers that of the other. This is complete wherever
constraints are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from shoal.filters.arrays import ARRAY_TYPES, variants_of
from shoal.filters.constraints import Constraint, constraint_of, order_of
from shoal.filters.predicates import Predicate
from shoal.filters.values import MARKS, PLAIN_TYPES, Event, native
from shoal.filters.views import base_of, value_of


class Conjunction(msgspec.Struct, frozen=True, gc=False, array_like=True, cache_hash=True):
    """Constraints, one per attribute, in the order of the names. The empty conjunction matches every event.

    `conjunction_of` makes one from predicates.
    """

    constraints: tuple[tuple[str, Constraint], ...] = ()

    def matches(self, event: Event) -> bool:
        """Whether every constraint accepts the event's value; for an event with arrays, whether that is so for some
        choice of an element of each."""
        for attribute, constraint in self.constraints:  # all() takes twice as long
            value = event.get(attribute)
            if value is None and attribute[-1] in MARKS:
                value = value_of(event, attribute)
            if type(value) not in PLAIN_TYPES:
                if isinstance(value, ARRAY_TYPES):
                    return self._matches_variant(event)
                value = native(value)
            if not constraint.accepts(value):
                return False
        return True

    def _matches_variant(self, event: Event) -> bool:
        """`matches` for an event with arrays."""
        names = {base_of(attribute) for attribute, _ in self.constraints}
        return any(map(self.matches, variants_of(event, names)))

    def constraint(self, attribute: str) -> Constraint | None:
        """The constraint on an attribute; None if there is none."""
        for name, constraint in self.constraints:
            if name == attribute:
                return constraint
        return None

    def covers(self, other: Conjunction) -> bool:
        """Whether every event that `other` matches is certainly matched here."""
        theirs = other.constraints
        left = len(theirs)
        if len(self.constraints) > left:
            return False
        for attribute, constraint in self.constraints:
            while left and theirs[-left][0] != attribute:
                left -= 1
            if not left or not constraint.covers(theirs[-left][1]):
                return False
        return True

    def intersects(self, other: Conjunction) -> bool:
        """Whether some event may be matched by both. False is certain."""
        theirs = dict(other.constraints)
        return all(
            constraint.intersects(theirs[attribute])
            for attribute, constraint in self.constraints
            if attribute in theirs
        )

    def meet(self, other: Conjunction) -> Conjunction | None:
        """The conjunction that matches the events that both match. None if no event can match both."""
        both = dict(self.constraints)
        for attribute, constraint in other.constraints:
            mine = both.get(attribute)
            met = constraint if mine is None else mine.meet(constraint)
            if met is None:
                return None
            both[attribute] = met
        return Conjunction(tuple(sorted(both.items(), key=_name)))

    def order(self) -> tuple[Any, ...]:
        """A sort key. Equal conjunctions have equal keys."""
        return tuple((attribute, order_of(constraint)) for attribute, constraint in self.constraints)


def conjunction_of(predicates: Iterable[Predicate]) -> Conjunction | None:
    """The conjunction of predicates, in any order and with any redundancy; None if it is certainly empty."""
    by_attribute: dict[str, list[Predicate]] = {}
    for predicate in predicates:
        by_attribute.setdefault(predicate.attribute, []).append(predicate)
    constraints: list[tuple[str, Constraint]] = []
    for attribute in sorted(by_attribute):
        constraint = constraint_of(by_attribute[attribute])
        if constraint is None:
            return None
        constraints.append((attribute, constraint))
    return Conjunction(tuple(constraints))


def _name(item: tuple[str, Constraint]) -> str:
    return item[0]
