"""Two generations of the agents' secret: how a client gets its newer key, when it uses it, and what ends with the older
one."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, TypeVar

from hiredis import PushNotification
from msgspec.structs import replace
from tests.channels.test_agent_identity import Driver
from tests.support.core_driver import CLIENT, OTHER, SECRET, SIGNER, STREAM, RouterDriver, from_agent, ring, to_agent

from shoal.channels import states
from shoal.channels.client.context import Abandoned, Enrol, FetchRing
from shoal.channels.client.enrolment import Enrolment
from shoal.channels.client.peer_keys import PeerKeys
from shoal.plan.ring import AgentKey, Ring
from shoal.wire import control
from shoal.wire.envelope import AGENT_CHANNEL, HEARTBEAT_CHANNEL, inbox_channel, peer_channel
from shoal.wire.identity import AgentSecret, ClientKey
from shoal.wire.lane_tag import has_tag, lane_state

NEW_VALUE = Random(2).randbytes(32)
NEW = AgentSecret(2, NEW_VALUE)
ID = 0xFACE
T = TypeVar("T")


def naming(version: int, *secrets: AgentSecret, servers: tuple[str, ...] = ("s1", "s2")) -> Ring:
    keys = tuple(AgentKey(secret.generation, secret.signing, secret.exchange) for secret in secrets)
    return replace(ring(version, servers, secret=SECRET), agent_keys=keys)


# The agent


def agent(*named: AgentSecret) -> Driver:
    driver = Driver()
    driver.core.secret(2, NEW_VALUE)
    driver.core.ring(SIGNER.ring(naming(2, *named)))
    return driver


def renewed(driver: Driver, old: ClientKey) -> ClientKey | control.Refused | None:
    attempt = Enrolment(naming(2, SECRET, NEW), "s1", bytes([7] * 32), 7, old)
    before = len(driver.commands)
    driver.hear(AGENT_CHANNEL, attempt.commands()[1][2])
    said = [command for command in driver.commands[before:] if command[0] == b"PUBLISH"]
    return attempt.received([PushNotification([b"message", channel, data]) for _, channel, data in said])


def test_a_client_gets_its_newer_key_and_keeps_its_id() -> None:
    driver = agent(SECRET, NEW)
    key = renewed(driver, SECRET.client(CLIENT))
    assert isinstance(key, ClientKey)
    assert (key.client, key.generation, key.key) == (CLIENT, 2, NEW.client(CLIENT).key)
    assert (driver.core.counters.renewals, driver.core.counters.enrolments) == (1, 0)


def test_the_key_of_another_client_is_not_renewed() -> None:
    driver = agent(SECRET, NEW)
    assert renewed(driver, ClientKey(OTHER, 1, SECRET.client(CLIENT).key)) is None
    assert driver.core.counters.unauthentic == 1


def test_a_key_of_a_revoked_generation_is_not_renewed_and_not_served() -> None:
    driver = agent(NEW)
    refused = renewed(driver, SECRET.client(CLIENT))
    assert isinstance(refused, control.Refused)
    assert refused.code == control.REFUSED_IDENTITY
    driver.tell(control.Greet(7, 0))
    (refused,) = driver.take(inbox_channel(CLIENT), control.Refused)
    assert refused.code == control.REFUSED_IDENTITY
    assert driver.core.counters.greetings == 0


def test_clients_of_both_generations_are_served_also_before_the_agent_knows_the_ring() -> None:
    for driver in (agent(SECRET, NEW), agent(SECRET)):
        for number, secret in enumerate((SECRET, NEW), start=100):
            data = control.encode(control.Greet(number, 0), CLIENT, number, to_agent(secret, CLIENT, "s1"))
            driver.hear(AGENT_CHANNEL, data)
            _, channel, answer = next(c for c in reversed(driver.commands) if c[0] == b"PUBLISH")
            assert channel == inbox_channel(CLIENT)
            assert control.is_tagged(answer, secret.client(CLIENT).from_agent("s1"))


def test_a_message_of_one_generation_cannot_be_repeated_after_one_of_the_other() -> None:
    driver = agent(SECRET, NEW)
    blobs = [
        control.encode(control.Greet(number, 0), CLIENT, number, to_agent(secret, CLIENT, "s1"))
        for number, secret in ((100, SECRET), (101, NEW))
    ]
    for data in (*blobs, *blobs):
        driver.hear(AGENT_CHANNEL, data)
    assert (driver.core.counters.greetings, driver.core.counters.outdated) == (2, 2)


def test_heartbeats_are_signed_so_that_clients_with_the_earlier_ring_believe_them() -> None:
    for named, signer in (((SECRET, NEW), SECRET), ((NEW,), NEW)):
        driver = agent(*named)
        driver.advance(1.0)
        heartbeats = [command[2] for command in driver.commands if command[1:2] == (HEARTBEAT_CHANNEL,)]
        assert control.is_signed(heartbeats[-1], signer.signing)


# The client


def client() -> RouterDriver:
    driver = RouterDriver(("s1",), secret=SECRET)
    driver.subscribe(b"other")
    driver.publish(b"tile", b"1")
    return driver


def learn(driver: RouterDriver, version: int, *named: AgentSecret) -> None:
    driver.router.ring(SIGNER.ring(naming(version, *named, servers=("s1",))), driver.now)


def effects(driver: RouterDriver, kind: type[T]) -> list[T]:
    return [effect for effect in driver.router.effects if isinstance(effect, kind)]


def last_tagged_by(driver: RouterDriver, secret: AgentSecret, client_id: int = CLIENT) -> bool:
    channel, data = driver.servers["s1"].published[-1]
    return has_tag(data, lane_state(secret.client(client_id).lane("s1", channel)))


def test_a_ring_with_a_newer_generation_makes_the_client_renew_its_key() -> None:
    driver = client()
    learn(driver, 2, SECRET, NEW)
    assert effects(driver, Enrol)
    assert driver.router.wants_key
    renewable = driver.router.renewable
    assert renewable is not None
    assert renewable.generation == 1
    assert driver.state("s1") is states.LinkState.USABLE


def test_the_newer_key_is_used_when_the_agent_has_shown_that_it_has_it() -> None:
    driver = client()
    learn(driver, 2, SECRET, NEW)
    driver.servers["s1"].silent = True
    driver.router.enrolled(NEW.client(CLIENT), driver.now)
    driver.play()
    driver.publish(b"tile", b"2")
    assert last_tagged_by(driver, SECRET)
    greet = driver.heard("s1", control.Greet)[-1]
    welcome = driver.servers["s1"].welcome()
    data = control.encode(welcome, CLIENT, greet.nonce, from_agent(NEW, CLIENT, "s1"))
    driver.push("s1", inbox_channel(CLIENT), data)
    driver.publish(b"tile", b"3")
    assert last_tagged_by(driver, NEW)
    assert driver.counters.renewals == 1


def test_a_refusal_of_the_offered_key_changes_nothing() -> None:
    driver = client()
    learn(driver, 2, SECRET, NEW)
    driver.servers["s1"].silent = True
    driver.router.enrolled(NEW.client(CLIENT), driver.now)
    driver.play()
    refuse_last(driver)
    assert driver.state("s1") is states.LinkState.USABLE
    driver.publish(b"tile", b"2")
    assert last_tagged_by(driver, SECRET)


def refuse_last(driver: RouterDriver) -> None:
    number = driver.heard_with_heads("s1", control.Greet)[-1].number
    refused = control.Refused(control.REFUSED_IDENTITY, 2, 2, 0, "expired")
    data = control.encode(refused, CLIENT, number, control.SignatureSeal(SECRET))
    driver.feed("s1", PushNotification([b"message", inbox_channel(CLIENT), data]))


def test_a_client_whose_key_is_refused_waits_for_a_welcome_and_asks_for_the_ring() -> None:
    driver = client()
    driver.servers["s1"].silent = True
    refuse_last(driver)
    assert driver.state("s1") is states.LinkState.STALE
    assert effects(driver, FetchRing)
    here = driver.servers["s1"]
    driver.push("s1", HEARTBEAT_CHANNEL, control.encode(here.heartbeat(), 0, 99, control.SignatureSeal(SECRET)))
    assert driver.state("s1") is states.LinkState.STALE, "a heartbeat does not make it usable again"


def test_the_end_of_the_older_generation_ends_its_keys() -> None:
    driver = client()
    learn(driver, 2, SECRET, NEW)
    driver.servers["s1"].silent = True
    driver.router.enrolled(NEW.client(CLIENT), driver.now)
    learn(driver, 3, NEW)
    link = driver.link("s1")
    assert link.key is not None
    assert link.key.generation == 2
    assert list(link.from_agent or ()) == [2]
    assert not driver.router.wants_key


async def test_a_client_that_was_away_goes_on_with_another_id_and_tells_what_may_be_lost() -> None:
    driver = client()
    driver.servers["s1"].silent = True
    posted = driver.router.publish(b"new", b"x", b"", 0, driver.now)
    assert posted is not None
    token = asyncio.get_running_loop().create_future()
    assert driver.router.await_confirm(posted, posted.seq, token)
    driver.router.publish(b"new", b"y", b"", 0, driver.now)
    learn(driver, 3, NEW)
    assert driver.router.wants_key
    assert driver.router.renewable is None
    driver.router.enrolled(NEW.client(ID), driver.now)
    assert effects(driver, Abandoned) == [Abandoned([token], 1)]
    assert (driver.router.client, driver.router.pending_messages) == (ID, 0)
    assert [sub.text for sub in driver.router.subscriptions] == ["other"]
    assert driver.counters.identities == 1


BOTH = (SECRET, NEW)


def introduction(nonce: int) -> control.Introduced:
    """An agent's answer while two generations are in force: both keys of OTHER."""
    own = SECRET.client(CLIENT)
    keys = [(one.generation, one.client(OTHER).peer(CLIENT)) for one in BOTH]
    return control.Introduced(OTHER, [(number, own.sealed(key, nonce, OTHER, number)) for number, key in keys])


def generations(keys: PeerKeys, repeated: bool) -> list[int]:
    return [seal.generation for seal in keys.seals(OTHER, repeated) if seal is not None]


def test_a_publisher_is_asked_with_the_key_in_which_it_answers_and_again_with_both() -> None:
    """A new publisher has only the newer one; one that was away only the older one."""
    keys = PeerKeys({1: SECRET.client(CLIENT)})
    keys.asked(5, OTHER, "timer")
    assert keys.introduced(5, introduction(5), 1) == ["timer"]
    assert (generations(keys, False), generations(keys, True)) == ([2], [2, 1])
    keys.answered(OTHER, 1)
    assert (generations(keys, False), generations(keys, True)) == ([1], [1, 2])
    assert keys.key(OTHER, 2) == NEW.client(OTHER).peer(CLIENT)
    keys.retain([2])
    assert keys.key(OTHER, 1) is None
    assert generations(keys, False) == [2]
    keys.retain([])
    assert keys.lacks(OTHER)


class Asking(RouterDriver):
    """A driver that keeps the questions to OTHER: number, stream and generation of each."""

    def __init__(self) -> None:
        self.questions: list[tuple[int, int, int]] = []
        super().__init__(("s1",), secret=SECRET)

    def _introduced(self, client: int, introduce: control.Introduce) -> control.Introduced:
        return introduction(introduce.nonce)

    def _serve(self, here: Any, command: Any) -> Any:
        if command[:2] == (b"PUBLISH", peer_channel(OTHER)):
            head = control.read_head(command[2])
            number, heal = control.decode(command[2])[1:]
            assert head is not None
            assert isinstance(heal, control.Heal)
            self.questions.append((number, heal.stream, head.generation))
        return super()._serve(here, command)

    def answer(self, number: int, stream: int, generation: int) -> None:
        """The publisher says that it has no message before 2."""
        key = next(one for one in BOTH if one.generation == generation).client(OTHER).peer(CLIENT)
        healed = control.Healed(b"tile", stream, 2, 2, 2, 1)
        seal = control.replying(key, generation)
        self.push("s1", peer_channel(CLIENT), control.encode(healed, OTHER, number, seal))


def with_two_holes() -> Asking:
    """A subscription that lacks the first message of two streams of OTHER."""
    driver = Asking()
    driver.subscribe(b"tile")
    driver.lose("s1")
    driver.play()
    for stream in (STREAM, STREAM + 1):
        driver.message("s1", b"tile", stream, 2, b"2")
    driver.advance(2.0)
    return driver


def test_a_publisher_with_one_of_the_keys_hears_the_questions_about_all_of_its_streams() -> None:
    driver = with_two_holes()
    for stream in (STREAM, STREAM + 1):
        assert {generation for _, asked, generation in driver.questions if asked == stream} == {1, 2}


def test_a_publisher_that_has_answered_is_asked_with_that_key_first() -> None:
    driver = with_two_holes()
    number, stream, _ = next(question for question in driver.questions if question[2] == 1)
    driver.answer(number, stream, 1)
    driver.questions.clear()
    driver.message("s1", b"tile", stream, 4, b"4")
    driver.advance(5.0)
    assert next(generation for _, asked, generation in driver.questions if asked == stream) == 1
