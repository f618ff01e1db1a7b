"""An agent with secrets: what it forwards has the target's tag, what is false goes no further and is named at once."""

from __future__ import annotations

import pytest
from tests.support.core_driver import BEGIN, CLIENT, SIGNER, AgentDriver, of_kind, ring
from tests.support.dispatch_driver import DispatchDriver, entry_of

from shoal.channels.agent.core import REFUTE_PAUSE_S, REFUTE_REPEAT_S
from shoal.channels.agent.stream_memory import Known
from shoal.plan.entry import Phase
from shoal.plan.placement import Mode, Placement
from shoal.wire import control, envelope
from shoal.wire.envelope import BEACON, FORWARDED, HEADER, HEARTBEAT_CHANNEL, stream_id
from shoal.wire.identity import AgentSecret
from shoal.wire.lane_tag import covered_end, has_tag, lane_state, mark_of, tagged

TILE = b"tile"
STREAM = stream_id(CLIENT, 1)
SECRETS = {generation: AgentSecret(generation, bytes((generation,)) * 32) for generation in (1, 2)}
KEY = SECRETS[2].client(CLIENT)


def message(sequence: int, payload: bytes = b"", version: int = 1) -> bytes:
    blob = HEADER.pack(envelope.MAGIC, 0, version, STREAM, sequence, 5) + payload
    return tagged(blob, lane_state(KEY.lane("s1", TILE)))


def moving(told: bool = True) -> DispatchDriver:
    """The agent of s1, from which the channel moves to s2: its messages are forwarded there. The publisher has
    told that it begins."""
    driver = DispatchDriver(secrets=SECRETS)
    driver.serve()
    if told:
        driver.tell(control.Hello(9, TILE, False, False, 0, 3, STREAM, 0))
    old, new = (Placement(version, Mode.SINGLE, (server,)) for version, server in ((1, "s1"), (2, "s2")))
    driver.enter(entry_of(TILE, Phase.SWITCH, 2, new, old))
    driver.taken("s2")
    return driver


def forwarded(driver: DispatchDriver) -> list[bytes]:
    driver.play()
    return [blob for _, blob in driver.taken("s2")]


def heartbeats(driver: DispatchDriver) -> list[control.Heartbeat]:
    return driver.take(HEARTBEAT_CHANNEL, control.Heartbeat)


def test_a_forwarded_message_has_the_tag_of_the_target() -> None:
    driver = moving()
    driver.hear(TILE, message(1, b"north"))
    (blob,) = forwarded(driver)
    assert blob[2] == FORWARDED
    assert blob.endswith(b"north")
    assert has_tag(blob, lane_state(KEY.lane("s2", TILE)))


def test_an_agents_beacon_has_the_tag_of_the_target() -> None:
    driver = DispatchDriver(secrets=SECRETS)
    driver.serve()
    driver.hear(TILE, message(7))
    old, new = (Placement(version, Mode.SINGLE, (server,)) for version, server in ((1, "s1"), (2, "s2")))
    driver.enter(entry_of(TILE, Phase.SWITCH, 2, new, old))
    (blob,) = [blob for blob in forwarded(driver) if blob[2] & BEACON]
    assert has_tag(blob, lane_state(KEY.lane("s2", TILE)))


@pytest.mark.parametrize(
    "false",
    [
        HEADER.pack(envelope.MAGIC, 0, 1, STREAM, 2, 5),
        message(2)[:16] + HEADER.pack(envelope.MAGIC, 0, 1, STREAM, 1 << 60, 5)[16:24] + message(2)[24:],
        envelope.beacon(1, STREAM, 1 << 60, 0, 0, final=True),
    ],
)
def test_a_false_message_is_not_forwarded_and_named_early(false: bytes) -> None:
    driver = moving()
    driver.hear(TILE, message(1))
    forwarded(driver)
    heartbeats(driver)
    sent_at = driver.now
    driver.hear(TILE, false)
    assert forwarded(driver) == []
    assert driver.core.streams(TILE) == {STREAM: 1}
    due = driver.core.next_timer()
    assert due is not None
    assert due <= sent_at + REFUTE_PAUSE_S
    driver.now = max(driver.now, due)
    driver.core.timer(driver.now)
    driver.play()
    (heartbeat,) = heartbeats(driver)
    number = HEADER.unpack_from(false)[4]
    assert heartbeat.refuted == [(TILE, [(STREAM, number, mark_of(false[: covered_end(false)]))])]
    driver.now += 1
    driver.core.timer(driver.now)
    driver.play()
    assert [again.refuted for again in heartbeats(driver)] == [heartbeat.refuted]
    driver.now += REFUTE_REPEAT_S
    driver.core.timer(driver.now)
    driver.play()
    assert [later.refuted for later in heartbeats(driver)] == [[]]


def test_early_heartbeats_name_only_what_is_new_and_others_repeat_it() -> None:
    driver = moving()
    driver.hear(TILE, message(1))
    driver.now += 1
    driver.core.timer(driver.now)
    driver.play()
    heartbeats(driver)
    named: list[list[int]] = []
    for number in range(2, 10):
        driver.hear(TILE, HEADER.pack(envelope.MAGIC, 0, 1, STREAM, number, 5))
        driver.now += REFUTE_PAUSE_S
        driver.core.timer(driver.now)
        driver.play()
        (heartbeat,) = heartbeats(driver)
        ((_, listed),) = heartbeat.refuted
        named.append([number for _, number, _ in listed])
    assert named[:3] == [[2], [3], [4]]
    assert [len(numbers) for numbers in named].count(1) >= 6
    assert list(range(2, max(map(len, named)) + 2)) in named


def test_a_copy_is_not_forwarded_because_its_payload_may_differ() -> None:
    driver = moving()
    driver.hear(TILE, message(1, b"true"))
    driver.hear(TILE, message(2, b"true"))
    forwarded(driver)
    driver.hear(TILE, message(1, b"altered"))
    driver.hear(TILE, message(2, b"altered"))
    assert forwarded(driver) == []
    assert not driver.core.scanner.refutes


def test_what_comes_before_the_word_of_its_publisher_waits_for_it() -> None:
    """The agent was away when 1 and 2 were published, so it has not heard the true 2. It has heard the true 3 first."""
    driver = moving(told=False)
    driver.core.mark(TILE, True)
    recorded: list[bytes] = []
    driver.core.recorder.heard = (  # type: ignore[method-assign]
        lambda channel, blob, fresh, now: recorded.append(blob) if fresh else None
    )
    for number, payload in ((2, b"altered"), (3, b"true"), (3, b"altered")):
        driver.hear(TILE, message(number, payload))
    assert (forwarded(driver), recorded) == ([], [])
    driver.tell(control.Present(driver.core.incarnation, 1, 0, 1, [], [], [(TILE, STREAM, 2)]))
    driver.hear(TILE, message(4, b"true"))
    speech = [blob for blob in forwarded(driver) if not blob[2] & BEACON]
    assert [(HEADER.unpack_from(blob)[4], blob[-4:]) for blob in speech] == [(3, b"true"), (4, b"true")]
    assert recorded == [message(3, b"true"), message(4, b"true")]


def test_what_a_connected_publisher_repeats_is_not_taken_from_others() -> None:
    """1 and 2 reached the server while the agent was away. The publisher lost its connection before 2 was confirmed.
    So a 2 that the agent hears before the publisher is back may be a copy, although 2 is above what is confirmed."""
    driver = moving(told=False)
    driver.core.mark(TILE, True)
    recorded: list[bytes] = []
    evidence: list[int] = []
    driver.core.recorder.heard = (  # type: ignore[method-assign]
        lambda channel, blob, fresh, now: recorded.append(blob) if fresh else None
    )
    driver.core.recorder.evidence = (  # type: ignore[method-assign]
        lambda channel, stream, last, present, now: evidence.append(last)
    )
    driver.hear(TILE, message(2, b"altered"))
    driver.tell(control.Hello(9, TILE, False, False, 0, 3, STREAM, 1))
    assert ([blob for blob in forwarded(driver) if not blob[2] & BEACON], recorded) == ([], [])
    assert evidence == [1, 2], "the publisher is asked for 2"
    driver.hear(TILE, message(2, b"true"))
    (blob,) = [blob for blob in forwarded(driver) if not blob[2] & BEACON]
    assert blob.endswith(b"true")
    assert recorded == [message(2, b"true")]


def test_an_agent_does_not_vouch_for_a_stream_whose_publisher_has_not_told_how_far_it_has_come() -> None:
    driver = moving()
    for number in (1, 2, 3):
        driver.hear(TILE, message(number))
    driver.core.lost(driver.now)
    driver.serve("run two")
    driver.hear(TILE, message(2))
    memory = driver.core._memory
    current = memory.current(TILE, False)
    assert current.untold == {(TILE, STREAM)}
    ((last, _),) = memory.absent(TILE, False, current, driver.now).streams.values()
    assert last == 3
    driver.tell(control.Hello(9, TILE, False, False, 0, 3, STREAM, 3))
    current = memory.current(TILE, False)
    assert (current.untold, memory.absent(TILE, False, current, driver.now).streams) == (frozenset(), {})


def test_what_a_dead_publisher_may_have_published_is_forgotten_with_the_incarnation() -> None:
    driver = moving(told=False)
    driver.hear(TILE, message(2, b"altered"))
    driver.core.lost(driver.now)
    driver.serve("run two")
    driver.tell(control.Hello(9, TILE, False, False, 0, 3, STREAM, 0))
    assert [blob for blob in forwarded(driver) if not blob[2] & BEACON] == []


def test_what_was_heard_before_there_was_a_ring_is_forgotten() -> None:
    """Whether messages have tags was not known, so none was checked."""
    driver = AgentDriver(secret=SECRETS[2])
    driver.core.secrets = SECRETS
    driver.core.mark(TILE, True)
    driver.open()
    driver.hear(TILE, HEADER.pack(envelope.MAGIC, 0, 1, STREAM, 1 << 60, 5))
    driver.core.lost(driver.now)
    driver.open("run two")
    driver.hear(TILE, HEADER.pack(envelope.MAGIC, 0, 1, STREAM, 1 << 60, 5))
    driver.core.ring(SIGNER.ring(ring(3, ("s1",), secret=SECRETS[2])))
    assert driver.core.streams(TILE) == {}
    assert driver.core._memory.absent(TILE, False, Known({}, True, 0), driver.now).streams == {}
    assert driver.core.counters.recorded == 0


def test_foreign_messages_are_forwarded_without_a_tag() -> None:
    driver = moving()
    driver.hear(TILE, b"plain")
    (blob,) = forwarded(driver)
    assert blob == envelope.forwarded(b"plain")


def test_false_messages_come_no_faster_than_the_pause_allows() -> None:
    driver = moving()
    heartbeats(driver)
    times = []
    for step in range(100):
        driver.now = BEGIN + 1 + step / 100
        driver.hear(TILE, HEADER.pack(envelope.MAGIC, 0, 1, STREAM, 100 + step, 5))
        driver.core.timer(driver.now)
        driver.play()
        times += [driver.now] * len(of_kind(heartbeats(driver), control.Heartbeat))
    assert 8 <= len(times) <= 11


def test_the_recorder_takes_authentic_messages_only_and_each_once() -> None:
    driver = moving()
    driver.core.mark(TILE, True)
    heard: list[bytes] = []
    driver.core.recorder.heard = (  # type: ignore[method-assign]
        lambda channel, blob, fresh, now: heard.append(blob) if fresh else None
    )
    driver.hear(TILE, message(1))
    driver.hear(TILE, message(1, b"altered"))
    driver.hear(TILE, HEADER.pack(envelope.MAGIC, 0, 1, STREAM, 2, 5))
    driver.hear(TILE, b"plain")
    assert heard == [message(1), b"plain"]
