"""The inputs and effects of the balancer's core.

Owns both: the view of the coordinator and the provider, and the effects that the shell carries out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from typing import Any, TypeAlias

import msgspec

from shoal.balance.balancer_keys import Ask, AskOutcome, BalancerState, Pin, Why
from shoal.balance.change import Units
from shoal.balance.decision_record import DecisionRecord, Outcome
from shoal.plan.entry import Entry
from shoal.plan.keys import Mark
from shoal.plan.kinds import CHANNEL
from shoal.plan.move_request import MoveRequest
from shoal.plan.ring import Ring


class ProviderState(msgspec.Struct, frozen=True):
    """The state of the provider: its limits, its servers, and the capacity and cost of a new one."""

    servers_min: int
    servers_max: int
    servers: tuple[str, ...] = ()
    """The servers that it can remove."""
    spare: int | None = None
    """How many servers it can still add; None if only `servers_max` limits it."""
    knows_all: bool = False
    """Whether servers that are not in `servers` are known not to run."""
    is_fixed: bool = False
    """Whether servers cannot be added or removed."""
    new_capacity: float = 125_000_000.0
    """Bytes per second that a new server may send."""
    new_cpu_capacity: float = 1.0
    """Cores that a new server may use."""
    new_cost: float = 1.0
    """Cost of a new server per hour."""
    engine_processes_max: int = 0
    """Up to how many processes of an engine it starts."""


def _no_units() -> Units:
    return Units({}, {})


class BalancerView(msgspec.Struct, frozen=True):
    """The state of the coordinator and the provider. All entries have a valid signature of the cluster."""

    ring: Ring | None
    entries: Mapping[bytes, Entry]
    requests: Mapping[bytes, MoveRequest]
    marks: Mapping[str, Mark]
    provider: ProviderState
    asks: Mapping[str, Ask] = {}
    proposals: Mapping[str, bytes] = {}
    """The bytes of proposals that can be applied, by digest."""
    recorded: Set[str] = frozenset()
    """Drained servers with records that are not archived."""
    others: Mapping[str, Units] = {}
    """Units of other kinds, by kind."""
    pins: Mapping[bytes, Pin] = {}
    """The pinned channels."""

    @property
    def units(self) -> Mapping[str, Units]:
        """Entries and requests of all kinds; a kind that is not listed has none."""
        return defaultdict(_no_units, {CHANNEL: Units(self.entries, self.requests), **self.others})


class WriteMove(msgspec.Struct, frozen=True):
    """A request to the conductor of channels, and its reason, which `shoal plan explain` shows."""

    request: MoveRequest
    why: Why


class WriteUnitMove(msgspec.Struct, frozen=True):
    """A request to the conductor of another kind of unit."""

    kind: str
    request: Any


class HurryMove(msgspec.Struct, frozen=True):
    """A request to the conductor of channels to notify clients immediately of a move that notifies them lazily."""

    request: MoveRequest


class PutMark(msgspec.Struct, frozen=True):
    """The new pool state of a server; None: a home that takes channels."""

    server: str
    mark: Mark | None
    why: str


class AddHosts(msgspec.Struct, frozen=True):
    """Hosts to request from the provider; the result is passed to `Balancer.added` or `Balancer.refused`."""

    kind: str
    count: int
    site: str = ""


class RemoveServer(msgspec.Struct, frozen=True):
    """A server to remove through the provider. `Balancer.removed` is called on success; otherwise the effect is
    repeated."""

    server: str


class PutState(msgspec.Struct, frozen=True):
    """State to store for the next leader."""

    state: BalancerState


class ProposalReady(msgspec.Struct, frozen=True):
    """A proposal to store so that it can be applied by its digest."""

    digest: str
    data: bytes


class Reply(msgspec.Struct, frozen=True):
    """The answer to an ask; the ask is deleted."""

    id: str
    answer: AskOutcome


class RecordDecision(msgspec.Struct, frozen=True):
    """A decision for the audit log."""

    record: DecisionRecord
    is_empty: bool


class RecordOutcome(msgspec.Struct, frozen=True):
    """The outcome of a proposal, for the audit log."""

    outcome: Outcome


Effect: TypeAlias = (
    WriteMove
    | WriteUnitMove
    | HurryMove
    | PutMark
    | AddHosts
    | RemoveServer
    | PutState
    | ProposalReady
    | Reply
    | RecordDecision
    | RecordOutcome
)
