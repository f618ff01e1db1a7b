"""Families: conjunctions that look alike, kept so that the nearest ones above and below a new one are found at once.

Owns what a family can be asked, and the two plain kinds of families. Never touches the order of filters itself: the
poset decides with what it is handed here.

A family is what has the same attributes, the same values where a single value is asked for, and the same shape
elsewhere. So `class = 'STOCK' and symbol = 'YHOO' and volume > x` is one family for all x, and a line: of its members
that cover a conjunction only the nearest can be a parent.

    ThresholdFamily   numbers between bounds: a line is searched by halving, several bounds at once are scanned
    AffixFamily       one prefix, or one suffix: a sorted list of texts
    ContainsFamily    one substring: looked up by the parts of a text, or by its rarest three letters
    ListFamily        one list of values: looked up by its values
    ScanFamily        everything else: all members are compared
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from shoal.filters.conjunctions import Conjunction
from shoal.filters.ranges import Numbers, OneOf
from shoal.filters.values import Kind, Value, kind_of

Member = TypeVar("Member")


class Family(Protocol[Member]):
    """Members by their conjunctions, which are all of one family and unique."""

    def add(self, conjunction: Conjunction, member: Member) -> None:
        """Take one in."""

    def remove(self, conjunction: Conjunction) -> None:
        """Let one go that is there."""

    def covering(self, conjunction: Conjunction) -> Iterable[Member]:
        """Members that cover a conjunction; at least those of them that cover no other one of them."""

    def covered(self, conjunction: Conjunction) -> Iterable[Member]:
        """Members that a conjunction covers; at least those of them that no other one of them covers."""

    def members(self) -> Iterable[Member]:
        """All of them."""

    def __len__(self) -> int: ...


class ScanFamily(Generic[Member]):
    """Members in no order."""

    def __init__(self) -> None:
        self._members: dict[Conjunction, Member] = {}

    def add(self, conjunction: Conjunction, member: Member) -> None:
        """See `Family`."""
        self._members[conjunction] = member

    def remove(self, conjunction: Conjunction) -> None:
        """See `Family`."""
        del self._members[conjunction]

    def covering(self, conjunction: Conjunction) -> Iterable[Member]:
        """See `Family`."""
        return [self._members[mine] for mine in self._near(conjunction, above=True) if mine.covers(conjunction)]

    def covered(self, conjunction: Conjunction) -> Iterable[Member]:
        """See `Family`."""
        return [self._members[mine] for mine in self._near(conjunction, above=False) if conjunction.covers(mine)]

    def members(self) -> Iterable[Member]:
        """See `Family`."""
        return self._members.values()

    def __len__(self) -> int:
        return len(self._members)

    def _near(self, conjunction: Conjunction, *, above: bool) -> Iterable[Conjunction]:
        """All members that can cover a conjunction, or be covered by it; more do no harm but take time."""
        return self._members


class ListFamily(ScanFamily[Member]):
    """Members by the values that they list for one attribute. All other attributes have a single value."""

    def __init__(self, attribute: str) -> None:
        super().__init__()
        self._attribute = attribute
        self._by_value: dict[tuple[Kind, Value], set[Conjunction]] = {}

    def add(self, conjunction: Conjunction, member: Member) -> None:
        """See `Family`."""
        super().add(conjunction, member)
        for key in self._keys(conjunction):
            self._by_value.setdefault(key, set()).add(conjunction)

    def remove(self, conjunction: Conjunction) -> None:
        """See `Family`."""
        super().remove(conjunction)
        for key in self._keys(conjunction):
            self._by_value[key].remove(conjunction)
            if not self._by_value[key]:
                del self._by_value[key]

    def _near(self, conjunction: Conjunction, *, above: bool) -> Iterable[Conjunction]:
        if not above and not isinstance(conjunction.constraint(self._attribute), OneOf):
            return self._members
        found = [self._by_value.get(key, set()) for key in self._keys(conjunction)]
        if above:
            return min(found, key=len, default=())
        return set().union(*found)

    def _keys(self, conjunction: Conjunction) -> list[tuple[Kind, Value]]:
        """Values that the attribute may have, and that all lists above must have as well."""
        constraint = conjunction.constraint(self._attribute)
        if isinstance(constraint, Numbers):
            return [(Kind.NUMBER, constraint.low)]
        return [(kind_of(value), value) for value in constraint.values] if isinstance(constraint, OneOf) else []
