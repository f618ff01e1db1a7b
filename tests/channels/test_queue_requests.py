"""Requests for queues: what an agent passes on, refuses and charges, and how a client asks one agent after another."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.core_driver import CLIENT, OTHER, SECRET, SIGNER, AgentDriver, RouterDriver, ring

from shoal.channels.agent.queue_requests import REQUEST_UNITS
from shoal.channels.client.context import QueueAnswered
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.queue_request import CreateQueue
from shoal.plan.queue_settings import QueueSettings
from shoal.wire import control
from shoal.wire.envelope import inbox_channel


def agent(**limits: int) -> AgentDriver:
    driver = AgentDriver(limits=msgspec.structs.replace(DEFAULT_LIMITS, **limits), secret=SECRET)
    driver.core.secrets = {1: SECRET}
    driver.core.ring(SIGNER.ring(ring(1, ("s1",), secret=SECRET)))
    driver.open()
    return driver


def answers(driver: AgentDriver, client: int = CLIENT) -> list[tuple[int, str]]:
    """Nonce and code of each answer."""
    driver.play()
    found = driver.take_with_heads(inbox_channel(client), control.QueueRequested)
    return [(number, answer.code) for _, number, answer in found if isinstance(answer, control.QueueRequested)]


def test_a_new_queue_is_passed_on_and_accepted_when_it_is_written() -> None:
    driver = agent()
    sent = msgspec.msgpack.encode({"messages_max": 5})
    driver.tell(control.RequestQueue(7, b"orders", sent))
    requests = driver.core.queue_requests
    assert requests
    asked = requests.take()
    assert isinstance(asked, CreateQueue)
    assert (asked.unit, asked.settings) == (b"orders", QueueSettings(messages_max=5))
    assert answers(driver) == []
    requests.written(b"orders", None)
    assert answers(driver) == [(7, control.QUEUE_ACCEPTED)]
    assert requests.take() is None


def test_clients_that_ask_for_the_same_queue_share_one_request() -> None:
    driver = agent()
    driver.tell(control.RequestQueue(1, b"orders"))
    driver.tell(control.RequestQueue(2, b"orders"), client=OTHER)
    requests = driver.core.queue_requests
    assert requests.take() is not None
    assert requests.take() is None
    requests.written(b"orders", "the coordinator is away")
    assert answers(driver) == [(1, control.QUEUE_BUSY)]
    assert answers(driver, OTHER) == [(2, control.QUEUE_BUSY)]


def test_a_queue_that_exists_is_not_asked_for_again() -> None:
    driver = agent()
    driver.core.queue_requests.listed(b"orders", True)
    driver.tell(control.RequestQueue(1, b"orders"))
    assert answers(driver) == [(1, control.QUEUE_ACCEPTED)]
    driver.core.queue_requests.listed(b"orders", False)
    driver.tell(control.RequestQueue(2, b"orders"))
    assert driver.core.queue_requests


@pytest.mark.parametrize("name", [b"", b"no spaces", b"a" * 129, b"\xff", b"a/b"])
def test_names_that_no_queue_can_have_are_refused(name: bytes) -> None:
    driver = agent()
    driver.tell(control.RequestQueue(1, name))
    assert answers(driver) == [(1, control.QUEUE_INVALID)]
    assert not driver.core.queue_requests


@pytest.mark.parametrize(
    "settings",
    [
        b"\xff",
        b"\xc1",
        msgspec.msgpack.encode({"unknown": 1}),
        msgspec.msgpack.encode({"lease_s": float("nan")}),
        msgspec.msgpack.encode({"dedupe_s": float("inf")}),
        msgspec.msgpack.encode({"messages_max": 1 << 60}),
        msgspec.msgpack.encode({"shards": 257}),
        msgspec.msgpack.encode([1] * 500),
    ],
    ids=range(8),
)
def test_settings_that_no_queue_can_have_are_refused(settings: bytes) -> None:
    driver = agent()
    driver.tell(control.RequestQueue(1, b"orders", settings))
    assert answers(driver) == [(1, control.QUEUE_INVALID)]
    assert not driver.core.queue_requests


def test_more_queues_than_queues_max_are_refused() -> None:
    driver = agent(queues_max=2)
    driver.core.queue_requests.listed(b"a", True)
    driver.tell(control.RequestQueue(1, b"b"), control.RequestQueue(2, b"c"))
    assert answers(driver) == [(2, control.QUEUE_TOO_MANY)]


def test_a_flood_of_one_client_leaves_room_for_another() -> None:
    driver = agent()
    flood = [control.RequestQueue(n, b"q%d" % n) for n in range(1, 400)]
    driver.tell(*flood)
    requests = driver.core.queue_requests
    passed = 0
    while (request := requests.take()) is not None:
        requests.written(request.unit, None)
        passed += 1
    quota = DEFAULT_LIMITS.control_at_once_max // REQUEST_UNITS
    assert passed <= quota + 1
    driver.tell(control.RequestQueue(1, b"honest"), client=OTHER)
    request = requests.take()
    assert request is not None
    assert request.unit == b"honest"


def test_many_clients_together_get_no_more_than_the_agent_passes_on() -> None:
    driver = agent(queue_requests_at_once_max=3, queue_requests_per_s_max=1)
    for client in range(1, 9):
        driver.tell(control.RequestQueue(1, b"q%d" % client), client=client)
    assert [answers(driver, client) for client in range(1, 9)] == [[]] * 3 + [[(1, control.QUEUE_BUSY)]] * 5
    driver.advance(2.0)
    driver.tell(control.RequestQueue(2, b"later"), client=99)
    assert answers(driver, 99) == []


def test_requests_without_the_tag_of_their_client_are_dropped() -> None:
    driver = agent()
    driver.secret = None
    driver.tell(control.RequestQueue(1, b"orders"))
    assert not driver.core.queue_requests


# The client


def codes(driver: RouterDriver) -> list[tuple[object, str]]:
    return [(effect.token, effect.code) for effect in driver.happened(QueueAnswered)]


def asked(driver: RouterDriver) -> list[tuple[str, control.RequestQueue]]:
    """What each agent was asked, in the order of the servers."""
    return [(server, one) for server in driver.servers for one in driver.heard(server, control.RequestQueue)]


def answer(driver: RouterDriver, server: str, request: control.RequestQueue, code: str) -> None:
    driver.tell(server, control.QueueRequested(request.name, code), request.nonce, CLIENT)
    driver.play()


def test_a_client_opens_a_link_and_asks_its_agent() -> None:
    driver = RouterDriver(("s1", "s2"), secret=SECRET)
    driver.router.request_queue(b"orders", b"", "token", driver.now)
    driver.play()
    ((server, request),) = asked(driver)
    assert request.name == b"orders"
    answer(driver, server, request, control.QUEUE_ACCEPTED)
    assert codes(driver) == [("token", control.QUEUE_ACCEPTED)]
    driver.advance(30.0)
    assert asked(driver) == []


def test_a_client_asks_another_agent_while_there_is_no_answer() -> None:
    driver = RouterDriver(("s1", "s2"), secret=SECRET)
    driver.subscribe(b"on one")
    driver.subscribe(b"on another")
    driver.router.request_queue(b"orders", b"", "token", driver.now)
    driver.play()
    driver.advance(1.0)
    requests = asked(driver)
    assert len(requests) >= 2
    server, latest = max(requests, key=lambda one: one[1].nonce)
    answer(driver, server, latest, control.QUEUE_BUSY)
    assert codes(driver) == []
    driver.advance(5.0)
    server, latest = max(asked(driver), key=lambda one: one[1].nonce)
    answer(driver, server, latest, control.QUEUE_TOO_MANY)
    assert codes(driver) == [("token", control.QUEUE_TOO_MANY)]


def test_a_withdrawn_request_is_forgotten() -> None:
    driver = RouterDriver(("s1",), secret=SECRET)
    driver.router.request_queue(b"orders", b"", "token", driver.now)
    driver.play()
    ((server, request),) = asked(driver)
    driver.router.withdraw_queue("token")
    driver.advance(10.0)
    assert asked(driver) == []
    answer(driver, server, request, control.QUEUE_ACCEPTED)
    assert codes(driver) == []


def test_an_answer_to_another_question_is_ignored() -> None:
    driver = RouterDriver(("s1",), secret=SECRET)
    driver.router.request_queue(b"orders", b"", "token", driver.now)
    driver.play()
    ((server, request),) = asked(driver)
    driver.tell(server, control.QueueRequested(b"orders", control.QUEUE_ACCEPTED), request.nonce + 1, CLIENT)
    driver.tell(server, control.QueueRequested(b"others", control.QUEUE_ACCEPTED), request.nonce, CLIENT)
    driver.play()
    assert codes(driver) == []


def test_requests_that_no_leader_answers_count_as_queues() -> None:
    """Without a leader or a store nothing is listed: one client could fill the coordinator with requests."""
    driver = agent(queues_max=3)
    requests = driver.core.queue_requests
    for number in range(5):
        driver.tell(control.RequestQueue(number, b"q%d" % number))
        if (asked := requests.take()) is not None:
            requests.written(asked.unit, None)
    codes = [control.QUEUE_ACCEPTED] * 3 + [control.QUEUE_TOO_MANY] * 2
    assert sorted(answers(driver)) == list(enumerate(codes))
    driver.tell(control.RequestQueue(9, b"q0"))  # again, because the client waits
    assert requests.take() is not None
    requests.written(b"q0", None)
    assert answers(driver) == [(9, control.QUEUE_ACCEPTED)]
    requests.listed(b"q0", exists=True)
    requests.listed(b"q0", exists=False)  # an operator has dropped it
    driver.tell(control.RequestQueue(10, b"q4"))
    assert requests.take() is not None
