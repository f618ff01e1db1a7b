"""A router's links: greeting, the lease rule, half-open connections, rings and entries, and garbage on every internal
channel."""

from __future__ import annotations

import msgspec
import pytest
from hiredis import PushNotification, ReplyError
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.core_driver import (
    AGENT,
    BEGIN,
    CLIENT,
    FORGER,
    OTHER,
    SIGNER,
    STREAM,
    RouterDriver,
    addressed,
    answer_of,
    blob,
    channel_at,
    ring,
    sequences,
)

from shoal.channels.client.context import AgentRefused, CommandRefused, Connect, Disconnect, FetchRing, Unreachable
from shoal.channels.states import LaneState, LinkState
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import ServerAddress
from shoal.wire import control
from shoal.wire.envelope import AGENT_CHANNEL, HEARTBEAT_CHANNEL, inbox_channel, peer_channel

SURE = 1 - DEFAULT_LIMITS.clock_drift_max
INBOX, PEER_CHANNEL = inbox_channel(CLIENT), peer_channel(CLIENT)


def spoken(driver: RouterDriver, count: int) -> list[PushNotification]:
    """Heartbeats of s1 that have come meanwhile."""
    here = driver.servers["s1"]
    data = [control.encode(here.heartbeat(), 0, here.heartbeats) for _ in range(count)]
    return [PushNotification([b"message", HEARTBEAT_CHANNEL, heartbeat]) for heartbeat in data]


def counts(driver: RouterDriver) -> dict[str, int]:
    return {name: value for name, value in msgspec.structs.asdict(driver.counters).items() if value}


# Connecting


def test_servers_are_connected_to_when_something_lives_on_them() -> None:
    driver = RouterDriver(("s1", "s2"))
    driver.router.subscribe(channel_at(driver.ring, "s2"), False, driver.now)
    assert driver.router.effects == [Connect(ServerAddress("s2", "127.0.0.1", 7001))]
    assert driver.state("s2") is LinkState.CONNECTING
    assert driver.state("s1") is LinkState.DOWN


def test_inbox_and_heartbeats_come_first_then_the_greeting_then_subscriptions() -> None:
    """The order matters: whatever an agent answers must find the inbox in force."""
    driver = RouterDriver()
    driver.router.subscribe(b"tile", False, driver.now)
    driver.router.opened("s1", driver.now)
    commands = driver.sent_to("s1")
    assert commands[:3] == [(b"SUBSCRIBE", name) for name in (INBOX, PEER_CHANNEL, HEARTBEAT_CHANNEL)]
    assert commands[3][:2] == (b"PUBLISH", AGENT_CHANNEL)
    assert isinstance(control.decode(commands[3][2]).message, control.Greet)
    assert commands[4] == (b"SUBSCRIBE", b"tile")
    assert isinstance(control.decode(commands[5][2]).message, control.Hello)


def test_a_connection_that_is_lost_is_made_again_and_the_ring_is_fetched() -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    driver.servers["s1"].reachable = False
    driver.lose("s1")
    assert driver.happened(Connect) == [Connect(ServerAddress("s1", "127.0.0.1", 7000))]
    assert driver.happened(FetchRing) == [FetchRing()]


def test_a_connection_that_nothing_lives_on_is_not_made_again() -> None:
    driver = RouterDriver()
    sub = driver.subscribe(b"tile")
    driver.router.unsubscribe(sub, driver.now)
    driver.play()
    driver.lose("s1")
    assert driver.happened(Connect) == []


def test_a_server_with_a_new_address_is_connected_to_there() -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    driver.servers["s1"].reachable = False
    driver.router.ring(SIGNER.ring(ring(2, ("s1",), port=9000)), driver.now)
    driver.play()
    assert driver.happened(Connect) == [Connect(ServerAddress("s1", "127.0.0.1", 9000))]


def test_news_of_a_connection_that_is_not_there_is_ignored() -> None:
    driver = RouterDriver()
    driver.router.lost("s1", driver.now)
    driver.router.lost("unknown", driver.now)
    driver.router.received("unknown", [1], driver.now)
    assert counts(driver) == {"ring_changes": 1}


# Servers that cannot be used


def test_a_server_that_stays_away_is_reported_again_and_again() -> None:
    driver = RouterDriver()
    sub = driver.subscribe(b"tile")
    driver.servers["s1"].reachable = False
    driver.lose("s1")
    wait_s = DEFAULT_LIMITS.unreachable_s
    driver.advance(wait_s - 0.1)
    assert driver.happened(Unreachable) == []
    assert not driver.router.cut_off(sub, wait_s, driver.now)
    driver.advance(0.2)
    assert [effect.server for effect in driver.happened(Unreachable)] == ["s1"]
    assert driver.router.cut_off(sub, wait_s, driver.now)
    driver.advance(2 * wait_s)
    assert [round(effect.seconds) for effect in driver.happened(Unreachable)] == [30, 45]


def test_an_agent_that_is_silent_for_too_long_makes_its_server_unreachable() -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    driver.servers["s1"].silent = True
    driver.advance(DEFAULT_LIMITS.server_lease_s + DEFAULT_LIMITS.unreachable_s + 1)
    assert len(driver.happened(Unreachable)) == 1


def test_a_server_that_returns_in_time_is_not_reported() -> None:
    driver = RouterDriver()
    sub = driver.subscribe(b"tile")
    for _ in range(3):
        driver.servers["s1"].reachable = False
        driver.lose("s1")
        driver.advance(DEFAULT_LIMITS.unreachable_s - 1)
        driver.servers["s1"].reachable = True
        driver.advance(2.0)
    assert driver.happened(Unreachable) == []
    assert not driver.router.cut_off(sub, 0.0, driver.now)


def test_a_server_that_nothing_lives_on_any_more_is_not_reported() -> None:
    driver = RouterDriver(("s1", "s2"))
    sub = driver.subscribe(channel_at(driver.ring, "s1"))
    driver.servers["s1"].reachable = False
    driver.lose("s1")
    driver.change_ring(("s2",))
    driver.advance(3 * DEFAULT_LIMITS.unreachable_s)
    assert driver.happened(Unreachable) == []
    assert sub.settled


def test_a_subscription_with_one_usable_server_is_not_cut_off() -> None:
    driver = RouterDriver(("s1", "s2"))
    sub = driver.subscribe(b"*", pattern=True)
    driver.servers["s1"].reachable = False
    driver.lose("s1")
    driver.advance(2 * DEFAULT_LIMITS.unreachable_s)
    assert driver.happened(Unreachable) != []
    assert not driver.router.cut_off(sub, 0.0, driver.now)


def test_the_ring_is_fetched_while_a_frozen_server_does_not_complete_a_connection() -> None:
    """A server that left the ring meanwhile is noticed at once, not when the attempt times out."""
    driver = RouterDriver(("s1", "s2"))
    driver.subscribe(channel_at(driver.ring, "s1"))
    driver.servers["s1"].reachable = False
    driver.lose("s1")
    driver.happened(FetchRing)
    driver.advance(3.0)
    assert len(driver.happened(FetchRing)) >= 5
    driver.change_ring(("s2",))
    driver.happened(FetchRing)
    driver.advance(3.0)
    assert driver.happened(FetchRing) == [], "the server is not needed any more"


def test_refused_commands_are_reported_with_the_channel() -> None:
    driver = RouterDriver()
    driver.servers["s1"].refuse = {AGENT_CHANNEL: "NOPERM no"}
    driver.router.subscribe(b"tile", False, driver.now)
    driver.play()
    assert CommandRefused("s1", None, "NOPERM no") in driver.happened(CommandRefused)


# The lease


def test_a_welcome_grants_from_when_the_greeting_was_sent() -> None:
    driver = RouterDriver()
    driver.servers["s1"].silent = True
    driver.subscribe(b"tile")
    greet = driver.heard("s1", control.Greet)[0]
    driver.now += 0.4
    driver.tell("s1", driver.servers["s1"].welcome(), greet.nonce)
    assert driver.state("s1") is LinkState.USABLE
    assert driver.link("s1").usable_until == pytest.approx(BEGIN + 3.0 * SURE)


def test_a_welcome_to_another_greeting_or_from_another_server_grants_nothing() -> None:
    driver = RouterDriver()
    here = driver.servers["s1"]
    here.silent = True
    driver.subscribe(b"tile")
    greet = driver.heard("s1", control.Greet)[0]
    driver.tell("s1", here.welcome(), greet.nonce + 1)
    driver.tell("s1", msgspec.structs.replace(here.welcome(), server="s2"), greet.nonce)
    assert driver.state("s1") is LinkState.GREETING


def test_a_greeting_that_is_not_answered_is_repeated() -> None:
    driver = RouterDriver()
    driver.servers["s1"].silent = True
    driver.subscribe(b"tile")
    driver.advance(1.1)
    nonces = [greet.nonce for greet in driver.heard("s1", control.Greet)]
    assert len(nonces) == 3
    assert len(set(nonces)) == 3
    driver.servers["s1"].silent = False
    driver.advance(0.5)
    assert driver.state("s1") is LinkState.USABLE


def test_heartbeats_keep_a_server_usable() -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    driver.advance(60.0)
    assert driver.state("s1") is LinkState.USABLE
    assert driver.counters.stale_links == 0


def test_a_heartbeat_grants_from_the_ping_before_the_heartbeat_that_its_agent_had_heard() -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    link = driver.link("s1")
    driver.now = BEGIN + 1.0
    driver.heartbeat("s1")  # 1: sends a PING at +1.0 and gets the PONG
    driver.now = BEGIN + 1.5
    driver.heartbeat("s1")  # 2: arrives after the PONG of the PING sent at +1.0
    driver.now = BEGIN + 2.0
    driver.heartbeat("s1")  # 3: its agent had heard heartbeat 2, so it is younger than +1.0
    assert link.usable_until == pytest.approx(BEGIN + 1.0 + 3.0 * SURE)


@pytest.mark.parametrize("heard", [0, 1, 99])
def test_a_heartbeat_whose_agent_heard_nothing_that_we_did_grants_nothing(heard: int) -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    link = driver.link("s1")
    until = link.usable_until
    driver.now = BEGIN + 1.0
    driver.servers["s1"].heartbeats = 6
    driver.heartbeat("s1", heard=heard)
    assert link.usable_until == until


def test_heartbeats_that_lay_in_a_buffer_grant_no_more_than_the_last_ping_proves() -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    driver.advance(2.0)
    here, link = driver.servers["s1"], driver.link("s1")
    assert link.anchor == BEGIN + 2.0
    here.mute = True
    driver.now += 2.5
    driver.feed("s1", *spoken(driver, 6))
    assert link.usable_until == pytest.approx(BEGIN + 2.0 + 3.0 * SURE)
    driver.now += 10.0
    driver.feed("s1", *spoken(driver, 6))
    assert link.usable_until == pytest.approx(BEGIN + 2.0 + 3.0 * SURE)


def test_heartbeats_of_another_agent_of_the_server_are_a_chain_of_their_own() -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    driver.advance(1.2)
    until = driver.link("s1").usable_until
    here = driver.servers["s1"]
    heartbeat = msgspec.structs.replace(here.heartbeat(), instance=AGENT + 1)
    driver.push("s1", HEARTBEAT_CHANNEL, control.encode(heartbeat, 0, here.heartbeats))
    assert driver.link("s1").usable_until == until


def test_without_heartbeats_the_lease_runs_out_and_publishing_is_held() -> None:
    driver = RouterDriver()
    out = driver.publish(b"tile", b"1")
    driver.servers["s1"].silent = True
    driver.advance(3.5)
    assert driver.state("s1") is LinkState.STALE
    assert driver.counters.stale_links == 1
    assert driver.lane_state(out) is LaneState.HELD
    driver.published("s1")
    driver.publish(b"tile", b"2", b"3")
    driver.advance(5.0)
    assert driver.published("s1") == []


def test_no_claim_makes_a_lease_longer_than_that_of_the_cluster() -> None:
    driver = RouterDriver()
    driver.servers["s1"].lease_ms = 2**32 - 1
    driver.publish(b"tile", b"1")
    driver.advance(1.0)
    driver.servers["s1"].silent = True
    driver.advance(3.5)
    assert driver.state("s1") is LinkState.STALE


def test_a_heartbeat_lets_publishing_go_on_where_it_was_held() -> None:
    driver = RouterDriver()
    driver.publish(b"tile", b"1")
    driver.servers["s1"].silent = True
    driver.advance(3.5)
    driver.publish(b"tile", b"2", b"3")
    driver.published("s1")
    driver.servers["s1"].silent = False
    driver.advance(1.0)
    assert driver.state("s1") is LinkState.USABLE
    assert sequences(driver.published("s1")) == [2, 3]
    assert driver.router.settled


def test_what_is_published_after_the_lease_ran_out_and_before_its_timer_is_not_forgotten() -> None:
    """A process that stood still for a while (a busy application, a stopped process): the application publishes before
    the timer fires, then the heartbeats that came meanwhile extend the lease. Nothing may stay behind."""
    driver = RouterDriver()
    out = driver.publish(b"tile", b"1")
    driver.advance(3.0)
    driver.published("s1")
    driver.now += 2.6
    assert driver.now > driver.link("s1").usable_until
    driver.publish(b"tile", b"2")
    assert driver.published("s1") == [], "the lease is over, timer or no timer"
    driver.feed("s1", *spoken(driver, 5))
    driver.play()
    assert driver.now < driver.link("s1").usable_until
    driver.publish(b"tile", b"3")
    driver.advance(5.0)
    assert sequences(driver.published("s1")) == [2, 3]
    assert driver.settled(out)


def test_an_answer_after_the_lease_ran_out_and_before_its_timer_does_not_strand_the_lane() -> None:
    driver = RouterDriver()
    driver.subscribe(b"other")
    driver.advance(3.0)
    here = driver.servers["s1"]
    here.silent = True
    out = driver.publish(b"tile", b"1")
    hello = driver.heard("s1", control.Hello)[-1]
    driver.now += 2.6
    assert driver.now > driver.link("s1").usable_until
    driver.tell("s1", here.answer(hello), hello.nonce)
    driver.feed("s1", *spoken(driver, 5))
    here.silent = False
    driver.advance(5.0)
    assert driver.lane_state(out) is LaneState.LIVE
    assert driver.settled(out)


def test_a_server_that_answers_no_ping_is_half_open_and_dropped() -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    driver.advance(1.0)
    here = driver.servers["s1"]
    here.mute = True
    here.reachable = False
    driver.advance(6.5)
    assert driver.state("s1") is LinkState.CONNECTING
    assert driver.counters.reconnects == 1


# Rings and entries


def test_a_newer_ring_in_a_welcome_is_taken() -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    here = driver.servers["s1"]
    here.ring, here.ring_version = SIGNER.ring(ring(2, ("s1",))), 2
    driver.advance(1.0)
    assert driver.router.book.version == 2
    assert driver.counters.ring_changes == 2


@pytest.mark.parametrize("signer", [FORGER, SIGNER], ids=["forged", "stale"])
def test_a_ring_that_is_forged_or_stale_is_counted_and_changes_nothing(signer: object) -> None:
    driver = RouterDriver(("s1", "s2"))
    driver.change_ring(("s1", "s2"), version=5)
    sub = driver.subscribe(channel_at(driver.ring, "s2"))
    before = counts(driver)
    version = 99 if signer is FORGER else 4
    data = (FORGER if signer is FORGER else SIGNER).ring(ring(version, ("s1",)))
    driver.router.ring(data, driver.now)
    driver.tell("s2", control.Welcome("s2", 1, 1, 1, 60_000, 99, data), 12345)
    driver.tell("s2", answer_of("s2", sub.name, version=99, ring=data), 12345)
    assert driver.router.book.ring == ring(5, ("s1", "s2"))
    counted = "forged" if signer is FORGER else "stale_entries"
    assert counts(driver) == before | {counted: 3}
    assert sub.settled


def test_an_entry_that_is_forged_or_stale_is_counted_and_changes_nothing() -> None:
    driver = RouterDriver(("s1", "s2"))
    here = channel_at(driver.ring, "s1")
    sub = driver.subscribe(here)
    driver.router.entry(SIGNER.entry(here, Placement(7, Mode.SINGLE, ("s1",))), driver.now)
    for data in (
        FORGER.entry(here, Placement(99, Mode.SINGLE, ("s2",))),
        SIGNER.entry(here, Placement(6, Mode.SINGLE, ("s2",))),
        b"no entry at all",
    ):
        driver.tell("s1", answer_of("s1", here, version=99, entry=data), 12345)
    assert driver.counters.forged == 2
    assert driver.counters.stale_entries == 1
    assert list(sub.sites) == ["s1"]


def test_a_ring_that_is_nested_without_end_is_counted_as_forged() -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    deep = b"\x94\xc4\x0ashoal ring\xc4\x00\xc4\x00" + b"\x91" * 100_000 + b"\xc0"
    driver.tell("s1", control.Welcome("s1", 1, 1, 1, 60_000, 99, deep), 12345)
    assert driver.counters.forged == 1


def test_a_server_that_left_the_ring_is_let_go_when_nothing_lives_on_it() -> None:
    driver = RouterDriver(("s1", "s2"))
    driver.publish(channel_at(driver.ring, "s2"), b"1")
    driver.change_ring(("s1",))
    assert "s2" not in driver.router.statistics().links
    assert driver.router.settled


def test_closing_says_goodbye_and_connects_no_more() -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    driver.router.close(driver.now)
    driver.play()
    assert [bye.name for bye in driver.heard("s1", control.Bye)] == [b"tile"]
    driver.lose("s1")
    assert driver.happened(Connect) == []
    assert driver.happened(FetchRing) == []


# The resync


def test_a_resync_is_answered_with_what_the_client_does_there() -> None:
    driver = RouterDriver(("s1", "s2"))
    here, there = channel_at(driver.ring, "s1"), channel_at(driver.ring, "s2")
    driver.subscribe(here)
    driver.subscribe(b"til*", pattern=True)
    mine = [(here, driver.publish(here, b"1", b"2").stream, 2)]
    out = driver.publish(there, b"1")
    driver.resync("s1", 9)
    driver.resync("s2", 3)
    assert driver.heard("s1", control.Present) == [control.Present(1, 9, 0, 1, [here], [b"til*"], mine)]
    theirs = [(there, out.stream, 1)]
    assert driver.heard("s2", control.Present) == [control.Present(1, 3, 0, 1, [], [b"til*"], theirs)]


def test_an_answer_to_a_resync_with_long_lists_comes_in_parts() -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, subscriptions_max=5000)
    driver = RouterDriver(limits=limits)
    names = [b"tile.%d" % number for number in range(1500)]
    for name in names:
        driver.subscribe(name)
    driver.resync("s1", 4)
    parts = driver.heard("s1", control.Present)
    assert [(part.resync, part.part, part.parts) for part in parts] == [(4, 0, 3), (4, 1, 3), (4, 2, 3)]
    assert [name for part in parts for name in part.channels] == names


def test_an_answer_in_parts_is_one_answer() -> None:
    driver = RouterDriver()
    here = driver.servers["s1"]
    here.silent = True
    sub = driver.subscribe(b"*", pattern=True)
    (hello,) = driver.heard("s1", control.Hello)
    streams = [(b"tile.%d" % number, STREAM, number, 0.0) for number in range(3000)]
    parts = control.in_parts(answer_of("s1", b"*"), streams, [(b"gone", STREAM, 7, 0.0)])
    for part in (*parts[:3], *parts[:-1], parts[1]):  # the answer to a repeated Hello begins anew
        driver.tell("s1", part, hello.nonce)
    assert not driver.in_force(sub)
    driver.tell("s1", parts[-1], hello.nonce)
    assert driver.in_force(sub)
    lasts = {(chan.name, stream.stream): stream.last for chan, stream in sub.all_streams()}
    assert lasts == {(channel, stream): last for channel, stream, last, _ in [*streams, (b"gone", STREAM, 7, 0)]}


# Busy agents


def busy(driver: RouterDriver, retry_ms: int) -> None:
    """The agent drops this client's last message and asks it to wait."""
    driver.tell("s1", control.Refused(control.REFUSED_BUSY, 2, 2, retry_ms, "too many"), driver.router._context.number)


def test_a_client_waits_as_long_as_a_busy_agent_asks() -> None:
    driver = RouterDriver()
    driver.subscribe(b"first")
    driver.servers["s1"].silent = True
    subs = [driver.subscribe(b"tile.%d" % number) for number in range(20)]
    busy(driver, 5000)
    driver.heard("s1", control.Hello)
    driver.servers["s1"].silent = False
    driver.advance(4.9)
    later = driver.subscribe(b"later")
    assert driver.heard("s1", control.Hello) == []
    driver.advance(0.5)
    assert len(driver.heard("s1", control.Hello)) == 21
    assert all(driver.in_force(sub) for sub in (*subs, later))
    counters = driver.counters
    assert (counters.busy, counters.questions_queued) == (1, 21)


def test_questions_that_waited_go_out_at_half_the_rate_that_agents_allow() -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, control_per_s_max=20)
    driver = RouterDriver(limits=limits)
    driver.servers["s1"].silent = True
    for number in range(20):
        driver.subscribe(b"tile.%d" % number)
    busy(driver, 1000)
    driver.heard("s1", control.Hello)
    driver.advance(1.95)
    assert 8 <= len(driver.heard("s1", control.Hello)) <= 10


def test_publishers_wait_for_a_busy_agent_too() -> None:
    driver = RouterDriver()
    driver.subscribe(b"first")
    driver.servers["s1"].silent = True
    driver.publish(b"tile", b"north")
    busy(driver, 3000)
    driver.heard("s1", control.Hello)
    driver.servers["s1"].silent = False
    driver.advance(2.9)
    assert driver.heard("s1", control.Hello) == []
    driver.advance(0.5)
    assert sequences(driver.servers["s1"].published) == [1]


def test_a_client_does_not_wait_for_longer_than_ten_seconds_for_one_refusal() -> None:
    driver = RouterDriver()
    driver.servers["s1"].silent = True
    sub = driver.subscribe(b"tile")
    busy(driver, 4_000_000_000)
    driver.servers["s1"].silent = False
    driver.advance(11.0)
    assert driver.in_force(sub)


def test_a_refusal_of_another_connection_does_not_make_a_client_wait() -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    driver.lose("s1")
    before = driver.router._context.number
    driver.advance(1.0)
    driver.tell("s1", control.Refused(control.REFUSED_BUSY, 2, 2, 5000, ""), before)
    assert driver.counters.busy == 0


# Other versions


def refuse(driver: RouterDriver, number: int) -> list[AgentRefused]:
    driver.tell("s1", control.Refused("version", 3, 4, 0, "too old"), number)
    return driver.happened(AgentRefused)


def test_an_agent_that_refuses_the_version_is_reported() -> None:
    driver = RouterDriver()
    driver.servers["s1"].silent = True
    driver.subscribe(b"tile")
    ((_, number, greet),) = driver.heard_with_heads("s1", control.Greet)
    assert isinstance(greet, control.Greet)
    assert (greet.version_min, greet.version_max) == (3, 3)
    assert refuse(driver, number) == [AgentRefused("s1", "version", 3, 4, "too old")]
    driver.servers["s1"].silent = False
    driver.advance(2.0)
    assert driver.state("s1") is LinkState.USABLE, "it asked again, and the agent has been replaced meanwhile"
    assert refuse(driver, number) == [], "a usable link has shown that its agent takes its messages"


def test_a_refusal_of_a_message_that_was_not_sent_on_this_connection_is_ignored() -> None:
    driver = RouterDriver()
    driver.servers["s1"].silent = True
    driver.subscribe(b"tile")
    before = driver.router._context.number
    assert refuse(driver, before + 1) == []
    driver.lose("s1")
    driver.play()
    assert refuse(driver, before) == []
    assert driver.counters.garbage == 2


def test_numbers_to_an_agent_grow_across_connections() -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    driver.publish(b"tile", b"1")
    driver.lose("s1")
    driver.play()
    driver.resync("s1", 1)
    numbers = [received.number for received in driver.servers["s1"].heard]
    assert len(numbers) > 5
    assert numbers == sorted(set(numbers))


# Garbage


@settings(max_examples=60)
@given(
    data=st.binary(max_size=60),
    marked=st.booleans(),
    channel=st.sampled_from([INBOX, PEER_CHANNEL, HEARTBEAT_CHANNEL, AGENT_CHANNEL]),
)
def test_garbage_on_internal_channels_is_counted_and_harmless(data: bytes, marked: bool, channel: bytes) -> None:
    driver = RouterDriver()
    sub = driver.subscribe(b"tile")
    driver.message("s1", b"tile", STREAM, 1, b"before")
    driver.push("s1", channel, b"\xf5D\x03" + data if marked else data)
    driver.message("s1", b"tile", STREAM, 2, b"after")
    assert driver.payloads(sub) == [b"before", b"after"]
    driver.publish(b"tile", b"mine")
    assert driver.router.settled
    assert driver.counters.garbage <= 1


@pytest.mark.parametrize(
    ("channel", "message"),
    [
        (INBOX, control.Greet(2, 3)),
        (INBOX, control.Resync("s1", 1, 1)),
        (INBOX, control.Heartbeat("s1", 1, 1, 1, 60_000, True, 1)),
        (INBOX, control.Heal(b"tile", STREAM, 1, 1)),
        (INBOX, control.Refused("version", 3, 3, 0, "not asked")),
        (PEER_CHANNEL, control.Welcome("s1", 1, 1, 1, 60_000, 1, b"")),
        (PEER_CHANNEL, control.Notice("s1", b"tile", b"")),
        (HEARTBEAT_CHANNEL, control.Welcome("s1", 1, 1, 1, 60_000, 1, b"")),
        (HEARTBEAT_CHANNEL, control.Heal(b"tile", STREAM, 1, 1)),
        (HEARTBEAT_CHANNEL, control.Heartbeat("s9", 1, 1, 1, 60_000, True, 1)),
        (HEARTBEAT_CHANNEL, control.Resync("s9", 1, 1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_in_the_wrong_place_is_garbage(channel: bytes, message: control.Control) -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    until = driver.link("s1").usable_until
    driver.push("s1", channel, control.encode(message, CLIENT))
    assert driver.counters.garbage == 1
    assert driver.link("s1").usable_until == until


def test_messages_about_what_nobody_asked_are_ignored() -> None:
    driver = RouterDriver()
    sub = driver.subscribe(b"tile")
    before = counts(driver)
    driver.tell("s1", control.Resend(b"tile", blob(STREAM, 1, b"pushed on us")))
    driver.tell("s1", control.Resend(b"other", blob(STREAM, 1, b"pushed on us")))
    driver.tell("s1", control.Healed(b"tile", STREAM, 99, 99, 99, 1))
    driver.tell("s1", control.Heal(b"tile", STREAM, 1, 5))
    driver.tell("s1", answer_of("s1", b"tile", 9, streams=[(b"tile", STREAM, 50, 0)]), 4711)
    assert counts(driver) == before
    assert driver.items(sub) == []
    driver.message("s1", b"tile", STREAM, 1, b"first")
    assert driver.payloads(sub) == [b"first"]


def test_what_arrives_for_nobody_is_ignored() -> None:
    driver = RouterDriver()
    driver.subscribe(b"tile")
    before = counts(driver)
    driver.feed(
        "s1",
        PushNotification([b"message", b"unknown", b"x"]),
        PushNotification([b"pmessage", b"unknown*", b"unknown", b"x"]),
        PushNotification([b"subscribe", b"unknown", 1]),
        addressed(OTHER, control.Resend(b"tile", b"not mine")),
        b"a reply too many",
    )
    assert counts(driver) == before


def test_a_refused_subscribe_does_not_shift_the_replies_of_publishes() -> None:
    """SUBSCRIBE has no reply of its own, but a server that refuses it (a user without the right) sends an error where
    replies stand. It must not be taken for the reply to the next command."""
    driver = RouterDriver()
    out = driver.publish(b"tile", b"1")
    here = driver.servers["s1"]
    here.mute = True
    driver.router.subscribe(b"forbidden", False, driver.now)
    driver.publish(b"tile", b"2")
    assert [command[0] for command in here.commands] == [b"SUBSCRIBE", b"PUBLISH", b"PUBLISH"]
    driver.feed("s1", ReplyError("NOPERM no permissions to access the 'forbidden' channel"), 1)
    assert out.confirmed == 1, "the second reply is that of the hello: nothing says that message 2 has arrived"
    driver.feed("s1", 1)
    assert out.confirmed == 2


def test_a_server_that_leaves_and_one_that_is_unwanted_are_disconnected() -> None:
    driver = RouterDriver(("s1", "s2"))
    sub = driver.subscribe(channel_at(driver.ring, "s2"))
    driver.router.unsubscribe(sub, driver.now)
    driver.play()
    driver.router.ring(SIGNER.ring(ring(2, ("s1",))), driver.now)
    assert driver.router.effects == [Disconnect("s2")]
