"""A client with authenticated messages (scheme 1): which agents and peers it believes."""

from __future__ import annotations

import msgspec
import pytest
from hiredis import PushNotification
from tests.support.core_driver import (
    AGENT,
    CLIENT,
    OTHER,
    OTHER_SECRET,
    SECRET,
    STREAM,
    RouterDriver,
    answer_of,
    blob,
    from_agent,
)

from shoal.channels import states
from shoal.channels.client.server_link import SIGNATURES_AT_ONCE_MAX, SIGNATURES_PER_S_MAX
from shoal.message import Gap
from shoal.wire import control, identity
from shoal.wire.envelope import HEARTBEAT_CHANNEL, inbox_channel, peer_channel

FOREVER_MS = (1 << 32) - 1
FAR = 1 << 60
THIRD = 0xBAD


def driven(servers: tuple[str, ...] = ("s1",)) -> RouterDriver:
    return RouterDriver(servers, secret=SECRET)


def signed(message: control.Control, number: int) -> bytes:
    return control.encode(message, 0, number, control.SignatureSeal(SECRET))


def nonce_of_greet(driver: RouterDriver) -> int:
    return driver.heard("s1", control.Greet)[-1].nonce


# Agents


@pytest.mark.parametrize("seal", [None, from_agent(OTHER_SECRET, CLIENT, "s1"), from_agent(SECRET, CLIENT, "s2")])
def test_a_forged_welcome_makes_no_server_usable(seal: control.Seal | None) -> None:
    driver = driven()
    driver.servers["s1"].silent = True
    driver.subscribe(b"tile")
    welcome = msgspec.structs.replace(driver.servers["s1"].welcome(), lease_ms=FOREVER_MS)
    data = control.encode(welcome, CLIENT, nonce_of_greet(driver), seal)
    driver.push("s1", inbox_channel(CLIENT), data)
    assert driver.state("s1") is states.LinkState.GREETING
    assert driver.counters.unauthentic == 1


def test_a_welcome_of_the_agent_makes_it_usable_for_at_most_a_lease() -> None:
    driver = driven()
    driver.servers["s1"].lease_ms = FOREVER_MS
    driver.subscribe(b"tile")
    assert driver.state("s1") is states.LinkState.USABLE
    driver.servers["s1"].silent = True
    driver.advance(3.0)
    assert driver.state("s1") is states.LinkState.STALE


def test_a_forged_answer_is_not_taken() -> None:
    driver = driven()
    driver.servers["s1"].silent = True
    sub = driver.subscribe(b"tile")
    nonce = driver.heard("s1", control.Hello)[-1].nonce
    answer = answer_of("s1", b"tile", streams=[(b"tile", STREAM, FAR, 0)])
    driver.push("s1", inbox_channel(CLIENT), control.encode(answer, CLIENT, nonce))
    assert not driver.in_force(sub)
    driver.tell("s1", answer_of("s1", b"tile"), nonce)
    assert driver.in_force(sub)


def test_an_answer_of_another_server_or_to_another_question_is_not_taken() -> None:
    driver = driven(("s1", "s2"))
    driver.servers["s1"].silent = driver.servers["s2"].silent = True
    sub = driver.subscribe(b"tile.*", pattern=True)
    nonces = {server: driver.heard(server, control.Hello)[-1].nonce for server in ("s1", "s2")}
    driver.tell("s2", answer_of("s2", b"tile.*"), nonces["s1"])
    driver.tell("s2", answer_of("s1", b"tile.*"), nonces["s2"])
    assert not driver.in_force(sub)


def test_unauthenticated_messages_are_no_way_round() -> None:
    """Scheme 0 is not taken by a client that has a key."""
    driver = driven()
    driver.subscribe(b"tile")
    here = driver.servers["s1"]
    before = driver.link("s1").usable_until
    driver.now += 1.0
    driver.push("s1", HEARTBEAT_CHANNEL, control.encode(here.heartbeat(), 0, here.heartbeats))
    driver.push("s1", HEARTBEAT_CHANNEL, control.encode(control.Resync("s1", AGENT, 9), 0, 1))
    assert driver.link("s1").usable_until == before
    assert not driver.heard("s1", control.Present)
    assert driver.counters.unauthentic == 2


# Heartbeats


def test_heartbeats_of_the_welcomed_agent_extend_the_lease() -> None:
    driver = driven()
    driver.subscribe(b"tile")
    driver.advance(10.0)
    assert driver.state("s1") is states.LinkState.USABLE
    assert driver.counters.stale_links == 0


def test_repeated_heartbeats_do_not_extend_the_lease_of_a_dead_server() -> None:
    driver = driven()
    driver.subscribe(b"tile")
    here = driver.servers["s1"]
    recorded = [signed(here.heartbeat(), here.heartbeats) for _ in range(3)]
    for data in recorded:
        driver.push("s1", HEARTBEAT_CHANNEL, data)
    here.silent = True
    for _ in range(20):
        driver.advance(0.25, heartbeats=False)
        for data in recorded:
            driver.push("s1", HEARTBEAT_CHANNEL, data)
    assert driver.state("s1") is states.LinkState.STALE
    assert driver.counters.outdated >= 60


def test_heartbeats_count_only_after_a_welcome_on_this_connection() -> None:
    """A new client cannot tell a dead server's recorded heartbeats from fresh ones."""
    driver = driven()
    here = driver.servers["s1"]
    here.silent = True
    driver.subscribe(b"tile")
    greets = len(driver.heard("s1", control.Greet))
    for _ in range(5):
        driver.push("s1", HEARTBEAT_CHANNEL, signed(here.heartbeat(), here.heartbeats))
    assert driver.state("s1") is states.LinkState.GREETING
    driver.lose("s1")
    driver.play()
    assert greets + len(driver.heard("s1", control.Greet)) <= 2


def test_an_unknown_agent_is_greeted_at_most_once_per_retry() -> None:
    driver = driven()
    driver.subscribe(b"tile")
    driver.heard("s1", control.Greet)
    driver.advance(1.0)
    here = driver.servers["s1"]
    for number in range(20):
        strange = msgspec.structs.replace(here.heartbeat(), instance=AGENT + 1)
        driver.push("s1", HEARTBEAT_CHANNEL, signed(strange, number + 1))
    assert len(driver.heard("s1", control.Greet)) == 1


def test_signatures_are_verified_within_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driven()
    driver.subscribe(b"tile")
    verified: list[bytes] = []

    def refuse(public: bytes, head: bytes, body: bytes, signature: bytes) -> bool:
        verified.append(signature)
        return False

    monkeypatch.setattr(identity, "is_signed", refuse)

    def flood(first: int) -> None:
        for number in range(first, first + 1500):
            heartbeat = driver.servers["s1"].heartbeat()
            forged = control.encode(heartbeat, 0, number, control.KeySeal(control.SIGNED_SCHEME, 1, bytes(32)))
            driver.push("s1", HEARTBEAT_CHANNEL, forged)

    flood(100)
    assert len(verified) == SIGNATURES_AT_ONCE_MAX
    driver.advance(1.1, heartbeats=False)
    flood(2000)
    assert SIGNATURES_PER_S_MAX <= len(verified) - SIGNATURES_AT_ONCE_MAX <= 2 * SIGNATURES_PER_S_MAX
    assert driver.counters.unauthentic == 3000
    assert any("review" in str(timer) for timer in driver.router._context.timers._at), "the agent is asked again"


# Incarnations


def test_a_resync_is_answered_once() -> None:
    driver = driven()
    driver.subscribe(b"tile")
    for _ in range(3):
        driver.resync("s1", 1)
    (present,) = driver.heard("s1", control.Present)
    assert (present.incarnation, present.resync, present.channels) == (1, 1, [b"tile"])
    driver.resync("s1", 2)
    assert len(driver.heard("s1", control.Present)) == 1


def test_a_bye_waits_until_the_agents_incarnation_is_known() -> None:
    driver = driven()
    sub = driver.subscribe(b"tile")
    other = driver.subscribe(b"tile.2")
    driver.lose("s1")
    driver.router.unsubscribe(sub, driver.now)
    driver.servers["s1"].silent = True
    driver.play()
    driver.advance(0.4, heartbeats=False)
    assert not driver.heard("s1", control.Bye)
    driver.servers["s1"].silent = False
    driver.advance(2.0)
    assert driver.heard("s1", control.Bye)[0] == control.Bye(b"tile", False, 1)
    assert driver.in_force(other)


# Peers


def asked(driver: RouterDriver) -> tuple[int, control.Heal]:
    """The number of the last request to OTHER, and the request."""
    heals = [data for channel, data in driver.requests if channel == peer_channel(OTHER)]  # type: ignore[attr-defined]
    received = control.decode(heals[-1])
    assert isinstance(received.message, control.Heal)
    assert control.is_tagged(heals[-1], control.asking(SECRET.client(OTHER).peer(CLIENT), 1).key)
    return received.number, received.message


class Healing(RouterDriver):
    """A driver that keeps what is sent to peers."""

    def __init__(self) -> None:
        self.requests: list[tuple[bytes, bytes]] = []
        super().__init__(secret=SECRET)

    def _serve(self, here, command):  # type: ignore[no-untyped-def]
        if command[0] == b"PUBLISH" and command[1].startswith(b"__shoal:peer:"):
            self.requests.append(command[1:])
        return super()._serve(here, command)


def with_hole() -> tuple[Healing, object]:
    """A subscription that lacks 2 and 3, and has asked for them."""
    driver = Healing()
    sub = driver.subscribe(b"tile")
    driver.message("s1", b"tile", STREAM, 1, b"1")
    driver.message("s1", b"tile", STREAM, 4, b"4")
    driver.advance(0.1)
    return driver, sub


def test_a_publisher_is_asked_with_a_key_from_an_agent() -> None:
    driver, _ = with_hole()
    (introduce,) = driver.heard("s1", control.Introduce)
    assert introduce.peer == OTHER
    _, heal = asked(driver)
    assert (heal.first, heal.last) == (2, 3)


def test_the_key_of_a_publisher_is_asked_for_once() -> None:
    driver, _ = with_hole()
    driver.advance(5.0)
    assert len(driver.requests) > 2
    assert len(driver.heard("s1", control.Introduce)) == 1


def test_answers_of_the_publisher_are_taken() -> None:
    driver, sub = with_hole()
    number, _ = asked(driver)
    for sequence in (2, 3):
        driver.tell("s1", control.Resend(b"tile", blob(STREAM, sequence, b"%d" % sequence)), number)
    assert driver.payloads(sub) == [b"1", b"2", b"3", b"4"]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["no tag", "wrong key", "wrong nonce", "another client"])
def test_forged_resends_are_not_taken(kind: str) -> None:
    driver, sub = with_hole()
    number, _ = asked(driver)
    resend = control.Resend(b"tile", blob(STREAM, 2, b"false"))
    healed = control.Healed(b"tile", STREAM, 4, 4, 4, 2)
    seal: control.Seal | None = control.replying(SECRET.client(OTHER).peer(CLIENT), 1)
    client = OTHER
    if kind == "no tag":
        seal = None
    elif kind == "wrong key":
        seal = control.replying(OTHER_SECRET.client(OTHER).peer(CLIENT), 1)
    elif kind == "wrong nonce":
        number += 1
    else:
        client, seal = THIRD, control.replying(SECRET.client(THIRD).peer(CLIENT), 1)
    for message in (resend, healed):
        driver.push("s1", peer_channel(CLIENT), control.encode(message, client, number, seal))
    assert driver.payloads(sub) == [b"1"]  # type: ignore[arg-type]


def test_a_false_claim_is_forgotten_without_a_gap() -> None:
    """The publisher has used no such number."""
    driver = Healing()
    sub = driver.subscribe(b"tile")
    driver.message("s1", b"tile", STREAM, 1, b"1")
    driver.beacon("s1", b"tile", STREAM, FAR, 1)
    driver.advance(0.1)
    number, heal = asked(driver)
    assert heal.first == 2
    driver.tell("s1", control.Healed(b"tile", STREAM, 1, 1, 1, 2), number)
    driver.advance(40.0)
    driver.message("s1", b"tile", STREAM, 2, b"2")
    items = driver.items(sub)
    assert [item for item in items if isinstance(item, Gap)] == []
    assert len(items) == 2
    assert driver.counters.evidence_withdrawn == 1


def test_a_message_with_a_number_that_was_not_used_is_forgotten_too() -> None:
    driver, sub = with_hole()
    number, _ = asked(driver)
    driver.tell("s1", control.Healed(b"tile", STREAM, 1, 1, 1, 2), number)
    driver.message("s1", b"tile", STREAM, 2, b"2")
    driver.message("s1", b"tile", STREAM, 3, b"3")
    driver.message("s1", b"tile", STREAM, 4, b"the true 4")
    assert driver.payloads(sub) == [b"1", b"2", b"3", b"the true 4"]  # type: ignore[arg-type]


def test_what_came_after_the_question_is_kept() -> None:
    driver, sub = with_hole()
    number, _ = asked(driver)
    driver.message("s1", b"tile", STREAM, 5, b"5")
    driver.tell("s1", control.Healed(b"tile", STREAM, 1, 3, 3, 2), number)
    stream = next(iter(sub.all_streams()))[1]  # type: ignore[attr-defined]
    assert set(stream.held) == {5}
    assert stream.last == 5


def test_a_repeated_answer_withdraws_nothing() -> None:
    """An old answer that says how little the publisher had used then."""
    driver, sub = with_hole()
    number, _ = asked(driver)
    answer = control.Healed(b"tile", STREAM, 1, 1, 1, 2)
    driver.tell("s1", answer, number)
    driver.message("s1", b"tile", STREAM, 4, b"4")
    driver.advance(1.0)
    driver.tell("s1", answer, number)
    stream = next(iter(sub.all_streams()))[1]  # type: ignore[attr-defined]
    assert stream.last == 4


def test_a_request_is_answered_to_its_authentic_asker_only() -> None:
    driver = Healing()
    out = driver.publish(b"tile", b"1", b"2")
    heal = control.Heal(b"tile", out.stream, 1, 2)
    for seal in (None, control.asking(OTHER_SECRET.client(CLIENT).peer(OTHER), 1)):
        driver.push("s1", peer_channel(CLIENT), control.encode(heal, OTHER, 5, seal))
    third = control.asking(SECRET.client(CLIENT).peer(THIRD), 1)
    driver.push("s1", peer_channel(CLIENT), control.encode(heal, OTHER, 5, third))
    assert driver.requests == []
    driver.tell("s1", heal, 5)
    assert {channel for channel, _ in driver.requests} == {peer_channel(OTHER)}
    assert len(driver.requests) == 3
    key = control.replying(SECRET.client(CLIENT).peer(OTHER), 1).key
    assert all(control.is_tagged(data, key) for _, data in driver.requests)


# Refusals


def test_a_signed_refusal_is_reported_and_a_forged_one_is_not() -> None:
    driver = driven()
    driver.servers["s1"].silent = True
    driver.subscribe(b"tile")
    number = driver.heard_with_heads("s1", control.Greet)[-1].number
    refused = control.Refused("scheme", 2, 2, 0, "no")
    for seal in (None, control.SignatureSeal(OTHER_SECRET)):
        driver.feed(
            "s1", PushNotification([b"message", inbox_channel(CLIENT), control.encode(refused, CLIENT, number, seal)])
        )
    assert not driver.router.effects
    data = control.encode(refused, CLIENT, number, control.SignatureSeal(SECRET))
    driver.feed("s1", PushNotification([b"message", inbox_channel(CLIENT), data]))
    assert [effect.code for effect in driver.router.effects] == ["scheme"]  # type: ignore[union-attr]
