"""A hole in the records is not a gap yet while an agent may still fill it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.records import NOON_US, STREAM, Recording
from tests.support.redis_server import RedisServer

from shoal.history.channel_history import ChannelHistory
from shoal.history.server_reader import Login
from shoal.plan.ring import ServerAddress
from shoal.wire.record_entry import RecordedGap

HEAL_S_MAX = 15.0


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def unsettled(server: RedisServer, before: dict[int, int] | None = None) -> bool:
    address = ServerAddress("s1", server.host, server.port)
    history = ChannelHistory([address], Login(None, None), b"orders.eu", NOON_US, None)
    history.read()
    return history.unsettled(before or {}, HEAL_S_MAX)


def test_a_record_without_holes_is_settled(server: RedisServer) -> None:
    assert not unsettled(server)
    Recording(server).write(1, 2, 3)
    assert not unsettled(server)


def test_a_hole_is_unsettled_until_it_is_filled(server: RedisServer) -> None:
    recording = Recording(server)
    recording.write(1, 2, 7, at=False)
    assert unsettled(server)
    recording.write(3, 4, 5, 6, at=False)
    assert not unsettled(server)


def test_a_hole_is_settled_when_the_agent_has_given_it_up(server: RedisServer) -> None:
    recording = Recording(server)
    recording.write(1, 2, 7)
    recording.gap(RecordedGap(STREAM, 3, 5, "the publisher is gone"), NOON_US + 8_000_000)
    assert unsettled(server)
    recording.gap(RecordedGap(STREAM, 3, 6, "the publisher is gone"), NOON_US + 9_000_000)
    assert not unsettled(server)


def test_an_old_hole_is_settled(server: RedisServer) -> None:
    """Nobody fills it: the channel was not recorded then."""
    recording = Recording(server)
    recording.write(1, 2, 7, 8, 21)
    recording.write(*range(9, 21), at=False)
    assert not unsettled(server)


def test_live_messages_are_beyond_the_history(server: RedisServer) -> None:
    Recording(server).write(1, 2, 7)
    assert not unsettled(server, {STREAM: 3})
