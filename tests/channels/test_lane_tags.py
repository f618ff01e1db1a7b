"""Published messages carry the tag of the server that they are sent to, whatever the reason they are sent for."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st
from tests.support.core_driver import CLIENT, SIGNER, RouterDriver, channel_at

from shoal.limits import DEFAULT_LIMITS
from shoal.plan.placement import Mode, Placement
from shoal.wire import envelope
from shoal.wire.envelope import BEACON, FINAL, HEADER, HEADER_BYTES
from shoal.wire.identity import AgentSecret, ClientKey
from shoal.wire.lane_tag import TAG_AT, has_tag, lane_state, tagged

TILE = b"tile"
SECRET = AgentSecret(1, bytes(range(32)))
KEY = SECRET.client(CLIENT)


def is_authentic(key: ClientKey, server: str, channel: bytes, blob: bytes) -> bool:
    """The tag by docs/identity.md, computed from the header alone."""
    words = blob[3]
    settled = blob[HEADER_BYTES + 8 * words :] if blob[2] & BEACON else b""
    covered = blob[:TAG_AT] + blob[HEADER_BYTES : HEADER_BYTES + 8 * words] + settled
    lane = hashlib.blake2s(bytes((len(server),)) + server.encode() + channel, key=key.key, person=b"lane").digest()
    tag = hashlib.blake2s(lane + covered, person=b"message", digest_size=8).digest()
    return blob[TAG_AT:HEADER_BYTES] == tag


def all_authentic(driver: RouterDriver) -> bool:
    """Whether each server got messages, and only messages with its own tag."""
    published = [(here.server, *sent) for here in driver.servers.values() for sent in here.published]
    assert all(here.published for here in driver.servers.values())
    return all(is_authentic(KEY, *sent) for sent in published)


def test_messages_attributes_and_beacons_have_the_tag_of_their_server() -> None:
    driver = RouterDriver(secret=SECRET)
    driver.publish(TILE, b"1", b"2")
    driver.router.publish(TILE, b"3", envelope.encode_attributes({"a": 1}, DEFAULT_LIMITS), 5, driver.now)
    driver.play()
    driver.advance(2 * DEFAULT_LIMITS.beacon_delay_s)
    driver.router.close(driver.now)
    driver.play()
    flags = [blob[2] for _, blob in driver.servers["s1"].published]
    assert flags == [BEACON, 0, 0, envelope.ATTRIBUTES, BEACON, BEACON | FINAL]
    assert all_authentic(driver)


def test_each_of_several_servers_gets_its_own_tag() -> None:
    driver = RouterDriver(("s1", "s2"), secret=SECRET)
    driver.router.entry(SIGNER.entry(TILE, Placement(1, Mode.ALL_PUBLISHERS, ("s1", "s2"))), driver.now)
    driver.publish(TILE, b"1", b"2")
    driver.advance(2 * DEFAULT_LIMITS.beacon_delay_s)
    assert all_authentic(driver)


def test_a_message_that_is_repeated_elsewhere_gets_the_tag_of_the_new_server() -> None:
    driver = RouterDriver(("s1", "s2"), secret=SECRET)
    channel = channel_at(driver.ring, "s1")
    driver.publish(channel, b"1")
    driver.servers["s1"].mute = True
    driver.publish(channel, b"2")
    driver.change_ring(("s2",))
    blobs = [blob for _, blob in driver.servers["s2"].published]
    assert [HEADER.unpack_from(blob)[4] for blob in blobs if not blob[2] & BEACON] == [2]
    assert all_authentic(driver)


def test_without_a_key_the_tag_is_zero() -> None:
    driver = RouterDriver()
    driver.publish(TILE, b"1")
    assert driver.servers["s1"].published[-1][1][TAG_AT:] == bytes(8) + b"1"


@given(
    flags=st.integers(0, 255),
    words=st.integers(0, 20),
    rest=st.binary(min_size=8, max_size=200),
    changed=st.integers(0, 31),
)
def test_a_tag_covers_header_extension_and_settled(flags: int, words: int, rest: bytes, changed: int) -> None:
    blob = HEADER.pack(envelope.MAGIC, flags & ~envelope.FOREIGN, 1, 2, 3, 4)
    blob = blob[:3] + bytes((words,)) + blob[4:] + bytes(8 * words) + rest
    state = lane_state(KEY.lane("s1", TILE))
    sent = tagged(blob, state)
    assert has_tag(sent, state)
    assert not has_tag(sent, lane_state(KEY.lane("s2", TILE)))
    assert not has_tag(sent[:4] + bytes((sent[4] ^ 1,)) + sent[5:], state)
    if words:
        at = HEADER_BYTES + changed % (8 * words)
        assert not has_tag(sent[:at] + b"\xff" + sent[at + 1 :], state)
    assert has_tag(sent + b"more payload", state)


def test_a_foreign_message_has_no_tag() -> None:
    blob = envelope.forwarded(b"plain")
    assert tagged(blob, lane_state(KEY.lane("s1", TILE))) == blob
