"""An agent with authenticated messages (scheme 1): whose messages it takes, what it signs, and how clients enrol."""

from __future__ import annotations

import pytest
from hiredis import PushNotification
from tests.channels.observed import observed
from tests.support.core_driver import AGENT, CLIENT, OTHER, OTHER_SECRET, SECRET, SIGNER, AgentDriver, ring, to_agent

from shoal.channels import states
from shoal.channels.agent.core import TURN_WORK_MAX
from shoal.channels.client.enrolment import Enrolment
from shoal.limits import Limits
from shoal.wire import control
from shoal.wire.envelope import AGENT_CHANNEL, HEARTBEAT_CHANNEL, inbox_channel, peer_channel, stream_id
from shoal.wire.identity import AgentSecret, ClientKey

OWN = stream_id(CLIENT, 1)
OTHERS = stream_id(OTHER, 1)
FAR = 1 << 60
RING = ring(1, ("s1", "s2"), secret=SECRET)


class Driver(AgentDriver):
    """An agent that has the secret and serves."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(secret=SECRET, limits=limits or Limits())
        self.core.secret(1, bytes(range(2, 34)))
        self.core.ring(SIGNER.ring(RING))
        self.core.lease.granted(self.now)
        self.open()

    def baselines(self, name: bytes = b"tile") -> dict[int, int]:
        """What a new subscriber is told about the streams of a channel."""
        self.tell(control.Hello(1, name, False, True, 0, 1), client=0xCAFE)
        (answer,) = self.answers(0xCAFE)
        return {stream: last for _, stream, last, _ in answer.streams}


def test_messages_of_the_agent_are_authentic() -> None:
    driver = Driver()
    driver.tell(control.Greet(7, 0))
    sent = {command[1]: command[2] for command in driver.commands if command[0] == b"PUBLISH"}
    assert control.is_tagged(sent[inbox_channel(CLIENT)], SECRET.client(CLIENT).from_agent("s1"))
    driver.advance(1.0)
    sent = {command[1]: command[2] for command in driver.commands if command[0] == b"PUBLISH"}
    assert control.is_signed(sent[HEARTBEAT_CHANNEL], SECRET.signing)


def test_an_agent_without_the_secret_says_nothing_until_it_has_it() -> None:
    driver = AgentDriver(secret=SECRET)
    driver.core.ring(SIGNER.ring(RING))
    driver.open()
    driver.advance(2.0)
    assert not driver.said
    driver.core.secret(1, bytes(range(2, 34)))
    driver.play(clients=0)
    driver.advance(1.0)
    assert driver.take(HEARTBEAT_CHANNEL, control.Resync)
    assert driver.heartbeats()
    assert driver.state() is states.AgentState.SERVING


def test_before_the_first_ring_nothing_is_taken() -> None:
    """Whether the cluster authenticates messages is not known then, so that forged ones would be taken."""
    driver = AgentDriver()
    driver.open(clients=1)
    driver.tell(control.Present(driver.core.incarnation, 1, 0, 1, [b"tile"], [], [(b"tile", OWN, FAR)]))
    driver.tell(control.Hello(1, b"tile", False, True, 0, 1, OWN, FAR))
    driver.hear(AGENT_CHANNEL, control.encode(control.Greet(7, 0), CLIENT, 9, to_agent(SECRET, CLIENT, "s1")))
    assert not driver.said[inbox_channel(CLIENT)], "nor refused"
    driver.core.secret(1, bytes(range(2, 34)))
    driver.core.ring(SIGNER.ring(RING))
    driver.play(clients=0)
    assert driver.core.streams(b"tile") == {}
    assert not driver.core.register.clients


@pytest.mark.parametrize(
    "message",
    [
        control.Greet(7, 0),
        control.Hello(7, b"tile", False, True, 0, 1),
        control.Hello(7, b"tile", False, True, 0, 1, OWN, FAR),
        control.Introduce(7, OTHER),
    ],
    ids=lambda message: type(message).__name__,
)
def test_forged_messages_have_no_effect(message: control.Control) -> None:
    driver = Driver()
    for secret in (OTHER_SECRET, SECRET):
        wrong = to_agent(secret, CLIENT, "s1" if secret is OTHER_SECRET else "s2")
        driver.hear(AGENT_CHANNEL, control.encode(message, CLIENT, 1, wrong))
    other = to_agent(SECRET, OTHER, "s1")
    driver.hear(AGENT_CHANNEL, control.encode(message, CLIENT, 1, other))
    assert not driver.said[inbox_channel(CLIENT)]
    assert driver.core.counters.unauthentic == 3
    assert driver.baselines() == {}


def test_a_message_without_authentication_is_refused_with_a_signature() -> None:
    driver = Driver()
    driver.hear(AGENT_CHANNEL, control.encode(control.Greet(7, 0), CLIENT, 5))
    ((_, number, refused),) = driver.take_with_heads(inbox_channel(CLIENT), control.Refused)
    assert isinstance(refused, control.Refused)
    assert (number, refused.code) == (5, "scheme")
    assert control.is_signed(driver.commands[-1][2], SECRET.signing)
    assert driver.core.counters.greetings == 0


def test_a_key_of_an_unknown_generation_is_refused() -> None:
    driver = Driver()
    old = AgentSecret(9, bytes(32))
    driver.hear(AGENT_CHANNEL, control.encode(control.Greet(7, 0), CLIENT, 5, to_agent(old, CLIENT, "s1")))
    (refused,) = driver.take(inbox_channel(CLIENT), control.Refused)
    assert refused.code == "identity"


def test_refusals_are_bounded() -> None:
    driver = Driver()
    for number in range(100):
        driver.hear(AGENT_CHANNEL, control.encode(control.Greet(7, 0), CLIENT, number))
    assert len(driver.take(inbox_channel(CLIENT), control.Refused)) == 20


def test_messages_that_are_too_large_are_dropped_unread() -> None:
    driver = Driver()
    driver.tell(control.Hello(7, bytes(control.TO_AGENT_BYTES_MAX), True, True, 0, 1))
    assert not driver.answers()


# Replays


def test_a_repeated_message_has_no_effect() -> None:
    driver = Driver()
    hello = control.Hello(7, b"tile", False, True, 0, 1)
    driver.tell(hello)
    driver.tell(control.Bye(b"tile", False, driver.core.incarnation))
    assert not driver.core.register.clients
    driver.tell(hello, number=1)
    assert not driver.core.register.clients
    assert driver.core.counters.outdated == 1
    assert len(driver.answers()) == 1


def test_one_clients_numbers_do_not_mute_another() -> None:
    driver = Driver()
    driver.tell(control.Greet(7, 0), client=OTHER, number=(1 << 64) - 1)
    driver.tell(control.Greet(8, 0), number=1)
    assert driver.take(inbox_channel(CLIENT), control.Welcome)


@pytest.mark.parametrize(
    "make",
    [
        lambda incarnation: control.Bye(b"tile", False, incarnation),
        lambda incarnation: control.Present(incarnation, 1, 0, 1, [b"tile.2"], [], []),
        lambda incarnation: control.Subscribed(b"tile", 9, incarnation),
        lambda incarnation: control.Left(b"tile", OWN, 9, incarnation),
    ],
    ids=["Bye", "Present", "Subscribed", "Left"],
)
def test_what_was_meant_for_another_incarnation_is_dropped(make: object) -> None:
    """Resync numbers begin at 1 in each process, so an old Present would fit a restarted agent."""
    assert callable(make)
    driver = Driver()
    driver.tell(control.Hello(7, b"tile", False, True, 0, 1))
    driver.tell(make(driver.core.incarnation ^ 1), make(0))
    assert driver.core.counters.outdated == 2
    assert driver.core.register.channels == {b"tile": {CLIENT}}
    assert driver.core.register.acknowledged(CLIENT, b"tile") == 0


def test_only_own_heartbeats_that_were_sent_are_heard_back() -> None:
    """A false one would make all later heartbeats name one that no client has heard, and leases would run out."""
    driver = Driver()
    driver.advance(1.0)
    (*_, last) = driver.take_with_heads(HEARTBEAT_CHANNEL, control.Heartbeat)
    forged = control.encode(last.message, 0, last.number + 5, control.SignatureSeal(OTHER_SECRET))
    driver.hear(HEARTBEAT_CHANNEL, forged)
    driver.advance(1.0)
    assert all(heartbeat.heard <= last.number for heartbeat in driver.heartbeats())
    true = next(c[2] for c in reversed(driver.commands) if c[:2] == (b"PUBLISH", HEARTBEAT_CHANNEL))
    driver.hear(HEARTBEAT_CHANNEL, true)
    driver.advance(1.0)
    head = control.read_head(true)
    assert head is not None
    assert driver.heartbeats()[-1].heard == head.number


# Streams belong to their clients


def test_claims_about_the_stream_of_another_client_are_refused() -> None:
    driver = Driver()
    driver.tell(control.Hello(7, b"tile", False, True, 0, 1, OTHERS, 41), client=OTHER)
    driver.tell(control.Hello(8, b"tile", False, True, 0, 1, OTHERS, FAR))
    driver.tell(control.Present(driver.core.incarnation, 1, 0, 1, [], [], [(b"tile", OTHERS, FAR), (b"tile", OWN, 3)]))
    assert driver.baselines() == {OTHERS: 41, OWN: 3}
    assert driver.core.counters.claims_refused == 2
    assert driver.answered() == [], "a refused Hello is not answered"


# Keys of clients


def enrolled(driver: AgentDriver, attempt: Enrolment) -> ClientKey | None:
    (_, _, data) = attempt.commands()[1]
    before = len(driver.commands)
    driver.hear(AGENT_CHANNEL, data)
    answers = [c for c in driver.commands[before:] if c[0] == b"PUBLISH"]
    answer = attempt.received([PushNotification([b"message", channel, data]) for _, channel, data in answers])
    assert not isinstance(answer, control.Refused)
    return answer


def test_a_client_gets_an_id_and_its_key() -> None:
    driver = Driver()
    keys = [enrolled(driver, Enrolment(RING, "s1", bytes([n] * 32), n)) for n in range(1, 4)]
    assert all(key is not None and key.key == SECRET.client(key.client).key for key in keys)
    assert len({key.client for key in keys if key is not None}) == 3
    assert driver.core.counters.enrolments == 3


def test_an_enrolment_for_another_server_or_with_a_changed_message_fails() -> None:
    driver = Driver()
    assert enrolled(driver, Enrolment(RING, "s2", bytes([1] * 32), 1)) is None
    data = Enrolment(RING, "s1", bytes([1] * 32), 1).commands()[1][2]
    driver.hear(AGENT_CHANNEL, data[:8] + b"\x01" + data[9:])
    driver.hear(AGENT_CHANNEL, data[:40] + data[40:-32] + bytes(32))
    assert driver.core.counters.enrolments == 0


def test_an_answer_to_another_attempt_is_not_taken() -> None:
    driver = Driver()
    one, other = (Enrolment(RING, "s1", bytes([n] * 32), 7) for n in (1, 2))
    driver.hear(AGENT_CHANNEL, one.commands()[1][2])
    (_, inbox, data) = next(c for c in reversed(driver.commands) if c[0] == b"PUBLISH")
    frame = PushNotification([b"message", other.commands()[0][1], data])
    assert other.received([frame]) is None
    assert one.received([PushNotification([b"message", inbox, data[:-1] + b"x"])]) is None
    assert one.received([PushNotification([b"message", inbox, data])]) is not None


def test_enrolments_are_bounded() -> None:
    driver = Driver(Limits(enrolments_per_s_max=3))
    keys = [enrolled(driver, Enrolment(RING, "s1", bytes([n] * 32), n)) for n in range(1, 6)]
    assert [key is not None for key in keys] == [True] * 3 + [False] * 2
    assert driver.core.counters.enrolments_refused == 2
    driver.advance(1.0)
    assert enrolled(driver, Enrolment(RING, "s1", bytes([9] * 32), 9)) is not None


# Quotas go by authenticated ids


def hello(nonce: int) -> control.Hello:
    return control.Hello(nonce, b"c%d" % nonce, False, True, 0, 1)


def test_messages_with_a_false_tag_do_not_use_up_the_quota_of_the_client_that_they_name() -> None:
    driver = Driver(Limits(control_at_once_max=5, control_per_s_max=1))
    seal = to_agent(OTHER_SECRET, CLIENT, "s1")
    for number in range(1, 101):
        driver.hear(AGENT_CHANNEL, control.encode(hello(number), CLIENT, FAR + number, seal))
    assert driver.core.counters.unauthentic == 100
    driver.core.tell_time(1, driver.now)
    driver.play()
    assert not driver.take(inbox_channel(CLIENT), control.Refused), "the client has done nothing"
    for number in range(1, 21):
        driver.tell(hello(number))
    assert driver.answered() == [1, 2, 3, 4, 5]
    driver.core.tell_time(2, driver.now)
    driver.play()
    (refused,) = driver.take(inbox_channel(CLIENT), control.Refused)
    assert refused.code == control.REFUSED_BUSY
    driver.tell(hello(21), client=OTHER)
    assert driver.answered(OTHER) == [21]


def test_messages_that_waited_for_the_first_ring_are_judged_by_it() -> None:
    """Without a ring the agent does not know that messages must be authentic."""
    driver = AgentDriver(secret=SECRET)
    driver.core.secret(1, bytes(range(2, 34)))
    driver.core.lease.granted(driver.now)
    driver.open(clients=0)
    forged = [control.encode(hello(number), CLIENT, number) for number in range(1, 3 * TURN_WORK_MAX)]
    assert not driver.core.received(b"".join(observed(AGENT_CHANNEL, one) for one in forged), driver.now)
    driver.core.ring(SIGNER.ring(RING))
    driver.play(clients=0)
    while not driver.core.work(driver.now):
        pass
    driver.advance(2.0)
    assert driver.state() is states.AgentState.SERVING
    assert not driver.core.register.clients


def test_enrolments_are_handled_in_turns_and_clients_do_not_wait_behind_them() -> None:
    driver = Driver()
    attempts = [Enrolment(RING, "s1", number.to_bytes(32, "big"), number) for number in range(1, 101)]
    flood = b"".join(observed(AGENT_CHANNEL, attempt.commands()[1][2]) for attempt in attempts)
    honest = control.encode(hello(1), CLIENT, 1, to_agent(SECRET, CLIENT, "s1"))
    assert not driver.core.received(flood + observed(AGENT_CHANNEL, honest), driver.now)
    assert driver.core.counters.enrolments < 100
    driver.core.work(driver.now)
    driver.play()
    assert driver.answered() == [1]
    while not driver.core.work(driver.now):
        pass
    assert driver.core.counters.enrolments == 100


def test_a_subscriber_gets_the_key_that_it_shares_with_a_publisher() -> None:
    driver = Driver()
    driver.tell(control.Introduce(7, OTHER))
    ((_, nonce, introduced),) = driver.take_with_heads(inbox_channel(CLIENT), control.Introduced)
    assert isinstance(introduced, control.Introduced)
    ((generation, sealed),) = introduced.keys
    assert (nonce, introduced.peer, generation) == (7, OTHER, 1)
    assert SECRET.client(CLIENT).sealed(sealed, 7, OTHER, 1) == SECRET.client(OTHER).peer(CLIENT)


def test_a_recorder_takes_answers_only_from_the_publisher_that_it_has_asked() -> None:
    driver = Driver()
    heal = control.Heal(b"tile", OTHERS, 1, 3)
    driver.core.tell_peer(OTHER, heal)
    driver.play()
    (_, channel, data) = driver.commands[-1]
    own = driver.core.client
    assert own == AGENT
    assert channel == peer_channel(OTHER)
    assert control.is_tagged(data, control.asking(SECRET.client(OTHER).peer(own), 1).key)
    head = control.read_head(data)
    assert head is not None
    healed = control.Healed(b"tile", OTHERS, 1, 3, 3, 1)
    reply = control.replying(SECRET.client(OTHER).peer(own), 1)
    for number, seal in ((head.number, None), (head.number + 1, reply), (head.number, control.asking(reply.key, 1))):
        answer = control.encode(healed, OTHER, number, seal)
        driver.receive(PushNotification([b"message", peer_channel(own), answer]))
    assert driver.core.counters.unauthentic == 3
    answer = control.encode(healed, OTHER, head.number, reply)
    driver.receive(PushNotification([b"message", peer_channel(own), answer]))
    assert driver.core.counters.unauthentic == 3
