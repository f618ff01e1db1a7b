"""Those who write the plan, in the simulator: the keeper of the ring and the mover of channels, each on its own node.

Owns the adapters' part: reading the coordinator, handing it to the shipped cores, writing what they decide.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from shoal.channels.rules import Rules
from shoal.coordination.interface import Lease
from shoal.errors import CoordinatorError
from shoal.limits import Limits
from shoal.plan.keeper import Keeper, Snapshot
from shoal.plan.keys import (
    ENTRIES_PREFIX,
    MOVES_PREFIX,
    REPORTS_PREFIX,
    RING_KEY,
    entry_channel,
    entry_key,
    move_channel,
    move_key,
)
from shoal.plan.mover import DropRequest, Mover, MoverView, PutEntry, Write
from shoal.plan.moving import decode_report
from shoal.plan.ring import ServerAddress
from shoal.plan.signing import Signer, Verifier
from shoal.sim.coordinator import ModelCoordinator
from shoal.sim.node import Node

KEEPER_POLL_S: Final = 0.2
MOVER_POLL_S: Final = 0.2
MOVER_LEASE: Final = "plan/mover"
MOVER_LEASE_S: Final = 2.0


class KeeperActor:
    """The keeper on a node of its own."""

    def __init__(
        self,
        node: Node,
        coordinator: ModelCoordinator,
        signer: Signer,
        limits: Limits,
        members: dict[str, ServerAddress],
    ) -> None:
        self.node = node
        self.coordinator = coordinator
        self.members = members
        self.keeper = Keeper(signer, limits, members, first_ring_wait_s=5.0)
        self._leases: dict[str, float] = {}
        self._poll()

    def _poll(self) -> None:
        self.node.after(KEEPER_POLL_S, self._poll)
        self.coordinator.request(self.node, "leases", ("servers/",), self._listed)

    def _listed(self, result: Any) -> None:
        if isinstance(result, CoordinatorError):
            self.keeper.observe(Snapshot(contact=False), self.node.clock())
            return
        leases = {name.removeprefix("servers/"): info.remaining_s for name, info in result.items()}
        self.coordinator.request(self.node, "get", ("plan/ring",), lambda ring: self._judge(leases, ring))

    def _judge(self, leases: dict[str, float], ring: Any) -> None:
        now = self.node.clock()
        if isinstance(ring, CoordinatorError):
            self.keeper.observe(Snapshot(contact=False), now)
            return
        data, version = (ring.value, ring.version) if ring is not None else (b"", 0)
        put = self.keeper.observe(Snapshot(True, self.members, leases, data, version), now)
        if put is not None:
            self.coordinator.request(self.node, "put", ("plan/ring", put.data, put.expect), lambda result: None)


class MoverActor:
    """One candidate for the mover's work; it works while it holds the lease. `holder` names this life of it."""

    def __init__(
        self, node: Node, coordinator: ModelCoordinator, signer: Signer, limits: Limits, rules: Rules, holder: str
    ) -> None:
        self.node = node
        self.coordinator = coordinator
        self.mover = Mover(signer, limits, rules)
        self._verifier = Verifier(signer.public)
        self._holder = holder
        self._lease: Lease | None = None
        self._lead()

    def _ask(self, questions: tuple[tuple[str, tuple[Any, ...]], ...], then: Callable[..., None]) -> None:
        """Asks several things at once; goes on with all the answers, or begins a new round if one is missing."""
        answers: dict[int, Any] = {}

        def answered(index: int, result: Any) -> None:
            answers[index] = result
            if len(answers) == len(questions):
                results = [answers[number] for number in range(len(questions))]
                if any(isinstance(answer, CoordinatorError) for answer in results):
                    self._again(MOVER_POLL_S)
                else:
                    then(*results)

        for index, (operation, args) in enumerate(questions):
            self.coordinator.request(self.node, operation, args, partial(answered, index))

    def _again(self, wait_s: float) -> None:
        self.node.after(wait_s, self._lead)

    def _lead(self) -> None:
        """A round begins with the lease: renewed if it is held, else asked for."""
        if self._lease is not None:
            self._ask((("renew", (self._lease,)),), self._renewed)
        else:
            self._ask((("acquire", (MOVER_LEASE, self._holder, MOVER_LEASE_S)),), self._led)

    def _renewed(self, held: bool) -> None:
        self._led(self._lease if held else None)

    def _led(self, lease: Lease | None) -> None:
        self._lease = lease
        if lease is None:
            self._again(MOVER_POLL_S)
            return
        listings = (("list", (prefix,)) for prefix in (ENTRIES_PREFIX, MOVES_PREFIX, REPORTS_PREFIX))
        self._ask((*listings, ("get", (RING_KEY,))), self._look)

    def _look(self, entries: dict[str, Any], requests: dict[str, Any], reports: dict[str, Any], ring: Any) -> None:
        view = MoverView(
            ring=self._verifier.ring(ring.value) if ring is not None else None,
            entries={channel: stored for key, stored in entries.items() if (channel := entry_channel(key))},
            requests={channel: stored for key, stored in requests.items() if (channel := move_channel(key))},
            reports={report.server: report for report in (decode_report(stored.value) for stored in reports.values())},
        )
        writes = self.mover.observe(view, self.node.clock())
        if writes:
            self._ask(tuple(map(self._operation, writes)), lambda *_: self._again(0.0))
        else:
            wake_s = self.mover.next_check_s
            self._again(MOVER_POLL_S if wake_s is None else max(0.0, min(MOVER_POLL_S, wake_s)))

    def _operation(self, write: Write) -> tuple[str, tuple[Any, ...]]:
        match write:
            case PutEntry():
                return "put", (entry_key(write.channel), write.data, write.expect, self._lease)
            case DropRequest():
                return "delete", (move_key(write.channel), write.expect, self._lease)
