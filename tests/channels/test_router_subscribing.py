"""Subscribing: in force when the agents of all its servers have answered, from exactly the baseline they gave, and in
force again after whatever happens to connections, servers and the ring."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.core_driver import CLIENT, OTHER, SIGNER, STREAM, RouterDriver, StandIn, blob, channel_at, ring

from shoal.channels.client.subscription import SubscriptionCore
from shoal.channels.states import SiteState
from shoal.errors import TooManySubscriptionsError
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.message import Gap
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import ServerAddress
from shoal.wire import control
from shoal.wire.envelope import client_of, stream_id

TILE = b"tile"
LINGER_S = DEFAULT_LIMITS.linger_s
TIMEOUT_S = DEFAULT_LIMITS.gap_timeout_s
OTHER_STREAM = stream_id(0x777, 1)


def limited(**limits: Any) -> Limits:
    return msgspec.structs.replace(DEFAULT_LIMITS, **limits)


def with_entry(driver: RouterDriver, mode: Mode, *servers: str, version: int = 1) -> None:
    driver.router.entry(SIGNER.entry(TILE, Placement(version, mode, servers)), driver.now)
    driver.play()


def states(sub: SubscriptionCore) -> dict[str, SiteState]:
    return {server: site.state for server, site in sub.sites.items()}


def asked(driver: RouterDriver, server: str = "s1") -> list[tuple[int, int]]:
    return [(heal.first, heal.last) for heal in driver.told(server, OTHER, control.Heal)]


# The handshake


def test_it_is_in_force_when_the_agent_has_answered() -> None:
    driver = RouterDriver()
    driver.servers["s1"].silent = True
    sub = driver.subscribe(TILE)
    assert not driver.in_force(sub)
    assert states(sub) == {"s1": SiteState.ASKING}
    (hello,) = driver.heard("s1", control.Hello)
    assert hello == control.Hello(hello.nonce, TILE, False, True, 0, 1)
    driver.ready.clear()
    driver.tell("s1", driver.servers["s1"].answer(hello), hello.nonce)
    assert driver.in_force(sub)
    assert driver.ready == [sub], "the application is told"


def test_a_hello_that_is_not_answered_is_repeated() -> None:
    driver = RouterDriver()
    driver.servers["s1"].silent = True
    sub = driver.subscribe(TILE)
    driver.advance(2.0)
    assert len(driver.heard("s1", control.Hello)) >= 2
    driver.servers["s1"].silent = False
    driver.advance(10.0)
    assert driver.in_force(sub)


def test_an_answer_about_another_channel_or_to_another_question_is_ignored() -> None:
    driver = RouterDriver()
    driver.servers["s1"].silent = True
    sub = driver.subscribe(TILE)
    (hello,) = driver.heard("s1", control.Hello)
    answer = driver.servers["s1"].answer(hello)
    driver.tell("s1", msgspec.structs.replace(answer, name=b"elsewhere"), hello.nonce)
    driver.tell("s1", answer, hello.nonce + 1000)
    assert not driver.in_force(sub)


def test_an_answer_from_before_a_lost_connection_is_ignored() -> None:
    """It tells a baseline of a time when the subscription did not listen yet."""
    driver = RouterDriver()
    driver.servers["s1"].silent = True
    sub = driver.subscribe(TILE)
    (hello,) = driver.heard("s1", control.Hello)
    driver.lose("s1")
    driver.play()
    driver.tell("s1", driver.servers["s1"].answer(hello), hello.nonce)
    assert not driver.in_force(sub)


def test_the_same_answer_twice_is_one() -> None:
    driver = RouterDriver()
    driver.servers["s1"].silent = True
    sub = driver.subscribe(TILE)
    (hello,) = driver.heard("s1", control.Hello)
    answer = driver.servers["s1"].answer(hello)
    driver.tell("s1", answer, hello.nonce)
    driver.message("s1", TILE, STREAM, 1, b"1")
    driver.tell("s1", msgspec.structs.replace(answer, streams=[(TILE, STREAM, 99, 0)]), hello.nonce)
    driver.message("s1", TILE, STREAM, 2, b"2")
    assert driver.payloads(sub) == [b"1", b"2"]
    assert driver.counters.handshakes == 1


def test_the_channel_is_subscribed_before_the_agent_is_asked() -> None:
    driver = RouterDriver()
    driver.subscribe(b"other")
    driver.router.subscribe(TILE, False, driver.now)
    first, second = driver.sent_to("s1")
    assert first == (b"SUBSCRIBE", TILE)
    assert isinstance(control.decode(second[2]).message, control.Hello)


def test_subscriptions_are_limited() -> None:
    driver = RouterDriver(limits=limited(subscriptions_max=2))
    driver.subscribe(b"a")
    second = driver.subscribe(b"b*", pattern=True)
    with pytest.raises(TooManySubscriptionsError, match="subscriptions_max"):
        driver.subscribe(b"c")
    driver.router.unsubscribe(second, driver.now)
    driver.subscribe(b"c")


# The baseline


def test_a_late_joiner_begins_where_the_agent_says() -> None:
    driver = RouterDriver()
    driver.servers["s1"].streams[TILE, STREAM] = 41
    sub = driver.subscribe(TILE)
    driver.message("s1", TILE, STREAM, 41, b"before")
    driver.message("s1", TILE, STREAM, 42, b"after")
    assert driver.payloads(sub) == [b"after"]
    assert driver.counters.late_joins == 1


def test_what_is_lost_right_after_the_baseline_is_missed() -> None:
    driver = RouterDriver()
    driver.servers["s1"].streams[TILE, STREAM] = 41
    sub = driver.subscribe(TILE)
    driver.message("s1", TILE, STREAM, 43, b"43")
    assert driver.payloads(sub) == []
    driver.advance(DEFAULT_LIMITS.heal_delay_s * 1.1)
    assert asked(driver) == [(42, 42)]


def test_streams_of_the_incarnation_before_are_part_of_the_baseline() -> None:
    driver = RouterDriver()
    driver.servers["s1"].absent[TILE, STREAM] = 7
    sub = driver.subscribe(TILE)
    driver.message("s1", TILE, STREAM, 7, b"7")
    driver.message("s1", TILE, STREAM, 8, b"8")
    assert driver.payloads(sub) == [b"8"]


def test_what_comes_between_subscribing_and_the_answer_is_judged_by_the_baseline() -> None:
    driver = RouterDriver()
    here = driver.servers["s1"]
    here.silent = True
    sub = driver.subscribe(TILE)
    for number in (5, 6, 7):
        driver.message("s1", TILE, STREAM, number, b"%d" % number)
    assert driver.items(sub) == []
    here.streams[TILE, STREAM] = 5
    (hello,) = driver.heard("s1", control.Hello)
    driver.tell("s1", here.answer(hello), hello.nonce)
    assert driver.payloads(sub) == [b"6", b"7"]


def test_a_stream_that_nobody_listed_begins_with_its_first_message_here() -> None:
    driver = RouterDriver()
    sub = driver.subscribe(TILE)
    driver.message("s1", TILE, STREAM, 17, b"17")
    driver.message("s1", TILE, STREAM, 18, b"18")
    assert driver.payloads(sub) == [b"17", b"18"]


def test_what_a_beacon_says_was_settled_before_is_not_owed() -> None:
    driver = RouterDriver()
    sub = driver.subscribe(TILE)
    driver.beacon("s1", TILE, STREAM, 9, 9, quiet_s=60.0)
    driver.message("s1", TILE, STREAM, 10, b"10")
    driver.advance(1.0)
    assert driver.payloads(sub) == [b"10"]
    assert asked(driver) == []


def test_what_a_publisher_that_was_behind_has_published_elsewhere_is_asked_for() -> None:
    """It has used an older ring for a while. Its last message is younger than the subscription, and did not come."""
    driver = RouterDriver()
    sub = driver.subscribe(TILE)
    driver.advance(2.0)
    driver.beacon("s1", TILE, STREAM, 9, 9, quiet_s=1.3)
    driver.message("s1", TILE, STREAM, 10, b"10")
    driver.advance(DEFAULT_LIMITS.heal_delay_s * 1.1)
    assert driver.payloads(sub) == []
    assert asked(driver) == [(1, 9)]


def test_too_much_before_the_answer_only_makes_it_begin_later() -> None:
    driver = RouterDriver(limits=limited(held_messages_max=5))
    here = driver.servers["s1"]
    here.silent = True
    sub = driver.subscribe(TILE)
    for number in range(1, 20):
        driver.message("s1", TILE, STREAM, number, b"%d" % number)
    assert len(sub.early) <= 5
    here.silent = False
    here.streams[TILE, STREAM] = 19
    driver.advance(2.0)
    assert driver.in_force(sub)
    driver.items(sub)
    driver.message("s1", TILE, STREAM, 20, b"20")
    driver.advance(1.0)
    assert driver.payloads(sub) == [b"20"]
    assert not sub.early


def test_too_much_before_the_answer_and_the_answer_in_one_go() -> None:
    driver = RouterDriver(limits=limited(held_messages_max=3))
    here = driver.servers["s1"]
    here.silent = True
    sub = driver.subscribe(TILE)
    (hello,) = driver.heard("s1", control.Hello)
    for number in range(1, 8):
        driver.message("s1", TILE, STREAM, number, b"%d" % number)
    driver.tell("s1", here.answer(hello), hello.nonce)
    here.silent = False
    here.streams[TILE, STREAM] = 7
    driver.advance(5.0)
    assert sub.settled
    driver.message("s1", TILE, STREAM, 8, b"8")
    driver.advance(DEFAULT_LIMITS.heal_delay_s * 1.1)
    for first, last in asked(driver):
        for number in range(first, last + 1):
            driver.tell("s1", control.Resend(TILE, blob(STREAM, number, b"%d" % number)))
    delivered = driver.payloads(sub)
    assert delivered[-1:] == [b"8"]
    assert delivered == sorted(delivered)


def test_beginning_anew_has_lost_its_meaning_once_it_is_in_force() -> None:
    """Too much came before the answers; then all answers come, and a server of the ring before is
    already being left, before the subscription gets to begin anew."""
    driver = RouterDriver(limits=limited(held_messages_max=3))
    grown = driver.ring.next((*driver.ring.servers, ServerAddress("s2", "127.0.0.1", 7001)))
    channel = channel_at(grown, "s2")
    driver.servers["s2"] = StandIn("s2")
    driver.router.ring(SIGNER.ring(grown), driver.now)
    for here in driver.servers.values():
        here.silent, here.ring_version = True, grown.version
    sub = driver.subscribe(channel)
    assert set(sub.sites) == {"s1", "s2"}, "where it lives, and where it lived before"
    for number in range(1, 8):
        driver.message("s2", channel, STREAM, number, b"%d" % number)
    for here in driver.servers.values():
        here.silent = False
        for hello in driver.heard(here.server, control.Hello):
            driver.tell(here.server, here.answer(hello), hello.nonce)
    assert states(sub) == {"s1": SiteState.LINGERING, "s2": SiteState.IN_FORCE}
    driver.advance(LINGER_S * 2)
    assert sub.settled
    assert set(sub.sites) == {"s2"}


# Several servers


def test_all_subscribers_is_in_force_when_all_servers_have_answered() -> None:
    driver = RouterDriver(("s1", "s2"))
    with_entry(driver, Mode.ALL_SUBSCRIBERS, "s1", "s2")
    driver.servers["s2"].silent = True
    sub = driver.subscribe(TILE)
    assert not driver.in_force(sub)
    assert states(sub) == {"s1": SiteState.IN_FORCE, "s2": SiteState.ASKING}
    driver.servers["s2"].silent = False
    driver.advance(5.0)
    assert driver.in_force(sub)


def test_all_subscribers_hears_every_server() -> None:
    driver = RouterDriver(("s1", "s2"))
    with_entry(driver, Mode.ALL_SUBSCRIBERS, "s1", "s2")
    sub = driver.subscribe(TILE)
    driver.beacon("s2", TILE, STREAM, 0, 0)
    driver.message("s1", TILE, stream_id(OTHER + 1, 1), 1, b"on s1")
    driver.message("s2", TILE, STREAM, 1, b"on s2")
    driver.message("s2", TILE, STREAM, 2, b"on s2 too")
    assert driver.payloads(sub) == [b"on s1", b"on s2", b"on s2 too"]


def test_a_stream_that_comes_by_two_servers_is_one_stream() -> None:
    driver = RouterDriver(("s1", "s2"))
    with_entry(driver, Mode.ALL_SUBSCRIBERS, "s1", "s2")
    sub = driver.subscribe(TILE)
    for server, number in (("s1", 1), ("s2", 1), ("s2", 3), ("s1", 2), ("s1", 3)):
        driver.message(server, TILE, STREAM, number, b"%d" % number)
    assert driver.payloads(sub) == [b"1", b"2", b"3"]


def test_all_publishers_means_one_server_for_this_subscriber() -> None:
    driver = RouterDriver(("s1", "s2", "s3"))
    with_entry(driver, Mode.ALL_PUBLISHERS, "s1", "s2", "s3")
    sub = driver.subscribe(TILE)
    assert list(sub.sites) == [("s1", "s2", "s3")[CLIENT % 3]]


def test_a_pattern_stands_on_every_server_and_follows_the_ring() -> None:
    driver = RouterDriver(("s1", "s2"))
    sub = driver.subscribe(b"ti*", pattern=True)
    assert set(sub.sites) == {"s1", "s2"}
    assert driver.in_force(sub)
    driver.change_ring(("s1", "s2", "s3"))
    assert set(sub.sites) == {"s1", "s2", "s3"}
    assert sub.settled
    (hello,) = driver.heard("s3", control.Hello)
    assert hello.pattern
    assert not hello.fresh, "it has been in force elsewhere"


def came_and_went(driver: RouterDriver, *rings: tuple[str, ...]) -> None:
    """Rings follow each other, and the router hears only of the last."""
    newest = driver.ring
    for servers in rings:
        newest = newest.next(ring(1, servers).servers)
        for server in servers:
            driver.servers.setdefault(server, StandIn(server))
    driver.router.ring(SIGNER.ring(newest), driver.now)
    driver.play()


def unknown_gaps(sub: SubscriptionCore) -> list[str]:
    return [item.reason for item in sub.inbox.items if isinstance(item, Gap) and item.publisher is None]


def test_a_pattern_is_told_of_a_server_that_came_and_went_unseen() -> None:
    """Whoever published there may have died with it: nobody else knows."""
    driver = RouterDriver(("s1", "s2"))
    sub = driver.subscribe(b"ti*", pattern=True)
    came_and_went(driver, ("s1", "s2", "s3"), ("s1", "s2"))
    (reason,) = unknown_gaps(sub)
    assert "s3" in reason


def test_a_channel_is_told_of_a_home_that_came_and_went_unseen_and_of_no_other() -> None:
    driver = RouterDriver(("s1", "s2"))
    wider = ring(2, ("s1", "s2", "s3"))
    there, elsewhere = driver.subscribe(channel_at(wider, "s3")), driver.subscribe(channel_at(wider, "s1"))
    came_and_went(driver, ("s1", "s2", "s3"), ("s1", "s2"))
    assert len(unknown_gaps(there)) == 1
    assert unknown_gaps(elsewhere) == []


@pytest.mark.parametrize("since", [1, 2])
def test_a_server_whose_agent_began_after_it_joined_may_have_had_publishers_that_no_agent_heard(since: int) -> None:
    """They published there by a ring that this client did not know, and died; the agent that heard them died too. One
    that was there before the ring has heard them all."""
    driver = RouterDriver(("s1", "s2"))
    sub = driver.subscribe(b"ti*", pattern=True)
    driver.servers["s3"] = StandIn("s3", since=since)
    came_and_went(driver, ("s1", "s2", "s3"))
    assert sub.settled
    assert len(unknown_gaps(sub)) == since - 1


def test_so_may_a_server_that_became_the_home_of_a_channel() -> None:
    driver = RouterDriver(("s1", "s2", "s3"))
    left = driver.subscribe(channel_at(driver.ring, "s3"))
    stayed = driver.subscribe(channel_at(driver.ring, "s2"))
    for server in ("s1", "s2"):
        driver.servers[server].since = 2
    came_and_went(driver, ("s1", "s2"))
    assert len(unknown_gaps(left)) == 1
    assert unknown_gaps(stayed) == []


@pytest.mark.parametrize("leaves", [False, True])
def test_an_entry_that_comes_later_does_not_tell_where_publishers_were_before(leaves: bool) -> None:
    """They published at the new home by the ring, and died with its agent, before a move made an entry that names the
    same server (seed 135 of `sim recording`)."""
    driver = RouterDriver(("s1", "s2", "s3"))
    channel = channel_at(driver.ring, "s3")
    sub = driver.subscribe(channel)
    home = ring(2, ("s1", "s2")).home(channel)
    driver.servers[home].silent, driver.servers[home].since = True, 2
    driver.change_ring(("s1", "s2"), version=2)
    driver.router.entry(SIGNER.entry(channel, Placement(3, Mode.ALL_SUBSCRIBERS, ("s1", "s2"))), driver.now)
    driver.play()
    assert unknown_gaps(sub) == []
    if leaves:
        driver.servers[home].reachable = False
        driver.lose(home)
        driver.change_ring(tuple({"s1", "s2"} - {home}), version=3)
    driver.servers[home].silent = False
    driver.advance(2 * TIMEOUT_S if leaves else 10.0)
    (reason,) = unknown_gaps(sub)
    assert home in reason


def test_what_an_entry_moves_to_an_agent_that_began_late_is_no_gap() -> None:
    """Nobody published there by the ring, and who moves is awaited or helped."""
    driver = RouterDriver(("s1", "s2"))
    sub = driver.subscribe(TILE)
    for here in driver.servers.values():
        here.since = 1
    with_entry(driver, Mode.ALL_SUBSCRIBERS, "s1", "s2")
    assert sub.settled
    assert unknown_gaps(sub) == []


def test_so_may_a_server_that_became_the_home_because_all_servers_of_the_entry_left() -> None:
    """Without a server of its entry in the ring, a channel follows the ring (seed 38 of `sim channels`)."""
    driver = RouterDriver(("s1", "s2"))
    with_entry(driver, Mode.ALL_SUBSCRIBERS, "s1")
    sub = driver.subscribe(TILE)
    driver.servers["s2"].since = 2
    came_and_went(driver, ("s2",))
    assert len(unknown_gaps(sub)) == 1


def test_a_server_that_left_before_it_answered_may_have_had_publishers_that_no_agent_heard() -> None:
    driver = RouterDriver(("s1", "s2"))
    sub = driver.subscribe(b"ti*", pattern=True)
    driver.servers["s3"] = StandIn("s3", silent=True)
    came_and_went(driver, ("s1", "s2", "s3"))
    assert unknown_gaps(sub) == []
    driver.change_ring(("s1", "s2"), version=3)
    assert unknown_gaps(sub) == [], "it is asked for a while"
    driver.advance(TIMEOUT_S + 0.5)
    (reason,) = unknown_gaps(sub)
    assert "s3" in reason


def test_what_only_a_server_knew_that_left_before_it_answered_is_owed_from_its_beginning() -> None:
    """Its publishers announce themselves elsewhere, and nobody can tell whether they began before the subscription: the
    price is that what is older may be delivered, too."""
    driver = RouterDriver(("s1", "s2", "s3"))
    driver.servers["s3"].silent = True
    sub = driver.subscribe(b"ti*", pattern=True)
    assert not driver.in_force(sub)
    driver.change_ring(("s1", "s2"))
    assert driver.in_force(sub)
    driver.message("s1", TILE, STREAM, 5, pattern=b"ti*")
    driver.advance(0.1)
    assert asked(driver) == [(1, 4)]


def test_what_an_entry_moved_to_a_server_that_left_before_it_answered_is_no_gap() -> None:
    """Publishers come by an entry only where every subscription stands."""
    driver = RouterDriver(("s1", "s2", "s3"))
    sub = driver.subscribe(TILE)
    home = next(iter(sub.sites))
    other = next(server for server in ("s1", "s2", "s3") if server != home)
    driver.servers[other].silent = True
    with_entry(driver, Mode.ALL_SUBSCRIBERS, home, other)
    assert sub.sites[other].incarnation == 0
    driver.change_ring(tuple(server for server in ("s1", "s2", "s3") if server != other), version=2)
    assert other not in sub.sites
    assert unknown_gaps(sub) == []


def test_rings_that_are_heard_of_one_by_one_are_no_gap() -> None:
    driver = RouterDriver(("s1", "s2"))
    sub = driver.subscribe(b"ti*", pattern=True)
    came_and_went(driver, ("s1", "s2", "s3"))
    came_and_went(driver, ("s1", "s2", "s3"), ("s1", "s2", "s3", "s4"))
    assert unknown_gaps(sub) == []


def test_after_more_rings_than_are_remembered_nobody_knows_who_came_and_went() -> None:
    driver = RouterDriver(("s1", "s2"))
    sub = driver.subscribe(b"ti*", pattern=True)
    came_and_went(driver, *[("s1", "s2", f"s{number}") for number in range(3, 13)], ("s1", "s2"))
    assert len(unknown_gaps(sub)) == 1


def test_who_asked_in_the_wrong_place_learns_of_the_entry_before_it_relies_on_the_answer() -> None:
    driver = RouterDriver(("s1", "s2"))
    home = driver.ring.home(TILE)
    elsewhere = "s2" if home == "s1" else "s1"
    driver.servers[home].entries[TILE] = SIGNER.entry(TILE, Placement(5, Mode.SINGLE, (elsewhere,)))
    sub = driver.subscribe(TILE)
    assert states(sub) == {elsewhere: SiteState.IN_FORCE}
    assert driver.in_force(sub)
    assert [bye.name for bye in driver.heard(home, control.Bye)] == [TILE]


# Leaving


def test_the_last_one_to_leave_unsubscribes() -> None:
    driver = RouterDriver()
    first, second = driver.subscribe(TILE), driver.subscribe(TILE)
    driver.router.unsubscribe(first, driver.now)
    assert driver.link("s1").outbox == []
    driver.router.unsubscribe(second, driver.now)
    assert driver.link("s1").outbox[0] == (b"UNSUBSCRIBE", TILE)
    driver.play()
    assert [bye.name for bye in driver.heard("s1", control.Bye)] == [TILE]
    driver.router.unsubscribe(second, driver.now)
    assert driver.link("s1").outbox == [], "once is enough"


def test_a_pattern_leaves_every_server() -> None:
    driver = RouterDriver(("s1", "s2"))
    sub = driver.subscribe(b"ti*", pattern=True)
    driver.router.unsubscribe(sub, driver.now)
    assert [driver.link(server).outbox[0] for server in ("s1", "s2")] == [(b"PUNSUBSCRIBE", b"ti*")] * 2


def test_leaving_before_it_was_in_force_leaves_no_question_open() -> None:
    driver = RouterDriver()
    driver.servers["s1"].silent = True
    sub = driver.subscribe(TILE)
    (hello,) = driver.heard("s1", control.Hello)
    driver.router.unsubscribe(sub, driver.now)
    driver.play()
    driver.tell("s1", driver.servers["s1"].answer(hello), hello.nonce)
    assert not driver.in_force(sub)
    assert not driver.router.statistics().questions
    assert len(driver.router.subscriptions) == 0


# Lost connections


def test_a_lost_connection_is_subscribed_and_asked_again() -> None:
    driver = RouterDriver()
    sub = driver.subscribe(TILE)
    driver.message("s1", TILE, STREAM, 1, b"1")
    driver.heard("s1", control.Hello)
    driver.lose("s1")
    assert states(sub) == {"s1": SiteState.WAITING}
    assert driver.in_force(sub), "once in force, everything is owed"
    driver.play()
    assert sub.settled
    (hello,) = driver.heard("s1", control.Hello)
    assert not hello.fresh


def test_what_was_missed_while_the_connection_was_lost_is_asked_for() -> None:
    driver = RouterDriver()
    sub = driver.subscribe(TILE)
    driver.message("s1", TILE, STREAM, 1, b"1")
    driver.servers["s1"].streams[TILE, STREAM] = 3
    driver.lose("s1")
    driver.play()
    driver.advance(DEFAULT_LIMITS.heal_delay_s * 1.1)
    assert asked(driver) == [(2, 3)]
    for number in (2, 3):
        driver.tell("s1", control.Resend(TILE, blob(STREAM, number, b"%d" % number)))
    assert driver.payloads(sub) == [b"1", b"2", b"3"]


def test_a_stream_that_began_while_the_connection_was_lost_is_owed_from_its_beginning() -> None:
    driver = RouterDriver()
    sub = driver.subscribe(TILE)
    driver.servers["s1"].streams[TILE, STREAM] = 2
    driver.lose("s1")
    driver.play()
    driver.message("s1", TILE, STREAM, 3, b"3")
    driver.advance(DEFAULT_LIMITS.heal_delay_s * 1.1)
    assert asked(driver) == [(1, 2)]
    assert driver.payloads(sub) == []


@pytest.mark.parametrize(("quiet_s", "missing"), [(30, [(1, 2)]), (40, [])])
def test_what_an_agent_heard_before_the_subscription_was_in_force_is_not_owed(
    quiet_s: int, missing: list[tuple[int, int]]
) -> None:
    """The agent of a server where the channel was once still knows a publisher that ended long ago."""
    driver = RouterDriver()
    sub = driver.subscribe(TILE)
    driver.advance(32.0)
    driver.servers["s1"].streams[TILE, STREAM] = 2
    driver.servers["s1"].quiet_s = quiet_s
    driver.lose("s1")
    driver.play()
    driver.advance(DEFAULT_LIMITS.heal_delay_s * 1.1)
    assert asked(driver) == missing
    driver.message("s1", TILE, STREAM, 3, b"3")
    assert driver.payloads(sub) == ([] if missing else [b"3"])


def test_a_baseline_from_another_server_is_completed_by_what_was_heard_before() -> None:
    driver = RouterDriver()
    driver.servers["s1"].streams[TILE, STREAM] = 4
    sub = driver.subscribe(TILE)
    driver.advance(30.0)
    driver.servers["s1"].streams[TILE, STREAM] = 6
    driver.servers["s1"].quiet_s = 40
    driver.lose("s1")
    driver.play()
    driver.advance(TIMEOUT_S * 2)
    assert asked(driver) == []
    assert driver.items(sub) == []


def test_an_agent_that_has_heard_less_of_a_stream_does_not_vouch_for_it() -> None:
    """The stream stays with the server where it was heard: another one may be lost without any doubt about it."""
    driver = RouterDriver(("s1", "s2"))
    driver.servers["s1"].streams[TILE, STREAM] = 4
    sub = driver.subscribe(b"*", pattern=True)
    driver.servers["s1"].streams[TILE, STREAM] = 6
    driver.servers["s2"].streams[TILE, STREAM] = 0
    for server in ("s1", "s2"):
        driver.lose(server)
        driver.play()
    assert sub.channels[TILE].streams[STREAM].server == "s1"


def test_a_lost_connection_alone_is_no_reason_for_doubt() -> None:
    driver = RouterDriver()
    sub = driver.subscribe(TILE)
    driver.message("s1", TILE, STREAM, 1, b"1")
    driver.servers["s1"].streams[TILE, STREAM] = 1
    driver.lose("s1")
    driver.play()
    driver.advance(TIMEOUT_S * 2)
    assert driver.payloads(sub) == [b"1"]


# A server that leaves the ring


def moved() -> tuple[RouterDriver, SubscriptionCore, bytes]:
    """A subscription in force on s2, which then leaves the ring while it still works."""
    driver = RouterDriver(("s1", "s2"))
    channel = channel_at(driver.ring, "s2")
    sub = driver.subscribe(channel)
    driver.message("s2", channel, STREAM, 1, b"1")
    driver.change_ring(("s1",))
    return driver, sub, channel


def test_a_server_that_leaves_but_works_is_listened_to_for_a_while() -> None:
    driver, sub, channel = moved()
    assert states(sub) == {"s2": SiteState.LINGERING, "s1": SiteState.IN_FORCE}
    driver.message("s2", channel, STREAM, 2, b"a straggler")
    driver.message("s1", channel, STREAM, 3, b"3")
    assert driver.payloads(sub) == [b"1", b"a straggler", b"3"]
    driver.advance(LINGER_S + 0.1)
    assert states(sub) == {"s1": SiteState.IN_FORCE}
    assert "s2" not in driver.router.statistics().links


def test_a_server_that_comes_back_in_time_was_never_left() -> None:
    driver, sub, _ = moved()
    driver.change_ring(("s1", "s2"), version=3)
    assert states(sub)["s2"] is SiteState.IN_FORCE
    driver.advance(LINGER_S * 2)
    assert states(sub) == {"s2": SiteState.IN_FORCE}


def test_a_dead_server_that_leaves_the_ring_puts_its_streams_in_doubt() -> None:
    driver = RouterDriver(("s1", "s2"))
    channel = channel_at(driver.ring, "s2")
    sub = driver.subscribe(channel)
    driver.message("s2", channel, STREAM, 1, b"1")
    driver.servers["s2"].reachable = False
    driver.lose("s2")
    driver.change_ring(("s1",))
    assert sub.settled
    driver.advance(TIMEOUT_S + 0.5)
    items = driver.items(sub)
    gaps = [item for item in items if isinstance(item, Gap)]
    assert {(gap.publisher, gap.last) for gap in gaps} == {(None, None), (OTHER, None)}
    assert [gap.first for gap in gaps if gap.publisher == OTHER] == [2]


def frozen() -> tuple[RouterDriver, SubscriptionCore, bytes]:
    """A subscription on s2, which then stops answering and leaves the ring."""
    driver = RouterDriver(("s1", "s2"))
    channel = channel_at(driver.ring, "s2")
    sub = driver.subscribe(channel)
    driver.message("s2", channel, STREAM, 1, b"1")
    driver.servers["s2"].streams[channel, STREAM] = 1
    driver.servers["s2"].reachable = False
    driver.lose("s2")
    driver.change_ring(("s1",))
    driver.advance(TIMEOUT_S / 2)
    return driver, sub, channel


def test_a_frozen_server_that_left_the_ring_is_asked_and_nothing_was_missed() -> None:
    driver, sub, _ = frozen()
    driver.servers["s2"].reachable = True
    driver.play()
    driver.advance(TIMEOUT_S * 2)
    assert driver.payloads(sub) == [b"1"]
    assert driver.gaps(sub) == []
    assert states(sub) == {"s1": SiteState.IN_FORCE}
    assert "s2" not in driver.router.statistics().links, "it is not used any more"


def test_a_frozen_server_that_left_the_ring_tells_what_was_missed() -> None:
    driver, sub, channel = frozen()
    driver.servers["s2"].streams[channel, STREAM] = 3
    driver.servers["s2"].streams[channel, OTHER_STREAM] = 1
    driver.servers["s2"].reachable = True
    driver.play()
    driver.advance(TIMEOUT_S * 2)
    gaps = {(gap.publisher, gap.first, gap.last) for gap in driver.gaps(sub)}
    assert gaps == {(OTHER, 2, 3), (client_of(OTHER_STREAM), 1, 1)}


def test_a_frozen_server_whose_agent_forgot_may_have_had_publishers_that_nobody_knows() -> None:
    driver, sub, _ = frozen()
    here = driver.servers["s2"]
    here.reachable, here.incarnation, here.remembers = True, 2, False
    driver.play()
    assert [gap.publisher for gap in driver.gaps(sub)] == [None]


def test_a_frozen_server_that_comes_back_to_the_ring_is_asked_as_before() -> None:
    driver, sub, _ = frozen()
    driver.change_ring(("s1", "s2"), version=3)
    driver.advance(TIMEOUT_S * 2)
    assert [gap.publisher for gap in driver.gaps(sub)] == [OTHER], "the server is waited for, its publisher is not"
    driver.servers["s2"].reachable = True
    driver.play()
    assert driver.gaps(sub) == []
    assert states(sub)["s2"] is SiteState.IN_FORCE


def test_a_closed_subscription_asks_no_server_outside_the_ring() -> None:
    driver, sub, _ = frozen()
    driver.router.unsubscribe(sub, driver.now)
    driver.advance(TIMEOUT_S * 2)
    assert unknown_gaps(sub) == []


def test_a_publisher_that_follows_ends_the_doubt() -> None:
    driver = RouterDriver(("s1", "s2"))
    channel = channel_at(driver.ring, "s2")
    sub = driver.subscribe(channel)
    driver.message("s2", channel, STREAM, 1, b"1")
    driver.servers["s2"].reachable = False
    driver.lose("s2")
    driver.change_ring(("s1",))
    driver.beacon("s1", channel, STREAM, 1, 1)
    driver.message("s1", channel, STREAM, 2, b"2")
    driver.advance(1.0)
    driver.tell("s1", control.Healed(channel, STREAM, 1, 2, 2, 3))
    driver.advance(TIMEOUT_S * 2)
    assert [gap for gap in driver.items(sub) if isinstance(gap, Gap) and gap.publisher == OTHER] == []


def test_a_server_that_dies_while_it_is_being_left_puts_its_streams_in_doubt() -> None:
    """What it had not passed on yet died with it, and a publisher that died too will never say so."""
    driver, sub, _ = moved()
    driver.servers["s2"].reachable = False
    driver.lose("s2")
    driver.advance(TIMEOUT_S * 2)
    gaps = [item for item in driver.items(sub) if isinstance(item, Gap)]
    assert (OTHER, 2, None) in {(gap.publisher, gap.first, gap.last) for gap in gaps}


def test_a_server_that_carried_what_was_left_of_a_placement_may_have_had_publishers_that_no_agent_heard() -> None:
    """The subscription's own server is out of the ring for a while, and publishers use the other one alone."""
    driver = RouterDriver(("s1", "s2"))
    sub = driver.subscribe(TILE)
    with_entry(driver, Mode.ALL_PUBLISHERS, "s1", "s2")
    (here,) = sub.sites
    other = "s2" if here == "s1" else "s1"
    driver.servers[other].silent = True
    driver.servers[here].reachable = False
    driver.lose(here)
    alone = driver.ring.next(ring(1, (other,)).servers)
    both = alone.next(driver.ring.servers)
    for newest in (alone, both):
        driver.router.ring(SIGNER.ring(newest), driver.now)
        driver.play()
    driver.servers[other].silent, driver.servers[other].since = False, 3
    driver.advance(2.0)
    assert [other in reason for reason in unknown_gaps(sub)] == [True]


def test_the_time_before_a_server_joined_is_no_absence_from_it() -> None:
    driver = RouterDriver(("s1",))
    sub = driver.subscribe(b"ti*", pattern=True)
    driver.advance(2 * DEFAULT_LIMITS.publisher_idle_s)
    driver.servers["s2"] = StandIn("s2", reachable=False)
    driver.change_ring(("s1", "s2"))
    driver.effects.clear()
    driver.lose("s2")  # the connection was never there: the attempt has failed
    driver.advance(1.0)
    driver.servers["s2"].reachable = True
    driver.advance(8.0)
    assert driver.in_force(sub)
    assert driver.items(sub) == []


def test_a_server_where_publishers_were_is_not_left_before_it_has_answered() -> None:
    """It was used for a while, and several rings have come since."""
    driver = RouterDriver(("s1", "s2"))
    channel = channel_at(driver.ring, "s1")
    sub = driver.subscribe(channel)
    driver.servers["s2"].silent = True
    for version, servers in enumerate((("s2",), ("s1", "s2"), ("s1", "s2"), ("s1", "s2")), start=2):
        driver.change_ring(servers, version)
    driver.servers["s2"].streams[channel, STREAM] = 3
    driver.servers["s2"].silent = False
    driver.advance(5.0)
    assert sub.doubts() == [f"{channel.decode()} of {STREAM:x} misses 1 to 3"]
    driver.advance(LINGER_S)
    assert list(sub.sites) == ["s1"]
