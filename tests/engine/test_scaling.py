"""Operators of all layers come and go while filters change and events are matched: the cores of several processes,
without I/O."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as structs_replace
from tests.support.lone_engine import LoneEngine

from shoal.engine.access_point import AccessPoint
from shoal.engine.client import Arrived, EngineClient, Missed
from shoal.engine.configuration import Configuration, checksum
from shoal.engine.director import RETRY_S, Director, InstanceEndsError, Phase, Wanted
from shoal.engine.links import (
    Batch,
    Handover,
    Mark,
    Orders,
    Replies,
    Settled,
    Stage,
    State,
    StateAck,
    Status,
    Step,
    ToMember,
)
from shoal.engine.matcher import Matcher
from shoal.engine.measures import Meter
from shoal.engine.member_shell import MemberShell
from shoal.engine.messages import (
    LANES,
    Add,
    Again,
    Delivery,
    Event,
    FromClient,
    FromEngine,
    InForce,
    Letter,
    Open,
    PathBegin,
    PathEnd,
    Ready,
    Refused,
    Remove,
    Taken,
    Welcome,
    decode_letter,
    decode_replies,
    lane_of,
    pack,
    unpack,
)
from shoal.engine.operators import Operators
from shoal.engine.outbox import Wire
from shoal.engine.subscription_table import owners
from shoal.errors import FilterError
from shoal.filters import encode_event, parse
from shoal.filters.index.background import THREADS
from shoal.limits import DEFAULT_LIMITS
from shoal.rules import ALL_RULES, Rules

LIMITS = msgspec.structs.replace(
    DEFAULT_LIMITS, engine_roll_s=0.0, engine_slice_filters_max=3, engine_packed_filters_min=8
)
_wire = msgspec.msgpack.Encoder().encode


@given(st.lists(st.binary(min_size=1), min_size=1), st.integers(1, 6))
def test_a_filter_changes_its_matcher_only_if_one_comes_or_goes(wires: list[bytes], count: int) -> None:
    names = tuple(f"engine-{number}" for number in range(count))
    one = names[:1]
    before, after = Configuration(1, one, names, one), Configuration(2, one, (*names, "new"), one)
    for wire in wires:
        assert after.owner(wire) in (before.owner(wire), "new")
    many = np.array([checksum(wire) for wire in wires], np.uint64)
    assert [after.matchers[place] for place in owners(after, many)] == [after.owner(wire) for wire in wires]


def test_filters_are_spread_over_all_matchers() -> None:
    names = tuple(f"engine-{number}" for number in range(4))
    configuration = Configuration(1, names, names, names)
    wires = [_wire(parse(f"a = {number}")) for number in range(2000)]
    counts = [sum(configuration.owner(wire) == name for wire in wires) for name in names]
    assert min(counts) > 350
    clients = [sum(configuration.exit_of(client) == name for client in range(2000)) for name in names]
    assert min(clients) > 350


@pytest.mark.parametrize("count", [1, 2, 3, 5, LANES])
def test_every_lane_has_one_access_point_and_each_has_an_equal_share(count: int) -> None:
    names = tuple(f"engine-{number}" for number in range(count))
    configuration = Configuration(1, names, names, names)
    shares = [configuration.lanes_of(name) for name in names]
    assert sorted(lane for share in shares for lane in share) == [*range(LANES)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


class Site:
    """An engine of several processes. What they tell each other waits in order, until `carry`."""

    def __init__(self, rules: Rules = ALL_RULES) -> None:
        self.rules = rules
        self.orders = Orders(1, "a", 0, Configuration(1, ("a",), ("a",), ("a",)), stage=Stage.SERVE)
        self.processes: dict[str, Operators] = {}
        self.links: dict[tuple[str, str, str], deque[Batch | ToMember | Settled]] = {}
        """By sender, receiver and kind."""
        self.said: dict[int, list[FromEngine]] = {}
        self.order(self.orders)

    def order(self, orders: Orders) -> None:
        self.orders = orders
        members = orders.configuration.members | (orders.next.members if orders.next is not None else frozenset())
        for name in sorted(members):
            if name in self.processes:
                self.processes[name].arrange(orders, 1.0)
            else:
                self.processes[name] = Operators(name, orders, LIMITS, 1.0, self.rules)
                self.processes[name].lease_until = 1e9
        for name in self.processes.keys() - members:
            del self.processes[name]

    def turn(self, name: str) -> None:
        process = self.processes[name]
        for post in process.turn(1.0):
            self.said.setdefault(post.client, []).extend(decode_replies(post.payload))
            process.confirmed(post.group)
        fan, links = process.take_links()
        settled = process.take_settled()
        for other in self.processes.keys() - {name}:
            self.links.setdefault((name, other, "fan"), deque()).extend(fan)
            if settled is not None:
                self.links.setdefault((name, other, "settled"), deque()).append(settled)
        for other, message in links:
            kind = "state" if isinstance(message, State) else "member"
            self.links.setdefault((name, other, kind), deque()).append(message)

    def turns(self) -> None:
        for name in sorted(self.processes):
            self.turn(name)

    def carry(self, random: Random | None = None, states: bool = True) -> None:
        """Carries messages between processes, with `random` some of them; without `states`, filters wait on."""
        for (sender, receiver, kind), waiting in sorted(self.links.items()):
            process = self.processes.get(receiver)
            if kind == "state" and not states:
                continue
            for _ in range(len(waiting) if random is None else random.randint(0, len(waiting))):
                message = waiting.popleft()
                if process is None:
                    continue
                if isinstance(message, Batch):
                    process.heard(message)
                elif isinstance(message, Settled):
                    process.has_settled(message)
                else:
                    process.told(message)
            assert sender != receiver

    def settle(self) -> None:
        for _ in range(200):
            self.turns()
            self.carry()

    def begin(self, following: Configuration) -> None:
        """Orders PREPARE."""
        self.order(structs_replace(self.orders, next=following, step=Step.PREPARE))

    def switch(self) -> None:
        """Orders SWITCH: everything is ready."""
        following = self.orders.next
        assert following is not None
        assert all(self.processes[name].progress[0] >= following.number for name in following.matchers)
        assert all(
            self.processes[name].progress[2] >= following.number for name in self.orders.configuration.access_points
        )
        self.order(structs_replace(self.orders, step=Step.SWITCH))

    def end(self) -> None:
        """Ends the change: everything before SWITCH is delivered."""
        before, following = self.orders.configuration, self.orders.next
        assert following is not None
        awaited = following.members.union(before.exits)
        assert all(self.processes[name].progress[1] >= following.number for name in awaited)
        self.order(Orders(1, "a", 0, following, stage=Stage.SERVE))

    def give_up(self) -> None:
        following = self.orders.next
        assert following is not None
        stays = structs_replace(self.orders.configuration, number=following.number)
        self.order(Orders(1, "a", 0, stays, stage=Stage.SERVE))

    def change(self, following: Configuration) -> None:
        """A whole change."""
        self.begin(following)
        self.settle()
        self.switch()
        self.settle()
        self.end()
        self.settle()

    def say(self, client: int, *items: FromClient) -> bool:
        """A letter reaches the access point that reads the client's lane; returns whether one does."""
        for process in self.processes.values():
            point = process.access_point
            if point is not None and lane_of(client) in point.lanes:
                process.received(client, Letter(client, 1, list(items)))
                return True
        return False

    def in_force(self, client: int) -> set[int]:
        found = [item.numbers for item in self.said.get(client, []) if isinstance(item, InForce)]
        return {number for numbers in found for number in numbers}

    def held(self) -> dict[str, int]:
        return {name: len(one.matcher) for name, one in self.processes.items() if one.matcher is not None}

    def delivered(self, client: int) -> dict[int, list[int]]:
        found = [item for item in self.said.get(client, []) if isinstance(item, Delivery)]
        assert len({item.number for item in found}) == len(found), "an event came twice"
        return {item.number: sorted(unpack(item.matched)) for item in found}

    def taken(self, client: int) -> int:
        return max((item.number for item in self.said.get(client, []) if isinstance(item, Taken)), default=0)


READER, EMITTER = 1, 2
ONE = ("a",)


def single(number: int, *matchers: str) -> Configuration:
    """One access point and one exit point, in `a`."""
    return Configuration(number, ONE, matchers, ONE)


CHANGES = {
    "matchers": (single(2, "a", "b", "c"), single(3, "b")),
    "exit points": (Configuration(2, ONE, ONE, ("b", "c")), Configuration(3, ONE, ONE, ("c",))),
    "access points": (Configuration(2, ("a", "b"), ONE, ONE), Configuration(3, ("b", "c"), ONE, ONE)),
    "all layers": (
        Configuration(2, ("b", "c"), ("a", "c"), ("a", "b")),
        Configuration(3, ("c",), ("b", "c", "d"), ("d",)),
    ),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("seed", range(6))
def test_what_a_reader_gets_does_not_depend_on_changes(what: str, seed: int) -> None:
    """Filters come and go and events are emitted at every moment of two changes."""
    random = Random(seed)
    site = Site()
    site.say(READER, Open(READER), Ready())
    site.say(EMITTER, Open(EMITTER), Ready())
    site.settle()
    filters: dict[int, int] = {}
    removed: set[int] = set()
    owed: dict[int, set[int]] = {}
    values: dict[int, int] = {}
    first, second = CHANGES[what]
    for event in range(1, 241):
        for _ in range(random.randint(0, 2)):
            value, number = random.randrange(5), len(filters) + 1
            if site.say(READER, Add([(number, _wire(parse(f"a = {value}")))])):
                filters[number] = value
        left = sorted(filters.keys() - removed)
        if left and random.random() < 0.4:
            gone = random.choice(left)
            if site.say(READER, Remove([gone])):
                removed.add(gone)
        value = values[event] = random.randrange(5)
        owed[event] = {number for number in site.in_force(READER) if filters[number] == value}
        while not site.say(EMITTER, Event(event, 0, encode_event({"a": value}), b"")):
            site.turns()
            site.carry(random)
        if event in (60, 160):
            site.begin(first if event == 60 else second)
        elif event in (120, 200):
            site.settle()
            site.switch()
        elif event in (150, 230):
            site.settle()
            site.end()
        for name in sorted(site.processes):
            if random.random() < 0.7:
                site.turn(name)
        site.carry(random, states=random.random() < 0.2)
    site.settle()
    delivered = site.delivered(READER)
    for event, value in values.items():
        matched = delivered.get(event, [])
        assert owed[event] - removed <= set(matched) <= {number for number in filters if filters[number] == value}
        assert len(set(matched)) == len(matched)
    assert [*delivered] == sorted(delivered)
    assert site.taken(EMITTER) == 240
    assert sum(site.held().values()) == len(filters) - len(removed)


@pytest.mark.parametrize("fits", [True, False])
def test_what_is_no_filter_does_not_end_a_change_and_what_does_not_fit_does(
    fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sent bytes that are no filter could end the engine whenever its configuration changed."""
    site = Site()
    site.say(READER, Open(READER), Ready())
    site.settle()
    site.begin(single(2, "b"))
    site.settle()
    if not fits:
        matcher = site.processes["b"].matcher
        assert matcher is not None
        monkeypatch.setattr(matcher.table, "_limits", structs_replace(LIMITS, engine_filters_max=1))
    wires = [_wire(parse("a = 1")), _wire(parse("a = 2")), b"", b"\x91\x91\x91\x91", _wire({"a": 1})]
    site.say(READER, Add([*enumerate(wires, 1)]))
    site.settle()
    assert site.in_force(READER) == {1, 2}
    assert [item.number for item in site.said[READER] if isinstance(item, Refused)] == [3, 4, 5]
    assert site.processes["a"].failed == ""
    assert ("does not fit" in site.processes["b"].failed) == (not fits)


def test_a_filter_that_ended_while_state_was_under_way_does_not_come_back() -> None:
    site = Site()
    site.say(READER, Open(READER), Add([(number, _wire(parse(f"a = {number}"))) for number in range(1, 30)]), Ready())
    site.settle()
    site.begin(single(2, "b"))
    site.turns()
    site.carry(states=False)
    site.turns()
    site.say(READER, Remove([1, 2, 3]))
    for _ in range(50):
        site.turns()
        site.carry(states=False)
    site.settle()
    site.switch()
    site.settle()
    assert site.held()["b"] == 26


def test_what_ends_is_remembered_only_while_state_is_under_way() -> None:
    """A matcher of an engine that never changes would grow with every filter that comes and goes."""
    site = Site()
    matcher = site.processes["a"].matcher
    assert matcher is not None
    site.say(READER, Open(READER), Ready())
    for number in range(1, 50):
        site.say(READER, Add([(number, _wire(parse("a = 1")))]), Remove([number]))
        site.turns()
    assert (len(matcher), matcher.remembered) == (0, 0)


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_that_is_given_up_leaves_everything_as_it_was(what: str) -> None:
    site = Site()
    site.say(READER, Open(READER), Add([(number, _wire(parse("a = 1"))) for number in range(1, 30)]), Ready())
    site.say(EMITTER, Open(EMITTER), Ready())
    site.settle()
    site.begin(CHANGES[what][0])
    site.turns()
    site.turns()
    site.give_up()
    site.links.clear()
    site.say(EMITTER, Event(1, 0, encode_event({"a": 1}), b""))
    site.settle()
    assert sorted(site.delivered(READER)[1]) == list(range(1, 30))
    assert site.held() == {"a": 29}
    site.change(structs_replace(CHANGES[what][0], number=3))
    site.say(EMITTER, Event(2, 0, encode_event({"a": 1}), b""))
    site.settle()
    assert sorted(site.delivered(READER)[2]) == list(range(1, 30))


def two_access_points() -> Site:
    """Access points in `a` and `b`, and a reader with one filter."""
    site = Site()
    site.say(READER, Open(READER), Add([(1, _wire(parse("a = 1")))]), Ready())
    site.say(EMITTER, Open(EMITTER), Ready())
    site.settle()
    site.change(Configuration(2, ("a", "b"), ONE, ONE))
    return site


def emit(site: Site, number: int) -> None:
    """The next event is delivered and taken."""
    assert site.say(EMITTER, Event(number, 0, encode_event({"a": 1}), b""))
    site.settle()
    assert site.delivered(READER)[number] == [1]
    assert site.taken(EMITTER) == number


def test_a_process_that_is_an_access_point_again_has_greater_numbers() -> None:
    """Others remember how far they have heard and delivered its earlier batches."""
    site = two_access_points()
    emit(site, 1)
    site.change(Configuration(3, ONE, ONE, ("a", "b")))
    emit(site, 2)
    site.change(Configuration(4, ("a", "b"), ONE, ("a", "b")))
    emit(site, 3)
    assert [one.failed for one in site.processes.values()] == ["", ""]


def test_a_process_that_stays_says_when_it_has_heard_the_last_of_an_access_point_that_leaves() -> None:
    """The change ends after that: then no process listens to that access point any more. A new matcher that had not
    heard its SWITCH waited for it for ever, and with it every event."""
    site = two_access_points()
    emit(site, 1)
    following = Configuration(3, ONE, ("a", "c"), ONE)
    site.begin(following)
    site.settle()
    site.switch()
    late: deque[Batch | ToMember | Settled] = deque()
    for _ in range(200):
        site.turns()
        waiting = site.links.get(("b", "c", "fan"), deque())
        late += waiting
        waiting.clear()
        site.carry()
    drained = {name: site.processes[name].status(3, 0.0, 0.0).drained for name in "abc"}
    assert drained == {"a": 3, "b": 3, "c": 2}
    for batch in late:
        assert isinstance(batch, Batch)
        site.processes["c"].heard(batch)
    site.settle()
    assert site.processes["c"].status(3, 0.0, 0.0).drained == 3
    site.end()
    emit(site, 2)


def test_an_access_point_that_missed_the_end_of_a_change_marks_it_later() -> None:
    """Its orders may be lost. Otherwise the others wait for its mark for ever."""
    site = two_access_points()
    site.begin(Configuration(3, ("a", "b"), ("a", "b"), ONE))
    site.turns()
    before, late = site.orders, site.processes["b"]
    site.give_up()
    late.arrange(before, 1.0)  # what `b` knows
    site.settle()
    number_4 = structs_replace(site.orders.configuration, number=4)  # a change that ended before it was marked
    site.orders = structs_replace(site.orders, configuration=number_4)
    site.begin(Configuration(5, ("a", "b"), ("a", "b"), ONE))
    site.settle()
    site.switch()
    site.settle()
    site.end()
    emit(site, 1)


def test_an_access_point_that_missed_the_end_of_a_change_says_taken_later() -> None:
    site = Site()
    site.say(EMITTER, Open(EMITTER), Ready())
    site.say(READER, Open(READER), Add([(1, _wire(parse("a = 1")))]), Ready())
    site.settle()
    site.begin(Configuration(2, ("b",), ONE, ONE))
    site.settle()
    site.say(EMITTER, Event(1, 0, encode_event({"a": 1}), b""))
    site.switch()
    site.settle()
    switched = site.orders
    site.end()
    site.processes["b"].arrange(switched, 1.0)  # what `b` knows
    site.settle()
    assert site.taken(EMITTER) == 0
    site.order(Orders(1, "a", 0, Configuration(3, ("b",), ONE, ONE), stage=Stage.SERVE))  # another change was given up
    site.settle()
    assert site.taken(EMITTER) == 1


def test_a_new_access_point_says_taken_when_the_old_one_has_delivered() -> None:
    """Otherwise an emitter forgets events that die with the old access point."""
    site = Site()
    site.say(EMITTER, Open(EMITTER), Ready())
    site.say(READER, Open(READER), Add([(1, _wire(parse("a = 1")))]), Ready())
    site.settle()
    site.begin(Configuration(2, ("b",), ONE, ("a", "b")))
    site.settle()
    site.say(EMITTER, *(Event(number, 0, encode_event({"a": 1}), b"") for number in (1, 2)))
    site.switch()
    for _ in range(20):  # the exit point of `b` hears everything, that of `a` nothing
        for name in sorted(site.processes):
            site.turn(name)
        site.carry()
        if site.say(EMITTER, Event(3, 0, encode_event({"a": 1}), b"")):
            break
    assert site.taken(EMITTER) == 0
    site.settle()
    assert site.taken(EMITTER) == 0, "the change has not ended"
    site.end()
    site.settle()
    assert site.taken(EMITTER) == 3


def test_a_letter_that_the_old_access_point_did_not_read_is_asked_for_again() -> None:
    site = Site()
    site.processes["a"].received(EMITTER, Letter(EMITTER, 1, [Open(EMITTER), Ready()]), 1)
    site.settle()
    site.change(Configuration(2, ("b",), ONE, ONE))
    site.processes["b"].received(EMITTER, Letter(EMITTER, 1, [Event(2, 0, encode_event({"a": 1}), b"")]), 3)
    site.settle()
    assert Again(EMITTER) in site.said[EMITTER]


def test_a_change_does_not_end_before_the_conversations_of_all_lanes_have_arrived() -> None:
    """If the old access point died after the end of the change, nobody would notice: its lanes would never be read."""
    site = Site()
    site.say(EMITTER, Open(EMITTER), Ready())
    site.settle()
    site.begin(Configuration(2, ("b",), ONE, ONE))
    site.settle()
    site.switch()
    handed: list[Batch | ToMember | Settled] = []
    for _ in range(50):
        site.turns()
        links = site.links.get(("a", "b", "member"), deque())
        handed += [one for one in links if isinstance(one, Handover)]
        site.links["a", "b", "member"] = deque(one for one in links if not isinstance(one, Handover))
        site.carry()
    assert handed
    assert site.processes["b"].progress[1] < 2
    site.links["a", "b", "member"].extend(handed)
    site.settle()
    site.end()
    site.settle()
    assert site.say(EMITTER, Event(1, 0, encode_event({"a": 1}), b""))


def test_events_are_taken_although_an_exit_point_that_left_was_not_heard() -> None:
    """It told the head that everything is delivered, and was killed before an access point had heard it."""
    site = Site()
    site.say(EMITTER, Open(EMITTER), Ready())
    site.settle()
    site.change(Configuration(2, ONE, ONE, ("b",)))
    site.say(EMITTER, Event(1, 0, encode_event({"a": 1}), b""))
    site.begin(Configuration(3, ONE, ONE, ("c",)))
    for ordered in (site.switch, lambda: None):
        for _ in range(50):
            site.turns()
            site.links.pop(("b", "a", "settled"), None)
            site.carry()
        ordered()
    assert Taken(1) not in site.said[EMITTER]
    site.end()
    site.settle()
    site.say(EMITTER, Event(2, 0, encode_event({"a": 1}), b""))
    site.settle()
    taken = [item.number for item in site.said[EMITTER] if isinstance(item, Taken)]
    assert taken == [1, 2]
    point = site.processes["a"].access_point
    assert point is not None
    assert point.in_flight == 0


def test_a_client_hears_its_new_exit_point_when_the_old_one_has_ended() -> None:
    client = EngineClient(LIMITS, lambda: 7)
    client.add([_wire(parse("a = 1"))])
    client.hello(0.0)
    old, new, newest = 10, 20, 30
    client.received([Welcome(7, 1), InForce(7, [1])], 0.0, old)

    def delivery(number: int) -> Delivery:
        return Delivery(5, number, 0, encode_event({"a": 1}), b"", pack([1]))

    client.received([PathBegin(1, 2), delivery(3)], 0.0, new)
    client.received([delivery(4), PathEnd(1, 3)], 0.0, new)
    client.received([PathBegin(1, 3), delivery(5)], 0.0, newest)
    client.received([delivery(1)], 0.0, old)
    assert _arrived(client) == [1]
    client.received([delivery(2), PathEnd(1, 2)], 0.0, old)
    assert _arrived(client) == [1, 2, 3, 4, 5]
    assert client.paths_held == 2
    client.received([PathBegin(1, 4), delivery(7)], 0.0, old)
    client.missed("a hole", 0.0)  # the end may have been lost
    assert [type(effect) for effect in client.effects[-2:]] == [Missed, Arrived]
    client.received([PathBegin(1, 5), delivery(8)], 0.0, new)
    client.received([Welcome(7, 2), InForce(7, [1]), delivery(8)], 0.0, new)
    assert _arrived(client) == [1, 2, 3, 4, 5, 7, 8]
    assert [effect.reason for effect in client.effects if isinstance(effect, Missed)] == [
        "a hole",
        "an exit point has died before its path had ended",
    ]


def test_only_the_exit_point_that_a_client_had_ends_its_path() -> None:
    """The end of another one, which has nothing to say to the client, would let the new one overtake the old one."""
    site = Site()
    clients = range(1, 9)
    for client in clients:
        site.say(client, Open(client), Ready())
    site.settle()
    site.change(Configuration(2, ONE, ONE, ("a", "b", "c")))
    site.change(Configuration(3, ONE, ONE, ("d",)))
    for client in clients:
        ends = [item for item in site.said[client] if isinstance(item, PathEnd)]
        assert [item.configuration for item in ends if item.configuration == 3] == [3]


def test_a_path_in_which_nothing_was_said_ends_after_the_one_before() -> None:
    site = Site()
    site.say(READER, Open(READER), Ready())
    site.settle()
    site.change(Configuration(2, ONE, ONE, ("b",)))
    site.change(Configuration(3, ONE, ONE, ("c",)))
    paths = [item for item in site.said[READER] if isinstance(item, PathBegin | PathEnd)]
    assert paths == [PathEnd(1, 2), PathBegin(1, 2), PathEnd(1, 3)]
    client = EngineClient(LIMITS, lambda: 7)
    (number,) = client.add([_wire(parse("a = 1"))])
    client.hello(0.0)
    client.received([Welcome(7, 1), InForce(7, [number])], 0.0, 10)

    def event(number: int) -> Delivery:
        return Delivery(5, number, 0, encode_event({"a": 1}), b"", pack([1]))

    client.received([PathBegin(1, 2), PathEnd(1, 3)], 0.0, 20)
    client.received([PathBegin(1, 3), event(2)], 0.0, 30)
    client.received([event(1), PathEnd(1, 2)], 0.0, 10)
    assert _arrived(client) == [1, 2]


def test_what_waits_for_the_end_of_a_path_has_a_bound() -> None:
    client = EngineClient(structs_replace(LIMITS, inbox_messages_max=16), lambda: 7)
    client.add([_wire(parse("a = 1"))])
    client.hello(0.0)
    client.received([Welcome(7, 1), InForce(7, [1])], 0.0, 10)
    client.received([PathBegin(1, 2)], 0.0, 20)
    for number in range(1, 40):
        client.received([Delivery(5, number, 0, encode_event({"a": 1}), b"", pack([1]))], 0.0, 20)
    assert _arrived(client) == [*range(1, 40)]
    assert sum(isinstance(effect, Missed) for effect in client.effects) == 1


def test_a_path_does_not_wait_for_ever_for_an_end_that_is_lost() -> None:
    """Its loss may be known before the new exit point says anything: then no other loss follows that ends the wait."""
    client = EngineClient(LIMITS, lambda: 7)
    (number,) = client.add([_wire(parse("a = 1"))])
    client.hello(0.0)
    client.received([Welcome(7, 1), InForce(7, [number])], 0.0, 10)
    client.missed("a hole", 1.0)
    event = Delivery(5, 1, 0, encode_event({"a": 1}), b"", pack([number]))
    client.received([PathBegin(1, 2), Welcome(7, 1), InForce(7, [number]), event], 1.0, 20)
    client.tick(1.0 + LIMITS.engine_client_grace_s / 2)
    assert _arrived(client) == []
    client.tick(1.0 + LIMITS.engine_client_grace_s)
    assert _arrived(client) == [1]
    assert [type(effect) for effect in client.effects].count(Missed) == 2


def test_a_late_letter_of_an_earlier_instance_is_a_gap_if_it_repeats_nothing() -> None:
    client = EngineClient(LIMITS, lambda: 7)
    (number,) = client.add([_wire(parse("a = 1"))])
    client.hello(0.0)

    def deliver(sender: int, *events: int) -> None:
        made = [Delivery(5, event, 0, encode_event({"a": 1}), b"", pack([number])) for event in events]
        client.received([*made], 0.0, sender)

    client.received([Welcome(7, 1), InForce(7, [number])], 0.0, 10)
    deliver(10, 1, 2)
    client.received([Welcome(7, 2), InForce(7, [number])], 0.0, 20)
    deliver(20, 2, 4, 6)
    deliver(10, 4)  # both have delivered it
    assert not any(isinstance(effect, Missed) for effect in client.effects)
    deliver(10, 3)  # taken before the second instance began, and overtaken by its letters
    assert [type(effect) for effect in client.effects].count(Missed) == 1
    client.remove([number])
    deliver(10, 5)
    assert [type(effect) for effect in client.effects].count(Missed) == 1, "no filter wants it any more"
    assert _arrived(client) == [1, 2, 4, 6]


def test_letters_that_come_after_those_of_an_engine_that_woke_up_are_no_gap() -> None:
    """An engine that was asleep delivers what it had matched, with the filters of that time. Its successor delivers the
    events before these again, for filters that have come into force since: they were owed nothing."""
    client = EngineClient(LIMITS, lambda: 7)
    old, new = client.add([_wire(parse("a = 1")), _wire(parse("b = 1"))])
    client.hello(0.0)
    client.received([Welcome(7, 1), InForce(7, [old])], 0.0, 10)
    client.received([Welcome(7, 2), InForce(7, [old, new])], 0.0, 20)
    client.received([Delivery(5, 4, 0, encode_event({"a": 1}), b"", pack([old]))], 0.0, 10)
    client.received([Delivery(5, 3, 0, encode_event({"b": 1}), b"", pack([new]))], 0.0, 20)
    assert not any(isinstance(effect, Missed) for effect in client.effects)
    client.received([PathBegin(2, 0), Delivery(5, 2, 0, encode_event({"b": 1}), b"", pack([new]))], 0.0, 30)
    assert not any(isinstance(effect, Missed) for effect in client.effects), "another exit point of the same engine"


def test_one_letter_is_one_gap() -> None:
    client = EngineClient(LIMITS, lambda: 7)
    (number,) = client.add([_wire(parse("a = 1"))])
    client.hello(0.0)
    client.received([Welcome(7, 1), InForce(7, [number])], 0.0, 10)
    client.received([Welcome(7, 2), InForce(7, [number])], 0.0, 20)
    made = [Delivery(5, event, 0, encode_event({"a": 1}), b"", pack([number])) for event in (4, 1, 2, 3)]
    client.received([made[0]], 0.0, 20)
    client.received([*made[1:]], 0.0, 10)
    assert [type(effect) for effect in client.effects].count(Missed) == 1


def test_a_roll_begins_when_it_is_called_and_ends_when_clients_have_heard_that_their_filters_are_in_force() -> None:
    limits = msgspec.structs.replace(LIMITS, engine_roll_s=1.0, engine_roll_s_max=10.0)
    orders = Orders(2, "a", 1, Configuration(1, ONE, ONE, ONE))
    engine = Operators("a", orders, limits, 0.0)
    engine.lease_until = 1e9
    engine.turn(5.0)
    assert not engine.progress[-1], "other processes have not joined: nobody was called"
    engine.arrange(structs_replace(orders, stage=Stage.ROLL), 5.0)
    engine.turn(5.0)
    engine.received(READER, Letter(READER, 1, [Open(READER, 1), Add([(1, _wire(parse("a = 1")))]), Ready()]))
    posts = engine.turn(5.5)
    engine.turn(6.5)
    assert not engine.progress[-1], "no server has confirmed the answer"
    for post in posts:
        engine.confirmed(post.group)
    engine.turn(6.6)
    engine.turn(6.6)
    assert engine.progress[-1]


def test_a_client_that_changes_its_filters_all_the_time_does_not_keep_a_roll_open() -> None:
    limits = msgspec.structs.replace(LIMITS, engine_roll_s=0.5, engine_roll_s_max=10.0)
    engine = LoneEngine(2, 1, limits, 0.0)
    engine.lease_until = 1e9

    def turn(now: float) -> None:
        for post in engine.turn(now):
            engine.confirmed(post.group)

    turn(0.0)
    engine.received(READER, Letter(READER, 1, [Open(READER, 1), Add([(1, _wire(parse("a = 1")))]), Ready()]))
    turn(0.05)
    for number in range(2, 10):
        engine.received(READER, Letter(READER, 1, [Add([(number, _wire(parse("a = 1")))])]))
        turn(number / 10)
    assert engine.wants_to_serve, "the client has presented all that was in force with the instance before"


def test_a_client_that_still_presents_its_filters_keeps_a_roll_open() -> None:
    limits = msgspec.structs.replace(LIMITS, engine_roll_s=0.5, engine_roll_s_max=10.0)
    engine = LoneEngine(2, 1, limits, 0.0)
    engine.lease_until = 1e9
    engine.turn(0.0)
    engine.received(READER, Letter(READER, 1, [Open(READER, 1)]))
    for number in range(1, 10):
        engine.received(READER, Letter(READER, 1, [Add([(number, _wire(parse("a = 1")))])]))
        engine.turn(number / 10)
    engine.turn(0.95)
    assert not engine.wants_to_serve


def test_a_client_has_four_billion_filters_in_its_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.engine.messages.NUMBER_MAX", 3)
    client = EngineClient(LIMITS, lambda: 7)
    wire = _wire(parse("a = 1"))
    assert client.add([wire, wire]) == [1, 2]
    with pytest.raises(FilterError, match="can add 3 filters in its life") as refused:
        client.add([wire, wire])
    assert "new connection" in str(refused.value)
    assert client.add([wire]) == [3], "nothing was added before"


def test_a_repetition_of_what_a_client_does_not_remember_is_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.engine.client.LATE_EVENTS_MAX", 3)
    client = EngineClient(LIMITS, lambda: 7)
    (number,) = client.add([_wire(parse("a = 1"))])
    client.hello(0.0)
    encoded, matched = encode_event({"a": 1}), pack([number])
    client.received([Welcome(7, 1), InForce(7, [number])], 0.0, 10)
    client.received([Welcome(7, 2), InForce(7, [number])], 0.0, 20)
    client.received([Delivery(5, event, 0, encoded, b"", matched) for event in range(1, 9)], 0.0, 20)
    client.received([Delivery(5, event, 0, encoded, b"", matched) for event in range(1, 9)], 0.0, 30)
    assert not any(isinstance(effect, Missed) for effect in client.effects)
    assert _arrived(client) == [*range(1, 9)]


def _arrived(client: EngineClient) -> list[int]:
    return [effect.delivery.number for effect in client.effects if isinstance(effect, Arrived)]


def test_a_client_with_very_many_filters_is_told_all_that_match() -> None:
    """They do not fit into one letter together with the largest event."""
    client = EngineClient(LIMITS, lambda: 7)
    client.add([_wire(parse("a = 1"))] * 10_000)
    client.hello(0.0)
    engine = LoneEngine(1, 0, LIMITS, 0.0)
    engine.lease_until = 1e9
    engine.turn(0.0)
    engine.serve()

    def exchange() -> None:
        for letter in client.take_letters(0.0):
            engine.received(READER, decode_letter(letter))
        for _ in range(400):
            for post in engine.turn(1.0):
                assert len(post.payload) < LIMITS.payload_bytes_max
                engine.confirmed(post.group)
                client.received(decode_replies(post.payload), 0.0)

    exchange()
    client.emit(encode_event({"a": 1}), bytes(LIMITS.payload_bytes_max - 2048), 0)
    exchange()
    (arrived,) = [effect for effect in client.effects if isinstance(effect, Arrived)]
    assert sorted(arrived.numbers) == list(range(1, 10_001))


# The director


def director(*others: str, wanted: Wanted | None = None) -> Director:
    found = Director("a", 5, 0, LIMITS)
    found.wanted = wanted or Wanted()
    for name in ("a", *others):
        found.heard(Status(name), 0.0)
    return found


def shows(found: Director, now: float, *names: str, joined: int = 1, ready: int = 1, **more: Any) -> None:
    """These processes show themselves."""
    for name in names:
        found.heard(Status(name, 5, joined, ready, **more), now)


def serving(*others: str) -> Director:
    found = director(*others)
    found.begin(0.0)
    shows(found, 0.0, "a", roll_over=True)
    assert found.started(0.0)
    assert found.roll_is_over()
    found.serve()
    return found


def test_the_first_configuration_uses_the_processes_that_are_there() -> None:
    assert director("b", wanted=Wanted(3, 2)).begin(0.1).text == "1-2-2"
    assert director("b", wanted=Wanted(3, 2, (), 2)).begin(0.1).text == "2-2-2"
    assert director("b", "c", wanted=Wanted(2, 1, ("a",))).begin(0.1).matchers == ("b", "c")
    assert director("b", "c", wanted=Wanted(1, 1, ("a",))).begin(0.1).access_points == ("b",)
    assert director("b", wanted=Wanted(3)).begin(LIMITS.engine_member_silent_s).text == "1-1-1"


def test_an_instance_waits_for_its_processes_but_not_for_ever() -> None:
    found = director("b", wanted=Wanted(2))
    found.begin(0.0)
    shows(found, 0.0, "a")
    assert not found.started(1.0)
    found.heard(Status("b", 4, 1), 1.0)  # another instance
    assert not found.started(1.0)
    with pytest.raises(InstanceEndsError, match="b did not join"):
        found.started(LIMITS.engine_join_s_max)
    shows(found, 1.0, "b")
    assert found.started(1.0)
    assert found.orders().stage == Stage.ROLL
    assert not found.roll_is_over()


def test_a_change_goes_through_its_phases() -> None:
    found = serving("b")
    found.wanted = Wanted(2)
    found.step(0.1)
    following = Configuration(2, ONE, ("a", "b"), ONE)
    assert (found.phase, found.following, found.orders().step) == (Phase.JOINING, following, None)
    shows(found, 0.2, "b", joined=2)
    found.step(0.2)
    assert found.phase is Phase.JOINING, "a has not joined"
    shows(found, 0.2, "a", joined=2)
    found.step(0.2)
    assert found.orders().step == Step.PREPARE
    shows(found, 0.3, "a", joined=2, ready=2, prepared=2)
    found.step(0.3)
    assert found.orders().step == Step.PREPARE, "b is not ready"
    shows(found, 0.4, "b", joined=2, ready=2)
    shows(found, 0.4, "a", joined=2, ready=2)
    found.step(0.4)
    assert found.orders().step == Step.PREPARE, "a has not marked PREPARE"
    shows(found, 0.5, "a", joined=2, ready=2, prepared=2)
    found.step(0.5)
    assert found.orders().step == Step.SWITCH
    found.step(0.5)
    assert found.configuration.text == "1-1-1"
    shows(found, 0.6, "a", joined=2, ready=2, prepared=2, drained=2)
    found.step(0.6)
    assert found.orders().step == Step.SWITCH, "b has not heard SWITCH"
    shows(found, 0.6, "b", joined=2, ready=2, drained=2)
    found.step(0.6)
    assert (found.configuration, found.phase, found.changes) == (following, Phase.IDLE, 1)
    assert found.last_change_s == pytest.approx(0.5)


def test_several_layers_change_at_once() -> None:
    found = serving("b", "c")
    found.wanted = Wanted(2, 2, ("a",), 1)
    found.step(0.1)
    assert found.following == Configuration(2, ("b",), ("b", "c"), ("b", "c"))


def test_a_new_process_that_dies_before_the_switch_ends_the_change_only() -> None:
    found = serving("b")
    found.wanted = Wanted(2)
    found.step(0.1)
    shows(found, 0.2, "a", "b", joined=2)
    found.step(0.2)
    silent = 0.2 + LIMITS.engine_member_silent_s
    shows(found, silent, "a", joined=2)
    found.step(silent)
    assert found.following is not None, "a has not marked PREPARE: it could not mark that it is given up"
    shows(found, silent, "a", joined=2, prepared=2)
    found.step(silent)
    assert found.orders() == structs_replace(found.orders(), next=None, step=None, configuration=single(2, "a"))
    assert found.given_up == {"is silent": 1}
    shows(found, silent, "a", "b")
    found.step(silent + RETRY_S / 2)
    assert found.phase is Phase.IDLE
    shows(found, silent + RETRY_S, "a", "b")
    found.step(silent + RETRY_S)
    assert found.following == single(3, "a", "b")


@pytest.mark.parametrize("status", [None, Status("b", 5, 2, 2, failed="disk"), Status("b", 6)])
def test_a_process_in_force_that_dies_ends_the_instance(status: Status | None) -> None:
    found = serving("b")
    found.wanted = Wanted(2)
    found.step(0.1)
    shows(found, 0.2, "a", "b", joined=2, ready=2, prepared=2, drained=2)
    for _ in range(3):
        found.step(0.2)
    assert found.configuration.text == "1-2-1"
    if status is not None:
        found.heard(status, 1.0)
    silent = 0.2 + LIMITS.engine_member_silent_s
    shows(found, silent, "a")
    with pytest.raises(InstanceEndsError, match=r"^b "):
        found.step(silent)


def test_a_change_that_takes_too_long_is_given_up() -> None:
    found = serving("b")
    found.wanted = Wanted(2)
    found.step(0.0)
    late = LIMITS.engine_change_s_max
    shows(found, late, "a", "b")
    found.step(late)
    assert found.given_up == {"took too long": 1}


def test_each_process_is_told_how_long_the_lease_lasts_by_its_own_clock() -> None:
    found = serving("b")
    found.heard(Status("b", stamp=500.0), 3.0)
    found.lease_until = 3.7
    stamp, seconds = found.orders().leases["b"]
    assert stamp == 500.0
    assert seconds == pytest.approx(0.7)


def test_the_director_forgets_processes_that_are_gone() -> None:
    """A process that crashes again and again has another name each time; orders would grow without a bound."""
    found = Director("a", 5, 0, LIMITS)
    found.heard(Status("a", 5), 0.0)
    found.begin(0.0)
    found.serve()
    now = 0.0
    for incarnation in range(100):
        now += LIMITS.engine_member_silent_s
        found.heard(Status("a", 5), now)
        found.heard(Status(f"b-{incarnation}"), now)
        found.step(now)
    assert len(found.orders().leases) == 2


def _point_in_roll(*names: str) -> AccessPoint:
    """An access point of instance 2 whose clients are called; instance 1 has served before."""
    configuration = Configuration(1, names, ONE, ONE)
    point = AccessPoint("a", 2, 1, configuration, LIMITS, 0.0)
    point.obey(Orders(2, "a", 1, configuration, stage=Stage.ROLL), 0.0)
    return point


def _told(point: AccessPoint) -> list[FromEngine]:
    replies = [batch.body.replies for batch in point.take_batches() if isinstance(batch.body, Replies)]
    return [item for some in replies for _, item in some]


@pytest.mark.parametrize(("names", "late"), [(("a",), False), (("a", "b"), True)])
def test_a_client_that_comes_after_the_end_of_a_roll_was_said_is_late_if_another_access_point_may_serve(
    names: tuple[str, ...], late: bool
) -> None:
    point = _point_in_roll(*names)
    point.tick(LIMITS.engine_roll_s_max)
    assert point.roll_over
    point.received(READER, Letter(7, 1, [Open(7, 1), Ready()]), LIMITS.engine_roll_s_max)
    assert Welcome(7, 2, late) in _told(point)


def test_a_client_that_ends_its_presentation_after_the_end_of_a_roll_was_said_is_late() -> None:
    point, now = _point_in_roll("a", "b"), LIMITS.engine_roll_s_max
    point.received(READER, Letter(7, 1, [Open(7, 1)]), 0.0)
    point.tick(now)
    assert point.roll_over
    point.received(READER, Letter(7, 1, [Ready()]), now)
    point.obey(Orders(2, "a", 1, Configuration(1, ("a", "b"), ONE, ONE), stage=Stage.SERVE), now)
    assert _told(point) == [Welcome(7, 2), Again(7)]
    point.received(READER, Letter(8, 1, [Open(8, 2), Ready()]), now)
    assert _told(point) == [Welcome(8, 2, late=True)]


def test_a_table_is_not_packed_while_its_filters_are_sent_by_id() -> None:
    """A filter that gets a lower id meanwhile would be behind what was sent: it would be at no matcher after SWITCH."""
    one, two = Configuration(1, ("a",), ("a",), ("a",)), Configuration(2, ("a",), ("a", "b"), ("a",))
    matcher = Matcher("a", 1, one, LIMITS)
    filters = [(number, _wire(parse(f"a = {number}"))) for number in range(40)]
    matcher.table.insert(7, filters)
    matcher.marked(Mark(Step.PREPARE, two))
    matcher.work()
    matcher.table.remove(7, range(20))
    assert matcher.table.is_sparse
    held = matcher.table.size
    sent = _work_all(matcher)
    foreign = {number for number, wire in filters[20:] if two.owner(wire) == "b"}
    assert foreign <= sent
    assert matcher.table.size == held
    matcher.marked(Mark(Step.SWITCH, two))
    assert _work_all(matcher) == set()
    assert {*matcher.table.numbers(7)} == {*range(20, 40)} - foreign
    assert matcher.table.size == len(matcher.table), "packed"


def _work_all(matcher: Matcher) -> set[int]:
    """Lets a matcher work as long as it is busy; the numbers of the filters that it sends, which are acknowledged."""
    sent: set[int] = set()
    while matcher.is_busy:
        matcher.work()
        for _, message in matcher.out:
            assert isinstance(message, State)
            sent.update(number for _, number, _ in message.rows)
            matcher.received(StateAck(1, 2, "b", message.chunk))
        matcher.out.clear()
    return sent


def test_a_process_ignores_orders_that_are_older_than_those_it_has() -> None:
    one, two, three = (Configuration(number, ("a",), ("a",), ("a",)) for number in (1, 2, 3))
    steps = [
        Orders(1, "a", 0, one),
        Orders(1, "a", 0, one, stage=Stage.ROLL),
        Orders(1, "a", 0, one, stage=Stage.SERVE),
        Orders(1, "a", 0, one, two, stage=Stage.SERVE),
        Orders(1, "a", 0, one, two, Step.PREPARE, Stage.SERVE),
        Orders(1, "a", 0, two, stage=Stage.SERVE),  # given up: the old layers get the number
        Orders(1, "a", 0, two, three, Step.SWITCH, Stage.SERVE),
        Orders(1, "a", 0, three, stage=Stage.SERVE),
        Orders(2, "a", 1, one),
    ]
    shell = MemberShell("main", "a", cast(Wire, None), LIMITS, ALL_RULES, float, Meter(float), THREADS)
    for number, orders in enumerate(steps):
        shell.order(orders)
        assert shell._orders is orders
        for earlier in steps[:number]:
            shell.order(earlier)
        assert shell._orders is orders
    again = structs_replace(steps[-1], leases={"a": (1.0, 2.0)})
    shell.order(again)
    assert shell._orders is again, "the same orders with newer leases"
