"""The register: who subscribes to what; both ways of looking at it always agree."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.channels.agent.register import Register
from shoal.limits import DEFAULT_LIMITS


def test_a_client_is_found_by_channel_and_by_pattern() -> None:
    register = Register()
    register.add(1, b"tile", False)
    register.add(1, b"tile*", True)
    register.add(2, b"tile", False)
    assert register.channels == {b"tile": {1, 2}}
    assert register.patterns == {b"tile*": {1}}
    assert set(register.clients) == {1, 2}


def test_a_name_may_be_a_channel_and_a_pattern() -> None:
    register = Register()
    register.add(1, b"tile", False)
    register.add(1, b"tile", True)
    register.remove(1, b"tile", False)
    assert register.channels == {}
    assert register.patterns == {b"tile": {1}}
    assert set(register.clients) == {1}


def test_coming_twice_and_leaving_once_is_gone() -> None:
    register = Register()
    register.add(1, b"tile", False)
    register.add(1, b"tile", False)
    register.remove(1, b"tile", False)
    assert not register.channels
    assert not register.clients


def test_leaving_where_one_never_was_is_no_error() -> None:
    register = Register()
    register.remove(1, b"tile", False)
    register.remove_client(1)
    register.add(2, b"tile", False)
    register.remove(1, b"tile", False)
    assert register.channels == {b"tile": {2}}


def test_a_client_that_is_gone_is_gone_everywhere() -> None:
    register = Register()
    for name in (b"a", b"b"):
        register.add(1, name, False)
        register.add(2, name, False)
    register.add(1, b"*", True)
    register.remove_client(1)
    assert register.channels == {b"a": {2}, b"b": {2}}
    assert register.patterns == {}
    assert set(register.clients) == {2}


def test_after_a_restart_of_the_server_nobody_is_there() -> None:
    register = Register()
    register.add(1, b"a", False)
    register.add(1, b"*", True)
    register.clear()
    assert not register.channels
    assert not register.patterns
    assert not register.clients


ACTIONS = st.tuples(
    st.sampled_from(["add", "remove", "gone"]), st.integers(1, 3), st.sampled_from([b"a", b"b"]), st.booleans()
)


@given(script=st.lists(ACTIONS))
def test_it_is_a_set_of_facts_without_empty_rooms(script: list[tuple[str, int, bytes, bool]]) -> None:
    register, model = Register(), set[tuple[int, bytes, bool]]()
    for action, client, name, pattern in script:
        if action == "add":
            register.add(client, name, pattern)
            model.add((client, name, pattern))
        elif action == "remove":
            register.remove(client, name, pattern)
            model.discard((client, name, pattern))
        else:
            register.remove_client(client)
            model = {fact for fact in model if fact[0] != client}
        found = {
            (client, name, pattern)
            for pattern, table in ((False, register.channels), (True, register.patterns))
            for name, clients in table.items()
            for client in clients
        }
        assert found == model
        assert set(register.clients) == {fact[0] for fact in model}
        assert all(register.channels.values())
        assert all(register.patterns.values())


# What subscribers have acknowledged


def test_a_subscriber_has_acknowledged_nothing_at_first_and_then_only_newer_revisions() -> None:
    register = Register()
    register.add(1, b"tile", False)
    assert register.acknowledged(1, b"tile") == 0
    register.acknowledge(1, b"tile", 7)
    register.acknowledge(1, b"tile", 5)
    register.add(1, b"tile", False)
    assert register.acknowledged(1, b"tile") == 7
    assert register.acknowledged(2, b"tile") == 0
    assert register.acknowledged(1, b"other") == 0


def test_a_client_that_is_not_registered_acknowledges_nothing() -> None:
    register = Register()
    register.add(1, b"tile", True)
    register.acknowledge(1, b"tile", 7)
    register.acknowledge(2, b"tile", 7)
    register.add(1, b"tile", False)
    register.add(2, b"tile", False)
    assert [register.acknowledged(client, b"tile") for client in (1, 2)] == [0, 0]


@pytest.mark.parametrize("how", ["bye", "gone", "restart"])
def test_a_client_that_comes_again_has_acknowledged_nothing(how: str) -> None:
    register = Register()
    register.add(1, b"tile", False)
    register.add(1, b"tile", True)
    register.acknowledge(1, b"tile", 7)
    if how == "bye":
        register.remove(1, b"tile", False)
    elif how == "gone":
        register.remove_client(1)
    else:
        register.clear()
    register.add(1, b"tile", False)
    assert register.acknowledged(1, b"tile") == 0


def test_leaving_a_pattern_of_the_same_name_takes_nothing_back() -> None:
    register = Register()
    register.add(1, b"tile", False)
    register.add(1, b"tile", True)
    register.acknowledge(1, b"tile", 7)
    register.remove(1, b"tile", True)
    assert register.acknowledged(1, b"tile") == 7


def test_a_bye_that_is_older_than_the_last_hello_means_nothing() -> None:
    """It was stuck in a connection that the client has given up meanwhile."""
    register = Register()
    register.add(1, b"a", False, number=7)
    assert not register.remove(1, b"a", False, number=6)
    assert list(register.channels[b"a"]) == [1]
    register.add(1, b"a", False)
    assert not register.remove(1, b"a", False, number=6), "an answer to a resync has no number and changes none"
    assert register.remove(1, b"a", False, number=8)
    assert b"a" not in register.channels


def test_a_bye_without_a_number_is_believed() -> None:
    register = Register()
    register.add(1, b"a", True, number=7)
    assert register.remove(1, b"a", True)
    assert b"a" not in register.patterns


def test_there_is_room_for_a_number_of_subscriptions_in_all_and_of_each_client() -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, registered_max=4, registered_per_client_max=3)
    register = Register(limits)
    assert [register.add(1, name, False) for name in (b"a", b"b", b"b", b"c", b"d")] == [True, True, True, True, False]
    assert [register.add(2, name, True) for name in (b"a", b"b")] == [True, False]
    register.remove(1, b"a", False)
    register.remove(1, b"a", False)
    assert [register.add(2, name, False) for name in (b"x", b"y")] == [True, False]
    register.remove_client(1)
    assert [register.add(2, name, False) for name in (b"y", b"z")] == [True, False]
    register.clear()
    assert register.add(3, b"a", False)
