"""Matchers come and go while filters change and events are matched: the cores of several processes, without I/O."""

from __future__ import annotations

from collections import deque
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.configuration import Configuration, checksum
from shoal.engine.director import RETRY_S, Director, InstanceEndsError, Phase, Wanted
from shoal.engine.engine import Engine
from shoal.engine.links import State, Status, Step, ToMember
from shoal.engine.messages import (
    Add,
    Delivery,
    Event,
    FromClient,
    FromEngine,
    Letter,
    Open,
    Ready,
    Remove,
    decode_replies,
    unpack,
)
from shoal.engine.operators import Operators
from shoal.engine.subscription_table import owners
from shoal.filters import encode_event, parse
from shoal.limits import DEFAULT_LIMITS

LIMITS = msgspec.structs.replace(DEFAULT_LIMITS, engine_roll_s=0.0, engine_slice_filters_max=3)
_wire = msgspec.msgpack.Encoder().encode


@given(st.lists(st.binary(min_size=1), min_size=1), st.integers(1, 6))
def test_a_filter_changes_its_matcher_only_if_one_comes_or_goes(wires: list[bytes], count: int) -> None:
    names = tuple(f"engine-{number}" for number in range(count))
    before, after = Configuration(1, names, names[:1]), Configuration(2, (*names, "new"), names[:1])
    for wire in wires:
        assert after.owner(wire) in (before.owner(wire), "new")
    many = np.array([checksum(wire) for wire in wires], np.uint64)
    assert [after.matchers[place] for place in owners(after, many)] == [after.owner(wire) for wire in wires]


def test_filters_are_spread_over_all_matchers() -> None:
    names = tuple(f"engine-{number}" for number in range(4))
    configuration = Configuration(1, names, names)
    wires = [_wire(parse(f"a = {number}")) for number in range(2000)]
    counts = [sum(configuration.owner(wire) == name for wire in wires) for name in names]
    assert min(counts) > 350
    clients = [sum(configuration.exit_of(client) == name for client in range(2000)) for name in names]
    assert min(clients) > 350


class Site:
    """An engine whose first process has the access point. Messages between processes wait until `carry`."""

    def __init__(self, names: str = "abc") -> None:
        self.engine = Engine(1, 0, LIMITS, 0.0, name="a", configuration=Configuration(1, ("a",), ("a",)))
        self.engine.lease_until = 1e9
        self.names = names
        self.members: dict[str, Operators] = {}
        self.links: deque[tuple[str, ToMember]] = deque()
        self.said: dict[int, list[FromEngine]] = {}
        self.configuration = Configuration(1, ("a",), ("a",))
        self.turn()
        self.engine.serve()

    def turn(self) -> None:
        for post in self.engine.turn(1.0):
            self.said.setdefault(post.client, []).extend(decode_replies(post.payload))
            self.engine.confirmed(post.group)
        fan, links = self.engine.take_links()
        self.links += links
        for name, member in self.members.items():
            for batch in fan:
                member.heard(batch)
            member.work()
            assert name != "a"
            self.links += member.links
            member.links = []

    def carry(self, states: bool = True) -> None:
        """Carries messages between processes; without `states`, those with filters wait on."""
        for _ in range(len(self.links)):
            name, message = self.links.popleft()
            if isinstance(message, State) and not states:
                self.links.append((name, message))
            else:
                (self.engine.operators if name == "a" else self.members[name]).received(message)

    def settle(self) -> None:
        for _ in range(200):
            self.turn()
            self.carry()

    def change(self, step: Step, following: Configuration) -> None:
        if step == Step.PREPARE:
            for name in following.members - {"a"}:
                if name not in self.members:
                    self.members[name] = Operators(name, 1, self.configuration, LIMITS, following=following)
            self.engine.arrange(self.configuration, following)
        self.engine.mark(step, following)
        if step != Step.PREPARE:
            self.configuration = following

    def say(self, client: int, *items: FromClient) -> None:
        self.engine.received(client, Letter(client, 1, list(items)))

    def held(self) -> dict[str, int]:
        operators = {"a": self.engine.operators, **self.members}
        return {name: len(one.matcher) for name, one in operators.items() if one.matcher is not None}

    def delivered(self, client: int) -> dict[int, list[int]]:
        found = [item for item in self.said.get(client, []) if isinstance(item, Delivery)]
        assert len({item.number for item in found}) == len(found), "an event came twice"
        return {item.number: sorted(unpack(item.matched)) for item in found}


READER, EMITTER = 1, 2


@pytest.mark.parametrize("seed", range(12))
def test_what_a_reader_gets_does_not_depend_on_changes(seed: int) -> None:
    """Filters come and go and events are emitted at every moment of two changes."""
    random = Random(seed)
    site = Site()
    site.say(READER, Open(READER), Ready())
    site.say(EMITTER, Open(EMITTER), Ready())
    held: dict[int, int] = {}
    owed: dict[int, list[int]] = {}
    number = 0
    three, one = Configuration(2, ("a", "b", "c"), ("a",)), Configuration(3, ("b",), ("a",))
    for event, step in enumerate(range(240), 1):
        for _ in range(random.randint(0, 2)):
            number += 1
            held[number] = random.randrange(5)
            site.say(READER, Add([(number, _wire(parse(f"a = {held[number]}")))]))
        if held and random.random() < 0.4:
            gone = random.choice(sorted(held))
            del held[gone]
            site.say(READER, Remove([gone]))
        value = random.randrange(5)
        wanted = sorted(name for name, wants in held.items() if wants == value)
        if wanted:
            owed[event] = wanted
        site.say(EMITTER, Event(event, 0, encode_event({"a": value}), b""))
        if step == 60:
            site.change(Step.PREPARE, three)
        elif step == 120:
            site.settle()
            assert all(operators.ready == 2 for operators in (site.engine.operators, *site.members.values()))
            site.change(Step.SWITCH, three)
        elif step == 160:
            site.change(Step.PREPARE, one)
        elif step == 220:
            site.settle()
            site.change(Step.SWITCH, one)
        if random.random() < 0.7:
            site.turn()
        if random.random() < 0.5:
            site.carry(states=random.random() < 0.2)
    site.settle()
    assert {name: sorted(matched) for name, matched in site.delivered(READER).items()} == owed
    assert site.held()["b"] == len(held)
    assert site.held().get("a", 0) == 0


def test_a_filter_that_ended_while_state_was_under_way_does_not_come_back() -> None:
    site = Site()
    site.say(READER, Open(READER), Add([(number, _wire(parse(f"a = {number}"))) for number in range(1, 30)]), Ready())
    site.settle()
    following = Configuration(2, ("b",), ("a",))
    site.change(Step.PREPARE, following)
    site.turn()
    site.turn()
    site.say(READER, Remove([1, 2, 3]))
    for _ in range(50):
        site.turn()
        site.carry(states=False)
    site.settle()
    site.change(Step.SWITCH, following)
    site.settle()
    assert site.held()["b"] == 26


def test_what_ends_is_remembered_only_while_state_is_under_way() -> None:
    """A matcher of an engine that never changes would grow with every filter that comes and goes."""
    site = Site()
    matcher = site.engine.operators.matcher
    assert matcher is not None
    site.say(READER, Open(READER), Ready())
    for number in range(1, 50):
        site.say(READER, Add([(number, _wire(parse("a = 1")))]), Remove([number]))
        site.turn()
    assert (len(matcher), matcher.remembered) == (0, 0)


def test_a_change_that_is_given_up_leaves_everything_as_it_was() -> None:
    site = Site()
    site.say(READER, Open(READER), Add([(number, _wire(parse("a = 1"))) for number in range(1, 30)]), Ready())
    site.say(EMITTER, Open(EMITTER), Ready())
    site.settle()
    site.change(Step.PREPARE, Configuration(2, ("b", "c"), ("a",)))
    site.turn()
    site.change(Step.GIVE_UP, Configuration(2, ("a",), ("a",)))
    site.members.clear()
    site.links.clear()
    site.say(EMITTER, Event(1, 0, encode_event({"a": 1}), b""))
    site.turn()
    site.turn()
    assert sorted(site.delivered(READER)[1]) == list(range(1, 30))
    assert site.held() == {"a": 29}


def test_a_client_with_very_many_filters_is_told_all_that_match() -> None:
    """They do not fit into one letter together with the largest event."""
    from shoal.engine.client import Arrived, EngineClient

    client = EngineClient(LIMITS, lambda: 7)
    client.add([_wire(parse("a = 1"))] * 10_000)
    client.hello(0.0)
    engine = Engine(1, 0, LIMITS, 0.0)
    engine.lease_until = 1e9
    engine.turn(0.0)
    engine.serve()

    def exchange() -> None:
        from shoal.engine.messages import decode_letter

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
    found = Director("a", 5, LIMITS)
    found.wanted = wanted or Wanted()
    for name in others:
        found.heard(Status(name), 0.0)
    return found


def serving(*others: str) -> Director:
    found = director(*others)
    found.begin(0.0)
    assert found.started(0.0)
    return found


def test_the_first_configuration_uses_the_processes_that_are_there() -> None:
    assert director("b", wanted=Wanted(3, 2)).begin(0.1).text == "1-2-2"
    assert director("b", "c", wanted=Wanted(2, 1, ("a",))).begin(0.1).matchers == ("b", "c")
    assert director("b", wanted=Wanted(3)).begin(LIMITS.engine_member_silent_s).text == "1-1-1"


def test_an_instance_waits_for_its_processes_but_not_for_ever() -> None:
    found = director("b", wanted=Wanted(2))
    found.begin(0.0)
    assert not found.started(1.0)
    found.heard(Status("b", 4, 1), 1.0)  # another instance
    assert not found.started(1.0)
    with pytest.raises(InstanceEndsError, match="b did not join"):
        found.started(LIMITS.engine_join_s_max)
    found.heard(Status("b", 5, 1), 1.0)
    assert found.started(1.0)


def test_a_change_goes_through_its_phases() -> None:
    found = serving("b")
    found.wanted = Wanted(2)
    assert found.step(1, False, 0.1) is None
    assert found.phase is Phase.JOINING
    assert found.step(1, False, 0.1) is None
    found.heard(Status("b", 5, 2, 1), 0.2)
    following = Configuration(2, ("a", "b"), ("a",))
    assert found.step(1, False, 0.2) == (Step.PREPARE, following)
    assert found.step(2, False, 0.3) is None  # b is not ready
    found.heard(Status("b", 5, 2, 2), 0.3)
    assert found.step(1, False, 0.3) is None  # a is not ready
    assert found.step(2, False, 0.4) == (Step.SWITCH, following)
    assert found.step(2, False, 0.5) is None
    assert found.configuration.text == "1-1-1"
    assert found.step(2, True, 0.6) is None
    assert (found.configuration, found.phase, found.changes) == (following, Phase.IDLE, 1)
    assert found.last_change_s == pytest.approx(0.5)


def test_a_new_process_that_dies_before_the_switch_ends_the_change_only() -> None:
    found = serving("b")
    found.wanted = Wanted(2)
    found.step(1, False, 0.1)
    found.heard(Status("b", 5, 2, 1), 0.2)
    found.step(1, False, 0.2)
    silent = 0.2 + LIMITS.engine_member_silent_s
    mark = found.step(2, False, silent)
    assert mark == (Step.GIVE_UP, Configuration(2, ("a",), ("a",)))
    assert found.given_up == {"is silent": 1}
    found.heard(Status("b"), silent)
    assert found.step(2, True, silent + RETRY_S / 2) is None
    assert found.phase is Phase.IDLE
    found.heard(Status("b"), silent + RETRY_S)
    found.step(2, True, silent + RETRY_S)
    assert found.following == Configuration(3, ("a", "b"), ("a",))


@pytest.mark.parametrize("status", [None, Status("b", 5, 2, 2, failed="disk"), Status("b", 6)])
def test_a_process_in_force_that_dies_ends_the_instance(status: Status | None) -> None:
    found = serving("b")
    found.wanted = Wanted(2)
    found.step(1, False, 0.1)
    found.heard(Status("b", 5, 2, 2), 0.2)
    for ready, drained in ((1, False), (2, False), (2, True)):
        found.step(ready, drained, 0.2)
    assert found.configuration.text == "1-2-1"
    if status is not None:
        found.heard(status, 1.0)
    with pytest.raises(InstanceEndsError, match=r"^b "):
        found.step(2, True, 0.2 + LIMITS.engine_member_silent_s)


def test_a_change_that_takes_too_long_is_given_up() -> None:
    found = serving("b")
    found.wanted = Wanted(2)
    found.step(1, False, 0.0)
    late = LIMITS.engine_change_s_max
    found.heard(Status("b"), late)
    assert found.step(1, False, late) is None
    assert found.given_up == {"took too long": 1}
