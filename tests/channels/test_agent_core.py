"""The agent: answers hellos with the baseline, sends heartbeats that grant its lease, starts a resync after a restart,
and remembers the incarnation before; garbage is counted and changes nothing."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
from hiredis import PushNotification
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.channels.observed import observed
from tests.support.core_driver import (
    AGENT,
    CLIENT,
    FORGER,
    OTHER,
    SIGNER,
    STREAM,
    AgentDriver,
    beacons,
    blob,
    ring,
)

from shoal.channels.agent import control_queue
from shoal.channels.agent.core import (
    HEARTBEAT_SPREAD,
    REFUSALS_PER_S_MAX,
    TURN_WORK_BEHIND,
    TURN_WORK_MAX,
    AgentCore,
)
from shoal.channels.states import AgentState
from shoal.channels.telemetry.scanner import Scanner
from shoal.channels.telemetry.tables import TableLimits
from shoal.errors import ProtocolError
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.entry import Entry
from shoal.plan.placement import Mode, Placement
from shoal.wire import control, envelope
from shoal.wire.envelope import (
    AGENT_CHANNEL,
    HEADER,
    HEADER_1,
    HEARTBEAT_CHANNEL,
    MAGIC,
    MAGIC_1,
    inbox_channel,
    stream_id,
)

TILE = b"tile"
RING = SIGNER.ring(ring(3, ("s1", "s2")))
U64_MAX = (1 << 64) - 1


def session(clients: int = 0) -> AgentDriver:
    """An agent that serves, holds its lease and knows the ring."""
    driver = AgentDriver()
    driver.core.ring(RING)
    driver.core.lease.granted(driver.now)
    driver.open(clients=clients)
    assert driver.state() is AgentState.SERVING
    return driver


def hello(
    nonce: int = 1, name: bytes = TILE, *, pattern: bool = False, ring_version: int = 3, incarnation: int = 0
) -> control.Hello:
    return control.Hello(nonce, name, pattern, not incarnation, 1, ring_version, incarnation=incarnation)


def publisher_hello(last: int, client: int = OTHER, name: bytes = TILE) -> control.Hello:
    return control.Hello(9, name, False, False, 1, 3, stream_id(client, 1), last)


def publish(driver: AgentDriver, *numbers: int, channel: bytes = TILE, stream: int = STREAM) -> None:
    for number in numbers:
        driver.hear(channel, blob(stream, number, b"x"))


# Greetings


def test_a_greeting_is_answered_with_the_lease() -> None:
    driver = session()
    driver.tell(control.Greet(7, 3))
    ((client, number, welcome),) = driver.take_with_heads(inbox_channel(CLIENT), control.Welcome)
    assert isinstance(welcome, control.Welcome)
    assert (client, number) == (CLIENT, 7)
    sure_ms = 1000 * DEFAULT_LIMITS.server_lease_s * (1 - DEFAULT_LIMITS.clock_drift_max)
    assert sure_ms - 2 < welcome.lease_ms <= sure_ms
    heartbeat = driver.core.counters.heartbeats
    assert welcome == control.Welcome("s1", AGENT, driver.core.incarnation, heartbeat, welcome.lease_ms, 3, b"")


def test_a_client_with_an_older_ring_is_told_the_newer_one() -> None:
    driver = session()
    driver.tell(control.Greet(7, 2))
    assert driver.take(inbox_channel(CLIENT), control.Welcome)[0].ring == RING


def test_without_a_lease_the_answer_grants_nothing() -> None:
    driver = session()
    driver.core.lease.refused()
    driver.tell(control.Greet(7, 3))
    assert driver.take(inbox_channel(CLIENT), control.Welcome)[0].lease_ms == 0


# The heartbeat


def test_heartbeats_are_sent_again_and_again() -> None:
    driver = session()
    driver.advance(0.0)
    driver.heartbeats()
    driver.core.lease.granted(driver.now)
    driver.advance(2.0)
    received = driver.take_with_heads(HEARTBEAT_CHANNEL, control.Heartbeat)
    assert [(client, number) for client, number, _ in received] == [(0, received[0].number + n) for n in range(4)]
    heartbeats = [one.message for one in received if isinstance(one.message, control.Heartbeat)]
    assert {
        (heartbeat.server, heartbeat.instance, heartbeat.granted, heartbeat.ring_version) for heartbeat in heartbeats
    } == {("s1", AGENT, True, 3)}
    assert all(first.lease_ms > second.lease_ms for first, second in itertools.pairwise(heartbeats))


def test_agents_that_began_together_do_not_speak_together_for_ever() -> None:
    interval_s = DEFAULT_LIMITS.heartbeat_interval_s
    spoken: list[list[float]] = []
    for instance in (1, 2):
        driver = AgentDriver(instance=instance)
        driver.open()
        times: list[float] = []
        while len(times) < 20:
            driver.advance(0.001)
            times += [driver.now] * len(driver.heartbeats())
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert max(gaps) <= interval_s + 0.002
        assert min(gaps) >= interval_s * (1 - HEARTBEAT_SPREAD) - 0.002
        spoken.append(times)
    together = sum(first == second for first, second in zip(*spoken, strict=True))
    assert together <= 2  # the first one, and hardly another


def test_a_heartbeat_says_which_of_its_own_heartbeats_came_back() -> None:
    driver = session()
    driver.advance(0.0)
    ((_, number, first),) = driver.take_with_heads(HEARTBEAT_CHANNEL, control.Heartbeat)
    assert isinstance(first, control.Heartbeat)
    assert first.heard == 0
    driver.hear(HEARTBEAT_CHANNEL, control.encode(first, 0, number))
    driver.advance(0.5)
    (second,) = driver.heartbeats()
    assert second.heard == number


def test_heartbeats_of_another_agent_do_not_come_back_as_its_own() -> None:
    driver = session()
    driver.advance(0.0)
    (heartbeat,) = driver.heartbeats()
    driver.hear(HEARTBEAT_CHANNEL, control.encode(msgspec.structs.replace(heartbeat, instance=AGENT + 1), 0, 99))
    driver.advance(0.5)
    assert driver.heartbeats()[0].heard == 0


def test_when_the_lease_is_over_the_heartbeat_grants_nothing() -> None:
    driver = session()
    driver.advance(DEFAULT_LIMITS.server_lease_s + 1.0)
    last = driver.heartbeats()[-1]
    assert (last.lease_ms, last.granted) == (0, False)


def test_while_the_server_is_away_there_is_no_heartbeat() -> None:
    driver = session()
    driver.heartbeats()
    driver.core.lost(driver.now)
    driver.advance(5.0)
    assert driver.heartbeats() == []


# Hellos


def test_a_subscriber_is_registered_and_told_the_baseline() -> None:
    driver = session()
    publish(driver, 1, 2, 3)
    publish(driver, 8, stream=stream_id(OTHER + 1, 1))
    publish(driver, 4, channel=b"elsewhere")
    driver.tell(hello(nonce=5))
    ((client, nonce, answer),) = driver.take_with_heads(inbox_channel(CLIENT), control.Answer)
    assert isinstance(answer, control.Answer)
    assert (client, nonce) == (CLIENT, 5)
    assert (answer.server, answer.name, answer.incarnation) == ("s1", TILE, driver.core.incarnation)
    assert (answer.complete, answer.part, answer.parts) == (True, 0, 1)
    assert sorted(answer.streams) == sorted([(TILE, STREAM, 3, 0), (TILE, stream_id(OTHER + 1, 1), 8, 0)])
    assert answer.absent == []
    assert (answer.entry, answer.ring, answer.version) == (b"", b"", 0)
    assert driver.core.register.channels == {TILE: {CLIENT}}


def test_a_pattern_is_told_every_channel_that_it_matches() -> None:
    driver = session()
    for channel in (TILE, b"time", b"other"):
        publish(driver, 2, channel=channel)
    driver.tell(hello(name=b"ti*", pattern=True))
    (answer,) = driver.answers()
    assert sorted(answer.streams) == [(TILE, STREAM, 2, 0), (b"time", STREAM, 2, 0)]
    assert driver.core.register.patterns == {b"ti*": {CLIENT}}


def test_beacons_and_foreign_messages_are_not_taken_for_messages() -> None:
    driver = session()
    publish(driver, 2)
    driver.hear(TILE, b"foreign")
    driver.hear(TILE, envelope.beacon(1, STREAM, 2, 2, 0))
    driver.tell(hello())
    assert driver.answers()[0].streams == [(TILE, STREAM, 2, 0)]


def test_a_publisher_is_known_from_its_hello_on() -> None:
    driver = session()
    driver.tell(publisher_hello(last=17), client=OTHER)
    assert driver.answers(OTHER)[0].streams == []
    assert driver.core.register.channels == {}
    driver.tell(hello())
    assert driver.answers()[0].streams == [(TILE, STREAM, 17, 0)]


def test_a_publishers_hello_never_lowers_what_was_heard() -> None:
    driver = session()
    publish(driver, 1, 2, 3, 4, 5)
    driver.tell(publisher_hello(last=2), client=OTHER)
    driver.tell(hello())
    assert driver.answers()[0].streams == [(TILE, STREAM, 5, 0)]


def test_an_entry_is_passed_on_as_it_was_signed() -> None:
    driver = session()
    entry = SIGNER.entry(TILE, Placement(9, Mode.ALL_SUBSCRIBERS, ("s1", "s2")))
    driver.core.entry(entry)
    driver.tell(hello(ring_version=1))
    (answer,) = driver.answers()
    assert (answer.entry, answer.ring, answer.version) == (entry, RING, 9)


def test_a_bye_ends_the_registration() -> None:
    driver = session()
    driver.tell(hello(), control.Bye(TILE, False))
    assert not driver.core.register.clients


def test_the_answer_says_how_new_the_entry_is() -> None:
    driver = session()
    driver.core.entry(SIGNER.entry(TILE, Placement(9, Mode.SINGLE, ("s1",))))
    driver.core.entry(SIGNER.line(Entry(TILE, Placement(9, Mode.SINGLE, ("s1",)), revision=12)))
    driver.tell(hello())
    assert driver.answers()[0].version == 12
    driver.core.forget_entry(TILE)
    driver.tell(hello())
    assert (driver.answers()[0].version, driver.core.book.signed_entry(TILE)) == (0, b"")


def test_who_stands_by_an_entry_is_remembered_until_it_leaves() -> None:
    driver = session()
    driver.tell(hello(), control.Subscribed(TILE, 7))
    driver.tell(control.Subscribed(TILE, 7), client=OTHER)
    driver.tell(control.Left(TILE, STREAM, 7), client=OTHER)
    assert driver.core.register.acknowledged(CLIENT, TILE) == 7
    assert driver.core.register.acknowledged(OTHER, TILE) == 0
    driver.tell(control.Bye(TILE, False), hello())
    assert driver.core.register.acknowledged(CLIENT, TILE) == 0
    assert driver.core.counters.garbage == 0


@pytest.mark.parametrize("data", [FORGER.ring(ring(9, ("s9",))), SIGNER.ring(ring(2, ("s9",))), b"garbage", b""])
def test_a_ring_that_is_forged_or_stale_is_counted(data: bytes) -> None:
    driver = session()
    driver.core.ring(data)
    driver.core.entry(FORGER.entry(TILE, Placement(9, Mode.SINGLE, ("s9",))))
    assert driver.core.counters.forged == 2
    assert driver.core.book.version == 3


def test_who_asks_before_there_is_a_ring_is_answered_when_there_is_one() -> None:
    driver = AgentDriver()
    driver.open()
    driver.tell(hello())
    assert driver.answers() == []
    driver.core.ring(RING)
    driver.play()
    assert driver.answered() == [1]


# The resync


def resyncing(clients: int | None) -> AgentDriver:
    driver = AgentDriver()
    driver.core.ring(RING)
    driver.core.opened("run one", driver.now)
    driver.play(clients)
    return driver


def present(driver: AgentDriver, client: int, resync: int = 1, streams: control.StreamList | None = None) -> None:
    """A client answers a Resync."""
    for part in control.presents(driver.core.incarnation, resync, [TILE], [b"ti*"], streams or []):
        driver.tell(part, client=client)


def test_it_observes_and_calls_the_roll_before_anything_else() -> None:
    driver = resyncing(clients=2)
    kinds = [command[:2] for command in driver.commands]
    assert kinds == [(b"PSUBSCRIBE", b"*"), (b"PUBLISH", HEARTBEAT_CHANNEL), (b"PUBSUB", b"NUMSUB")]
    resync = control.Resync("s1", AGENT, driver.core.incarnation)
    assert driver.take_with_heads(HEARTBEAT_CHANNEL, control.Resync) == [(0, 1, resync)]
    assert driver.state() is AgentState.RESYNCING


def test_nobody_is_answered_before_all_are_present() -> None:
    driver = resyncing(clients=2)
    driver.tell(hello())
    present(driver, CLIENT)
    assert driver.answers() == []
    present(driver, OTHER, streams=[(TILE, STREAM, 12)])
    assert driver.state() is AgentState.SERVING
    assert driver.answers()[0].streams == [(TILE, STREAM, 12, 0)]
    assert driver.core.register.channels == {TILE: {CLIENT, OTHER}}
    assert driver.core.register.patterns == {b"ti*": {CLIENT, OTHER}}


def test_a_bye_takes_back_a_hello_that_still_waits() -> None:
    """Else the answer to it would register somebody who has left, for good, and a move would wait for them."""
    driver = resyncing(clients=2)
    driver.tell(publisher_hello(last=3), client=OTHER)
    driver.tell(hello(), hello(nonce=6, name=b"ti*", pattern=True), control.Bye(TILE, False))
    driver.advance(DEFAULT_LIMITS.resync_s)
    assert driver.state() is AgentState.SERVING
    assert set(driver.core.register.channels) == set()
    assert set(driver.core.register.patterns) == {b"ti*"}
    assert driver.answered() == [6]
    assert driver.take(inbox_channel(OTHER), control.Answer), "a publisher has nothing to do with it"


def test_a_client_that_says_hello_again_after_a_bye_is_registered_when_the_resync_is_over() -> None:
    driver = resyncing(clients=2)
    driver.tell(hello(nonce=5), control.Bye(TILE, False), hello(nonce=6))
    driver.advance(DEFAULT_LIMITS.resync_s)
    assert set(driver.core.register.channels) == {TILE}
    assert driver.answered() == [6]


def test_the_same_client_twice_is_one_and_another_roll_does_not_count() -> None:
    driver = resyncing(clients=2)
    present(driver, CLIENT)
    present(driver, CLIENT)
    present(driver, OTHER, resync=99)
    assert driver.state() is AgentState.RESYNCING


def test_whoever_stays_silent_is_not_waited_for_forever() -> None:
    driver = resyncing(clients=2)
    driver.tell(hello())
    driver.advance(DEFAULT_LIMITS.resync_s - 0.01)
    assert driver.answers() == []
    driver.advance(0.02)
    assert driver.state() is AgentState.SERVING
    assert len(driver.answers()) == 1


def test_a_server_that_does_not_count_its_clients_is_waited_for() -> None:
    driver = resyncing(clients=None)
    assert driver.state() is AgentState.RESYNCING
    driver.advance(DEFAULT_LIMITS.resync_s)
    assert driver.state() is AgentState.SERVING


def test_an_empty_server_is_served_at_once() -> None:
    assert resyncing(clients=0).state() is AgentState.SERVING


def test_who_comes_between_the_call_and_the_count_need_not_answer_the_call() -> None:
    driver = AgentDriver()
    driver.core.ring(RING)
    driver.core.opened("run one", driver.now)
    driver.receive(PushNotification([b"pmessage", b"*", AGENT_CHANNEL, control.encode(control.Greet(1, 3), OTHER, 1)]))
    driver.play(clients=2)
    assert driver.state() is AgentState.RESYNCING
    present(driver, CLIENT)
    assert driver.state() is AgentState.SERVING
    assert driver.core.complete


def test_who_comes_after_the_count_does_not_stand_for_somebody_who_is_silent() -> None:
    driver = resyncing(clients=2)
    present(driver, CLIENT)
    driver.tell(control.Greet(1, 3), client=OTHER)
    assert driver.state() is AgentState.RESYNCING
    driver.advance(DEFAULT_LIMITS.resync_s)
    assert driver.state() is AgentState.SERVING
    assert not driver.core.complete


def test_a_late_answer_completes_the_call() -> None:
    driver = resyncing(clients=2)
    present(driver, CLIENT)
    driver.advance(2 * DEFAULT_LIMITS.resync_s)
    present(driver, OTHER)
    assert driver.core.complete
    assert driver.core.counters.resyncs == 1, "nobody wanted to know"


def test_a_connection_that_is_lost_during_the_call_calls_again() -> None:
    driver = resyncing(clients=2)
    driver.tell(hello())
    driver.core.lost(driver.now)
    assert driver.state() is AgentState.AWAY
    driver.open(clients=0)
    assert driver.take_with_heads(HEARTBEAT_CHANNEL, control.Resync)[-1].number == 2
    assert driver.answers() == [], "who asked on the old connection will ask again"


# Lives


def test_a_new_agent_does_not_remember() -> None:
    driver = session()
    driver.tell(hello())
    assert not driver.answers()[0].remembers


def test_after_a_restart_of_the_server_those_not_heard_again_are_absent() -> None:
    driver = session()
    other = stream_id(OTHER + 1, 1)
    publish(driver, 1, 2)
    publish(driver, 7, stream=other)
    before = driver.core.incarnation
    driver.core.lost(driver.now)
    driver.open("run two")
    assert driver.core.incarnation != before
    assert not driver.core.register.clients
    publish(driver, 3)
    driver.tell(hello())
    (answer,) = driver.answers()
    assert answer.streams == [(TILE, STREAM, 3, 0)]
    assert answer.absent == [(TILE, other, 7, 0)]
    assert answer.remembers


def test_an_incarnation_in_which_a_client_was_silent_is_not_remembered() -> None:
    """The client may have published after it, and died before the next resync."""
    driver = resyncing(clients=2)
    present(driver, CLIENT)
    driver.advance(DEFAULT_LIMITS.resync_s)
    before = driver.core.incarnation
    driver.core.lost(driver.now)
    driver.open("run one")
    driver.tell(hello(incarnation=before))
    assert not driver.answers()[0].remembers


def test_an_incarnation_in_which_all_clients_have_answered_late_is_remembered() -> None:
    driver = resyncing(clients=2)
    present(driver, CLIENT)
    driver.advance(DEFAULT_LIMITS.resync_s)
    present(driver, OTHER)
    before = driver.core.incarnation
    for clients in (0, 3):
        driver.core.lost(driver.now)
        driver.open("run one", clients=clients)
        driver.advance(DEFAULT_LIMITS.resync_s)
        driver.tell(hello(incarnation=before))
        assert driver.answers()[-1].remembers, "new publishers wait for an answer, so the agent knows all"
        before = driver.core.incarnation


def test_two_restarts_in_a_row_are_remembered_too() -> None:
    """A publisher that has been silent through both may have published last before the first."""
    driver = session()
    publish(driver, 1, 2)
    for run_id in ("run two", "run three"):
        driver.core.lost(driver.now)
        driver.open(run_id)
    driver.tell(hello())
    assert driver.answers()[0].absent == [(TILE, STREAM, 2, 0)]


def test_what_was_silent_for_long_before_is_not_waited_for() -> None:
    """Otherwise every stream of every incarnation would be listed for ever, and subscriptions that have forgotten it
    would report it as missing."""
    driver = session()
    publish(driver, 1, 2)
    driver.core.lost(driver.now)
    driver.open("run two")
    driver.core.lost(driver.now)
    driver.now += 2 * DEFAULT_LIMITS.publisher_idle_s
    driver.core.tell_time(driver.core.second + int(2 * DEFAULT_LIMITS.publisher_idle_s), driver.now)
    driver.open("run three")
    driver.tell(hello())
    assert driver.answers()[0].absent == []


def quiet_s_after(elapsed_s: float, seconds: int, begin_s: float = 0.0, unread_s: float = 0.0) -> float:
    """What an Answer says about a stream, after a time by the loop's clock and by the wall clock. The agent began to
    read its messages `begin_s` after a tick, and had read them `unread_s` after the loop had read its clock."""
    driver = session()
    driver.core.tell_time(1000, driver.now)
    driver.now = math.ceil(driver.now) + begin_s
    messages = b"".join(observed(TILE, blob(STREAM, number, b"x")) for number in (1, 2))
    driver.core.received(messages, driver.now, heard_at=driver.now + unread_s)
    driver.now += elapsed_s
    driver.core.tell_time(1000 + seconds, driver.now)
    driver.tell(hello())
    ((_, _, last, quiet_s),) = driver.answers()[0].heard()
    assert last == 2
    return quiet_s


def test_an_answer_says_for_how_long_a_stream_has_been_quiet_at_least() -> None:
    assert quiet_s_after(0.0, 0) == 0
    for begin_s in (0.0, 0.03, 0.0624, 0.9999):
        assert 29.9 < quiet_s_after(30.0, 30, begin_s) <= 30
        assert 0.4 < quiet_s_after(0.5, 0, begin_s) <= 0.5


def test_messages_that_waited_to_be_read_make_no_stream_older() -> None:
    """They may have been published while the agent did something else in the same turn, or was suspended."""
    assert 9.9 < quiet_s_after(30.0, 30, unread_s=20.0) <= 10.0


def test_a_wall_clock_that_is_set_makes_no_stream_older() -> None:
    for seconds in (3630, -3600):
        assert 29.9 < quiet_s_after(30.0, seconds) <= 30


def test_lives_have_names_of_their_own() -> None:
    first, second = session(), session()
    second.core.lost(second.now)
    second.open("run two")
    assert first.core.incarnation != second.core.incarnation
    assert all(incarnation > 0 for incarnation in (first.core.incarnation, second.core.incarnation))


# Parts


def test_a_client_is_present_with_the_last_part_of_its_answer() -> None:
    driver = resyncing(clients=1)
    names = [b"tile.%d" % number for number in range(1500)]
    *first, last = control.presents(driver.core.incarnation, 1, names, [], [])
    driver.tell(*first)
    assert driver.state() is AgentState.RESYNCING
    driver.tell(last)
    assert driver.state() is AgentState.SERVING
    assert list(driver.core.register.channels) == names


def test_a_long_answer_comes_in_parts() -> None:
    driver = session()
    streams = [(b"tile.%d" % number, STREAM, 1, 0) for number in range(1500)]
    for channel, stream, number, _ in streams:
        publish(driver, number, channel=channel, stream=stream)
    driver.tell(hello(nonce=8, name=b"*", pattern=True))
    received = driver.take_with_heads(inbox_channel(CLIENT), control.Answer)
    assert [number for _, number, _ in received] == [8, 8, 8]
    parts = [one.message for one in received if isinstance(one.message, control.Answer)]
    assert [(part.part, part.parts) for part in parts] == [(0, 3), (1, 3), (2, 3)]
    assert sorted(stream for part in parts for stream in part.streams) == sorted(streams)


def test_an_answer_says_when_the_tables_were_full() -> None:
    driver = AgentDriver()
    tables = TableLimits(streams_per_channel_max=1)
    driver.core = AgentCore("s1", AGENT, Scanner(1 << 20, tables), driver.core.book, DEFAULT_LIMITS)
    driver.core.ring(RING)
    driver.open()
    publish(driver, 1)
    driver.tell(hello(), hello(name=b"*", pattern=True))
    assert [answer.complete for answer in driver.answers()] == [True, True]
    publish(driver, 1, stream=stream_id(OTHER, 2))
    driver.tell(hello(), hello(name=b"*", pattern=True), hello(name=b"other"))
    assert [answer.complete for answer in driver.answers()] == [False, False, True]


# Other versions


def of_version(version: int, client: int = CLIENT, number: int = 5) -> bytes:
    data = control.encode(control.Greet(1, 3), client, number)
    return data[:2] + bytes((version,)) + data[3:]


@pytest.mark.parametrize("version", [0, 1, 2, 4, 255])
def test_a_client_of_another_version_is_refused(version: int) -> None:
    driver = session()
    driver.hear(AGENT_CHANNEL, of_version(version))
    ((client, number, refused),) = driver.take_with_heads(inbox_channel(CLIENT), control.Refused)
    assert isinstance(refused, control.Refused)
    assert (client, number) == (CLIENT, 5)
    assert (refused.code, refused.version_min, refused.version_max) == ("version", 3, 3)
    assert f"version {version}" in refused.text
    assert driver.core.take_other_formats() == {"control messages of other versions": 1}
    assert driver.core.counters.garbage == driver.core.counters.greetings == 0


def test_refusals_are_limited() -> None:
    driver = session()
    for _ in range(50):
        driver.hear(AGENT_CHANNEL, of_version(4))
    assert len(driver.take(inbox_channel(CLIENT), control.Refused)) == REFUSALS_PER_S_MAX
    driver.now += 1.0
    driver.hear(AGENT_CHANNEL, of_version(4))
    assert len(driver.take(inbox_channel(CLIENT), control.Refused)) == 1


def test_a_client_of_format_1_is_noted_and_not_answered() -> None:
    driver = session()
    driver.hear(AGENT_CHANNEL, bytes.fromhex("f5439401010203"))
    driver.hear(TILE, HEADER_1.pack(MAGIC_1, 0, 1, STREAM, 1, 5) + b"x")
    driver.hear(TILE, HEADER.pack(MAGIC, 32, 1, STREAM, 1, 5) + b"x")
    assert driver.core.take_other_formats() == {
        "control messages of format 1": 1,
        "messages in envelopes of format 1": 1,
        "messages with unknown flags": 1,
    }
    assert driver.core.take_other_formats() == {}
    assert not any(driver.take(inbox_channel(CLIENT), kind) for kind in (control.Refused, control.Welcome))
    driver.tell(hello())
    assert driver.answers()[0].streams == [], "a message that cannot be read is no baseline"


@pytest.mark.parametrize("channel", [HEARTBEAT_CHANNEL, b"__shoal:other"])
def test_other_versions_elsewhere_are_not_answered(channel: bytes) -> None:
    driver = session()
    driver.hear(channel, of_version(4))
    assert driver.take(inbox_channel(CLIENT), control.Refused) == []


# Garbage


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=60), marked=st.booleans(), channel=st.sampled_from([AGENT_CHANNEL, HEARTBEAT_CHANNEL]))
def test_garbage_is_counted_and_harmless(data: bytes, marked: bool, channel: bytes) -> None:
    driver = session()
    publish(driver, 1)
    driver.hear(channel, b"\xf5D\x03" + data if marked else data)
    publish(driver, 2)
    driver.tell(hello(nonce=4))
    answer = driver.answers()[-1]
    assert answer.streams == [(TILE, STREAM, 2, 0)]
    assert driver.core.counters.garbage <= 1


@pytest.mark.parametrize(
    "message",
    [
        control.Welcome("s1", 1, 1, 1, 1, 1, b""),
        control.Resend(TILE, b"x"),
        control.Healed(TILE, STREAM, 1, 1, 1, 1),
        control.Heal(TILE, STREAM, 1, 2),
        control.Notice("s1", TILE, b""),
        control.Refused("version", 2, 2, 0, "no"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_that_is_not_for_agents_is_garbage(message: control.Control) -> None:
    driver = session()
    driver.tell(message)
    assert driver.core.counters.garbage == 1


@pytest.mark.parametrize(
    "message",
    [
        control.Hello(U64_MAX, TILE, False, True, 1, 1, U64_MAX, U64_MAX),
        control.Hello(1, b"", False, True, (1 << 32) - 1, (1 << 32) - 1),
        control.Hello(1, b"x" * 100_000, False, True, 1, 1),
        control.Hello(1, b"x" * 100_000, False, False, 1, 1, 5, 5),
        control.Hello(1, b"[[[***\\", True, True, 1, 1),
        control.Hello(1, b"*" * 200 + b"!", True, True, 1, 1),
        control.Present(U64_MAX, 1, 9, 3, [b""], [b"["], [(b"", U64_MAX, U64_MAX), (b"y" * 100_000, 0, 0)]),
        control.Bye(b"never there", True),
        control.Greet(U64_MAX, (1 << 32) - 1),
        control.Subscribed(b"never there", U64_MAX),
        control.Left(b"x" * 100_000, U64_MAX, U64_MAX),
    ],
    ids=lambda message: f"{type(message).__name__}",
)
def test_extreme_values_harm_nobody(message: control.Control) -> None:
    driver = session()
    publish(driver, 1, 2)
    driver.tell(message, client=(1 << 48) - 1)
    driver.tell(message, number=U64_MAX)
    driver.tell(hello(nonce=4711))
    answer = driver.answers()[-1]
    assert (TILE, STREAM, 2, 0) in answer.streams


def test_bytes_that_are_not_resp_are_the_peers_fault() -> None:
    driver = session()
    with pytest.raises(ProtocolError):
        driver.core.received(b"HTTP/1.1 200 OK\r\n\r\n", driver.now)


def test_replies_go_to_those_who_asked_in_order() -> None:
    driver = session()
    heard: list[object] = []
    driver.core.ask((b"PING",), lambda reply, now: heard.append(reply))
    driver.core.ask((b"PING",))
    driver.core.ask((b"INFO",), lambda reply, now: heard.append(reply))
    driver.core.outbox.clear()
    driver.receive("PONG", "PONG", b"the info")
    assert [str(reply) for reply in heard] == [str(b"PONG"), str(b"the info")]


def test_a_stream_that_presents_itself_late_is_announced_to_those_who_were_answered_meanwhile() -> None:
    driver = AgentDriver()
    driver.core.ring(SIGNER.ring(ring(1, ("s1",))))
    driver.open(clients=2)
    driver.advance(driver.core.limits.resync_s)
    assert driver.state() is AgentState.SERVING
    late = control.Present(1, 1, 0, 1, [], [], [(b"tile", STREAM, 4), (b"__shoal:agent", STREAM, 4)])
    driver.tell(late, client=OTHER)
    (channel, data), *more = driver.announced
    assert (channel, more) == (b"tile", [])
    assert beacons([(channel, data)]) == [(4, 0, False)]
    driver.tell(late, client=OTHER)
    assert len(driver.announced) == 1, "it is known by now"


# Since when it remembers


def test_it_says_which_ring_there_was_when_it_began() -> None:
    driver = session()
    driver.core.ring(SIGNER.ring(ring(4, ("s1", "s2", "s3"))))
    driver.tell(hello())
    assert driver.answers()[0].since == 3
    driver.core.lost(driver.now)
    driver.open(clients=0)
    driver.tell(hello(2))
    assert driver.answers()[0].since == 3, "it is the same process"


def test_an_agent_that_serves_before_it_knows_a_ring_begins_with_the_first_that_it_hears_of() -> None:
    driver = AgentDriver()
    driver.open(clients=0)
    driver.core.ring(RING)
    driver.tell(hello())
    assert driver.answers()[0].since == 3


# Limits


def test_a_pattern_with_many_stars_is_not_answered() -> None:
    driver = session()
    driver.tell(hello(1, b"*a" * 17, pattern=True))
    driver.tell(hello(2, b"*a" * 16, pattern=True))
    assert [answer.name for answer in driver.take(inbox_channel(CLIENT), control.Answer)] == [b"*a" * 16]
    assert driver.core.register.patterns.keys() == {b"*a" * 16}
    assert driver.core.counters.garbage == 1


# Turns: timers and other connections do not wait behind what clients send


def test_a_turn_ends_after_a_bounded_amount_of_work_and_the_next_one_goes_on() -> None:
    driver = session()
    driver.core.outbox.clear()
    count = 2 * TURN_WORK_MAX + 10
    hellos = [control.encode(hello(nonce), CLIENT, nonce) for nonce in range(1, count + 1)]
    data = b"".join(observed(AGENT_CHANNEL, one) for one in hellos)
    assert not driver.core.received(data, driver.now)
    assert driver.core.counters.hellos == TURN_WORK_MAX
    assert not driver.core.work(driver.now)
    assert driver.core.work(driver.now)
    assert driver.core.counters.hellos == count
    assert driver.core.work(driver.now)


def test_expensive_messages_fill_a_turn_sooner() -> None:
    driver = session()
    greets = [control.encode(control.Greet(nonce, 3), CLIENT, nonce) for nonce in range(1, TURN_WORK_MAX + 1)]
    assert not driver.core.received(b"".join(observed(AGENT_CHANNEL, greet) for greet in greets), driver.now)
    assert driver.core.counters.greetings == TURN_WORK_MAX // 10


def test_control_messages_of_later_turns_are_handled_in_order() -> None:
    driver = session()
    first = [observed(AGENT_CHANNEL, control.encode(hello(n, b"c%d" % n), CLIENT, n)) for n in range(1, 1500)]
    last = observed(AGENT_CHANNEL, control.encode(control.Bye(b"c1499", False), CLIENT, 1500))
    assert not driver.core.received(b"".join(first), driver.now)
    assert not driver.core.received(last, driver.now)
    while not driver.core.work(driver.now):
        pass
    assert len(driver.core.register.channels) == 1498


def test_an_agent_that_is_behind_its_server_reads_first_and_still_serves_every_client() -> None:
    driver = session()
    flood = [observed(AGENT_CHANNEL, control.encode(hello(n, b"c%d" % n), CLIENT, n)) for n in range(1, 1000)]
    honest = observed(AGENT_CHANNEL, control.encode(hello(7), OTHER, 7))
    assert not driver.core.received(b"".join(flood) + honest, driver.now, behind=True)
    assert len(driver.core.register.channels) == TURN_WORK_BEHIND
    assert not driver.core.work(driver.now, behind=True)
    assert driver.core.register.channels[TILE] == {OTHER}


def test_messages_do_not_wait_behind_control_messages() -> None:
    driver = session()
    flood = [observed(AGENT_CHANNEL, control.encode(hello(n, b"c%d" % n), CLIENT, n)) for n in range(1, 5000)]
    message = observed(TILE, blob(STREAM, 9, b"x"))
    assert not driver.core.received(b"".join(flood) + message, driver.now)
    assert driver.core.streams(TILE) == {STREAM: 9}


def test_only_own_heartbeats_as_they_were_sent_count_as_heard() -> None:
    driver = session()
    driver.advance(DEFAULT_LIMITS.heartbeat_interval_s)
    sent = [command[2] for command in driver.commands if command[:2] == (b"PUBLISH", HEARTBEAT_CHANNEL)]
    (*_, (_, number, ours)) = driver.take_with_heads(HEARTBEAT_CHANNEL, control.Heartbeat)
    assert isinstance(ours, control.Heartbeat)
    driver.hear(HEARTBEAT_CHANNEL, control.encode(ours, 0, number + 1))
    driver.hear(HEARTBEAT_CHANNEL, control.encode(msgspec.structs.replace(ours, lease_ms=1), 0, number))
    assert driver.core._heard == 0
    driver.hear(HEARTBEAT_CHANNEL, sent[-1])
    assert driver.core._heard == number


def test_a_full_queue_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_queue, "QUEUE_BYTES_MAX", 10_000)
    driver = session()
    flood = [observed(AGENT_CHANNEL, control.encode(hello(n, b"c%d" % n), CLIENT, n)) for n in range(1, 5000)]
    assert not driver.core.received(b"".join(flood), driver.now)
    while not driver.core.work(driver.now):
        pass
    taken = len(driver.core.register.channels)
    assert TURN_WORK_MAX < taken < TURN_WORK_MAX + 200
    assert driver.core.counters.over_quota == 4999 - taken


def test_a_client_in_debt_is_not_served_from_the_queue_and_others_do_not_pay_for_it() -> None:
    """What an Answer lists is charged when it is sent. A debt that all clients shared made honest ones wait for half a
    minute."""
    driver = metered(control_at_once_max=3000)
    for number in range(1, 32 * 30):
        publish(driver, 1, stream=stream_id(number, 1))
    hellos = [control.encode(hello(nonce), CLIENT, nonce) for nonce in range(1, 2001)]
    driver.core.received(b"".join(observed(AGENT_CHANNEL, one) for one in hellos), driver.now)
    driver.core.received(observed(AGENT_CHANNEL, control.encode(hello(7, b"mine"), OTHER, 7)), driver.now)
    driver.core.work(driver.now)
    driver.play()
    assert driver.answered(OTHER) == [7]
    while not driver.core.work(driver.now):
        pass
    handled = driver.core.counters.hellos - 1
    assert 1000 // 30 < handled < 2000 // 30
    assert driver.core.counters.over_quota == 2000 - handled
    driver.tell(hello(8, b"more"), client=OTHER, number=8)
    assert driver.answered(OTHER) == [8]


def test_greets_over_the_quota_are_not_even_queued() -> None:
    """A Greet costs more than a short Hello, which can be seen before it is decoded."""
    driver = metered(control_at_once_max=1000)
    greets = [control.encode(control.Greet(nonce, 3), CLIENT, nonce) for nonce in range(1, 5001)]
    driver.core.received(b"".join(observed(AGENT_CHANNEL, greet) for greet in greets), driver.now)
    while not driver.core.work(driver.now):
        pass
    assert driver.core.counters.greetings == 100
    assert driver.core.scanner.take_passed_over() == (0, 4900, 0)


# Quotas


def metered(**changes: int) -> AgentDriver:
    """A serving agent with small quotas."""
    driver = AgentDriver(limits=msgspec.structs.replace(DEFAULT_LIMITS, **changes))
    driver.core.ring(RING)
    driver.core.lease.granted(driver.now)
    driver.open(clients=0)
    return driver


def test_hellos_over_the_quota_are_passed_over_and_the_client_is_told_once_to_wait() -> None:
    driver = metered(control_at_once_max=5, control_per_s_max=1)
    for nonce in range(1, 21):
        driver.tell(hello(nonce, b"c%d" % nonce), number=nonce)
    assert driver.answered() == [1, 2, 3, 4, 5]
    assert len(driver.core.register.channels) == 5
    assert driver.core.scanner.take_passed_over() == (0, 15, 0)
    driver.core.tell_time(1, driver.now)
    driver.core.tell_time(2, driver.now)
    driver.play()
    ((client, number, refused),) = driver.take_with_heads(inbox_channel(CLIENT), control.Refused)
    assert (client, number) == (CLIENT, 20)
    assert isinstance(refused, control.Refused)
    assert (refused.code, refused.retry_ms) == (control.REFUSED_BUSY, 1000)


def test_other_clients_are_served_meanwhile() -> None:
    driver = metered(control_at_once_max=5, control_per_s_max=1)
    for nonce in range(1, 21):
        driver.tell(hello(nonce), number=nonce)
    driver.tell(hello(99), client=OTHER, number=99)
    assert driver.answered(OTHER) == [99]
    driver.advance(3.0)
    driver.answered()
    driver.tell(hello(30), number=30)
    assert driver.answered() == [30]


def test_a_hello_that_lists_many_streams_costs_more() -> None:
    driver = metered(control_at_once_max=20, control_per_s_max=1)
    for number in range(1, 32 * 30):
        publish(driver, 1, stream=stream_id(number, 1))
    driver.tell(hello(1), number=1)
    assert set(driver.answered()) == {1}
    driver.tell(hello(2), number=2)
    assert driver.answered() == []


def test_a_subscription_that_does_not_fit_the_register_is_refused() -> None:
    driver = metered(registered_max=2)
    for nonce in range(1, 6):
        driver.tell(hello(nonce, b"c%d" % nonce), number=nonce)
    assert driver.answered() == [1, 2]
    driver.core.tell_time(1, driver.now)
    driver.play()
    assert driver.take(inbox_channel(CLIENT), control.Refused)
    driver.tell(publisher_hello(3), client=OTHER)
    assert driver.answered(OTHER) == [9]


def test_a_resync_is_not_complete_if_the_register_has_no_room() -> None:
    driver = metered(registered_max=2)
    driver.core.lost(driver.now)
    driver.open(clients=1)
    driver.tell(control.Present(driver.core.incarnation, driver.core._resync.number, 0, 1, [b"a", b"b", b"c"], [], []))
    driver.advance(DEFAULT_LIMITS.resync_s)
    assert driver.state() is AgentState.SERVING
    assert not driver.core.complete


def test_deferred_hellos_are_answered_in_turns() -> None:
    driver = AgentDriver()
    driver.core.lease.granted(driver.now)
    driver.open(clients=0)
    count = 2 * TURN_WORK_MAX + 5
    for nonce in range(1, count + 1):
        driver.tell(hello(nonce, b"c%d" % nonce), number=nonce)
    driver.core.ring(RING)
    assert len(driver.core.register.channels) == TURN_WORK_MAX
    driver.advance(0.1)
    assert driver.answered() == list(range(1, count + 1))
