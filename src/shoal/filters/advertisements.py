"""Advertisements: what a publisher will publish, and which subscriptions that concerns.

Owns the overlap of subscriptions with advertisements, and the table that maintains it while both come and go. Never
touches links: the overlay floods advertisements, sends a subscription back along the paths of those that it overlaps
with, and withdraws it when the last of them is withdrawn.

An advertisement is one conjunction. Its events carry exactly the attributes that it names, except those that it says
are absent, and each satisfies its constraint; `is number` (the papers' `[high,isPresent,0]`) promises only the kind. So
a subscription that requires an attribute which is not advertised does not overlap, and one that requires its absence
may. A publisher whose events have several forms, or an attribute only sometimes, makes an advertisement for each form.
`Advertisement.allows` says whether an event keeps the promise; an event that does not may miss subscribers.

Overlap is sound: False is certain, and for all operators but some on strings (see `strings`) True is too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Set
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from shoal.errors import FilterError, ProtocolError
from shoal.filters.arrays import variants_of
from shoal.filters.conjunctions import Conjunction
from shoal.filters.constraints import Absent, Constraint, Exists
from shoal.filters.filter import Filter, check_filter
from shoal.filters.ranges import OneOf
from shoal.filters.values import MARKS, Event
from shoal.filters.views import base_of

Item = TypeVar("Item", bound=Hashable)
_Access: TypeAlias = tuple[str, Constraint]
"""An attribute that must exist, and its constraint."""


class Advertisement(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """A promise about the form of events."""

    conjunction: Conjunction

    def allows(self, event: Event) -> bool:
        """Whether an event keeps the promise: it has everything that is advertised, and nothing else. An array keeps it
        if each of its elements does."""
        advertised = {base_of(attribute) for attribute, _ in self.conjunction.constraints}
        return all(map(self.conjunction.matches, variants_of(event))) and all(
            attribute in advertised or event.get(attribute) is None for attribute in event
        )

    def overlaps(self, filter_: Filter) -> bool:
        """Whether some event that keeps the promise may match a filter. False is certain."""
        advertised = dict(self.conjunction.constraints)
        known = {base_of(attribute) for attribute, constraint in self.conjunction.constraints if constraint != _ABSENT}
        return any(
            all(
                constraint.intersects(advertised[attribute])
                if attribute in advertised
                else base_of(attribute) in known or constraint.accepts(None)
                for attribute, constraint in conjunction.constraints
            )
            for conjunction in filter_.conjunctions
        )


_ABSENT: Final = Absent()


def advertisement_of(filter_: Filter) -> Advertisement:
    """The advertisement that a filter of one conjunction describes. FilterError if it has alternatives."""
    if len(check_filter(filter_).conjunctions) > 1:
        raise FilterError("an advertisement has no `or`", do="make an advertisement for each alternative")
    return Advertisement(filter_.conjunctions[0])


class AdvertisementTable:
    """Advertisements and subscriptions by their ids, and which of them overlap.

    Identical filters are compared once. An advertisement is compared only with subscriptions that require an attribute
    and a value which it can have, and vice versa. Adding an id twice, or removing one that is not there, is a mistake
    of the caller and raises ProtocolError.
    """

    def __init__(self) -> None:
        self._advertised: dict[Hashable, _Advertised] = {}
        self._by_attribute: _ByAttribute[Hashable] = _ByAttribute()
        """Advertisements by every attribute that they promise."""
        self._filter_of: dict[Hashable, Filter] = {}
        self._subscribed: dict[Filter, _Subscribed] = {}
        self._by_access: _ByAttribute[Filter] = _ByAttribute()
        """Filters by one attribute that each of their conjunctions requires."""
        self._anywhere: set[Filter] = set()
        """Filters with a conjunction that requires no attribute."""

    def advertise(self, advertisement_id: Hashable, advertisement: Advertisement) -> tuple[Hashable, ...]:
        """Adds an advertisement. Returns the subscriptions that overlap with it, which are to be sent its way."""
        if not isinstance(advertisement, Advertisement):
            raise FilterError(
                f"an advertisement is needed, not something of type {type(advertisement).__name__}",
                do="make one from a filter with `advertisement_of`",
            )
        if advertisement_id in self._advertised:
            raise ProtocolError(f"advertisement {advertisement_id!r} exists already", broken_by="us")
        promised = _possible(advertisement.conjunction)
        candidates = self._anywhere.union(*(self._by_access.compatible(*each) for each in promised))
        overlapping = {filter_ for filter_ in candidates if advertisement.overlaps(filter_)}
        self._advertised[advertisement_id] = _Advertised(advertisement, overlapping)
        for attribute, constraint in promised:
            self._by_attribute.add(attribute, constraint, advertisement_id)
        for filter_ in overlapping:
            self._subscribed[filter_].advertisements.add(advertisement_id)
        return self._subscribers(overlapping)

    def unadvertise(self, advertisement_id: Hashable) -> tuple[Hashable, ...]:
        """Removes an advertisement. Returns the subscriptions that lose their last one with it."""
        known = self._advertised.pop(advertisement_id, None)
        if known is None:
            raise ProtocolError(f"there is no advertisement {advertisement_id!r}", broken_by="us")
        for attribute, constraint in _possible(known.advertisement.conjunction):
            self._by_attribute.remove(attribute, constraint, advertisement_id)
        for filter_ in known.filters:
            self._subscribed[filter_].advertisements.remove(advertisement_id)
        return self._subscribers(each for each in known.filters if not self._subscribed[each].advertisements)

    def subscribe(self, subscription_id: Hashable, filter_: Filter) -> Set[Hashable]:
        """Adds a subscription. Returns the advertisements that it overlaps with, along whose paths it is to be sent."""
        check_filter(filter_)
        if subscription_id in self._filter_of:
            raise ProtocolError(f"subscription {subscription_id!r} exists already", broken_by="us")
        known = self._subscribed.get(filter_)
        if known is None:
            known = self._subscribed[filter_] = _Subscribed(self.overlapping(filter_), self._accesses(filter_))
            for attribute, constraint in known.accesses:
                self._by_access.add(attribute, constraint, filter_)
            if not all(map(_needed, filter_.conjunctions)):
                self._anywhere.add(filter_)
            for advertisement_id in known.advertisements:
                self._advertised[advertisement_id].filters.add(filter_)
        known.subscribers.add(subscription_id)
        self._filter_of[subscription_id] = filter_
        return frozenset(known.advertisements)

    def unsubscribe(self, subscription_id: Hashable) -> None:
        """Removes a subscription."""
        filter_ = self._filter_of.pop(subscription_id, None)
        if filter_ is None:
            raise ProtocolError(f"there is no subscription {subscription_id!r}", broken_by="us")
        known = self._subscribed[filter_]
        known.subscribers.remove(subscription_id)
        if known.subscribers:
            return
        del self._subscribed[filter_]
        self._anywhere.discard(filter_)
        for attribute, constraint in known.accesses:
            self._by_access.remove(attribute, constraint, filter_)
        for advertisement_id in known.advertisements:
            self._advertised[advertisement_id].filters.remove(filter_)

    def overlapping(self, filter_: Filter) -> set[Hashable]:
        """The advertisements that a filter overlaps with, whether or not it is subscribed to."""
        found: set[Hashable] = set()
        for conjunction in check_filter(filter_).conjunctions:
            access = self._by_attribute.rarest(conjunction)
            found.update(self._advertised if access is None else self._by_attribute.compatible(*access))
        return {each for each in found if self._advertised[each].advertisement.overlaps(filter_)}

    def _accesses(self, filter_: Filter) -> list[_Access]:
        """How a filter is found: for each conjunction the rarest attribute that it requires."""
        found = map(self._by_access.rarest, filter_.conjunctions)
        return list({(each[0], _value(each[1])): each for each in found if each is not None}.values())

    def _subscribers(self, filters: Iterable[Filter]) -> tuple[Hashable, ...]:
        return tuple(subscriber for filter_ in filters for subscriber in self._subscribed[filter_].subscribers)


class _Advertised:
    """An advertisement in the table, and the filters that overlap with it."""

    __slots__ = ("advertisement", "filters")

    def __init__(self, advertisement: Advertisement, filters: set[Filter]) -> None:
        self.advertisement = advertisement
        self.filters = filters


class _Subscribed:
    """A filter in the table: its subscribers, the advertisements that it overlaps with, and how it is found."""

    __slots__ = ("accesses", "advertisements", "subscribers")

    def __init__(self, advertisements: set[Hashable], accesses: list[_Access]) -> None:
        self.subscribers: set[Hashable] = set()
        self.advertisements = advertisements
        self.accesses = accesses


class _ByAttribute(Generic[Item]):
    """Items by an attribute that they have, and by its value where only one is possible."""

    def __init__(self) -> None:
        self._values: dict[str, dict[OneOf | None, set[Item]]] = {}
        """None stands for all constraints that leave more than one value possible."""

    def add(self, attribute: str, constraint: Constraint, item: Item) -> None:
        """Adds an item."""
        self._values.setdefault(attribute, {}).setdefault(_value(constraint), set()).add(item)

    def remove(self, attribute: str, constraint: Constraint, item: Item) -> None:
        """Removes an item that is there."""
        values, value = self._values[attribute], _value(constraint)
        values[value].remove(item)
        if not values[value]:
            del values[value]
        if not values:
            del self._values[attribute]

    def compatible(self, attribute: str, constraint: Constraint) -> set[Item]:
        """The items that have an attribute, without those whose only possible value is another one."""
        return set().union(*self._sets(attribute, constraint))

    def rarest(self, conjunction: Conjunction) -> _Access | None:
        """The attribute of a conjunction with the fewest compatible items; None if it requires no attribute."""
        return min(_needed(conjunction), key=lambda access: sum(map(len, self._sets(*access))), default=None)

    def _sets(self, attribute: str, constraint: Constraint) -> Iterable[set[Item]]:
        values, value = self._values.get(attribute, {}), _value(constraint)
        return values.values() if value is None else (values.get(value, set()), values.get(None, set()))


def _needed(conjunction: Conjunction) -> list[_Access]:
    """The attributes that must exist, and their constraints."""
    return _of_attributes(item for item in conjunction.constraints if not item[1].accepts(None))


def _possible(conjunction: Conjunction) -> list[_Access]:
    """The attributes that may exist, and their constraints."""
    return _of_attributes(item for item in conjunction.constraints if not isinstance(item[1], Absent))


def _of_attributes(accesses: Iterable[_Access]) -> list[_Access]:
    """One constraint for each attribute. One on a view says only that the attribute exists."""
    found: dict[str, Constraint] = {}
    for attribute, constraint in accesses:
        if attribute[-1] in MARKS:
            found.setdefault(base_of(attribute), Exists())
        else:
            found[attribute] = constraint
    return list(found.items())


def _value(constraint: Constraint) -> OneOf | None:
    """The constraint if it leaves a single value possible."""
    return constraint if isinstance(constraint, OneOf) and len(constraint.values) == 1 else None
