"""The dispatcher: forwards for those who do not know where a channel lives, tells them, hands streams over and counts
for the conductor; and does nothing about channels that are at home."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.core_driver import CLIENT, OTHER, SIGNER, STREAM, beacons, blob, channel_at, ring, sequences
from tests.support.dispatch_driver import SERVERS, DispatchDriver, entry_of, single

from shoal.channels.agent.report import LOOK_AGAIN_S
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.entry import Entry, Phase
from shoal.plan.move_request import ChannelReport
from shoal.plan.placement import BY_THE_RING, Mode, Placement
from shoal.rules import without
from shoal.wire import control
from shoal.wire.envelope import (
    BEACON,
    FOREIGN,
    FORWARDED,
    HEADER,
    MAGIC,
    US_PER_S,
    beacon,
    forwarded,
    inbox_channel,
    stream_id,
)

RING = ring(3, SERVERS)
HERE = channel_at(RING, "s1")
THERE = channel_at(RING, "s2")
OLD, NEW = single(3, "s1"), single(7, "s2")
RETRY_S = DEFAULT_LIMITS.notice_retry_s


def move(phase: Phase, revision: int, channel: bytes = HERE, **more: object) -> Entry:
    """A move from s1 to s2."""
    return entry_of(channel, phase, revision, NEW, *(() if phase is Phase.END else (OLD,)), **more)


def message(number: int, version: int = 3, stream: int = STREAM) -> bytes:
    return blob(stream, number, b"x", version=version)


def session(**options: object) -> DispatchDriver:
    return DispatchDriver(**options).serve()  # type: ignore[arg-type]


# What is watched


def test_a_channel_at_home_is_looked_at_once() -> None:
    driver = session()
    assert driver.watches(HERE, message(1))
    driver.hear(HERE, message(2))
    assert not driver.watches(HERE, message(3))
    assert not driver.watches(HERE, b"foreign")
    assert driver.core.counters.forwarded == 0


def test_an_entry_or_a_ring_makes_it_look_again() -> None:
    driver = session()
    driver.hear(HERE, message(1))
    driver.enter(Entry(HERE, single(7, "s1")))
    assert driver.watches(HERE, message(2, 7))
    driver.hear(HERE, message(3, 7))
    assert not driver.watches(HERE, message(4, 7))
    driver.change_ring(8, ("s1", "s2"))
    assert driver.watches(HERE, message(5, 7))


def test_in_a_move_messages_of_those_who_know_are_only_counted_once_somebody_has_spoken() -> None:
    driver = session()
    driver.enter(move(Phase.WIDEN, 8))
    driver.hear(HERE, beacon(3, STREAM, 0, 0, 0))
    assert driver.watches(HERE, message(1))
    driver.hear(HERE, message(1))
    assert not driver.watches(HERE, message(2))
    assert driver.watches(HERE, b"foreign")
    assert driver.watches(HERE, message(3, version=2))
    driver.enter(move(Phase.SWITCH, 9))
    assert driver.watches(HERE, message(4))


# Forwarding


def test_when_a_server_is_back_in_a_placement_it_is_told_how_far_streams_came_without_it() -> None:
    """Until the agent heard of the ring, it forwarded nothing there, and subscribers may have gone there already."""
    driver = session()
    driver.enter(Entry(HERE, Placement(7, Mode.ALL_PUBLISHERS, ("s1", "s2"))))
    driver.change_ring(8, ("s1", "s3"))
    driver.hear(HERE, message(1, version=BY_THE_RING | 3))
    assert driver.taken("s2") == []
    driver.core.tell_time(40, driver.now + 40.0)
    driver.change_ring(9, SERVERS)
    driver.core.forward_opened("s2", driver.now)
    driver.play()
    ((_, data),) = driver.taken("s2")
    assert beacons([(HERE, data)]) == [(1, 0, False)]
    assert 30 * US_PER_S < HEADER.unpack_from(data)[-1] <= 40 * US_PER_S, "it says for how long the stream was quiet"


def test_a_ring_that_changes_nothing_for_a_placement_announces_nothing() -> None:
    driver = session()
    driver.enter(Entry(HERE, Placement(7, Mode.ALL_PUBLISHERS, ("s1", "s2"))))
    driver.hear(HERE, message(1, version=7))
    driver.change_ring(8, ("s1", "s2"))
    driver.play()
    assert driver.taken("s2") == []


def test_what_is_published_away_from_home_goes_home_marked() -> None:
    driver = session()
    driver.hear(THERE, message(1, version=2))
    driver.hear(THERE, b"foreign")
    driver.hear(THERE, beacon(2, STREAM, 1, 1, 0))
    assert driver.taken("s2") == [
        (THERE, forwarded(message(1, version=2))),
        (THERE, HEADER.pack(MAGIC, FORWARDED | FOREIGN, 0, 0, 0, 0) + b"foreign"),
        (THERE, forwarded(beacon(2, STREAM, 1, 1, 0))),
    ]
    assert driver.core.counters.forwarded == 3


def test_what_was_forwarded_is_not_forwarded_again() -> None:
    driver = session()
    driver.hear(THERE, forwarded(message(1)))
    driver.hear(THERE, forwarded(b"foreign"))
    assert driver.taken("s2") == driver.taken("s3") == []


def test_before_there_is_a_ring_nothing_is_forwarded_and_everything_stays_watched() -> None:
    driver = DispatchDriver()
    driver.core.book._ring = None
    driver.serve()
    driver.hear(THERE, message(1))
    assert driver.taken("s2") == []
    driver.change_ring(4, SERVERS)
    driver.hear(THERE, message(2))
    assert sequences(driver.taken("s2")) == [2]


def test_a_stale_publisher_is_forwarded_and_told() -> None:
    driver = session()
    driver.enter(move(Phase.END, 10))
    driver.hear(HERE, message(1))
    assert sequences(driver.taken("s2")) == [1]
    assert driver.notices(OTHER) == [control.Notice("s1", HERE, driver.core.book.signed_entry(HERE))]
    driver.hear(HERE, message(2))
    driver.hear(HERE, beacon(3, STREAM, 2, 2, 0))
    assert sequences(driver.taken("s2")) == [2]
    assert driver.notices(OTHER) == [], "not again at once"
    driver.advance(RETRY_S)
    driver.hear(HERE, message(3))
    assert len(driver.notices(OTHER)) == 1
    assert driver.core.counters.notices == 2


def test_a_stale_publisher_by_the_ring_cannot_be_told_but_is_helped() -> None:
    driver = session()
    driver.hear(THERE, message(1, version=2))
    assert driver.notices(OTHER) == []
    assert sequences(driver.taken("s2")) == [1]


def test_garbage_with_our_header_harms_nobody() -> None:
    driver = session()
    driver.enter(move(Phase.END, 10))
    for flags in range(32):
        driver.hear(HERE, HEADER.pack(MAGIC, flags, 1, 0, 0, 0) + b"x")
    driver.hear(HERE, HEADER.pack(MAGIC, 32, 1, 0, 0, 0) + b"x")
    assert driver.core.counters.notices == 0, "nobody has the client id 0"


def test_servers_that_are_helped_get_copies() -> None:
    driver = session(server="s2")
    driver.enter(move(Phase.SWITCH, 9, helped=("s3", "s1")))
    driver.hear(HERE, message(1, version=7))
    driver.hear(HERE, b"foreign")
    for server in ("s1", "s3"):
        assert [data for _, data in driver.taken(server)] == [forwarded(message(1, version=7)), forwarded(b"foreign")]
    driver.enter(move(Phase.NARROW, 10))
    driver.hear(HERE, message(2, version=7))
    assert driver.taken("s1") == driver.taken("s3") == []


def test_what_cannot_be_forwarded_waits_within_bounds() -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, forward_buffer_bytes_max=10_000)
    driver = session(limits=limits, connected=False)
    for number in range(1, 1001):
        driver.hear(THERE, message(number))
    assert driver.taken("s2") == []
    counters = driver.core.counters
    assert counters.forwarded == 1000
    driver.core.forward_opened("s2", driver.now)
    driver.carry()
    kept = sequences(driver.taken("s2"))
    assert kept == list(range(1001 - len(kept), 1001))
    assert counters.forwarded_dropped == 1000 - len(kept)


def test_without_the_mark_or_the_rules_it_is_broken() -> None:
    driver = session(rules=without("mark_forwarded"))
    driver.hear(THERE, b"foreign")
    assert driver.taken("s2") == [(THERE, b"foreign")]
    driver = session(rules=without("home_help"))
    driver.hear(THERE, b"foreign")
    assert driver.taken("s2") == []


# Notices to subscribers


def test_subscribers_that_are_behind_are_told_with_the_first_message() -> None:
    driver = session()
    driver.subscribe(CLIENT, HERE)
    driver.enter(move(Phase.WIDEN, 8))
    driver.advance(10 * RETRY_S)
    driver.hear(HERE, beacon(3, STREAM, 0, 0, 0))
    assert driver.notices(CLIENT) == [], "an idle channel costs nothing"
    driver.hear(HERE, message(1))
    driver.hear(HERE, message(2))
    assert driver.notices(CLIENT) == [control.Notice("s1", HERE, SIGNER.line(move(Phase.WIDEN, 8)))]


@pytest.mark.parametrize("first", [b"foreign", forwarded(message(1)), forwarded(b"foreign")])
def test_foreign_and_forwarded_messages_are_speech_too(first: bytes) -> None:
    driver = session()
    driver.subscribe(CLIENT, HERE)
    driver.enter(move(Phase.WIDEN, 8))
    driver.hear(HERE, first)
    assert len(driver.notices(CLIENT)) == 1


def test_they_are_told_again_until_they_acknowledge() -> None:
    driver = session()
    driver.subscribe(CLIENT, HERE)
    driver.enter(move(Phase.WIDEN, 8))
    driver.hear(HERE, message(1))
    driver.advance(3 * RETRY_S + 0.01)
    assert len(driver.notices(CLIENT)) == 4
    driver.tell(control.Subscribed(HERE, 8))
    driver.advance(3 * RETRY_S)
    assert driver.notices(CLIENT) == []


def test_each_phase_that_concerns_subscribers_is_told_anew() -> None:
    driver = session()
    driver.subscribe(CLIENT, HERE)
    told = {}
    for revision, phase in ((7, Phase.PREPARE), (8, Phase.WIDEN), (9, Phase.SWITCH), (10, Phase.NARROW)):
        driver.enter(move(phase, revision))
        driver.hear(HERE, message(revision))
        told[phase] = len(driver.notices(CLIENT))
        if told[phase]:
            driver.tell(control.Subscribed(HERE, revision))
    assert told == {Phase.PREPARE: 0, Phase.WIDEN: 1, Phase.SWITCH: 0, Phase.NARROW: 1}
    driver.enter(move(Phase.NARROW, 11, since=10, helped=("s3",)))
    driver.hear(HERE, message(11))
    assert driver.notices(CLIENT) == [], "nothing has changed for subscribers"


def test_an_eager_entry_is_told_at_once_to_both() -> None:
    driver = session()
    driver.subscribe(CLIENT, HERE)
    driver.hear(HERE, message(1))
    driver.enter(move(Phase.WIDEN, 8, eager=True))
    assert len(driver.notices(CLIENT)) == 1
    driver.tell(control.Subscribed(HERE, 8))
    assert driver.notices(OTHER) == []
    driver.enter(move(Phase.SWITCH, 9, eager=True))
    assert driver.notices(CLIENT) == []
    assert len(driver.notices(OTHER)) == 1
    driver.advance(RETRY_S + 0.01)
    assert len(driver.notices(OTHER)) == 1
    driver.tell(control.Left(HERE, STREAM, 9), client=OTHER)
    driver.advance(3 * RETRY_S)
    assert driver.notices(OTHER) == []


def test_an_entry_may_become_eager() -> None:
    driver = session()
    driver.subscribe(CLIENT, HERE)
    driver.enter(move(Phase.WIDEN, 8))
    assert driver.notices(CLIENT) == []
    driver.enter(move(Phase.WIDEN, 9, since=8, eager=True))
    assert len(driver.notices(CLIENT)) == 1


def test_many_are_told_page_by_page() -> None:
    driver = session()
    clients = range(1, 2501)
    for client in clients:
        driver.core.register.add(client, HERE, False)
    driver.enter(move(Phase.WIDEN, 8, eager=True))
    assert driver.core.counters.notices == 1000
    driver.advance(RETRY_S / 2)
    assert driver.core.counters.notices == 2500
    assert all(len(driver.notices(client)) == 1 for client in clients)


def test_a_subscriber_that_comes_during_a_move_and_does_not_acknowledge_it_is_told() -> None:
    driver = session()
    driver.enter(move(Phase.WIDEN, 8))
    driver.hear(HERE, message(1))
    driver.subscribe(CLIENT, HERE)
    assert driver.notices(CLIENT) == []
    driver.advance(RETRY_S + 0.01)
    assert len(driver.notices(CLIENT)) == 1


# Hand-over


def test_streams_are_handed_over_at_the_switch() -> None:
    driver = session()
    ended = stream_id(CLIENT, 1)
    driver.hear(HERE, message(5))
    driver.hear(HERE, message(2, stream=ended))
    driver.hear(HERE, beacon(3, ended, 2, 2, 0, final=True))
    driver.held_back.add("s2")
    driver.enter(move(Phase.WIDEN, 8))
    assert driver.taken("s2") == []
    driver.enter(move(Phase.SWITCH, 9))
    ((channel, data),) = driver.taken("s2")
    assert (channel, data) == (HERE, forwarded(beacon(7, STREAM, 5, 0, 0)))
    assert HEADER.unpack_from(data)[1] == BEACON | FORWARDED
    driver.advance(0.2)
    line = driver.line(HERE)
    assert line is not None
    assert line.handed == 0
    driver.core.forward_replied("s2", 1, driver.now)
    line = driver.line(HERE)
    assert line is not None
    assert line.handed == 9
    assert driver.core.counters.handovers == 1
    driver.enter(move(Phase.NARROW, 10))
    driver.advance(0.2)
    assert driver.taken("s2") == [], "once for each placement"
    line = driver.line(HERE)
    assert line is not None
    assert line.handed == 10


def test_nothing_to_hand_over_is_handed_over_at_once() -> None:
    driver = session(connected=False)
    driver.enter(move(Phase.SWITCH, 9))
    driver.advance(0.2)
    line = driver.line(HERE)
    assert line is not None
    assert line.handed == 9


def test_a_hand_over_that_got_lost_is_repeated() -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, forward_buffer_bytes_max=500)
    driver = session(limits=limits, connected=False)
    driver.hear(HERE, message(5))
    driver.enter(move(Phase.SWITCH, 9))
    for number in range(6, 30):
        driver.hear(HERE, message(number))
    assert driver.core.counters.handovers == 0
    driver.core.forward_opened("s2", driver.now)
    driver.carry()
    assert beacons(driver.taken("s2")) == [(29, 0, False)]
    assert driver.core.counters.handovers == 1


def test_it_is_not_handed_over_before_everybody_has_said_what_they_do() -> None:
    driver = DispatchDriver()
    driver.open(clients=2)
    driver.tell(control.Present(1, 1, 0, 1, [], [], []))
    driver.advance(DEFAULT_LIMITS.resync_s)
    driver.enter(move(Phase.SWITCH, 9))
    driver.advance(0.2)
    line = driver.line(HERE)
    assert line is not None
    assert line.handed == 0
    driver.advance(4 * DEFAULT_LIMITS.resync_s)
    resync = driver.core.counters.resyncs
    assert resync > 1, "they are called again"
    driver.tell(control.Present(1, resync, 0, 1, [], [], []))
    assert driver.taken("s2") == []
    driver.tell(control.Present(1, resync, 0, 1, [], [], [(HERE, STREAM, 4)]), client=OTHER)
    assert (4, 0, False) in beacons(driver.taken("s2"))
    assert driver.core.counters.handovers == 1


def test_who_is_gone_is_not_waited_for() -> None:
    driver = DispatchDriver()
    driver.open(clients=1)
    driver.advance(DEFAULT_LIMITS.resync_s)
    driver.enter(move(Phase.SWITCH, 9))
    driver.numsub.clear()
    driver.advance(4 * DEFAULT_LIMITS.resync_s)
    assert driver.core.counters.handovers == 1


def test_a_server_that_keeps_the_channel_hands_over_to_the_others() -> None:
    driver = session()
    driver.hear(HERE, message(5))
    newest = Placement(7, Mode.ALL_SUBSCRIBERS, ("s1", "s2", "s3"))
    driver.enter(entry_of(HERE, Phase.SWITCH, 9, newest, OLD))
    for server in ("s2", "s3"):
        assert beacons(driver.taken(server)) == [(5, 0, False)]


def test_a_server_that_had_no_part_hands_nothing_over() -> None:
    driver = session(server="s3")
    driver.hear(HERE, forwarded(message(5)))
    driver.enter(move(Phase.SWITCH, 9))
    assert driver.taken("s2") == []


# After a restart


def presented(driver: DispatchDriver, channel: bytes, last: int) -> None:
    driver.tell(control.Present(1, driver.core.counters.resyncs, 0, 1, [], [], [(channel, STREAM, last)]), client=OTHER)


def test_streams_that_present_themselves_where_the_channel_does_not_live_are_announced() -> None:
    driver = DispatchDriver()
    driver.open(clients=1)
    presented(driver, THERE, 4)
    assert driver.taken("s2") == [(THERE, forwarded(beacon(BY_THE_RING | 3, STREAM, 4, 0, 0)))]
    presented(driver, THERE, 4)
    presented(driver, HERE, 4)
    assert driver.taken("s2") == driver.taken("s3") == []


def test_they_are_announced_too_when_the_plan_comes_after_them() -> None:
    driver = DispatchDriver()
    driver.open(clients=1)
    presented(driver, HERE, 4)
    assert driver.taken("s2") == []
    driver.enter(move(Phase.END, 10))
    assert beacons(driver.taken("s2")) == [(4, 0, False)]


def test_streams_of_a_channel_that_moves_on_are_handed_over_and_not_announced() -> None:
    driver = DispatchDriver()
    driver.open(clients=1)
    presented(driver, HERE, 4)
    driver.enter(move(Phase.PREPARE, 7))
    driver.enter(move(Phase.WIDEN, 8))
    driver.enter(move(Phase.SWITCH, 9))
    assert beacons(driver.taken("s2")) == [(4, 0, False)]


def test_servers_that_are_helped_hear_of_them() -> None:
    driver = DispatchDriver(server="s2")
    driver.enter(move(Phase.NARROW, 10, helped=("s1",)))
    driver.open(clients=1)
    presented(driver, HERE, 4)
    assert beacons(driver.taken("s1")) == [(4, 0, False)]
    assert driver.taken("s3") == []


# Reports


def line(driver: DispatchDriver, channel: bytes = HERE) -> ChannelReport | None:
    driver.advance(0.11)
    return driver.line(channel)


def test_the_first_report_replaces_that_of_the_process_before() -> None:
    driver = session()
    report = driver.core.take_report()
    assert report is not None
    assert (report.server, report.incarnation, report.channels) == ("s1", driver.core.incarnation, {})
    assert driver.core.take_report() is None


def test_to_know_of_a_move_is_reported_at_once() -> None:
    driver = session()
    driver.counts = False
    driver.enter(move(Phase.PREPARE, 7))
    assert driver.line(HERE) == ChannelReport(7, 0, 0, 0, 0, False)


def test_nothing_is_said_of_a_later_phase_before_the_server_was_asked() -> None:
    driver = session()
    driver.subscribe(CLIENT, HERE)
    driver.enter(move(Phase.PREPARE, 7))
    assert line(driver) == ChannelReport(7, 0, 0, 1, 0, False)
    driver.enter(move(Phase.WIDEN, 8))
    assert driver.line(HERE) == ChannelReport(7, 0, 0, 1, 0, False)
    assert line(driver) == ChannelReport(8, 0, 1, 1, 0, False)


def test_who_is_behind_is_counted() -> None:
    driver = session()
    for client in (1, 2, 3):
        driver.subscribe(client, HERE)
    driver.numsub[HERE] += 1
    driver.enter(move(Phase.WIDEN, 8))
    assert line(driver) == ChannelReport(8, 0, 4, 4, 0, False)
    driver.tell(control.Subscribed(HERE, 8), client=1)
    driver.hear(HERE, message(1))
    assert line(driver) == ChannelReport(8, 0, 3, 4, 0, True)
    driver.numsub.update({HERE: -1, inbox_channel(2): -1})
    driver.advance(LOOK_AGAIN_S)
    assert line(driver) == ChannelReport(8, 0, 2, 3, 0, True), "the second has vanished without a Bye"
    driver.tell(control.Bye(HERE, False), client=3)
    driver.numsub[HERE] -= 1
    driver.advance(LOOK_AGAIN_S)
    assert line(driver) == ChannelReport(8, 0, 1, 2, 0, True), "the foreign one"
    driver.numsub[HERE] -= 1
    driver.advance(LOOK_AGAIN_S)
    assert line(driver) == ChannelReport(8, 0, 0, 1, 0, True)


def test_a_foreign_subscriber_is_not_behind_where_it_hears_everything() -> None:
    driver = session(server="s2")
    driver.numsub[HERE] = 1
    for revision, phase in ((8, Phase.WIDEN), (10, Phase.NARROW)):
        driver.enter(move(phase, revision))
        assert line(driver) == ChannelReport(revision, 0, 0, 1, 0, False)
    newest = Placement(20, Mode.ALL_SUBSCRIBERS, ("s1", "s2"))
    driver.enter(entry_of(HERE, Phase.NARROW, 23, newest, NEW))
    found = line(driver)
    assert found is not None
    assert found.behind == 1


def test_stale_streams_are_counted_until_they_are_gone() -> None:
    driver = session()
    driver.hear(HERE, message(1))
    driver.enter(move(Phase.SWITCH, 9))
    assert line(driver) == ChannelReport(9, 9, 0, 0, 1, False)
    driver.tell(control.Left(HERE, STREAM, 9), client=OTHER)
    assert line(driver) == ChannelReport(9, 9, 0, 0, 0, False)
    driver.tell(control.Hello(9, HERE, False, False, 9, 3, STREAM, 1), client=OTHER)
    assert line(driver) == ChannelReport(9, 9, 0, 0, 1, False)


@pytest.mark.parametrize(("server", "reports"), [("s1", True), ("s2", True), ("s3", False)])
def test_only_servers_that_are_concerned_report(server: str, reports: bool) -> None:
    driver = session(server=server)
    driver.enter(move(Phase.WIDEN, 8))
    assert (line(driver) is not None) is reports
    asked = [command for command in driver.commands if command[:3] == (b"PUBSUB", b"NUMSUB", HERE)]
    assert bool(asked) is reports


def test_the_home_and_those_who_are_helped_report_too() -> None:
    home = channel_at(RING, "s3")
    entry = entry_of(home, Phase.NARROW, 10, NEW, OLD)
    driver = session(server="s3")
    driver.enter(entry)
    assert line(driver, home) is not None
    driver.enter(move(Phase.NARROW, 10, helped=("s3",)))
    assert line(driver) is not None


def test_the_end_of_a_move_ends_the_questions() -> None:
    driver = session()
    driver.enter(move(Phase.NARROW, 10))
    assert line(driver) is not None
    driver.enter(move(Phase.END, 11))
    driver.advance(0.2)
    driver.commands.clear()
    driver.advance(1.0)
    assert driver.line(HERE) is None
    assert all(command[0] == b"PUBLISH" for command in driver.commands)


def test_questions_are_bounded_and_every_channel_gets_its_turn() -> None:
    driver = session()
    channels = [name for name in (b"tile.%d" % n for n in range(1000)) if RING.home(name) == "s1"][:20]
    for number, channel in enumerate(channels):
        for client in range(1000):
            driver.core.register.add(1 + number * 1000 + client, channel, False)
        driver.enter(move(Phase.WIDEN, 8, channel))
    driver.commands.clear()
    driver.advance(5.0)
    asked = [command for command in driver.commands if command[:2] == (b"PUBSUB", b"NUMSUB")]
    assert max(map(len, asked)) <= 502
    assert sum(map(len, asked)) < 5.2 * 50_000
    assert all(driver.line(channel) is not None for channel in channels)


def test_a_server_that_refuses_the_question_is_asked_again() -> None:
    driver = session()
    driver.counts = False
    driver.enter(move(Phase.WIDEN, 8))
    driver.advance(0.11)
    driver.counts = True
    driver.receive(RuntimeError("ERR no"))
    assert line(driver) == ChannelReport(8, 0, 0, 0, 0, False)


def test_in_a_new_incarnation_nothing_is_said_before_the_server_was_asked() -> None:
    driver = session()
    driver.subscribe(CLIENT, HERE)
    driver.enter(move(Phase.WIDEN, 8))
    driver.tell(control.Subscribed(HERE, 8))
    assert line(driver) == ChannelReport(8, 0, 0, 1, 0, False)
    driver.core.lost(driver.now)
    assert driver.core.take_report() is None
    driver.serve("run two")
    assert driver.line(HERE) is None
    assert line(driver) == ChannelReport(8, 0, 1, 1, 0, False), "whoever it is has to say so again"


def test_an_entry_that_is_gone_is_forgotten() -> None:
    driver = session()
    driver.hear(HERE, message(1))
    driver.enter(move(Phase.SWITCH, 9))
    assert line(driver) is not None
    driver.core.forget_entry(HERE)
    driver.taken("s2")
    assert line(driver) is None
    driver.hear(HERE, message(2))
    assert driver.taken("s2") == []
    assert not driver.watches(HERE, message(3))
