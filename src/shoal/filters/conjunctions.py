"""Conjunctions: predicates that must all be true of an event, as one constraint for each attribute.

Owns how constraints on several attributes go together. Never touches what a constraint accepts, nor disjunctions.

Attributes are independent and no constraint accepts everything, so one conjunction covers another exactly if it
constrains no other attributes and each of its constraints covers the one of the other: complete wherever constraints
are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from shoal.filters.constraints import Constraint, constraint_of, order_of
from shoal.filters.predicates import Predicate
from shoal.filters.values import Event


class Conjunction(msgspec.Struct, frozen=True, gc=False, array_like=True, cache_hash=True):
    """Constraints, one for each attribute, in the order of the names. The empty one matches every event.

    `conjunction_of` makes one from predicates.
    """

    constraints: tuple[tuple[str, Constraint], ...] = ()

    def matches(self, event: Event) -> bool:
        """Whether every constraint accepts what the event has there."""
        for attribute, constraint in self.constraints:  # noqa: SIM110  # all() costs twice as much
            if not constraint.accepts(event.get(attribute)):
                return False
        return True

    def constraint(self, attribute: str) -> Constraint | None:
        """What is said of an attribute; None if nothing is."""
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
        """Whether some event may be matched by both: False is certain."""
        theirs = dict(other.constraints)
        return all(
            constraint.intersects(theirs[attribute])
            for attribute, constraint in self.constraints
            if attribute in theirs
        )

    def meet(self, other: Conjunction) -> Conjunction | None:
        """What both match; None if that is certainly nothing."""
        both = dict(self.constraints)
        for attribute, constraint in other.constraints:
            mine = both.get(attribute)
            met = constraint if mine is None else mine.meet(constraint)
            if met is None:
                return None
            both[attribute] = met
        return Conjunction(tuple(sorted(both.items(), key=_name)))

    def order(self) -> tuple[Any, ...]:
        """A key that puts any conjunctions in one order, the same for equal ones."""
        return tuple((attribute, order_of(constraint)) for attribute, constraint in self.constraints)


def conjunction_of(predicates: Iterable[Predicate]) -> Conjunction | None:
    """The conjunction of predicates, in whatever order and however redundant; None if it is certainly empty."""
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
