"""Placements: in each mode, whoever publishes reaches whoever subscribes, and clients spread over the servers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.plan.placement import Mode, Placement, check_servers

CLIENTS = st.integers(0, (1 << 48) - 1)
SERVERS = st.lists(st.sampled_from([f"s{number}" for number in range(9)]), min_size=1, unique=True).map(tuple)


def test_single_is_one_server_for_everybody() -> None:
    placement = Placement(1, Mode.SINGLE, ("s1",))
    assert placement.subscribe_servers(7) == placement.publish_servers(8) == ("s1",)


def test_all_subscribers_are_everywhere_and_a_publisher_keeps_to_one() -> None:
    placement = Placement(1, Mode.ALL_SUBSCRIBERS, ("s1", "s2", "s3"))
    assert placement.subscribe_servers(4) == ("s1", "s2", "s3")
    assert placement.publish_servers(4) == ("s2",)


def test_all_publishers_are_everywhere_and_a_subscriber_keeps_to_one() -> None:
    placement = Placement(1, Mode.ALL_PUBLISHERS, ("s1", "s2", "s3"))
    assert placement.publish_servers(4) == ("s1", "s2", "s3")
    assert placement.subscribe_servers(4) == ("s2",)


@given(mode=st.sampled_from(Mode), servers=SERVERS, publisher=CLIENTS, subscriber=CLIENTS)
def test_every_publisher_reaches_every_subscriber_on_exactly_one_server(
    mode: Mode, servers: tuple[str, ...], publisher: int, subscriber: int
) -> None:
    servers = servers[:1] if mode is Mode.SINGLE else servers
    placement = Placement(1, mode, servers)
    meet = set(placement.publish_servers(publisher)) & set(placement.subscribe_servers(subscriber))
    assert len(meet) == 1
    assert meet <= set(servers)


@given(mode=st.sampled_from([Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS]), servers=SERVERS)
def test_clients_spread_evenly(mode: Mode, servers: tuple[str, ...]) -> None:
    placement = Placement(1, mode, servers)
    own = placement.publish_servers if mode is Mode.ALL_SUBSCRIBERS else placement.subscribe_servers
    shares = Counter(own(client)[0] for client in range(100 * len(servers)))
    assert set(shares.values()) == {100}


@pytest.mark.parametrize(
    ("mode", "servers", "reason"),
    [
        (Mode.SINGLE, (), "at least one server"),
        (Mode.ALL_PUBLISHERS, (), "at least one server"),
        (Mode.SINGLE, ("s1", "s2"), "one server, not 2"),
        (Mode.ALL_SUBSCRIBERS, ("s1", "s2", "s1"), "a server twice"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(mode: Mode, servers: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_servers(mode, servers)


@pytest.mark.parametrize("mode", list(Mode))
def test_one_server_is_enough_for_any_mode(mode: Mode) -> None:
    check_servers(mode, ("s1",))
