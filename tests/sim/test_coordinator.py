"""The model of the coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.coordination.interface import Change, Lease, Versioned
from shoal.errors import ConflictError, CoordinatorUnavailableError, LeaseLostError
from shoal.sim import FaultOptions, ModelCoordinator, Network, World


class Desk:
    """A coordinator, and two nodes that ask it."""

    def __init__(self, options: FaultOptions | None = None) -> None:
        self.world = World(1)
        self.network = Network(self.world, options)
        self.coordinator = ModelCoordinator(self.network)
        self.a = self.network.node("a")
        self.b = self.network.node("b")

    def ask(self, operation: str, *args: Any, wait_s: float = 3.0) -> Any:
        answers: list[Any] = []
        self.coordinator.request(self.a, operation, args, answers.append)
        until = self.world.now + wait_s
        while not answers and self.world.now < until:
            self.world.run(self.world.now + 0.01)
        assert len(answers) == 1
        return answers[0]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_versions_grow_also_over_a_delete_and_a_compare_lets_one_win(desk: Desk) -> None:
    assert desk.ask("get", "plan/x") is None
    assert desk.ask("put", "plan/x", b"1", 0) == 1
    assert isinstance(desk.ask("put", "plan/x", b"2", 0), ConflictError)
    assert desk.ask("put", "plan/x", b"2", 1) == 2
    assert isinstance(desk.ask("delete", "plan/x", 1), ConflictError)
    assert desk.ask("delete", "plan/x", 2) is None
    assert desk.ask("delete", "plan/x") is None
    assert isinstance(desk.ask("delete", "plan/x", 2), ConflictError)
    assert desk.ask("put", "plan/x", b"3", 0) == 3
    assert desk.ask("put", "plan/y", b"4") == 1
    assert desk.ask("list", "plan/") == {"plan/x": Versioned(b"3", 3), "plan/y": Versioned(b"4", 1)}


def test_a_lease_is_held_by_one_until_it_ends_by_the_coordinators_clock(desk: Desk) -> None:
    mine = desk.ask("acquire", "servers/1", "me", 5.0)
    assert mine == Lease("servers/1", "me", 1, 5.0)
    assert desk.ask("acquire", "servers/1", "you", 5.0) is None
    assert desk.ask("acquire", "servers/1", "me", 5.0).token == 1
    desk.world.run(desk.world.now + 4.0)
    assert desk.ask("renew", mine) is True
    desk.world.run(desk.world.now + 4.0)
    assert desk.ask("lease_of", "servers/1").holder == "me"
    assert set(desk.ask("leases", "servers/")) == {"servers/1"}
    desk.world.run(desk.world.now + 2.0)
    assert desk.ask("lease_of", "servers/1") is None
    assert desk.ask("leases", "servers/") == {}
    yours = desk.ask("acquire", "servers/1", "you", 5.0)
    assert yours.token == 2
    assert desk.ask("renew", mine) is False
    assert desk.ask("release", mine) is None
    assert isinstance(desk.ask("put", "plan/x", b"", None, mine), LeaseLostError)
    assert desk.ask("put", "plan/x", b"", None, yours) == 1
    assert desk.ask("acquire", "servers/1", "me", 5.0, True).token == 3
    assert desk.ask("release", yours) is None
    assert desk.ask("lease_of", "servers/1").holder == "me"


def test_a_request_without_an_answer_times_out_and_may_have_taken_effect(desk: Desk) -> None:
    partition = desk.network.partition(["coordinator"], ["a"], one_way=True)
    assert isinstance(desk.ask("put", "plan/x", b"1", 0), CoordinatorUnavailableError)
    partition.heal()
    assert isinstance(desk.ask("put", "plan/x", b"1", 0), ConflictError)
    assert desk.ask("get", "plan/x") == Versioned(b"1", 1)


def test_what_was_stored_survives_a_crash_and_leases_go_on_ending(desk: Desk) -> None:
    desk.ask("put", "plan/x", b"1")
    desk.ask("acquire", "servers/1", "me", 5.0)
    desk.coordinator.node.crash()
    assert isinstance(desk.ask("get", "plan/x"), CoordinatorUnavailableError)
    desk.world.run(desk.world.now + 2.0)
    desk.coordinator.node.restart()
    assert desk.ask("get", "plan/x") == Versioned(b"1", 1)
    desk.world.run(desk.world.now + 2.0)
    assert desk.ask("acquire", "servers/1", "you", 5.0).token == 2


def test_a_restarted_process_gets_no_answer_to_its_former_lifes_question(desk: Desk) -> None:
    answers: list[Any] = []
    desk.coordinator.request(desk.a, "get", ("plan/x",), answers.append)
    desk.a.crash()
    desk.a.restart()
    desk.world.run(10.0)
    assert answers == []


def test_a_watch_tells_what_is_and_what_becomes_but_perhaps_not_what_was(desk: Desk) -> None:
    desk.ask("put", "plan/x", b"0")
    seen: list[Change] = []
    desk.coordinator.watch(desk.b, "plan/", seen.append)
    desk.world.run(desk.world.now + 1.0)
    assert seen == [Change("plan/x", Versioned(b"0", 1))]
    for number in range(20):
        desk.ask("put", "plan/x", b"%d" % number)
    desk.ask("put", "other/x", b"")
    desk.ask("delete", "plan/y")
    desk.world.run(desk.world.now + 1.0)
    versions = [change.now.version for change in seen if change.now is not None]
    assert versions == sorted(set(versions))
    assert seen[-1] == Change("plan/x", Versioned(b"19", 21))
    desk.ask("delete", "plan/x")
    desk.world.run(desk.world.now + 1.0)
    assert seen[-1] == Change("plan/x", None)


def test_a_watch_survives_partition_and_crash_and_ends_with_its_process(desk: Desk) -> None:
    seen: list[Change] = []
    desk.coordinator.watch(desk.b, "plan/", seen.append)
    partition = desk.network.partition(["b"], ["coordinator"])
    desk.ask("put", "plan/x", b"1")
    desk.world.run(desk.world.now + 5.0)
    assert seen == []
    partition.heal()
    desk.coordinator.node.crash()
    desk.world.run(desk.world.now + 5.0)
    assert seen == []
    desk.coordinator.node.restart()
    desk.world.run(desk.world.now + 5.0)
    assert seen == [Change("plan/x", Versioned(b"1", 1))]
    cancelled: list[Change] = []
    desk.coordinator.watch(desk.b, "plan/", cancelled.append).cancel()
    desk.b.crash()
    desk.b.restart()
    desk.ask("put", "plan/x", b"2")
    desk.world.run(desk.world.now + 5.0)
    assert len(seen) == 1
    assert cancelled == []


def test_there_is_no_operation_of_that_name(desk: Desk) -> None:
    with pytest.raises(ValueError, match="no operation 'close'"):
        desk.coordinator.request(desk.a, "close", (), print)
