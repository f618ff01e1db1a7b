"""Changes: the content of a proposal, one tagged struct for each kind; and the interface of planners.

Owns the union of changes, which is open: a new kind of unit registers its struct and supplies a planner. Channels and
servers are the kinds that ship.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, Union

import msgspec

from shoal.balance.settings import DEFAULT_SETTINGS, BalanceSettings
from shoal.plan.kinds import CHANNEL, SERVER
from shoal.plan.placement import Mode, check_servers
from shoal.plan.signature import UnitEntry

if TYPE_CHECKING:
    from shoal.load.window import LoadWindow


class Change(msgspec.Struct, frozen=True, tag_field="change"):
    """A change. Each kind has a struct of its own with a tag, a `reason` and `figures`."""

    def check(self) -> None:
        """Raises ValueError if the change is invalid."""


class UnitMove(Change, frozen=True):
    """A unit to move. `revision` is that of its current entry, 0 if it has none."""

    unit: bytes
    revision: int


C = TypeVar("C", bound=Change)
_types: Final[list[type[Change]]] = []


def registered(change: type[C]) -> type[C]:
    """Decorator: adds a struct to the changes that a proposal can contain."""
    _types.append(change)
    return change


def read_change(value: object) -> Change:
    """The change in a decoded value; ValueError if its kind is not registered or it is invalid."""
    change: Change = msgspec.convert(value, type=Union[tuple(_types)])  # noqa: UP007 - the members are known at run time
    change.check()
    return change


class Place(msgspec.Struct, frozen=True):
    """A current or future placement of a channel."""

    mode: Mode
    servers: tuple[str, ...]


@registered
class ChannelMove(UnitMove, frozen=True, tag=CHANNEL):
    """A channel to move; without an entry its current placement comes from the ring."""

    before: Place
    after: Place
    reason: str
    figures: dict[str, float]

    def check(self) -> None:
        """Raises ValueError if the new placement is invalid."""
        check_servers(self.after.mode, self.after.servers)


@registered
class ServerChange(Change, frozen=True, tag=SERVER):
    """Servers to add (`count`), or one server to drain, or to keep although it was being drained."""

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
        """Raises ValueError for an invalid count, and for servers, which only the policy adds."""
        if self.count < 1 or self.kind == SERVER:
            raise ValueError(f"{self.count} hosts of kind {self.kind} cannot be requested")


class MoveAsked(Protocol):
    """A request to move a unit, as a plan writes it."""

    @property
    def unit(self) -> bytes:
        """The name of the unit."""

    @property
    def id(self) -> str:
        """The id of the request; it starts with the digest of the plan."""


@dataclass(frozen=True, slots=True)
class Units:
    """The units of one kind in the coordinator: entries and requests by unit, live hosts of its group."""

    entries: Mapping[bytes, Any]
    requests: Mapping[bytes, Any]
    hosts: Set[str] = frozenset()

    def revision(self, unit: bytes) -> int:
        """The revision of a unit's entry; 0 if it has none."""
        entry: UnitEntry | None = self.entries.get(unit)
        return entry.newness if entry else 0


@dataclass(frozen=True, slots=True)
class PlannerInput:
    """The input of a planner: the load window with the hosts and units of all kinds, the planner's units in the
    coordinator, by kind how many hosts were requested and have not reported yet, and the settings."""

    window: LoadWindow
    units: Units
    adding: Mapping[str, int]
    settings: BalanceSettings = DEFAULT_SETTINGS


class Planner(Protocol):
    """Plans one kind of unit; channels are planned by the policy. The kind, its entries and its requests are those of
    its table of steps (`shoal.plan.conductor.Steps`). It keeps no state, so that decisions can be replayed."""

    @property
    def kind(self) -> str:
        """The kind of unit; also the tag of its moves."""

    @property
    def group(self) -> str:
        """The group of its hosts in the coordinator; empty if they are in the ring."""

    @property
    def entry_type(self) -> type[Any]:
        """The struct of its entries."""

    def read_request(self, data: bytes) -> Any:
        """The request in `data`; PlanError if it is invalid."""

    def plan(self, given: PlannerInput) -> Iterable[UnitMove | HostsWanted]:
        """The wanted changes, each with its reason; a pure function."""

    def request(self, move: Any, id: str) -> MoveAsked:
        """The request to the conductor for a move."""

    def is_at(self, entry: Any, request: Any) -> bool:
        """Whether an entry (None if there is none) places the unit as requested."""
