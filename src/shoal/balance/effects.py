"""What the balancer is handed, and what it hands back.

Owns the two vocabularies: the view of the coordinator and the provider, and the effects that an adapter carries out.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, TypeAlias

import msgspec

from shoal.balance.change import Units
from shoal.balance.recording import DecisionRecord, Outcome
from shoal.balance.records import Answer, Ask, BalancerState, Why
from shoal.plan.entry import Entry
from shoal.plan.keys import Mark
from shoal.plan.kinds import CHANNEL
from shoal.plan.move_request import MoveRequest
from shoal.plan.ring import Ring


class ProviderState(msgspec.Struct, frozen=True):
    """What the provider says: how many servers there may be, which ones it has, and what a new one would be like."""

    servers_min: int
    servers_max: int
    servers: tuple[str, ...] = ()
    """The servers that it could remove."""
    spare: int | None = None
    """How many it could still add; None if only `servers_max` is in the way."""
    knows_all: bool = False
    """Whether a server that is not among them does not run: it was ended, or never was."""
    is_fixed: bool = False
    """Whether nobody can add or remove servers."""
    new_capacity: float = 125_000_000.0
    """Bytes a second that a new server may send."""
    new_cpu_capacity: float = 1.0
    """Cores that a new server may use."""
    new_cost: float = 1.0
    """Cost of an hour of a new server."""


class View(msgspec.Struct, frozen=True):
    """What the coordinator and the provider hold. Entries are those that carry the cluster's signature."""

    ring: Ring | None
    entries: Mapping[bytes, Entry]
    requests: Mapping[bytes, MoveRequest]
    marks: Mapping[str, Mark]
    provider: ProviderState
    asks: Mapping[str, Ask] = {}
    proposals: Mapping[str, bytes] = {}
    """The bytes of proposals that may be applied, by digest."""
    recorded: Set[str] = frozenset()
    """Servers that are drained and hold records that are not archived."""
    others: Mapping[str, Units] = {}
    """Units of other kinds, by kind."""

    @property
    def units(self) -> Mapping[str, Units]:
        """Entries and requests of all kinds."""
        return {CHANNEL: Units(self.entries, self.requests), **self.others}


class WriteMove(msgspec.Struct, frozen=True):
    """A request for the conductor of channels, and why: `shoal plan explain` tells it."""

    request: MoveRequest
    why: Why


class WriteUnitMove(msgspec.Struct, frozen=True):
    """A request for the conductor of another kind of unit."""

    kind: str
    request: Any


class HurryMove(msgspec.Struct, frozen=True):
    """A request for the conductor of channels to tell clients at once of a move that they are told of lazily."""

    request: MoveRequest


class PutMark(msgspec.Struct, frozen=True):
    """The state of a server in the pool from now on; None: a home that takes channels."""

    server: str
    mark: Mark | None
    why: str


class AddHosts(msgspec.Struct, frozen=True):
    """Hosts of a kind to ask the provider for; `Balancer.added` or `Balancer.refused` is told what came of it."""

    kind: str
    count: int
    site: str = ""


class RemoveServer(msgspec.Struct, frozen=True):
    """A server that the provider shall remove; `Balancer.removed` is told when it has. If not, this comes again."""

    server: str


class PutState(msgspec.Struct, frozen=True):
    """What a balancer that takes over must know."""

    state: BalancerState


class ProposalReady(msgspec.Struct, frozen=True):
    """A proposal that may be applied later, by its digest."""

    digest: str
    data: bytes


class Reply(msgspec.Struct, frozen=True):
    """The answer to an ask, which ends it."""

    id: str
    answer: Answer


class RecordDecision(msgspec.Struct, frozen=True):
    """A decision for the audit log."""

    record: DecisionRecord
    is_empty: bool


class RecordOutcome(msgspec.Struct, frozen=True):
    """What became of a proposal, for the audit log."""

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
