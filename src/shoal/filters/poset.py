"""The poset: unique filters in the order of covering, with their subscribers.

Owns the covering graph (each filter below the nearest ones that cover it, the transitive reduction) and the covering
set, the filters that no other filter covers: all that a broker has to forward (the papers' CSS, section 2.1). Never
touches links or messages; it says what to forward and what no longer, and the broker does it.

    insert    a new root is to be forwarded; the roots that it covers need not be any more
    remove    of a root: the filters that only it had covered become roots, and are to be forwarded first

Covering is `Filter.covers_by_parts`, which is a partial order. The nearest filters are looked up in families
(`family_index`), not among all: with the papers' stock subscriptions an insert looks at a few filters, however many
there are. It is linear in the size of a family if that is a `ScanFamily`, or has two or more bounds at once.

The poset does not limit the number of filters: limits belong where subscriptions are admitted. It is not thread-safe.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Set
from typing import NamedTuple

from shoal.errors import FilterError, ProtocolError
from shoal.filters.conjunctions import Conjunction
from shoal.filters.family_index import FamilyIndex
from shoal.filters.filter import Filter, check_filter


class Insertion(NamedTuple):
    """The changes that an insert made."""

    is_new: bool
    """Whether the filter had no subscribers before."""
    is_root: bool
    """Whether the filter is in the covering set. Forward it if it is also new."""
    covered: tuple[Filter, ...]
    """Filters that left the covering set, because the new one covers them."""


class Removal(NamedTuple):
    """The changes that a remove made."""

    is_gone: bool
    """Whether the filter has no subscribers left."""
    was_root: bool
    """Whether the filter was in the covering set before."""
    exposed: tuple[Filter, ...]
    """Filters that entered the covering set, because only the removed one had covered them."""


class _Node:
    """A filter in the graph. Nodes are compared by identity."""

    __slots__ = ("children", "filter", "parents", "subscribers")

    def __init__(self, filter_: Filter) -> None:
        self.filter = filter_
        self.subscribers: set[Hashable] = set()
        self.parents: set[_Node] = set()
        self.children: set[_Node] = set()


class Poset:
    """Filters in the order of covering, each with its subscribers."""

    def __init__(self) -> None:
        self._nodes: dict[Filter, _Node] = {}
        self._roots: dict[Filter, _Node] = {}
        self._single: FamilyIndex[_Node] = FamilyIndex()
        """Filters of one conjunction."""
        self._several: FamilyIndex[set[_Node]] = FamilyIndex(is_scanned=True)
        """Conjunctions of the other filters, each with the nodes that have it."""
        self._sharing: dict[Conjunction, set[_Node]] = {}

    def insert(self, filter_: Filter, subscriber: Hashable) -> Insertion:
        """Adds a subscriber to a filter. Does nothing if it has subscribed already. FilterError if the argument is not
        a filter."""
        node = self._nodes.get(check_filter(filter_))
        if node is not None:
            node.subscribers.add(subscriber)
            return Insertion(is_new=False, is_root=not node.parents, covered=())
        node = _Node(filter_)
        node.subscribers.add(subscriber)
        node.parents = _nearest_above(self._covering(filter_), filter_)
        node.children = _nearest_below(self._covered(filter_), filter_)
        for parent in node.parents:
            parent.children.add(node)
        for child in node.children:
            for parent in child.parents & node.parents:
                child.parents.remove(parent)
                parent.children.remove(child)
            child.parents.add(node)
        self._nodes[filter_] = node
        self._index(node)
        if node.parents:
            return Insertion(is_new=True, is_root=False, covered=())
        covered = tuple(child.filter for child in node.children if child.filter in self._roots)
        for root in covered:
            del self._roots[root]
        self._roots[filter_] = node
        return Insertion(is_new=True, is_root=True, covered=covered)

    def remove(self, filter_: Filter, subscriber: Hashable) -> Removal:
        """Removes a subscriber from a filter. ProtocolError if it had not subscribed, which is a mistake of the
        caller."""
        node = self._nodes.get(check_filter(filter_))
        if node is None or subscriber not in node.subscribers:
            raise ProtocolError(f"{subscriber!r} did not subscribe to `{filter_}`", broken_by="us")
        node.subscribers.remove(subscriber)
        was_root = not node.parents
        if node.subscribers:
            return Removal(is_gone=False, was_root=was_root, exposed=())
        del self._nodes[filter_]
        self._unindex(node)
        for parent in node.parents:
            parent.children.remove(node)
        exposed = []
        for child in node.children:
            child.parents.remove(node)
            for parent in node.parents:
                if not any(parent.filter.covers_by_parts(other.filter) for other in child.parents):
                    child.parents.add(parent)
                    parent.children.add(child)
            if not child.parents:
                exposed.append(child.filter)
                self._roots[child.filter] = child
        if was_root:
            del self._roots[filter_]
        return Removal(is_gone=True, was_root=was_root, exposed=tuple(exposed))

    @property
    def roots(self) -> Set[Filter]:
        """The covering set: a view that follows changes."""
        return self._roots.keys()

    def parents(self, filter_: Filter) -> tuple[Filter, ...]:
        """The nearest filters that cover a filter of the poset. FilterError if it is not in the poset."""
        return tuple(parent.filter for parent in self._node(filter_).parents)

    def children(self, filter_: Filter) -> tuple[Filter, ...]:
        """The nearest filters that a filter of the poset covers. FilterError if it is not in the poset."""
        return tuple(child.filter for child in self._node(filter_).children)

    def subscribers(self, filter_: Filter) -> Set[Hashable]:
        """The subscribers of a filter; empty if it is not in the poset."""
        node = self._nodes.get(filter_)
        return frozenset() if node is None else node.subscribers

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, filter_: Filter) -> bool:
        return filter_ in self._nodes

    def __iter__(self) -> Iterator[Filter]:
        return iter(self._nodes)

    def _node(self, filter_: Filter) -> _Node:
        node = self._nodes.get(check_filter(filter_))
        if node is None:
            raise FilterError(f"`{filter_}` is not in the poset", do="insert it first, or look with `in`")
        return node

    def _covering(self, filter_: Filter) -> set[_Node]:
        """Nodes that cover a filter, including all the nearest ones."""
        first, *others = filter_.conjunctions
        found: set[_Node] = set()
        found.update(self._single.perhaps_covering(first) if others else self._single.covering(first))
        found.update(*self._several.covering(first))
        return {node for node in found if node.filter.covers_by_parts(filter_)} if others else found

    def _covered(self, filter_: Filter) -> set[_Node]:
        """Nodes that a filter covers, including all the nearest ones."""
        found: set[_Node] = set()
        several: set[_Node] = set()
        for conjunction in filter_.conjunctions:
            found.update(self._single.covered(conjunction))
            several.update(*self._several.covered(conjunction))
        found.update(node for node in several if filter_.covers_by_parts(node.filter))
        return found

    def _index(self, node: _Node) -> None:
        conjunctions = node.filter.conjunctions
        if len(conjunctions) == 1:
            self._single.add(conjunctions[0], node)
            return
        for conjunction in conjunctions:
            sharing = self._sharing.get(conjunction)
            if sharing is None:
                sharing = self._sharing[conjunction] = set()
                self._several.add(conjunction, sharing)
            sharing.add(node)

    def _unindex(self, node: _Node) -> None:
        conjunctions = node.filter.conjunctions
        if len(conjunctions) == 1:
            self._single.remove(conjunctions[0])
            return
        for conjunction in conjunctions:
            self._sharing[conjunction].remove(node)
            if not self._sharing[conjunction]:
                del self._sharing[conjunction]
                self._several.remove(conjunction)


def _nearest_above(covering: set[_Node], filter_: Filter) -> set[_Node]:
    """The nodes above a filter that have no child above it, and no other such node below them."""
    found = [node for node in covering if node.children.isdisjoint(covering)]
    nearest = set()
    for node in found:
        if len(node.children) < len(found):
            between = any(child.filter.covers_by_parts(filter_) for child in node.children)
        else:
            between = any(other is not node and node.filter.covers_by_parts(other.filter) for other in found)
        if not between:
            nearest.add(node)
    return nearest


def _nearest_below(covered: set[_Node], filter_: Filter) -> set[_Node]:
    """The nodes below a filter that have no parent below it."""
    return {
        node
        for node in covered
        if node.parents.isdisjoint(covered)
        and not any(filter_.covers_by_parts(parent.filter) for parent in node.parents)
    }
