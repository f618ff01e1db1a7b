"""A client follows a move: subscribers stand by every placement that has not ended and leave last, publishers change
when they are told, and agents hear of both."""

from __future__ import annotations

import msgspec
from tests.support.core_driver import CLIENT, OTHER, SIGNER, STREAM, RouterDriver, blob, sequences

from shoal.channels.client.subscription import SubscriptionCore
from shoal.channels.states import SiteState
from shoal.message import Message
from shoal.plan.entry import Entry, Phase
from shoal.plan.placement import Mode, Placement
from shoal.wire import control, envelope

TILE = b"tile"
OLD = Placement(5, Mode.SINGLE, ("s1",))
NEW = Placement(10, Mode.SINGLE, ("s2",))
NEWER = Placement(20, Mode.SINGLE, ("s3",))

PREPARE = Entry(TILE, NEW, Phase.PREPARE, (OLD,), 5, 10, since=10)
WIDEN = Entry(TILE, NEW, Phase.WIDEN, (OLD,), 5, 11, since=11)
SWITCH = Entry(TILE, NEW, Phase.SWITCH, (OLD,), 10, 12, since=12)
NARROW = Entry(TILE, NEW, Phase.NARROW, (OLD,), 10, 13, since=13)
END = Entry(TILE, NEW, Phase.END, (), 0, 14, since=14)


def notice(driver: RouterDriver, entry: Entry, server: str = "s1") -> None:
    driver.tell(server, control.Notice(server, entry.unit, SIGNER.line(entry)))


def on_old(**silent: bool) -> RouterDriver:
    """Three servers, and a channel that an entry has put on s1."""
    driver = RouterDriver(("s1", "s2", "s3"))
    driver.router.entry(SIGNER.entry(TILE, OLD), driver.now)
    for server, value in silent.items():
        driver.servers[server].silent = value
    return driver


def sites(sub: SubscriptionCore) -> dict[str, SiteState]:
    return {server: site.state for server, site in sub.sites.items()}


def was_subscribed(driver: RouterDriver, server: str) -> list[int]:
    return [stand.revision for stand in driver.heard(server, control.Subscribed)]


# Subscribers


def test_a_subscriber_goes_through_all_phases_and_acknowledges_those_that_concern_it() -> None:
    driver = on_old()
    sub = driver.subscribe(TILE)
    notice(driver, PREPARE)
    assert sites(sub) == {"s1": SiteState.IN_FORCE}
    notice(driver, WIDEN)
    assert sites(sub) == {"s1": SiteState.IN_FORCE, "s2": SiteState.IN_FORCE}
    assert was_subscribed(driver, "s1")[-1] == was_subscribed(driver, "s2")[-1] == 11
    notice(driver, SWITCH)
    assert sites(sub) == {"s1": SiteState.IN_FORCE, "s2": SiteState.IN_FORCE}
    notice(driver, NARROW, "s2")
    assert sites(sub) == {"s2": SiteState.IN_FORCE}
    assert was_subscribed(driver, "s1")[-1] == was_subscribed(driver, "s2")[-1] == 13
    assert [bye.name for bye in driver.heard("s1", control.Bye)] == [TILE]
    notice(driver, END, "s2")
    assert was_subscribed(driver, "s2") == []


def test_a_subscriber_that_slept_leaves_the_old_server_only_when_the_new_one_has_answered() -> None:
    driver = on_old(s2=True)
    sub = driver.subscribe(TILE)
    notice(driver, NARROW)
    assert sites(sub) == {"s1": SiteState.IN_FORCE, "s2": SiteState.ASKING}
    assert was_subscribed(driver, "s1") == []
    driver.message("s1", TILE, STREAM, 1, b"still heard")
    driver.servers["s2"].silent = False
    driver.advance(2.0)
    assert sites(sub) == {"s2": SiteState.IN_FORCE}
    assert was_subscribed(driver, "s1") == [13]
    assert driver.payloads(sub) == [b"still heard"]


def test_a_server_that_is_out_of_reach_is_left_when_it_has_said_what_was_missed() -> None:
    driver = on_old()
    sub = driver.subscribe(TILE)
    driver.message("s1", TILE, STREAM, 1, b"1")
    notice(driver, WIDEN)
    driver.servers["s1"].reachable = False
    driver.lose("s1")
    notice(driver, NARROW, "s2")
    assert sites(sub) == {"s1": SiteState.WAITING, "s2": SiteState.IN_FORCE}
    driver.servers["s1"].streams[TILE, STREAM] = 2
    driver.servers["s1"].reachable = True
    driver.play()
    assert sites(sub) == {"s2": SiteState.IN_FORCE}
    driver.advance(driver.limits.heal_delay_s * 2)
    assert [(heal.first, heal.last) for heal in driver.told("s2", OTHER, control.Heal)] == [(2, 2)]


def test_a_new_subscription_is_in_force_only_when_every_placement_has_answered() -> None:
    driver = on_old(s2=True)
    driver.servers["s1"].entries[TILE] = SIGNER.line(WIDEN)
    sub = driver.subscribe(TILE)
    assert not sub.in_force
    driver.servers["s2"].silent = False
    driver.advance(2.0)
    assert driver.in_force(sub)
    assert was_subscribed(driver, "s1") == was_subscribed(driver, "s2") == [11]


def test_a_second_move_before_the_end_of_the_first_adds_a_server() -> None:
    driver = on_old()
    sub = driver.subscribe(TILE)
    notice(driver, WIDEN)
    notice(driver, Entry(TILE, NEWER, Phase.WIDEN, (OLD, NEW), 5, 21, since=21))
    assert set(sites(sub)) == {"s1", "s2", "s3"}
    notice(driver, Entry(TILE, NEWER, Phase.NARROW, (OLD, NEW), 20, 23, since=23))
    assert sites(sub) == {"s3": SiteState.IN_FORCE}


def test_a_notice_of_what_is_known_is_answered_again() -> None:
    driver = on_old()
    driver.subscribe(TILE)
    notice(driver, WIDEN)
    was_subscribed(driver, "s1")
    notice(driver, WIDEN)
    assert was_subscribed(driver, "s1") == [11]
    notice(driver, PREPARE)
    assert was_subscribed(driver, "s1") == []
    assert driver.counters.stale_entries == 1


def test_what_comes_twice_during_a_move_is_delivered_once_and_in_order() -> None:
    driver = on_old()
    sub = driver.subscribe(TILE)
    driver.message("s1", TILE, STREAM, 1, b"1", version=5)
    notice(driver, WIDEN)
    driver.message("s1", TILE, STREAM, 2, b"2", version=5)
    driver.message("s2", TILE, STREAM, 4, b"4", version=10)
    driver.push("s2", TILE, envelope.forwarded(blob(STREAM, 3, b"3", version=5)))
    driver.message("s1", TILE, STREAM, 3, b"3", version=5)
    assert driver.payloads(sub) == [b"1", b"2", b"3", b"4"]


def test_a_foreign_message_that_was_forwarded_is_unwrapped() -> None:
    driver = on_old()
    sub = driver.subscribe(TILE)
    driver.push("s1", TILE, envelope.forwarded(b"from redis-cli"))
    assert driver.items(sub) == [Message("tile", b"from redis-cli")]


# Publishers


def test_a_publisher_changes_at_switch_and_says_that_it_is_gone() -> None:
    driver = on_old()
    out = driver.publish(TILE, b"1")
    for entry in (PREPARE, WIDEN):
        notice(driver, entry)
        driver.publish(TILE, b"2")
    assert sequences(driver.published("s1")) == [1, 2, 3]
    notice(driver, SWITCH)
    assert [(left.stream, left.revision) for left in driver.heard("s1", control.Left)] == [(out.stream, 12)]
    driver.publish(TILE, b"4")
    published = driver.published("s2")
    assert sequences(published) == [4]
    assert {envelope.HEADER.unpack_from(data)[2] for _, data in published} == {10}
    assert driver.published("s1") == []


def test_what_was_not_confirmed_goes_to_the_new_server_too() -> None:
    driver = on_old()
    driver.publish(TILE, b"1")
    driver.servers["s1"].mute = True
    driver.publish(TILE, b"2")
    driver.router.entry(SIGNER.line(SWITCH), driver.now)
    driver.play()
    assert sequences(driver.published("s2")) == [2]


def test_a_publisher_that_is_told_what_it_knows_says_again_that_it_is_gone() -> None:
    driver = on_old()
    driver.publish(TILE, b"1")
    notice(driver, SWITCH)
    driver.heard("s1", control.Left)
    notice(driver, SWITCH)
    assert [client for client, _, _ in driver.heard_with_heads("s1", control.Left)] == [CLIENT]


def test_a_publisher_that_stays_on_a_server_is_not_gone() -> None:
    driver = on_old()
    driver.publish(TILE, b"1")
    both = Placement(10, Mode.ALL_PUBLISHERS, ("s1", "s2"))
    notice(driver, msgspec.structs.replace(SWITCH, placement=both))
    driver.publish(TILE, b"2")
    assert driver.heard("s1", control.Left) == []
    assert sequences(driver.published("s1")) == [1, 2]
    assert sequences(driver.published("s2")) == [2]


# Memory


def test_entries_of_channels_that_are_in_no_use_are_forgotten_the_others_not() -> None:
    driver = on_old()
    heard = driver.subscribe(TILE)
    for name in (b"left", b"published"):
        driver.router.entry(SIGNER.entry(name, OLD), driver.now)
    left = driver.subscribe(b"left")
    driver.publish(b"published", b"1")
    driver.router.unsubscribe(left, driver.now)
    entries = driver.router.book.entries
    assert set(entries) == {TILE, b"left", b"published"}
    driver.advance(driver.limits.publisher_idle_s)
    assert set(entries) == {TILE}
    assert driver.in_force(heard)


def test_who_leaves_while_the_connection_is_down_says_so_when_it_is_back() -> None:
    driver = on_old()
    left, kept = driver.subscribe(TILE), driver.subscribe(b"kept")
    driver.router.entry(SIGNER.entry(b"kept", OLD), driver.now)
    driver.advance(driver.limits.linger_s * 3)
    driver.servers["s1"].reachable = False
    driver.lose("s1")
    driver.router.unsubscribe(left, driver.now)
    driver.servers["s1"].reachable = True
    driver.play()
    assert [bye.name for bye in driver.heard("s1", control.Bye)] == [TILE]
    assert driver.in_force(kept)


def left_on_s1() -> tuple[RouterDriver, SubscriptionCore]:
    """A client with two subscriptions on s1 of which it has just left one; the server has not read the Bye yet."""
    driver = on_old()
    driver.router.entry(SIGNER.entry(b"kept", OLD), driver.now)
    left, kept = driver.subscribe(TILE), driver.subscribe(b"kept")
    driver.servers["s1"].mute = True
    driver.router.unsubscribe(left, driver.now)
    driver.play()
    return driver, kept


def reconnect(driver: RouterDriver) -> None:
    driver.lose("s1")
    driver.servers["s1"].mute = False
    driver.play()


def byes(driver: RouterDriver) -> list[bytes]:
    return [bye.name for bye in driver.heard("s1", control.Bye)]


def test_a_bye_that_was_lost_with_its_connection_is_said_on_the_next_one() -> None:
    driver, kept = left_on_s1()
    reconnect(driver)
    assert byes(driver) == [TILE]
    reconnect(driver)
    assert byes(driver) == [], "the server has answered to what came after it"
    assert driver.in_force(kept)


def test_a_bye_that_the_server_has_seen_is_not_said_again() -> None:
    driver, _ = left_on_s1()
    driver.servers["s1"].mute = False
    driver.advance(driver.limits.server_lease_s)
    assert byes(driver) == [TILE]
    reconnect(driver)
    assert byes(driver) == []


def test_a_ping_from_before_a_bye_proves_nothing() -> None:
    driver = on_old()
    driver.router.entry(SIGNER.entry(b"kept", OLD), driver.now)
    left, _ = driver.subscribe(TILE), driver.subscribe(b"kept")
    driver.advance(driver.limits.server_lease_s)
    link = driver.link("s1")
    link.send_ping(driver.now)
    driver.router.unsubscribe(left, driver.now)
    driver.feed("s1", b"PONG")
    reconnect(driver)
    assert byes(driver) == [TILE]


def test_a_bye_is_not_said_again_by_who_has_come_back_meanwhile() -> None:
    driver, _ = left_on_s1()
    again = driver.subscribe(TILE)
    reconnect(driver)
    assert byes(driver) == []
    assert sites(again) == {"s1": SiteState.IN_FORCE}
    reconnect(driver)
    assert byes(driver) == []


def test_a_notice_from_a_server_where_nobody_subscribes_is_answered_by_a_bye_though_somebody_does_elsewhere() -> None:
    driver = on_old()
    sub = driver.subscribe(TILE)
    driver.subscribe(b"ti*", pattern=True)
    notice(driver, END, "s1")
    driver.advance(driver.limits.linger_s * 3)
    assert sites(sub) == {"s2": SiteState.IN_FORCE}
    assert byes(driver) == [TILE]
    notice(driver, END, "s1")
    assert byes(driver) == [TILE]
    notice(driver, END, "s2")
    assert driver.heard("s2", control.Bye) == []


def test_a_subscriber_that_comes_back_after_a_lost_connection_acknowledges_again() -> None:
    """The server may have restarted, and then its agent has forgotten who stood by what."""
    driver = on_old()
    sub = driver.subscribe(TILE)
    notice(driver, WIDEN)
    assert was_subscribed(driver, "s1") == was_subscribed(driver, "s2") == [11]
    driver.servers["s2"].incarnation += 1
    driver.lose("s2")
    driver.play()
    assert sites(sub) == {"s1": SiteState.IN_FORCE, "s2": SiteState.IN_FORCE}
    assert was_subscribed(driver, "s2") == [11]
    assert was_subscribed(driver, "s1") == [], "its agent knows"


def test_who_lingers_when_the_connection_is_lost_says_bye_on_the_next_one() -> None:
    driver = on_old()
    driver.subscribe(b"ti*", pattern=True)
    sub = driver.subscribe(TILE)
    notice(driver, END)
    assert sites(sub) == {"s1": SiteState.LINGERING, "s2": SiteState.IN_FORCE}
    reconnect(driver)
    assert sites(sub) == {"s2": SiteState.IN_FORCE}
    assert byes(driver) == [TILE]


def test_a_server_that_left_the_ring_and_came_back_hears_the_byes_that_it_missed() -> None:
    driver = on_old()
    driver.subscribe(b"ti*", pattern=True)
    left = driver.subscribe(TILE)
    assert sites(left) == {"s1": SiteState.IN_FORCE}
    driver.servers["s1"].mute = True
    driver.change_ring(("s2", "s3"), 2)
    driver.lose("s1")
    driver.router.unsubscribe(left, driver.now)
    driver.play()
    assert "s1" not in driver.router.statistics().links
    driver.servers["s1"].mute = False
    driver.change_ring(("s1", "s2", "s3"), 3)
    assert byes(driver) == [TILE]
