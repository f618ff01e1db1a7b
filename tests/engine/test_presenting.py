"""Many filters at once: they come into force in slices, so no turn of a process is long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from shoal.engine.configuration import Configuration
from shoal.engine.links import Batch, Change, Changes, Mark, Part, State, StateAck, Step
from shoal.engine.matcher import TOGETHER, Matcher
from shoal.engine.messages import FromEngine, InForce, Refused
from shoal.engine.subscription_table import SETTLED_AT_ONCE, SubscriptionTable
from shoal.filters import parse
from shoal.limits import DEFAULT_LIMITS, Limits

ONE = Configuration(1, ("a",), ("a",), ("a",))
PART = 1000
CLIENT = 7

Filters = Sequence[tuple[int, bytes]]


def wire(number: int) -> bytes:
    return msgspec.msgpack.encode(parse(f"key = {number % 100} and x >= {number}"))


def new_matcher(name: str = "a", limits: Limits = DEFAULT_LIMITS) -> Matcher:
    return Matcher(name, 1, ONE, limits)


def change(matcher: Matcher, *changes: Change) -> list[FromEngine]:
    """What clients are told."""
    matcher.heard(Batch(1, "a", 1, Changes([*changes])))
    out, matcher.out = matcher.out, []
    return [item for _, part in out if isinstance(part, Part) for _, item in part.said]


def present(matcher: Matcher, numbers: Sequence[int]) -> list[list[FromEngine]]:
    """A client presents filters; what it is told after each part."""
    filters = [(number, wire(number)) for number in numbers]
    parts = [filters[first : first + PART] for first in range(0, len(filters), PART)]
    return [change(matcher, Change(CLIENT, 1, part, [], presented=True, more=part is not parts[-1])) for part in parts]


def in_force(said: list[FromEngine]) -> list[int]:
    return [number for item in said if isinstance(item, InForce) for number in item.numbers]


@pytest.fixture
def inserted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many filters come into a table at once."""
    counts: list[int] = []
    insert_many = SubscriptionTable.insert_many

    def counted(table: SubscriptionTable, filters: Mapping[int, Filters]) -> dict[int, list[Refused]]:
        counts.append(sum(map(len, filters.values())))
        return insert_many(table, filters)

    monkeypatch.setattr(SubscriptionTable, "insert_many", counted)
    return counts


def test_what_a_client_presents_is_inserted_in_slices_and_in_force_together(inserted: list[int]) -> None:
    matcher = new_matcher()
    numbers = range(3 * TOGETHER)
    said = present(matcher, numbers)
    assert max(inserted) < TOGETHER + PART
    assert not any(said[:-1])
    assert in_force(said[-1]) == [*numbers]
    assert len(matcher) == len(numbers)


def test_filters_that_end_when_a_client_presents_others_make_room_for_them() -> None:
    most = 2 * TOGETHER
    matcher = new_matcher(limits=msgspec.structs.replace(DEFAULT_LIMITS, engine_client_filters_max=most))
    present(matcher, range(most))
    shifted = range(most // 2, most + most // 2)
    said = present(matcher, shifted)[-1]
    assert not any(isinstance(item, Refused) for item in said)
    assert in_force(said) == [*shifted]
    refused = [item for item in present(matcher, range(most + 5))[-1] if isinstance(item, Refused)]
    assert len(refused) == 5, "the limit is kept"
    assert all("engine_client_filters_max" in item.reason for item in refused)


def test_filters_of_many_clients_in_a_batch_are_inserted_together(inserted: list[int]) -> None:
    matcher = new_matcher()
    said = change(matcher, *(Change(client, 1, [(1, wire(client)), (2, b"")], []) for client in range(1, 200)))
    assert inserted == [2 * 199]
    assert len(matcher) == 199, "what is not a filter is refused alone"
    assert [item.number for item in said if isinstance(item, Refused)] == [2] * 199
    again = change(matcher, Change(1, 1, [(3, wire(3))], []), Change(1, 1, [], [3]), Change(1, 1, [(4, wire(4))], []))
    assert [item.numbers for item in again if isinstance(item, InForce)] == [[3], [4]]
    assert matcher.table.numbers(1) == [4, 1], "changes of one client are applied in their order"


def state(configuration: Configuration, chunk: int, numbers: Sequence[int], last: bool = False) -> State:
    return State(1, configuration.number, "a", chunk, last, [(CLIENT, number, wire(number)) for number in numbers])


def work(matcher: Matcher) -> None:
    while matcher.is_busy or matcher.is_waiting:
        matcher.work()


def test_state_is_confirmed_at_once_and_inserted_in_slices(inserted: list[int]) -> None:
    two = Configuration(2, ("a",), ("a", "b"), ("a",))
    matcher = new_matcher("b")
    matcher.received(state(two, 1, range(PART)))
    assert matcher.out == [("a", StateAck(1, 2, "b", 1))]
    work(matcher)
    assert len(matcher) == 0, "it came before the mark"
    matcher.marked(Mark(Step.PREPARE, two))
    chunks = 3 * TOGETHER // PART
    assert chunks * PART > SETTLED_AT_ONCE
    for chunk in range(1, chunks):
        matcher.received(state(two, chunk + 1, range(chunk * PART, (chunk + 1) * PART), last=chunk == chunks - 1))
        if matcher.is_busy:
            matcher.work()
        assert matcher.ready == 1 or chunk == chunks - 1
    work(matcher)
    assert matcher.ready == 2
    assert len(matcher) == chunks * PART
    assert max(inserted) < TOGETHER + PART


def test_state_of_the_next_change_that_comes_before_the_end_of_this_one_is_kept() -> None:
    two, three = (Configuration(number, ("a",), ("a", "b", "c")[:number], ("a",)) for number in (2, 3))
    matcher = new_matcher("b")
    matcher.marked(Mark(Step.PREPARE, two))
    matcher.received(state(two, 1, [1], last=True))
    work(matcher)
    matcher.received(state(three, 1, [2], last=True))
    work(matcher)
    assert matcher.table.numbers(CLIENT) == [1]
    matcher.marked(Mark(Step.SWITCH, two))
    work(matcher)
    matcher.marked(Mark(Step.PREPARE, three))
    work(matcher)
    assert 2 in matcher.table.numbers(CLIENT)
