"""Filters: a disjunction of conjunctions, what a subscription is.

Owns the canonical disjunction and the reasoning about it. Never touches text: `language` reads it, `printing` writes
it.

`covers` and `intersects` are sound always: True of `covers` and False of `intersects` are certain. For filters of one
conjunction they are complete wherever constraints are (the module `strings` lists the exceptions). A disjunction is
covered if each of its conjunctions is, by one conjunction or by several that differ in one attribute; that it is
covered in another way is not seen (the module `unions` says which). Two disjunctions with one meaning may be unequal:
`a = 1 or a = 2` and `a in (1, 2)` are two filters, of which `equal` knows that they mean the same.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.errors import EmptyFilterError, FilterError
from shoal.filters.conjunctions import Conjunction
from shoal.filters.formatter import filter_text, paper_text
from shoal.filters.unions import covered_together
from shoal.filters.values import Event


class Filter(msgspec.Struct, frozen=True, gc=False, array_like=True, cache_hash=True):
    """At least one conjunction, none of which covers another one, in order. `filter_of` makes one."""

    conjunctions: tuple[Conjunction, ...]

    def matches(self, event: Event) -> bool:
        """Whether some conjunction matches the event; None as a value is absence."""
        get = event.get
        for conjunction in self.conjunctions:
            for attribute, constraint in conjunction.constraints:
                if not constraint.accepts(get(attribute)):
                    break
            else:
                return True
        return False

    def covers(self, other: Filter) -> bool:
        """Whether every event that `other` matches is certainly matched here."""
        check_filter(other)
        return all(
            any(mine.covers(theirs) for mine in self.conjunctions)
            or (len(self.conjunctions) > 1 and covered_together(theirs, self.conjunctions))
            for theirs in other.conjunctions
        )

    def covers_by_parts(self, other: Filter) -> bool:
        """Whether each conjunction of `other` is covered by one conjunction here: less than `covers` sees, but a
        partial order. It is transitive, and two filters that cover each other are equal."""
        return all(any(mine.covers(theirs) for mine in self.conjunctions) for theirs in other.conjunctions)

    def intersects(self, other: Filter) -> bool:
        """Whether some event may be matched by both: False is certain."""
        check_filter(other)
        return any(mine.intersects(theirs) for mine in self.conjunctions for theirs in other.conjunctions)

    def meet(self, other: Filter) -> Filter | None:
        """What both match; None if that is certainly nothing."""
        check_filter(other)
        met = [mine.meet(theirs) for mine in self.conjunctions for theirs in other.conjunctions]
        left = [conjunction for conjunction in met if conjunction is not None]
        return filter_of(left) if left else None

    def equal(self, other: Filter) -> bool:
        """Whether both certainly match the same events; `==` sees it for all single conjunctions, and sooner."""
        return self == check_filter(other) or (self.covers(other) and other.covers(self))

    def paper(self) -> str:
        """The papers' spelling, `[class,eq,'STOCK'],[volume,>,300000]`. FilterError if there are alternatives."""
        if len(self.conjunctions) > 1:
            raise FilterError("the papers' spelling has no `or`", do="use str() for a filter with alternatives")
        return paper_text(self.conjunctions[0])

    def __str__(self) -> str:
        return filter_text(self.conjunctions)


def check_filter(found: object) -> Filter:
    """What was handed in as a filter, if it is one. FilterError for everything else, a text most of all."""
    if not isinstance(found, Filter):
        raise no_filter(found)
    return found


def no_filter(found: object) -> FilterError:
    """The error for what stands in the place of a filter."""
    return FilterError(
        f"a filter is needed, not something of type {type(found).__name__}", do="make a filter of a text with `parse`"
    )


def filter_of(conjunctions: Iterable[Conjunction | None]) -> Filter:
    """The filter of some conjunctions; None among them is one that nothing can satisfy.

    Raises EmptyFilterError if all are such.
    """
    kept: list[Conjunction] = []
    for conjunction in conjunctions:
        if conjunction is None or any(other.covers(conjunction) for other in kept):
            continue
        kept = [other for other in kept if not conjunction.covers(other)]
        kept.append(conjunction)
    if not kept:
        raise EmptyFilterError(
            "nothing can satisfy the filter", do="look for predicates on one attribute that exclude each other"
        )
    if len(kept) > 1:
        kept.sort(key=Conjunction.order)
    return Filter(tuple(kept))
