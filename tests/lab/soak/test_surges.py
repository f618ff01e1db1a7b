"""Loads that are raised: rates, subscribers, and the capacity of servers."""

from __future__ import annotations

import pytest

from shoal.balance.settings import DEFAULT_SETTINGS
from shoal.lab.soak.load_shape import Lifetime, LoadShape
from shoal.lab.soak.surges import HOT, PAYLOAD_BYTES, hot_channel, scale_out
from shoal.limits import DEFAULT_LIMITS


def bytes_per_s(shape: LoadShape, raised: bool, channel: str | None = None) -> float:
    """What servers send when all subscribers are there, payloads only."""
    total = 0.0
    for one in shape.channels:
        if channel not in (None, one.name):
            continue
        assert one.pace is not None
        receivers = {
            (sub.number if sub.bus is None else -1 - sub.bus, sub.pattern)
            for sub in shape.subscribers
            if (one.name.startswith(sub.name[:-1]) if sub.pattern else one.name == sub.name)
        }
        rate = one.pace.after_per_s if raised else one.pace.before_per_s
        total += len(one.publishers) * rate * len(receivers) * one.pace.payload_bytes
    return total


def test_the_hot_channel_is_larger_than_a_server_and_small_enough_for_all() -> None:
    surge = hot_channel(1, 30.0, 4, DEFAULT_LIMITS)
    capacity = surge.capacity_bytes_per_s
    assert bytes_per_s(surge.shape, False) / capacity < 0.35 * 4
    assert bytes_per_s(surge.shape, True, HOT) / capacity > 1.0
    assert bytes_per_s(surge.shape, True) / (4 * capacity) < DEFAULT_SETTINGS.grow_ratio
    assert len(next(one for one in surge.shape.channels if one.name == HOT).publishers) >= 40
    assert (surge.servers, surge.servers_max) == (4, 4)


@pytest.mark.parametrize(("servers", "most"), [(2, 3), (2, 4), (4, 8)])
def test_a_growing_load_needs_all_servers_that_there_may_be(servers: int, most: int) -> None:
    surge = scale_out(1, 30.0, servers, most, DEFAULT_LIMITS)
    before, after = (bytes_per_s(surge.shape, raised) / surge.capacity_bytes_per_s for raised in (False, True))
    assert before / servers < DEFAULT_SETTINGS.high_ratio
    assert after / servers > DEFAULT_SETTINGS.high_ratio
    assert DEFAULT_SETTINGS.safe_ratio * (most - 1) < after + 0.1 * most
    assert after / most < DEFAULT_SETTINGS.safe_ratio


def test_no_bus_receives_a_channel_twice_and_some_subscribers_come_and_go() -> None:
    for surge in (hot_channel(1, 30.0, 4, DEFAULT_LIMITS), scale_out(1, 30.0, 4, 8, DEFAULT_LIMITS)):
        subscribers = surge.shape.subscribers
        shared = [(one.name, one.bus) for one in subscribers if one.bus is not None]
        assert len(shared) == len(set(shared))
        assert {one.lifetime for one in subscribers} == set(Lifetime)
        assert any(one.pattern for one in subscribers)
        assert {number for one in surge.shape.channels for number in one.publishers} == set(
            range(surge.shape.publishers)
        )
        assert all(one.pace is not None and one.pace.payload_bytes == PAYLOAD_BYTES for one in surge.shape.channels)
