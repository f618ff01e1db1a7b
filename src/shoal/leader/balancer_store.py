"""The balancer's access to the coordinator.

Owns copies of the key ranges that the balancer needs, and the encoding of its writes. Every write is fenced by the
lease of the plan. Decides nothing: `shoal.balance.balancer` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from shoal.balance import balancer_keys
from shoal.balance.balancer_keys import Ask, AskOutcome, BalancerState, Pin, Why
from shoal.balance.change import Planner, Units
from shoal.balance.effects import HurryMove, ProposalReady, PutMark, PutState, Reply, WriteMove, WriteUnitMove
from shoal.balance.engine_entry import EngineRequest
from shoal.balance.window_source import WindowRoute
from shoal.coordination.interface import Coordinator, KeyWrite, Lease, Versioned
from shoal.errors import ConflictError, CoordinatorError, ForgedEntryError, PlanError
from shoal.leader.engine_units import EngineUnits
from shoal.leader.host_group import HostGroup
from shoal.leader.mirror import Mirror, mirror_marks
from shoal.load_kinds import REGISTRY
from shoal.logs import get_log
from shoal.plan import keys
from shoal.plan.entry import Entry
from shoal.plan.keys import Mark
from shoal.plan.kinds import CHANNEL, ENGINE
from shoal.plan.move_request import MoveRequest, decode_request, encode_body
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Verifier

ANSWERS_MAX: Final = 64
"""Unread answers that are kept. A new leader drops the oldest above it."""

_log: Final = get_log(__name__)


class BalancerStore:
    """The coordinator as the balancer uses it. `changed` is set at every change. `planners` are those of units other
    than channels; `engine_processes_max` tells up to how many processes of an engine the provider starts."""

    def __init__(
        self,
        coordinator: Coordinator,
        public_key: bytes,
        changed: asyncio.Event,
        planners: Iterable[Planner] = REGISTRY.planners,
        engine_processes_max: Callable[[], int] = lambda: 0,
    ) -> None:
        self._coordinator = coordinator
        self._verifier = Verifier(public_key)
        self._entries = Mirror(coordinator, keys.entries_prefix(), self._read_entry, changed)
        self._requests = Mirror(coordinator, keys.moves_prefix(), _read_request, changed)
        self._marks = mirror_marks(coordinator, changed)
        self._asks = Mirror(coordinator, balancer_keys.ASKS_PREFIX, _read_ask, changed)
        self._pins = Mirror(coordinator, balancer_keys.PINS_PREFIX, _read_pin, changed)
        self._proposals = Mirror(coordinator, balancer_keys.PROPOSALS_PREFIX, _read_proposal, changed)

        self._engines = EngineUnits(coordinator, changed, asyncio.get_running_loop().time, engine_processes_max)
        self._others = {
            planner.kind: self._engines
            if planner.kind == ENGINE
            else _UnitMirrors(coordinator, self._verifier, planner, changed)
            for planner in planners
        }
        self._mirrors: list[Mirror[Any, Any] | HostGroup] = [
            self._entries,
            self._requests,
            self._marks,
            self._asks,
            self._pins,
            self._proposals,
            *(mirror for kind in self._others.values() for mirror in kind.mirrors),
        ]

    async def follow(self) -> None:
        """Updates the copies until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for mirror in self._mirrors:
                group.create_task(mirror.follow())

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def entries(self) -> dict[bytes, Entry]:
        """The entries with a valid signature of the cluster; a copy."""
        return dict(self._entries.values)

    @property
    def requests(self) -> dict[bytes, MoveRequest]:
        """The requested moves; a copy."""
        return dict(self._requests.values)

    @property
    def others(self) -> dict[str, Units]:
        """Entries and requests of other kinds of units; a copy."""
        return {kind: unit.units for kind, unit in self._others.items()}

    @property
    def other_hosts(self) -> tuple[ServerAddress, ...]:
        """The live hosts of other kinds of units."""
        return tuple(host for unit in self._others.values() for host in unit.hosts)

    @property
    def marks(self) -> dict[str, Mark]:
        """The pool states of servers; a copy."""
        return dict(self._marks.values)

    @property
    def pins(self) -> dict[bytes, Pin]:
        """The pinned channels; a copy."""
        return dict(self._pins.values)

    @property
    def asks(self) -> dict[str, Ask]:
        """The requests of commands to the balancer; a copy."""
        return dict(self._asks.values)

    @property
    def proposals(self) -> dict[str, bytes]:
        """The proposals that can be applied; a copy."""
        return {digest: stored.value for digest, stored in self._proposals.values.items()}

    async def load(self) -> tuple[BalancerState, dict[bytes, float]]:
        """Brings the copies up to date; returns the state of the previous leader's balancer, and when each channel was
        last placed. The watch of a standby may be behind: with its copies, a new leader would take a plan under way as
        ended, and apply a proposal for a plan that has changed."""
        for mirror in self._mirrors:
            await mirror.load()
        stored = await self._coordinator.get(balancer_keys.STATE_KEY)
        state = BalancerState()
        try:
            if stored is not None:
                state = balancer_keys.decode(stored.value, BalancerState)
        except PlanError as error:
            _log.warning("unreadable balancer state ignored", why=str(error))
        moved_at: dict[bytes, float] = {}
        for key, kept in (await self._coordinator.list(balancer_keys.WHY_PREFIX)).items():
            channel = balancer_keys.why_channel(key)
            try:
                if channel is not None:
                    moved_at[channel] = balancer_keys.decode(kept.value, Why).at_s
            except PlanError:
                continue
        return state, moved_at

    # -- writing ---------------------------------------------------------------------------------------------

    async def put_windows(self, route: WindowRoute, fence: Lease | None) -> None:
        """Stores the source of load windows."""
        await self._coordinator.put(balancer_keys.WINDOWS_KEY, balancer_keys.encode(route), fence=fence)

    async def write_moves(self, moves: Sequence[WriteMove | WriteUnitMove | HurryMove], fence: Lease | None) -> None:
        """Writes requests for moves, and their reasons if they are new. An existing request for a unit is kept."""
        requests = [
            self._engines.write(move.request)
            if isinstance(move.request, EngineRequest)
            else KeyWrite(keys.move_key(move.request.unit, kind), encode_body(kind, move.request), 0)
            for move in moves
            if (kind := move.kind if isinstance(move, WriteUnitMove) else CHANNEL) != CHANNEL
            or move.request.unit not in self._requests.values
        ]
        whys = [
            KeyWrite(balancer_keys.why_key(move.request.unit), balancer_keys.encode(move.why))
            for move in moves
            if isinstance(move, WriteMove)
        ]
        for outcome in await self._coordinator.write_all([*requests, *whys], fence=fence):
            if isinstance(outcome, CoordinatorError) and not isinstance(outcome, ConflictError):
                raise outcome

    async def put_mark(self, put: PutMark, fence: Lease | None) -> None:
        """Stores the pool state of a server."""
        key = keys.pool_key(put.server)
        if put.mark is None:
            await self._coordinator.delete(key, fence=fence)
            self._marks.take(key, None)
        else:
            value = put.mark.value.encode()
            version = await self._coordinator.put(key, value, fence=fence)
            self._marks.take(key, Versioned(value, version))

    async def put_state(self, put: PutState, fence: Lease | None) -> None:
        """Stores the state that the next leader needs."""
        await self._coordinator.put(balancer_keys.STATE_KEY, balancer_keys.encode(put.state), fence=fence)

    async def put_proposal(self, ready: ProposalReady, fence: Lease | None) -> None:
        """Stores a proposal so that it can be applied, and drops the oldest above the limit."""
        key = balancer_keys.proposal_key(ready.digest)
        version = await self._coordinator.put(key, ready.data, fence=fence)
        self._proposals.take(key, Versioned(ready.data, version))
        by_age = sorted(self._proposals.values.items(), key=lambda item: item[1].version)
        for digest, _ in by_age[: -balancer_keys.PROPOSALS_MAX]:
            await self._coordinator.delete(balancer_keys.proposal_key(digest), fence=fence)
            self._proposals.take(balancer_keys.proposal_key(digest), None)

    async def reply(self, reply: Reply, fence: Lease | None) -> None:
        """Stores the answer to an ask and deletes the ask."""
        try:
            await self._coordinator.put(
                balancer_keys.answer_key(reply.id), balancer_keys.encode(reply.answer), fence=fence
            )
        except CoordinatorError as error:
            too_large = balancer_keys.encode(AskOutcome(f"the answer cannot be stored: {error}", reply.answer.digest))
            await self._coordinator.put(balancer_keys.answer_key(reply.id), too_large, fence=fence)
        await self._coordinator.delete(balancer_keys.ask_key(reply.id), fence=fence)
        self._asks.take(balancer_keys.ask_key(reply.id), None)

    async def sweep(self, fence: Lease | None) -> None:
        """Drops the oldest unread answers above `ANSWERS_MAX`."""
        answers = await self._coordinator.list(balancer_keys.ANSWERS_PREFIX)
        by_age: Iterable[str] = sorted(answers, key=lambda key: answers[key].version)
        for key in list(by_age)[:-ANSWERS_MAX]:
            await self._coordinator.delete(key, fence=fence)

    def _read_entry(self, key: str, stored: Versioned) -> tuple[bytes, Entry] | None:
        channel = keys.entry_unit(key)
        try:
            entry = self._verifier.entry(stored.value)
        except ForgedEntryError as error:
            _log.warning("invalid plan entry ignored", key=key, why=str(error))
            return None
        return (entry.unit, entry) if entry.unit == channel else None


class _UnitMirrors:
    """The entries and requests of one kind of unit with its own planner."""

    def __init__(self, coordinator: Coordinator, verifier: Verifier, planner: Planner, changed: asyncio.Event) -> None:
        self._verifier = verifier
        self._planner = planner
        self.entries = Mirror(coordinator, keys.entries_prefix(planner.kind), self._read_entry, changed)
        self.requests = Mirror(coordinator, keys.moves_prefix(planner.kind), self._read_request, changed)
        self._hosts = HostGroup(coordinator, planner.group, changed) if planner.group else None
        self.mirrors: list[Mirror[Any, Any] | HostGroup] = [self.entries, self.requests]
        self.mirrors += [self._hosts] if self._hosts else []

    @property
    def units(self) -> Units:
        """The units of the kind; a copy."""
        return Units(dict(self.entries.values), dict(self.requests.values), frozenset(host.id for host in self.hosts))

    @property
    def hosts(self) -> tuple[ServerAddress, ...]:
        """The live hosts of the kind's group."""
        return tuple((self._hosts.hosts or {}).values()) if self._hosts else ()

    def _read_entry(self, key: str, stored: Versioned) -> tuple[bytes, Any] | None:
        try:
            entry = self._verifier.line(stored.value, self._planner.entry_type)
        except ForgedEntryError as error:
            _log.warning("invalid plan entry ignored", key=key, why=str(error))
            return None
        return (entry.unit, entry) if keys.entry_unit(key, self._planner.kind) == entry.unit else None

    def _read_request(self, key: str, stored: Versioned) -> tuple[bytes, Any] | None:
        try:
            request = self._planner.read_request(stored.value)
        except PlanError:
            return None
        return (request.unit, request) if keys.move_unit(key, self._planner.kind) == request.unit else None


def _read_request(key: str, stored: Versioned) -> tuple[bytes, MoveRequest] | None:
    channel = keys.move_unit(key)
    try:
        request = decode_request(stored.value)
    except PlanError:
        return None
    return (request.unit, request) if request.unit == channel else None


def _read_pin(key: str, stored: Versioned) -> tuple[bytes, Pin] | None:
    channel = balancer_keys.pin_channel(key)
    try:
        return (channel, balancer_keys.decode(stored.value, Pin)) if channel is not None else None
    except PlanError as error:
        _log.warning("unreadable pin ignored", key=key, why=str(error))
        return None


def _read_ask(key: str, stored: Versioned) -> tuple[str, Ask] | None:
    try:
        return key.removeprefix(balancer_keys.ASKS_PREFIX), balancer_keys.decode(stored.value, Ask)
    except PlanError as error:
        _log.warning("unreadable request to the balancer ignored", key=key, why=str(error))
        return None


def _read_proposal(key: str, stored: Versioned) -> tuple[str, Versioned]:
    return key.removeprefix(balancer_keys.PROPOSALS_PREFIX), stored
