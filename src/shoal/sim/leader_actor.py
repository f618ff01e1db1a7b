"""A candidate for the leader, in the simulator: keeper, mover and balancer on one node and under one lease.

Owns the keeper's turns and what the three share: by which right they write. Whoever holds the lease of the plan leads;
the others stand by. The balancer's part is `balancing_actor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from shoal.channels.rules import Rules
from shoal.coordination.interface import Lease
from shoal.errors import CoordinatorError
from shoal.limits import Limits
from shoal.plan.keeper import Keeper, Snapshot
from shoal.plan.keys import KEEPER_LEASE, POOL_PREFIX, RING_KEY, pool_server, read_mark
from shoal.plan.mover import Mover
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signing import Signer, Verifier
from shoal.sim.coordinator import ModelCoordinator
from shoal.sim.node import Node
from shoal.sim.plan_actors import MOVER_POLL_S, MoverActor

LEADER_POLL_S: Final = 0.3
LEADER_LEASE_S: Final = 2.0
FIRST_RING_WAIT_S: Final = 5.0
LEASES: Final = "servers/"


class Leading:
    """By which right this life of a process writes, and the ring to go by."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.ring: Ring | None = None
        self.leads = False

    @property
    def right(self) -> Lease | None:
        """The lease, if this process leads as far as it knows."""
        return self.lease if self.leads else None


def ask(
    coordinator: ModelCoordinator,
    node: Node,
    questions: tuple[tuple[str, tuple[Any, ...]], ...],
    then: Callable[[list[Any]], None],
) -> None:
    """Asks several things at once, and goes on with all the answers."""
    answers: dict[int, Any] = {}

    def answered(index: int, result: Any) -> None:
        answers[index] = result
        if len(answers) == len(questions):
            then([answers[number] for number in range(len(questions))])

    for index, (operation, args) in enumerate(questions):
        coordinator.request(node, operation, args, partial(answered, index))


class KeepingActor:
    """The keeper's turns, and the lease."""

    def __init__(
        self,
        node: Node,
        coordinator: ModelCoordinator,
        signer: Signer,
        limits: Limits,
        members: Mapping[str, ServerAddress],
        holder: str,
        leading: Leading,
        is_fenced: bool,
    ) -> None:
        self.node = node
        self.coordinator = coordinator
        self._members = members
        self._holder = holder
        self._leading = leading
        self._is_fenced = is_fenced
        self._keeper = Keeper(signer, limits, tuple(members), FIRST_RING_WAIT_S)
        self._look()

    def _again(self) -> None:
        self.node.after(LEADER_POLL_S, self._look)

    def _look(self) -> None:
        """A look begins with the lease: renewed if it is held, else asked for."""
        lease = self._leading.lease
        if lease is not None:
            ask(self.coordinator, self.node, (("renew", (lease,)),), self._renewed)
        else:
            self._acquire()

    def _renewed(self, answers: list[Any]) -> None:
        if answers[0] is True:
            self._led([self._leading.lease])
        elif isinstance(answers[0], CoordinatorError):
            self._lose()
        else:
            self._acquire()

    def _acquire(self) -> None:
        question = "acquire", (KEEPER_LEASE, self._holder, LEADER_LEASE_S)
        ask(self.coordinator, self.node, (question,), self._led)

    def _led(self, answers: list[Any]) -> None:
        lease = answers[0]
        if isinstance(lease, CoordinatorError):
            self._lose()
            return
        self._leading.lease = lease
        if lease is None:
            self._lose()
            return
        questions = ("get", (RING_KEY,)), ("leases", (LEASES,)), ("list", (POOL_PREFIX,))
        ask(self.coordinator, self.node, questions, self._judge)

    def _judge(self, answers: list[Any]) -> None:
        if any(isinstance(answer, CoordinatorError) for answer in answers):
            self._lose()
            return
        ring, leases, pool = answers
        marks = {pool_server(key): read_mark(stored.value) for key, stored in pool.items()}
        held = {name.removeprefix(LEASES): lease.remaining_s for name, lease in leases.items()}
        snapshot = Snapshot(
            contact=True,
            members=dict(self._members),
            leases=held,
            guests=frozenset(server for server, mark in marks.items() if mark.is_guest),
            outside=frozenset(server for server, mark in marks.items() if mark.is_outside),
            ring=ring.value if ring else b"",
            ring_key_version=ring.version if ring else 0,
        )
        put = self._keeper.observe(snapshot, self.node.clock())
        if put is None:
            self._kept()
            return
        fence = self._leading.lease if self._is_fenced else None
        write = "put", (RING_KEY, put.data, put.expect, fence)

        def written(answers: list[Any]) -> None:
            if isinstance(answers[0], CoordinatorError):
                self._lose()
                return
            self._keeper.written(put.ring)
            self._kept()

        ask(self.coordinator, self.node, (write,), written)

    def _kept(self) -> None:
        self._leading.ring = self._keeper.ring
        self._leading.leads = True
        self._again()

    def _lose(self) -> None:
        """No contact, or not ours to decide: the core starts its waits anew when it is."""
        self._keeper.observe(Snapshot(contact=False), self.node.clock())
        self._leading.leads = False
        self._again()


class LedMoverActor(MoverActor):
    """The mover's turns under the leader's lease; each time in the lead begins with a new mover."""

    def __init__(
        self,
        node: Node,
        coordinator: ModelCoordinator,
        signer: Signer,
        limits: Limits,
        rules: Rules,
        holder: str,
        leading: Leading,
        verifier: Verifier,
    ) -> None:
        self._leading = leading
        self._make = partial(Mover, signer, limits, rules)
        self._is_fenced = rules.fence
        self._token = 0
        super().__init__(node, coordinator, signer, limits, rules, holder)
        self._verifier = verifier

    def _lead(self) -> None:
        lease = self._leading.right
        if lease is None:
            self._token = 0
            self._again(MOVER_POLL_S)
            return
        if lease.token != self._token:
            self.mover, self._token = self._make(), lease.token
        self._led(lease)

    def _operation(self, write: Any) -> tuple[str, tuple[Any, ...]]:
        operation, args = super()._operation(write)
        return operation, args if self._is_fenced else (*args[:-1], None)
