"""Advertisements: what a publisher promises, which subscriptions that concerns, and what changes when it ends."""

from __future__ import annotations

import itertools
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.filters.strategies import UNIVERSE, predicates_over
from tests.filters.universe import satisfiable

from shoal.errors import FilterError, ProtocolError
from shoal.filters.advertisements import Advertisement, AdvertisementTable, advertisement_of
from shoal.filters.filter import Filter, filter_of
from shoal.filters.language import parse
from shoal.filters.values import Event

STOCK = (
    "[class,eq,'STOCK'],[symbol,eq,'YHOO'],[open,isPresent,0],[high,isPresent,0],[low,isPresent,0],"
    "[close,isPresent,0],[volume,isPresent,0],[date,isPresent,'00-00-00']"
)
QUOTE: Event = {
    "class": "STOCK",
    "symbol": "YHOO",
    "open": 25.25,
    "high": 43.0,
    "low": 24.5,
    "close": 33.0,
    "volume": 17_030_000,
    "date": "12-Apr-96",
}


def advertised(text: str) -> Advertisement:
    return advertisement_of(parse(text))


# -- One advertisement and one subscription --------------------------------------------------------------------------


def test_the_papers_advertisement_allows_its_publication() -> None:
    advertisement = advertised(STOCK)
    assert advertisement.allows(QUOTE)
    assert not advertisement.allows({**QUOTE, "symbol": "IBM"})
    assert not advertisement.allows({**QUOTE, "high": "43"})
    assert not advertisement.allows({name: value for name, value in QUOTE.items() if name != "low"})
    assert not advertisement.allows({**QUOTE, "closing": 33.0})


def test_values_of_numpy_are_converted_before_they_are_compared() -> None:
    tenth = numpy.float32(0.1)
    assert [advertised(f"[a,{sign},0.1]").allows({"a": tenth}) for sign in ("<", "=", ">")] == [False, False, True]
    assert advertised("[a,=,true]").allows({"a": numpy.True_})


@pytest.mark.parametrize(
    ("subscription", "overlaps"),
    [
        ("class = 'STOCK' and symbol = 'YHOO' and volume > 300000", True),
        ("class = 'STOCK'", True),
        ("true", True),
        ("symbol = 'IBM'", False),
        ("symbol prefix 'Y'", True),
        ("high > 10 and low < 5", True),
        ("high = 'ten'", False),
        ("date contains 'Apr'", True),
        ("weather = 'rain'", False),
        ("weather exists", False),
        ("weather absent", True),
        ("volume absent", False),
        ("symbol = 'IBM' or volume > 3", True),
    ],
)
def test_a_subscription_overlaps_if_some_promised_event_can_match(subscription: str, overlaps: bool) -> None:
    assert advertised(STOCK).overlaps(parse(subscription)) is overlaps


def test_an_advertisement_that_promises_absence_says_nothing_new() -> None:
    assert advertised("a > 1 and b absent").overlaps(parse("b absent"))
    assert not advertised("a > 1 and b absent").overlaps(parse("b exists"))
    assert advertised("a > 1 and b absent").allows({"a": 2})
    assert not advertised("a > 1 and b absent").allows({"a": 2, "b": 1})


def test_an_advertisement_has_no_alternatives() -> None:
    with pytest.raises(FilterError, match="no `or`"):
        advertised("a = 1 or b = 1")


EVENTS: list[Event] = [
    {name: value for name, value in (("a", a), ("b", b)) if value is not None}
    for a, b in itertools.product((None, *UNIVERSE), repeat=2)
]
numbers = st.sampled_from((0, 1, 2, 3))
strings = st.sampled_from(("a", "ab", "b"))
lists = st.lists(predicates_over(st.sampled_from("ab"), numbers, strings), min_size=1, max_size=3)
filters = st.lists(lists.map(satisfiable), min_size=1, max_size=2).map(filter_of)
advertisements = lists.map(lambda predicates: Advertisement(satisfiable(predicates)))


@settings(max_examples=100)
@given(advertisements, filters)
def test_overlap_is_never_denied_where_a_promised_event_matches(advertisement: Advertisement, filter_: Filter) -> None:
    if any(advertisement.allows(event) and filter_.matches(event) for event in EVENTS):
        assert advertisement.overlaps(filter_)


# -- The table -------------------------------------------------------------------------------------------------------


def test_a_subscription_follows_the_advertisements_that_it_overlaps_with() -> None:
    table = AdvertisementTable()
    assert table.subscribe("s1", parse("a > 5")) == set()
    assert table.advertise("p1", advertised("a > 1")) == ("s1",)
    assert table.advertise("p2", advertised("a is number and b = 1")) == ("s1",)
    assert table.subscribe("s2", parse("b = 1")) == {"p2"}
    assert table.subscribe("s3", parse("a > 5")) == {"p1", "p2"}
    assert table.overlapping(parse("b absent")) == {"p1"}
    assert table.unadvertise("p1") == ()
    assert set(table.unadvertise("p2")) == {"s1", "s2", "s3"}


def test_subscriptions_that_require_no_attribute_or_any_value_of_one_are_found_too() -> None:
    table = AdvertisementTable()
    table.subscribe("all", parse("true"))
    table.subscribe("without", parse("b absent"))
    table.subscribe("open", parse("a > 5"))
    table.subscribe("one", parse("a = 7"))
    table.subscribe("other", parse("a = 8"))
    assert set(table.advertise("p", advertised("a = 7"))) == {"all", "without", "open", "one"}
    assert set(table.advertise("q", advertised("a is number and b = 1"))) == {"all", "open", "one", "other"}
    assert table.overlapping(parse("a = 8")) == {"q"}
    assert table.unadvertise("q") == ("other",)


def test_unsubscribed_ids_are_not_returned() -> None:
    table = AdvertisementTable()
    table.subscribe("s1", parse("a = 1"))
    table.subscribe("s2", parse("a = 1"))
    table.unsubscribe("s1")
    assert table.advertise("p", advertised("a = 1")) == ("s2",)
    table.unsubscribe("s2")
    assert table.unadvertise("p") == ()
    assert table.advertise("q", advertised("a = 1")) == ()


def test_duplicate_and_missing_ids_are_a_mistake_of_the_caller() -> None:
    table = AdvertisementTable()
    table.subscribe("s", parse("a = 1"))
    table.advertise("p", advertised("a = 1"))
    for mistake in (
        lambda: table.subscribe("s", parse("a = 2")),
        lambda: table.advertise("p", advertised("a = 2")),
        lambda: table.unsubscribe("t"),
        lambda: table.unadvertise("q"),
    ):
        with pytest.raises(ProtocolError, match="we broke the protocol"):
            mistake()
    assert table.overlapping(parse("a = 1")) == {"p"}


class Changes(RuleBasedStateMachine):
    """Advertisements and subscriptions come and go; the table agrees with comparing all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = AdvertisementTable()
        self.ids = itertools.count()
        self.advertised: dict[object, Advertisement] = {}
        self.subscribed: dict[object, Filter] = {}

    def overlapping(self, filter_: Filter) -> set[object]:
        return {each for each, advertisement in self.advertised.items() if advertisement.overlaps(filter_)}

    @rule(advertisement=advertisements)
    def advertise(self, advertisement: Advertisement) -> None:
        name = next(self.ids)
        result = self.table.advertise(name, advertisement)
        self.advertised[name] = advertisement
        assert sorted(result) == [  # type: ignore[type-var]
            each for each, filter_ in self.subscribed.items() if advertisement.overlaps(filter_)
        ]

    @rule(filter_=filters)
    def subscribe(self, filter_: Filter) -> None:
        name = next(self.ids)
        assert self.table.subscribe(name, filter_) == self.overlapping(filter_)
        self.subscribed[name] = filter_

    @precondition(lambda self: self.advertised)
    @rule(data=st.data())
    def unadvertise(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.advertised)))
        gone = self.advertised.pop(name)
        expected = [
            each
            for each, filter_ in self.subscribed.items()
            if gone.overlaps(filter_) and not self.overlapping(filter_)
        ]
        assert sorted(self.table.unadvertise(name)) == expected  # type: ignore[type-var]

    @precondition(lambda self: self.subscribed)
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.subscribed)))
        self.table.unsubscribe(name)
        del self.subscribed[name]

    @invariant()
    def all_overlaps_are_known(self) -> None:
        for filter_ in self.subscribed.values():
            assert self.table.overlapping(filter_) == self.overlapping(filter_)


TestChanges = Changes.TestCase
TestChanges.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("wrong", ["a = 1", None, 7])
def test_anything_but_a_filter_is_rejected_and_nothing_changes(wrong: Any) -> None:
    table = AdvertisementTable()
    table.advertise("p", advertisement_of(parse("a = 1")))
    for refused in (
        lambda: table.subscribe(1, wrong),
        lambda: table.overlapping(wrong),
        lambda: table.advertise("q", wrong),
        lambda: table.advertise("q", parse("a = 1")),  # type: ignore[arg-type]
        lambda: advertisement_of(wrong),
    ):
        with pytest.raises(FilterError, match="is needed, not something of type"):
            refused()
    assert table.subscribe(1, parse("a = 1")) == {"p"}
    assert table.advertise("q", advertisement_of(parse("a > 0"))) == (1,)
    table.unsubscribe(1)
