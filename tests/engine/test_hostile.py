"""Clients that lie to the engine: bad events, bad filters, floods. Others notice nothing."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as structs_replace
from tests.support.lone_engine import LoneEngine

from shoal.engine.access_point import CHANGE_FILTERS_MAX
from shoal.engine.client import EngineClient
from shoal.engine.configuration import Configuration
from shoal.engine.links import Handover, Stage, Step, decode_to_member, encode
from shoal.engine.member_shell import READ_ITEMS_MAX, MemberShell
from shoal.engine.messages import (
    ITEMS_MAX,
    LANES,
    Add,
    Again,
    Alive,
    Close,
    Delivery,
    Event,
    FromClient,
    FromEngine,
    InForce,
    Letter,
    Open,
    Ready,
    Refused,
    Rejected,
    Remove,
    Resend,
    Taken,
    Welcome,
    decode_letter,
    decode_replies,
    lane_channel,
    lane_of,
)
from shoal.errors import ProtocolError
from shoal.filters import encode_event, parse
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.message import Message, Retraction

LIMITS = msgspec.structs.replace(
    DEFAULT_LIMITS,
    engine_roll_s=0.0,
    engine_filters_max=5,
    engine_client_filters_max=3,
    engine_flight_events_max=20,
    engine_untaken_events_max=8,
)
GOOD, BAD = 1, 2
_wire = msgspec.msgpack.Encoder().encode


class Site:
    """An engine that serves, and what it says to each client."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.engine = LoneEngine(1, 0, limits, 0.0)
        self.engine.lease_until = 1e9
        self.engine.turn(0.0)
        self.engine.serve()
        self.engine.turn(0.0)

    @property
    def in_flight(self) -> int:
        assert self.engine.access_point is not None
        return self.engine.access_point.in_flight

    def say(self, client: int, *items: FromClient, confirm: bool = True) -> dict[int, list[FromEngine]]:
        self.engine.received(client, Letter(client, 1, list(items)))
        return self.turn(confirm)

    def turn(self, confirm: bool = True) -> dict[int, list[FromEngine]]:
        said: dict[int, list[FromEngine]] = {}
        for _ in range(3):  # Taken follows in the turn after the confirmation
            for post in self.engine.turn(1.0):
                said.setdefault(post.client, []).extend(decode_replies(post.payload))
                if confirm:
                    self.engine.confirmed(post.group)
        return said

    def open(self, client: int, *filters: str) -> dict[int, list[FromEngine]]:
        wires = [(number, _wire(parse(text))) for number, text in enumerate(filters, 1)]
        return self.say(client, Open(client), Add(wires), Ready())


def event(number: int, attributes: bytes | None = None) -> Event:
    return Event(number, 0, encode_event({"a": 1}) if attributes is None else attributes, b"")


def test_an_event_that_cannot_be_read_is_rejected_and_others_are_delivered() -> None:
    site = Site()
    site.open(GOOD, "a = 1")
    site.open(BAD)
    said = site.say(BAD, event(1), event(2, b"\xc1 nonsense"), event(3, _wire([1, 2])), event(4))
    assert [item.number for item in said[GOOD] if isinstance(item, Delivery)] == [1, 4]
    assert [item.number for item in said[BAD] if isinstance(item, Rejected)] == [2, 3]
    assert Taken(4) in said[BAD]


def test_an_event_that_only_the_index_finds_wrong_is_rejected_and_others_are_delivered() -> None:
    """A decoder keeps the last of two values, the index reads both. The engine ended, and its successor got the same
    event."""
    site = Site()
    site.open(GOOD, "a = 1")
    site.open(BAD)
    said = site.say(BAD, event(1), event(2, b"\x82\xa1a" + _wire(float("nan")) + b"\xa1a\x01"), event(3))
    assert [item.number for item in said[GOOD] if isinstance(item, Delivery)] == [1, 3]
    assert [item.number for item in said[BAD] if isinstance(item, Rejected)] == [2]


def test_an_event_with_very_large_attributes_is_rejected_with_the_limit() -> None:
    """Eight megabytes of them were read for a third of a second, and an error with the name of one is as large."""
    site = Site()
    site.open(GOOD, "a = 1")
    site.open(BAD)
    attributes = _wire({"a": 1, "x" * LIMITS.attributes_bytes_max: 1})
    said = site.say(BAD, event(1), event(2, attributes), event(3))
    assert [item.number for item in said[GOOD] if isinstance(item, Delivery)] == [1, 3]
    (rejected,) = [item for item in said[BAD] if isinstance(item, Rejected)]
    assert rejected.number == 2
    assert "attributes_bytes_max=8192" in rejected.reason
    assert len(rejected.reason) < 200


@pytest.mark.parametrize(
    "wire", [b"", b"\xc1", b"\x93", b"\x91\x91\x91\x91", _wire([[1]]), _wire(["a = 1"]), _wire({"a": 1}), _wire(7)]
)
def test_a_filter_that_cannot_be_read_is_refused_and_others_come_into_force(wire: bytes) -> None:
    site = Site()
    site.say(BAD, Open(BAD), Ready())
    said = site.say(BAD, Add([(1, _wire(parse("a = 1"))), (2, wire), (3, _wire(parse("a = 2")))]))
    assert [item.number for item in said[BAD] if isinstance(item, Refused)] == [2]
    assert sorted(number for item in said[BAD] if isinstance(item, InForce) for number in item.numbers) == [1, 3]


def test_filters_beyond_the_limits_are_refused_with_the_limit() -> None:
    site = Site()
    said = site.open(BAD, *(f"a = {number}" for number in range(6)))
    (refused,) = {item.reason for item in said[BAD] if isinstance(item, Refused)}
    assert "engine_client_filters_max is 3" in refused
    assert len(site.engine.matcher or ()) == 3
    site.open(3, "a = 1", "a = 2")
    said = site.open(4, "a = 1")
    (full,) = [item for item in said[4] if isinstance(item, Refused)]
    assert "engine_filters_max is 5" in full.reason


def test_a_filter_that_does_not_fit_a_letter_is_refused_with_the_limit() -> None:
    site = Site()
    site.say(BAD, Open(BAD), Ready())
    most = LIMITS.engine_letter_bytes_max
    large = parse(
        f"a = '{'x' * most}'", structs_replace(LIMITS, filter_string_bytes_max=most, filter_text_bytes_max=2 * most)
    )
    said = site.say(BAD, Add([(1, _wire(parse("a = 1"))), (2, _wire(large))]))
    (refused,) = [item for item in said[BAD] if isinstance(item, Refused)]
    assert refused.number == 2
    assert f"engine_letter_bytes_max={most}" in refused.reason
    assert InForce(BAD, [1]) in said[BAD]


@pytest.mark.parametrize("presents", [True, False])
def test_very_many_filters_of_one_item_are_added_in_many_turns(presents: bool) -> None:
    """350,000 of them took more than half a second, in which the engine did nothing else."""
    site = Site(structs_replace(LIMITS, engine_filters_max=10**6, engine_client_filters_max=10**6))
    matcher = site.engine.matcher
    assert matcher is not None
    filters = [(number, _wire(parse(f"a = {number}"))) for number in range(20_000)]
    items: list[FromClient] = [Open(BAD), Add(filters), Ready()] if presents else [Open(BAD), Ready(), Add(filters)]
    site.engine.received(BAD, Letter(BAD, 1, items))
    sizes = [0]
    while sizes[-1] < len(filters):
        for post in site.engine.turn(1.0):
            site.engine.confirmed(post.group)
        sizes.append(len(matcher))
    assert max(after - before for before, after in pairwise(sizes)) <= CHANGE_FILTERS_MAX


def test_an_emitter_that_ignores_its_limit_does_not_take_the_room_of_others() -> None:
    site = Site()
    site.open(GOOD, "a = 1")
    site.open(BAD)
    site.say(BAD, *(event(number) for number in range(1, 1000)), confirm=False)
    assert site.in_flight == LIMITS.engine_untaken_events_max
    site.say(GOOD, event(1), confirm=False)
    assert site.in_flight == LIMITS.engine_untaken_events_max + 1


def test_events_that_did_not_fit_are_asked_for_again() -> None:
    site = Site()
    site.open(GOOD, "a = 1")
    site.open(BAD)
    posts = []
    site.engine.received(BAD, Letter(BAD, 1, [event(number) for number in range(1, 20)]))
    posts = site.engine.turn(1.0)
    for post in posts:
        site.engine.confirmed(post.group)
    said = site.turn()
    assert Resend(9) in said[BAD]


def test_a_hole_in_the_numbers_is_not_skipped() -> None:
    site = Site()
    site.open(GOOD, "a = 1")
    site.open(BAD)
    said = site.say(BAD, event(5), event(2), event(1))
    assert [item.number for item in said[GOOD] if isinstance(item, Delivery)] == [1]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xc1", b"\x93", _wire([1, 1, [[99]]]), _wire([1, 1, [[5, "x"]]]), _wire({"a": 1})),
        *(_wire([1, 2**63, []]), _wire([1, -1, []]), _wire([1, 1, [[5, 2**64 - 1, 0, b"", b""]]])),
    ],
)
def test_a_letter_that_cannot_be_read_is_an_error_of_its_sender(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_letter(data)


def test_the_largest_number_of_an_event_can_be_told_to_another_access_point() -> None:
    site = Site()
    largest = 2**63 - 1
    letter = decode_letter(_wire(Letter(BAD, largest, [Open(BAD), Ready(), event(largest)])))
    site.engine.received(BAD, letter)
    site.turn()
    following = Configuration(2, ("b",), ("a",), ("a",))
    orders = structs_replace(site.engine.ordered, next=following, step=Step.PREPARE, stage=Stage.SERVE)
    site.engine.arrange(orders, 1.0)
    site.turn()
    site.engine.arrange(structs_replace(orders, step=Step.SWITCH), 1.0)
    site.turn()
    _, links = site.engine.take_links()
    handed = [row for _, message in links if isinstance(message, Handover) for row in message.rows]
    assert [row.next for row in handed] == [largest + 1]
    for _, message in links:
        decode_to_member(encode(message))


def test_adding_nothing_takes_no_memory() -> None:
    site = Site()
    site.say(BAD, Open(BAD), *[Add([])] * 1000)
    said = site.say(BAD, Add([(1, _wire(parse("a = 1")))]), *[Add([])] * 1000)
    point = site.engine.access_point
    assert point is not None
    assert len(point._conversations[BAD].presented) == 1
    assert not said
    assert InForce(BAD, [1]) in site.say(BAD, Ready())[BAD]


def test_a_letter_opens_one_conversation() -> None:
    """Each is answered: half a million in a second would keep the engine from extending its lease."""
    site = Site()
    said = site.say(BAD, *[Open(number) for number in range(1, 1000)])
    assert [item.conversation for item in said[BAD] if isinstance(item, Welcome)] == [1]


def test_a_letter_with_very_many_items_is_an_error_of_its_sender_and_clients_send_none() -> None:
    decode_letter(_wire(Letter(1, 1, [Alive()] * ITEMS_MAX)))
    with pytest.raises(ProtocolError):
        decode_letter(_wire(Letter(1, 1, [Alive()] * (ITEMS_MAX + 1))))
    client = EngineClient(structs_replace(LIMITS, engine_letter_bytes_max=8 << 20), lambda: 7)
    client.hello(0.0)
    for number in range(20_000):
        client.remove(client.add([b"%d" % number]))
    letters = [decode_letter(letter) for letter in client.take_letters(0.0)]
    assert sum(len(letter.items) for letter in letters) == 40_002


def _shell(lanes: dict[int, deque[Message]]) -> Any:
    shell: Any = MemberShell.__new__(MemberShell)
    shell._engine, shell._lanes, shell._awake = "main", [*lanes], asyncio.Event()
    shell._listening = {
        lane_channel("main", lane): SimpleNamespace(get_nowait=lambda box=box: box.popleft() if box else None)
        for lane, box in lanes.items()
    }
    return shell


def test_a_flood_of_letters_is_read_in_many_turns_and_lanes_take_turns() -> None:
    flood = Message("", _wire(Letter(BAD, 1, [Alive()] * 1000)), BAD, 1, 0)
    other = next(client for client in range(1, 100) if lane_of(client) != lane_of(BAD))
    letter = Message("", _wire(Letter(other, 1, [Open(other)])), other, 1, 0)
    shell = _shell({lane_of(BAD): deque([flood] * 1000), lane_of(other): deque([letter])})
    heard: list[int] = []
    operators: Any = SimpleNamespace(
        lanes=frozenset(range(LANES)), received=lambda client, letter, sequence: heard.append(client)
    )
    shell._read_lanes(operators)
    assert heard == [BAD] * len(heard)
    assert len(heard) * 1000 < READ_ITEMS_MAX + 2 * 1000
    assert shell._awake.is_set()
    heard.clear()
    shell._read_lanes(operators)
    assert heard[0] == other


def test_a_client_is_heard_in_its_own_lane_only() -> None:
    """Another lane may have another access point. When that leaves, the filters of a client that is of none
    of its lanes would stay."""
    lanes = {lane: deque([Message("", _wire(Letter(BAD, 1, [Open(BAD)])), BAD, 1, 0)]) for lane in range(LANES)}
    heard: list[int] = []
    shell = _shell(lanes)
    operators: Any = SimpleNamespace(
        lanes=frozenset(lanes), received=lambda client, letter, sequence: heard.append(client)
    )
    shell._read_lanes(operators)
    assert heard == [BAD]


def test_a_client_whose_letters_were_forged_begins_again_and_is_told() -> None:
    """The false letter has removed its filter, and made its events repetitions. Another one has ended it."""
    for forged in (Letter(GOOD, 1 << 40, [Remove([1])]), Letter(GOOD, 1, [Close()]), Letter(GOOD, 1, [Open(5)])):
        site = Site()
        site.open(GOOD, "a = 1")
        site.engine.received(GOOD, forged)
        site.turn()
        site.engine.false_letter(GOOD)
        site.turn()
        assert Again(GOOD) in site.say(GOOD, Alive())[GOOD]
        letter = Letter(8, 1, [Open(8, 1), Add([(1, _wire(parse("a = 1")))]), Ready(), event(1)])
        site.engine.received(GOOD, letter)
        said = site.turn()[GOOD]
        assert [item.late for item in said if isinstance(item, Welcome)] == [True]
        assert [item.number for item in said if isinstance(item, Delivery)] == [1]
        assert Taken(1) in said
        site.engine.received(GOOD, Letter(9, 2, [Open(9, 1), Ready()]))
        assert [item.late for item in site.turn()[GOOD] if isinstance(item, Welcome)] == [False]


def test_a_retraction_in_a_lane_is_a_false_letter() -> None:
    lane = lane_of(GOOD)
    shell = _shell({lane: deque()})
    shell._listening[lane_channel("main", lane)] = SimpleNamespace(
        get_nowait=deque([Retraction("", GOOD, 7), None]).popleft
    )
    false: list[int] = []
    shell._read_lanes(SimpleNamespace(lanes=frozenset([lane]), false_letter=false.append))
    assert false == [GOOD]
