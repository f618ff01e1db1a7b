"""An agent with secrets: what it forwards has the target's tag, what is false goes no further and is named at once."""

from __future__ import annotations

import pytest
from tests.support.core_driver import BEGIN, CLIENT, of_kind
from tests.support.dispatch_driver import DispatchDriver, entry_of

from shoal.channels.agent.core import REFUTE_PAUSE_S, REFUTE_REPEAT_S
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


def moving() -> DispatchDriver:
    """The agent of s1, from which the channel moves to s2: its messages are forwarded there."""
    driver = DispatchDriver(secrets=SECRETS)
    driver.serve()
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


def test_a_copy_is_not_forwarded_because_its_payload_may_differ() -> None:
    driver = moving()
    driver.hear(TILE, message(1, b"true"))
    driver.hear(TILE, message(2, b"true"))
    forwarded(driver)
    driver.hear(TILE, message(1, b"altered"))
    driver.hear(TILE, message(2, b"altered"))
    assert forwarded(driver) == []
    assert not driver.core.scanner.refutes


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


def test_the_recorder_takes_authentic_messages_only() -> None:
    driver = moving()
    driver.core.mark(TILE, True)
    heard: list[bytes] = []
    driver.core.recorder.heard = lambda channel, blob, now: heard.append(blob)  # type: ignore[method-assign]
    driver.hear(TILE, message(1))
    driver.hear(TILE, HEADER.pack(envelope.MAGIC, 0, 1, STREAM, 2, 5))
    driver.hear(TILE, b"plain")
    assert heard == [message(1), b"plain"]
