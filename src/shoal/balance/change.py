"""Changes: what a proposal can ask for, one tagged struct for each kind; and what a planner of a kind must offer.

Owns the union of changes, which is open: a new kind of unit registers its struct and brings a planner. Channels and
servers are the kinds that ship.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar, Union

import msgspec

from shoal.load.window import LoadWindow
from shoal.plan.kinds import CHANNEL, SERVER
from shoal.plan.placement import Mode, check_servers
from shoal.plan.signature import UnitEntry


class Change(msgspec.Struct, frozen=True, tag_field="change"):
    """Something to change. Each kind has a struct of its own with a tag, a `reason` and `figures`."""

    def check(self) -> None:
        """Refuses a change that makes no sense, with ValueError."""


class UnitMove(Change, frozen=True):
    """A unit to place anew. `revision` is that of the entry it is moved from, 0 if it has none."""

    unit: bytes
    revision: int


C = TypeVar("C", bound=Change)
_types: Final[list[type[Change]]] = []


def registered(change: type[C]) -> type[C]:
    """Adds a struct to the changes that a proposal can hold; a decorator."""
    _types.append(change)
    return change


def read_change(value: object) -> Change:
    """The change in a decoded value; ValueError if it is of no registered kind, or makes no sense."""
    change: Change = msgspec.convert(value, type=Union[tuple(_types)])  # noqa: UP007 - the members are known at run time
    change.check()
    return change


class Place(msgspec.Struct, frozen=True):
    """Where a channel is, or shall be."""

    mode: Mode
    servers: tuple[str, ...]


@registered
class ChannelMove(UnitMove, frozen=True, tag=CHANNEL):
    """A channel to place anew; without an entry the ring decides where it is."""

    before: Place
    after: Place
    reason: str
    figures: dict[str, float]

    def check(self) -> None:
        """Refuses a placement that makes no sense."""
        check_servers(self.after.mode, self.after.servers)


@registered
class ServerChange(Change, frozen=True, tag=SERVER):
    """Servers to add (`count` of them), or one to drain, or to keep after all."""

    what: Literal["add", "drain", "keep"]
    server: str
    count: int
    reason: str
    figures: dict[str, float]


@registered
class HostsWanted(Change, frozen=True, tag="hosts"):
    """Hosts of another kind than servers to add, at a site."""

    kind: str
    count: int
    site: str
    reason: str
    figures: dict[str, float]

    def check(self) -> None:
        """Refuses a number of hosts that makes no sense, and servers, which only the policy adds."""
        if self.count < 1 or self.kind == SERVER:
            raise ValueError(f"{self.count} hosts of kind {self.kind} cannot be asked for")


class MoveAsked(Protocol):
    """A request to move a unit, as a plan writes it."""

    @property
    def unit(self) -> bytes:
        """The name of the unit."""

    @property
    def id(self) -> str:
        """Tells one request from the next; it begins with the digest of the plan."""


@dataclass(frozen=True, slots=True)
class Units:
    """The units of one kind in the coordinator: entries and requests by unit."""

    entries: Mapping[bytes, Any]
    requests: Mapping[bytes, Any]

    def revision(self, unit: bytes) -> int:
        """How new the entry of a unit is; 0 if it has none."""
        entry: UnitEntry | None = self.entries.get(unit)
        return entry.newness if entry else 0


@dataclass(frozen=True, slots=True)
class PlannerInput:
    """All that a planner may look at: the load window with the hosts and units of all kinds, its units in the
    coordinator, and by kind how many hosts were asked for and have not reported yet."""

    window: LoadWindow
    units: Units
    adding: Mapping[str, int]


class Planner(Protocol):
    """Plans one kind of unit beside the policy, which plans channels. The kind, its entries and its requests are those
    of its table of steps (`shoal.plan.conductor.Steps`). It keeps no state, so that a decision can be replayed."""

    @property
    def kind(self) -> str:
        """The kind of unit; also the tag of its moves."""

    @property
    def entry_type(self) -> type[Any]:
        """The struct of its entries."""

    def read_request(self, data: bytes) -> Any:
        """The request in `data`; PlanError if it makes no sense."""

    def plan(self, given: PlannerInput) -> Iterable[UnitMove | HostsWanted]:
        """The changes that are wanted now, each with its reason; a pure function."""

    def request(self, move: Any, id: str) -> MoveAsked:
        """The request that asks the conductor for a move."""

    def is_at(self, entry: Any, request: Any) -> bool:
        """Whether an entry (None if there is none) has the unit where a request wants it."""
