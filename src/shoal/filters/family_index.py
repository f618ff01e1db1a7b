"""The index of families: which of them can hold conjunctions that cover a given one, or that it covers.

Owns the way from a conjunction to families. Never touches the inside of a family, or the order of filters.

A conjunction that covers another has some of its attributes. Families are in a tree with one attribute per level, in
the order of names, and the tree is walked along the conjunction. A covered conjunction has all attributes of the
covering one. Each attribute, and each single value of one, has the set of families that have it, and the sets are
intersected, the smallest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeAlias

from shoal.filters.conjunctions import Conjunction
from shoal.filters.constraints import Constraint
from shoal.filters.families import (
    ABOVE,
    BELOW,
    BETWEEN,
    CONTAINS,
    NUMBER,
    PREFIX,
    SUFFIX,
    AffixFamily,
    Bounds,
    ContainsFamily,
    Family,
    ListFamily,
    Member,
    ScanFamily,
    ThresholdFamily,
    number_shape,
    text_shape,
)
from shoal.filters.ranges import Numbers, OneOf
from shoal.filters.strings import Strings

FamilyToken: TypeAlias = OneOf | str
"""What a constraint has in common with those of its family: the single value that is required, or its shape."""
FamilyKey: TypeAlias = tuple[tuple[str, FamilyToken], ...]
"""The attributes of a family in order, each with its token."""

_LIST: Final = "list"
_OTHER: Final = "other"


def token_of(constraint: Constraint) -> FamilyToken:
    """The token of a constraint."""
    if isinstance(constraint, OneOf):
        return constraint if len(constraint.values) == 1 else _LIST
    shape = None
    if isinstance(constraint, Numbers):
        shape = number_shape(constraint)
    elif isinstance(constraint, Strings):
        shape = text_shape(constraint)
    return shape or _OTHER


def family_for(key: FamilyKey) -> Family[Member]:
    """An empty family for conjunctions with these attributes and tokens."""
    shapes = [(attribute, token) for attribute, token in key if isinstance(token, str)]
    if all(shape in (ABOVE, BELOW, BETWEEN, NUMBER) for _, shape in shapes):
        return ThresholdFamily(shapes)
    if len(shapes) == 1:
        attribute, shape = shapes[0]
        if shape in (PREFIX, SUFFIX):
            return AffixFamily(attribute, shape)
        if shape == CONTAINS:
            return ContainsFamily(attribute)
        if shape == _LIST:
            return ListFamily(attribute)
    return ScanFamily()


class FamilyIndex(Generic[Member]):
    """Conjunctions, each with a member, in families.

    `is_scanned` is for members that depend on more than the conjunction: all members that cover, or are covered, are
    found then, not only the nearest.
    """

    def __init__(self, *, is_scanned: bool = False) -> None:
        self._is_scanned = is_scanned
        self._bounds: Bounds[Member] = Bounds()
        self._root: _Branch[Member] = _Branch()
        self._entries: dict[FamilyKey, _Entry[Member]] = {}
        self._with: dict[str | tuple[str, FamilyToken], set[_Entry[Member]]] = {}
        """The families that have an attribute, or a single value of one."""

    def add(self, conjunction: Conjunction, member: Member) -> None:
        """Adds a conjunction that is not there."""
        key = _key(conjunction)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key, ScanFamily() if self._is_scanned else family_for(key))
            self._path(key)[-1].entry = entry
            for name in entry.names():
                self._with.setdefault(name, set()).add(entry)
        entry.family.add(conjunction, member)
        if not self._is_scanned:
            self._bounds.add(conjunction, member)

    def remove(self, conjunction: Conjunction) -> None:
        """Removes a conjunction that is there."""
        key = _key(conjunction)
        entry = self._entries[key]
        entry.family.remove(conjunction)
        if not self._is_scanned:
            self._bounds.remove(conjunction)
        if len(entry.family) == 0:
            del self._entries[key]
            self._prune(key)
            for name in entry.names():
                self._with[name].remove(entry)
                if not self._with[name]:
                    del self._with[name]

    def covering(self, conjunction: Conjunction) -> Iterator[Member]:
        """Members that cover a conjunction; at least those that cover no other such member."""
        for family in self._above(conjunction):
            yield from family.covering(conjunction)

    def perhaps_covering(self, conjunction: Conjunction) -> Iterator[Member]:
        """All members that cover a conjunction, and others."""
        for family in self._above(conjunction):
            yield from family.members()

    def covered(self, conjunction: Conjunction) -> Iterator[Member]:
        """Members that a conjunction covers; at least those that no other such member covers."""
        own = self._entries.get(_key(conjunction))
        if own is not None and isinstance(own.family, ThresholdFamily):
            following = own.family.next_on_line(conjunction)
            if following is not None:
                between = self._bounds.between(conjunction, following[0], limit=self._count_below(conjunction))
                if between is not None:
                    yield following[1]
                    yield from (member for theirs, member in between if conjunction.covers(theirs))
                    return
        for family in self._below(conjunction):
            yield from family.covered(conjunction)

    def _above(self, conjunction: Conjunction) -> Iterator[Family[Member]]:
        """The families that can hold conjunctions that cover a given one."""
        steps = [(attribute, token_of(constraint)) for attribute, constraint in conjunction.constraints]
        waiting = [(self._root, 0)]
        while waiting:
            branch, done = waiting.pop()
            if branch.entry is not None:
                yield branch.entry.family
            if not branch.further:
                continue
            for place in range(done, len(steps)):
                attribute, token = steps[place]
                further = branch.further.get(attribute)
                if further is not None:
                    waiting.extend((each, place + 1) for each in further.by_shape.values())
                    same = further.by_value.get(token)
                    if same is not None:
                        waiting.append((same, place + 1))

    def _below(self, conjunction: Conjunction) -> Iterator[Family[Member]]:
        """The families that can hold conjunctions that a given one covers."""
        sets = self._sets_below(conjunction)
        smallest = min(sets, key=len)
        for entry in smallest.intersection(*(each for each in sets if each is not smallest)):
            if all(entry.may_be_covered(attribute, constraint) for attribute, constraint in conjunction.constraints):
                yield entry.family

    def _count_below(self, conjunction: Conjunction) -> int:
        """Approximate number of families that `_below` looks at."""
        return min(map(len, self._sets_below(conjunction)))

    def _sets_below(self, conjunction: Conjunction) -> list[set[_Entry[Member]]]:
        """Sets of families. What a conjunction covers is in all of them."""
        if not conjunction.constraints:
            return [set(self._entries.values())]
        tokens = ((attribute, token_of(constraint)) for attribute, constraint in conjunction.constraints)
        return [self._with.get(item[0] if isinstance(item[1], str) else item, set()) for item in tokens]

    def _path(self, key: FamilyKey) -> list[_Branch[Member]]:
        """The branches that lead to a family. Missing ones are created."""
        path = [self._root]
        for attribute, token in key:
            branches = path[-1].further.setdefault(attribute, _Further()).of(token)
            path.append(branches.setdefault(token, _Branch()))
        return path

    def _prune(self, key: FamilyKey) -> None:
        """Removes the branches that led only to a removed family."""
        path = self._path(key)
        path[-1].entry = None
        for (attribute, token), branch, leaf in reversed(list(zip(key, path, path[1:], strict=False))):
            if leaf.entry is not None or leaf.further:
                break
            further = branch.further[attribute]
            del further.of(token)[token]
            if not further.by_value and not further.by_shape:
                del branch.further[attribute]


class _Entry(Generic[Member]):
    """A family and its key."""

    __slots__ = ("family", "key", "values")

    def __init__(self, key: FamilyKey, family: Family[Member]) -> None:
        self.key = key
        self.family = family
        self.values = {attribute: token for attribute, token in key if isinstance(token, OneOf)}

    def names(self) -> Iterator[str | tuple[str, FamilyToken]]:
        """The names under which the family is found from above."""
        for attribute, token in self.key:
            yield attribute
            if isinstance(token, OneOf):
                yield attribute, token

    def may_be_covered(self, attribute: str, constraint: Constraint) -> bool:
        """Whether a constraint accepts the single value that all members require, if they do."""
        value = self.values.get(attribute)
        return value is None or constraint.covers(value)


class _Branch(Generic[Member]):
    """A node of the tree: the family that ends here, and the next levels by attribute."""

    __slots__ = ("entry", "further")

    def __init__(self) -> None:
        self.entry: _Entry[Member] | None = None
        self.further: dict[str, _Further[Member]] = {}


class _Further(Generic[Member]):
    """The branches of one attribute, by single value and by shape."""

    __slots__ = ("by_shape", "by_value")

    def __init__(self) -> None:
        self.by_value: dict[FamilyToken, _Branch[Member]] = {}
        self.by_shape: dict[FamilyToken, _Branch[Member]] = {}

    def of(self, token: FamilyToken) -> dict[FamilyToken, _Branch[Member]]:
        """The branches of a token's type."""
        return self.by_shape if isinstance(token, str) else self.by_value


def _key(conjunction: Conjunction) -> FamilyKey:
    return tuple((attribute, token_of(constraint)) for attribute, constraint in conjunction.constraints)
