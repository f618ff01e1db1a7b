"""The agent's half of the lease rule: its heartbeats grant as long as the coordinator does, and longer only while most
of the ring agrees that the coordinator is down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.core_driver import ring

from shoal.channels.agent.lease import AgentLease
from shoal.limits import DEFAULT_LIMITS
from shoal.wire.control import Heartbeat

LEASE_S = DEFAULT_LIMITS.server_lease_s
SURE_S = LEASE_S * (1 - DEFAULT_LIMITS.clock_drift_max)
RING = ring(5, ("s1", "s2", "s3", "s4"))


def heartbeat(
    server: str, *, granted: bool = False, ring_version: int = 5, lease_ms: int = 500, lapsed_s: float = 99
) -> Heartbeat:
    lapsed_ms = None if granted else int(1000 * lapsed_s)
    return Heartbeat(server, 9, 0, 1, lease_ms, granted, ring_version, lapsed_ms)


def lapsed() -> AgentLease:
    """The lease of s1, whose grant has run out at 200."""
    lease = AgentLease("s1", DEFAULT_LIMITS)
    lease.granted(100.0)
    lease.asked(101.0)
    assert not lease.is_granted(200.0)
    return lease


def test_without_a_grant_a_heartbeat_grants_nothing() -> None:
    lease = AgentLease("s1", DEFAULT_LIMITS)
    assert lease.remaining_s(None, 1.0) == 0
    assert lease.remaining_s(RING, 1.0) == 0


def test_a_grant_counts_from_when_it_was_asked_for_and_less_the_drift() -> None:
    lease = AgentLease("s1", DEFAULT_LIMITS)
    lease.granted(100.0)
    assert lease.remaining_s(RING, 101.0) == pytest.approx(SURE_S - 1.0)
    assert lease.is_granted(100.0 + SURE_S - 0.001)
    assert not lease.is_granted(100.0 + SURE_S)


def test_answers_out_of_order_never_shorten_a_grant() -> None:
    lease = AgentLease("s1", DEFAULT_LIMITS)
    lease.granted(100.0)
    lease.granted(99.0)
    assert lease.remaining_s(RING, 100.0) == pytest.approx(SURE_S)


def test_a_refusal_ends_it_at_once() -> None:
    lease = AgentLease("s1", DEFAULT_LIMITS)
    lease.granted(100.0)
    lease.refused()
    assert lease.remaining_s(RING, 100.1) == 0


def test_a_server_that_is_not_in_the_ring_cannot_be_vouched_for() -> None:
    lease = AgentLease("s1", DEFAULT_LIMITS)
    lease.granted(100.0)
    assert lease.remaining_s(ring(5, ("s2", "s3")), 100.1) == 0
    assert lease.remaining_s(None, 100.1) == 0


def test_after_a_lapse_it_is_silent_until_a_newer_ring_or_a_whole_lease_without_one() -> None:
    """The keeper may have seen the lapse and be about to write a ring without this server."""
    lease = AgentLease("s1", DEFAULT_LIMITS)
    lease.granted(100.0, lapsed_at=5)
    assert lease.remaining_s(RING, 100.1) == 0
    assert lease.remaining_s(ring(6, ("s1", "s2")), 100.1) > 0
    assert lease.remaining_s(ring(6, ("s2", "s3")), 100.1) == 0
    lease.granted(102.0)
    assert lease.remaining_s(RING, 100.0 + LEASE_S - 0.01) == 0
    assert lease.remaining_s(RING, 100.0 + LEASE_S) > 0


# While the coordinator is silent


def test_alone_an_agent_cannot_tell_a_dead_coordinator_from_being_cut_off() -> None:
    assert lapsed().remaining_s(RING, 200.0) == 0


def test_half_of_the_ring_is_not_enough() -> None:
    lease = lapsed()
    lease.heard(heartbeat("s2"), 200.0)
    assert lease.remaining_s(RING, 200.0) == 0


def test_more_than_half_of_the_ring_is_enough_for_a_short_lease() -> None:
    lease = lapsed()
    lease.heard(heartbeat("s2"), 200.0)
    lease.heard(heartbeat("s3"), 200.0)
    assert lease.remaining_s(RING, 200.0) == LEASE_S / 2
    assert not lease.is_granted(200.0), "its own lease does not count as a grant"


def test_after_a_time_without_the_coordinator_it_goes_on_at_once() -> None:
    """The keeper waits for a whole lease, so no ring without this server can be under way."""
    lease = lapsed()
    lease.heard(heartbeat("s2"), 200.0)
    lease.heard(heartbeat("s3"), 200.0)
    assert lease.remaining_s(RING, 200.0) > 0
    lease.heard(heartbeat("s2", granted=True, lease_ms=int(1000 * LEASE_S)), 200.1)
    assert lease.remaining_s(RING, 200.1) == 0, "another agent has heard of the coordinator first"
    lease.granted(200.2, lapsed_at=5)
    assert lease.remaining_s(RING, 200.2) > 0


def test_a_time_without_the_coordinator_that_is_over_for_long_does_not_count() -> None:
    lease = lapsed()
    lease.heard(heartbeat("s2"), 200.0)
    lease.heard(heartbeat("s3"), 200.0)
    assert lease.remaining_s(RING, 200.0) > 0
    lease.granted(200.0 + LEASE_S / 2, lapsed_at=5)
    assert lease.remaining_s(RING, 200.0 + LEASE_S / 2) == 0


def test_a_ring_of_one_is_more_than_half_by_itself() -> None:
    assert lapsed().remaining_s(ring(5, ("s1",)), 200.0) == LEASE_S / 2


def test_those_whose_grant_runs_do_not_count() -> None:
    lease = lapsed()
    lease.heard(heartbeat("s2"), 200.0)
    lease.heard(heartbeat("s3", granted=True), 200.0)
    lease.heard(heartbeat("s4", granted=True), 200.0)
    assert lease.remaining_s(RING, 200.0) == 0


def test_only_what_they_said_lately_counts() -> None:
    lease = lapsed()
    lease.heard(heartbeat("s2"), 200.0)
    lease.heard(heartbeat("s3"), 200.0)
    assert lease.remaining_s(RING, 200.0 + LEASE_S / 2) > 0
    assert lease.remaining_s(RING, 200.01 + LEASE_S / 2) == 0


def test_a_later_heartbeat_replaces_an_earlier_one() -> None:
    lease = lapsed()
    lease.heard(heartbeat("s2"), 200.0)
    lease.heard(heartbeat("s3"), 200.0)
    lease.heard(heartbeat("s3", granted=True), 200.1)
    assert lease.remaining_s(RING, 200.2) == 0


def test_servers_outside_the_ring_do_not_count() -> None:
    lease = lapsed()
    for server in ("s2", "s7", "s8"):
        lease.heard(heartbeat(server), 200.0)
    assert lease.remaining_s(RING, 200.0) == 0


def test_somebody_with_a_newer_ring_proves_that_the_coordinator_lives() -> None:
    lease = lapsed()
    lease.heard(heartbeat("s2"), 200.0)
    lease.heard(heartbeat("s3"), 200.0)
    lease.heard(heartbeat("s4", ring_version=6), 200.0)
    assert lease.remaining_s(RING, 200.0) == 0


def test_a_server_that_has_left_the_ring_cannot_go_on() -> None:
    lease = lapsed()
    lease.heard(heartbeat("s2"), 200.0)
    lease.heard(heartbeat("s3"), 200.0)
    assert lease.remaining_s(ring(5, ("s2", "s3")), 200.0) == 0


@given(granted=st.lists(st.booleans(), min_size=3, max_size=3), count=st.integers(1, 4))
def test_two_halves_never_both_go_on(granted: list[bool], count: int) -> None:
    """An agent goes on only if so many are without a grant that the keeper takes nobody out of the ring."""
    servers = ("s1", "s2", "s3", "s4")[:count]
    lease = lapsed()
    now = 103.0
    assert not lease.is_granted(now)
    for server, has_grant in zip(servers[1:], granted, strict=False):
        lease.heard(heartbeat(server, granted=has_grant), now)
    without = 1 + sum(not has_grant for _, has_grant in zip(servers[1:], granted, strict=False))
    goes_on = lease.remaining_s(ring(5, servers), now) > 0
    assert goes_on == (without > count / 2)


def test_a_grant_that_outlives_ours_proves_that_we_are_cut_off() -> None:
    """The coordinator was there when ours was not renewed. Later all may lose it, but the ring may have changed."""
    lease = lapsed()
    lease.heard(heartbeat("s2", granted=True, lease_ms=2500), 104.0)
    for server in ("s2", "s3", "s4"):
        lease.heard(heartbeat(server), 200.0)
    assert lease.remaining_s(RING, 200.0) == 0
    lease.granted(300.0)
    for server in ("s2", "s3", "s4"):
        lease.heard(heartbeat(server), 310.0)
    assert lease.remaining_s(RING, 310.0) > 0


def test_whoever_did_not_ask_knows_nothing_of_the_coordinator() -> None:
    lease = lapsed()
    for server in ("s2", "s3"):
        lease.heard(heartbeat(server), 200.0)
    assert lease.remaining_s(RING, 200.0) > 0
    lease.answered()
    assert lease.remaining_s(RING, 200.0) == 0, "it answered, or was not asked any more"
    lease.asked(200.0)
    assert lease.remaining_s(RING, 200.1) == 0, "it may still answer"
    for server in ("s2", "s3"):
        lease.heard(heartbeat(server), 202.0)
    lease.asked(202.0)
    assert lease.remaining_s(RING, 202.0) > 0, "it has had time enough since it was asked first"


def test_a_grant_that_ran_out_long_after_ours_does_not_count() -> None:
    """Cut off from all others, the agent heard no heartbeat while the others were granted. The keeper may have taken
    its server out of the ring before the coordinator went down."""
    lease = lapsed()
    ours = 100.0 + SURE_S
    for server in ("s2", "s3", "s4"):
        lease.heard(heartbeat(server, lapsed_s=200.0 - ours - LEASE_S / 2), 200.0)
    assert lease.remaining_s(RING, 200.0) == 0
    for server in ("s2", "s3"):
        lease.heard(heartbeat(server, lapsed_s=200.0 - ours - DEFAULT_LIMITS.heartbeat_interval_s), 200.0)
    assert lease.remaining_s(RING, 200.0) > 0


def test_whoever_was_never_granted_anything_does_not_count() -> None:
    """An agent that has begun anew does not know what its predecessor was granted."""
    lease = lapsed()
    for server in ("s2", "s3", "s4"):
        lease.heard(Heartbeat(server, 9, 0, 1, 0, False, 0), 200.0)
    assert lease.remaining_s(RING, 200.0) == 0


def test_it_says_how_long_ago_its_grant_ran_out() -> None:
    lease = AgentLease("s1", DEFAULT_LIMITS)
    assert lease.lapsed_ms(99.0) is None, "there was none"
    lease.granted(100.0)
    assert lease.lapsed_ms(101.0) is None, "it runs"
    assert lease.lapsed_ms(100.0 + SURE_S + 2.0) == pytest.approx(2000, abs=1)
