"""The conductor: moves units of one kind from host to host, phase by phase.

Owns the common part of all migration protocols: signed entries, versions, requests and reports; timeouts; giving up;
continuing the moves of an earlier leader. Each kind supplies its phases as a table of steps (`Steps`; for channels in
`shoal.plan.steps`). It is a core without I/O: its inputs are the state of the coordinator and the time, its results are
writes. `shoal.leader.conductor_shell` is its shell.

The entries contain the whole state of a move, so another leader can continue at any point. The conductor itself only
remembers when it first saw each entry in its phase, so timeouts start again with a new leader.

A request is kept until its move has ended, or until the rest of the move need not be awaited. It is dropped with a
reason if it is unreadable, names another unit or is impossible, or if its move is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from shoal.coordination.interface import Versioned
from shoal.errors import ForgedEntryError, PlanError
from shoal.logs import get_log
from shoal.plan.signature import Signer, UnitEntry, Verifier

_log: Final = get_log(__name__)

E = TypeVar("E", bound=UnitEntry)
"""The entry of a kind."""
H = TypeVar("H")
"""The hosts of the kind: the ring for channels, the live members of a group for others."""
P = TypeVar("P", bound="UnitReport")
"""The report of a host's agent."""
Q = TypeVar("Q", bound="UnitRequest")
"""A request."""


class UnitReport(Protocol):
    """The report of one host's agent about the moving units there."""

    @property
    def host(self) -> str:
        """The id of the host."""


class UnitRequest(Protocol):
    """A request to move one unit."""

    @property
    def unit(self) -> bytes:
        """The name of the unit."""


@dataclass(frozen=True, slots=True)
class Case(Generic[E, H, P]):
    """One unit with an entry, and the known facts. `over(timeout_s)` returns whether its phase has lasted that long; if
    not, the conductor checks again when it has."""

    entry: E
    hosts: H
    reports: Mapping[str, P]
    over: Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Around(Generic[E, H]):
    """The surroundings of a request: the hosts, those that are leaving and get nothing new, and the entries of all
    units of the kind, with those that this round writes. `number` is the version of the request's key: later requests
    for the unit have greater ones, also after its entry was deleted."""

    hosts: H
    leaving: Set[str]
    entries: Mapping[bytes, E]
    number: int


@dataclass(frozen=True, slots=True)
class Step(Generic[E]):
    """The next step for a unit: an entry, if any, or that its entry is deleted. `dropped` is why a request ends: empty
    if it was fulfilled, None if it is kept. `given_up` is why the move of the previous entry was given up."""

    entry: E | None = None
    dropped: str | None = None
    given_up: str | None = None
    deleted: bool = False


class Steps(Protocol[E, H, P, Q]):
    """The migration protocol of one kind of unit, as a table of steps."""

    @property
    def kind(self) -> str:
        """The kind of unit, as in keys and entries."""

    @property
    def entry_type(self) -> type[E]:
        """The struct of its entries; the tag is the kind."""

    def read_request(self, data: bytes) -> Q:
        """The request in `data`; PlanError if it is invalid."""

    def read_report(self, data: bytes) -> P:
        """The report in `data`; ProtocolError if it is invalid."""

    def answer(self, request: Q, case: Case[E, H, P] | None, around: Around[E, H]) -> Step[E]:
        """The step for a request; `case` is None if the unit has no entry."""

    def go_on(self, case: Case[E, H, P]) -> Step[E]:
        """The next entry of a move, if it is due."""

    def is_settled(self, case: Case[E, H, P]) -> bool:
        """Whether the request can end before the move does."""

    def facts(self, entry: E) -> Mapping[str, object]:
        """The fields that the log shows for an entry."""


@dataclass(frozen=True, slots=True)
class ConductorView(Generic[H, P]):
    """The state of the coordinator: signed entries and encoded requests by unit, reports by host. `hosts` is None while
    nothing can be decided; hosts that are `leaving` are being emptied, or are empty and about to go."""

    hosts: H | None
    entries: Mapping[bytes, Versioned]
    requests: Mapping[bytes, Versioned]
    reports: Mapping[str, P]
    leaving: Set[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PutEntry(Generic[E]):
    """An entry to write if its key still has the version `expect` (0: does not exist). `given_up` is why it gives up a
    move; `begins` is true for the first entry of a move."""

    unit: bytes
    entry: E
    data: bytes
    expect: int
    given_up: str | None = None
    begins: bool = False


@dataclass(frozen=True, slots=True)
class DropEntry:
    """An entry to delete if its key still has the version `expect`."""

    unit: bytes
    expect: int


@dataclass(frozen=True, slots=True)
class DropRequest:
    """A request to delete if its key still has the version `expect`. `reason` is why it failed; empty if it was carried
    out."""

    unit: bytes
    expect: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Known(Generic[E]):
    """An entry, the version of its key, and when its phase was first seen."""

    version: int
    entry: E | None
    since: float


class _Entries(Mapping[bytes, E]):
    """The entries of all units: those in the coordinator, with the writes of this round."""

    def __init__(self, known: Mapping[bytes, _Known[E]]) -> None:
        self._known = known
        self._written: dict[bytes, E | None] = {}

    def write(self, unit: bytes, entry: E | None) -> None:
        """Notes a write; None deletes the entry."""
        self._written[unit] = entry

    def _entry(self, unit: bytes) -> E | None:
        if unit in self._written:
            return self._written[unit]
        known = self._known.get(unit)
        return known.entry if known is not None else None

    def __getitem__(self, unit: bytes) -> E:
        entry = self._entry(unit)
        if entry is None:
            raise KeyError(unit)
        return entry

    def __iter__(self) -> Iterator[bytes]:
        new = [unit for unit in self._written if unit not in self._known]
        return (unit for unit in (*self._known, *new) if self._entry(unit) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Conductor(Generic[E, H, P, Q]):
    """Decides the next entries of all units of one kind that move or are requested to."""

    def __init__(self, steps: Steps[E, H, P, Q], signer: Signer) -> None:
        self.steps = steps
        self._signer = signer
        self._verifier = Verifier(signer.public)
        self._known: dict[bytes, _Known[E]] = {}
        self._signed: dict[bytes, PutEntry[E]] = {}
        self._moving: set[bytes] = set()
        self._wait_s: float | None = None

    @property
    def next_check_s(self) -> float | None:
        """After how long to call `observe` again without a change; None if only a change can matter."""
        return self._wait_s

    @property
    def moving(self) -> int:
        """The number of moving units at the last call of `observe`."""
        return len(self._moving)

    def observe(self, view: ConductorView[H, P], now: float) -> list[PutEntry[E] | DropEntry | DropRequest]:
        """Takes the state of the coordinator; returns the writes."""
        self._wait_s = None
        self._learn(view.entries, now)
        if view.hosts is None:
            return []
        writes: list[PutEntry[E] | DropEntry | DropRequest] = []
        entries = _Entries(self._known)
        for unit in sorted(self._moving | view.requests.keys()):
            for write in self._decide(unit, view, view.hosts, entries, now):
                writes.append(write)
                if not isinstance(write, DropRequest):
                    entries.write(unit, write.entry if isinstance(write, PutEntry) else None)
        return writes

    def _learn(self, entries: Mapping[bytes, Versioned], now: float) -> None:
        """Takes the entries that have changed since the last call."""
        for unit in [unit for unit in self._known if unit not in entries]:
            del self._known[unit]
            self._moving.discard(unit)
        for unit, stored in entries.items():
            known = self._known.get(unit)
            if known is not None and known.version == stored.version:
                continue
            entry = self._open(unit, stored.value)
            goes_on = known is not None and _stage(known.entry) == _stage(entry)
            self._known[unit] = _Known(stored.version, entry, known.since if known and goes_on else now)
            if entry is not None and entry.is_moving:
                self._moving.add(unit)
            else:
                self._moving.discard(unit)

    def _open(self, unit: bytes, data: bytes) -> E | None:
        """The entry in `data`; None, with a warning, if it is invalid: then the unit has none. Most entries were signed
        by this conductor itself and are not verified again."""
        put = self._signed.pop(unit, None)
        if put is not None and put.data == data:
            return put.entry
        try:
            entry = self._verifier.line(data, self.steps.entry_type)
        except ForgedEntryError as error:
            _log.warning("invalid plan entry ignored", kind=self.steps.kind, unit=unit, why=str(error))
            return None
        if entry.unit != unit:
            _log.warning("plan entry of another unit ignored", unit=unit, names=entry.unit)
            return None
        return entry

    def _decide(
        self, unit: bytes, view: ConductorView[H, P], hosts: H, entries: Mapping[bytes, E], now: float
    ) -> Iterator[PutEntry[E] | DropEntry | DropRequest]:
        """What is to be written for one unit: an entry at most, and the end of a request."""
        known = self._known.get(unit) or _Known(0, None, now)
        asked = view.requests.get(unit)
        case = None
        if known.entry is not None:
            case = Case(known.entry, hosts, view.reports, lambda timeout_s: self._is_over(now - known.since, timeout_s))
        answer: Step[E] = Step()
        if asked is not None:
            answer = self._answer(unit, case, Around(hosts, view.leaving, entries, asked.version), asked.value)
        entry, dropped, given_up, deleted = answer.entry, answer.dropped, None, False
        if entry is None and case is not None and case.entry.is_moving:
            step = self.steps.go_on(case)
            entry, given_up, deleted = step.entry, step.given_up, step.deleted
            dropped = given_up if dropped is None else dropped
            if asked is not None and entry is None and dropped is None and self.steps.is_settled(case):
                dropped = ""
        if entry is not None:
            begins = answer.entry is not None and (known.entry is None or _stage(known.entry) != _stage(entry))
            put = PutEntry(unit, entry, self._signer.line(entry), known.version, given_up, begins)
            self._signed[unit] = put
            yield put
        elif deleted:
            yield DropEntry(unit, known.version)
        if asked is not None and dropped is not None:
            yield DropRequest(unit, asked.version, dropped)

    def _answer(self, unit: bytes, case: Case[E, H, P] | None, around: Around[E, H], data: bytes) -> Step[E]:
        try:
            request = self.steps.read_request(data)
        except PlanError as error:
            return Step(dropped=str(error))
        if request.unit != unit:
            return Step(dropped=f"it names another {self.steps.kind}")
        return self.steps.answer(request, case, around)

    def _is_over(self, age_s: float, timeout_s: float) -> bool:
        """Whether a phase has lasted that long; if not, notes when to check again."""
        left_s = timeout_s - age_s
        if left_s > 0:
            self._wait_s = left_s if self._wait_s is None else min(self._wait_s, left_s)
        return left_s <= 0


def _stage(entry: UnitEntry | None) -> object:
    return entry.stage if entry else None
