"""A report on any cluster, by its address: ring, leader, leases, moves, pins, queues, and the load of servers and
stores.

Owns the report and its reading. Everything is asked at the same time, and each answer has `timeout_s`: one frozen
process does not delay the report, and is named in it. Works with any login; what it may not read is None.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from shoal.balance.balancer_keys import PINS_PREFIX, STATE_KEY, BalancerState, decode
from shoal.cluster.last_record import LastRecord, last_records
from shoal.cluster.queue_rows import STALE_S, QueueRow, queue_rows
from shoal.cluster.server_load import ServerLoad, measure_loads
from shoal.coordination.acl import STORES
from shoal.coordination.interface import Coordinator, LeaseInfo
from shoal.coordination.link import Address
from shoal.engine.engine_report import EngineReport
from shoal.engine.engine_report import read_report as read_engine
from shoal.engine.messages import MAIN
from shoal.errors import CoordinatorError, ProtocolError, ShoalError
from shoal.leader.host_group import read_address
from shoal.leader.keeper_shell import LEASES
from shoal.plan.entry import Entry
from shoal.plan.format import require_format
from shoal.plan.keys import (
    KEEPER_LEASE,
    PLAN_PREFIX,
    POOL_PREFIX,
    PUBLIC_KEY,
    RING_KEY,
    Mark,
    entry_unit,
    moves_prefix,
    pool_server,
    read_mark,
    reports_prefix,
)
from shoal.plan.kinds import QUEUE
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_report import QueueReport, decode_queue_report
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Verifier
from shoal.runtime import PRODUCTION

T = TypeVar("T")
_OK: Final = "ok"


class ServerReport(msgspec.Struct, frozen=True):
    """A server: its place in the ring, its lease and its load. `trouble` is why there is no load."""

    id: str
    host: str
    port: int
    in_ring: bool
    state: str
    """Its pool state: home, guest, returned, freeing, drain, out or lost."""
    lease: bool | None
    """Whether its agent holds the lease; None if that is unknown."""
    load: ServerLoad | None
    trouble: str | None


class StoreReport(msgspec.Struct, frozen=True):
    """A store: its lease and its load. `trouble` is why there is no load."""

    id: str
    host: str
    port: int
    lease: bool | None
    """Whether its agent holds the lease; None if that is unknown."""
    queues: int
    """Queues whose entries name it."""
    load: ServerLoad | None
    trouble: str | None


class QueueLevels(msgspec.Struct, frozen=True):
    """A queue in the last second, on all its stores that answer; None if none does."""

    queue: str
    stores: dict[str, str]
    """Its stores, and whether their figures are in the sums: `ok`, or why not."""
    messages: int | None = None
    oldest_s: float | None = None
    """Age of the message that is next."""
    held: int | None = None
    """Keys in flight: consumers hold them, or their head has failed."""
    consumers: int | None = None
    dead: int | None = None
    """Dead letters."""
    halted: int | None = None
    """Keys that wait for an operator."""


class ClusterReport(msgspec.Struct, frozen=True):
    """A cluster at one moment. What the login may not read, or what did not answer, is None."""

    coordinator: str
    contact: bool
    """Whether the coordinator answered."""
    ring_version: int
    leader: str | None
    """The process that leads; None if there is none, or it is unknown."""
    leases_known: bool
    entries: int
    moving: int
    """Channels that are moving."""
    requested: int | None
    """Requested moves that have not ended."""
    pinned: int | None
    plan_under_way: str
    """Digest of the balancer's plan under way."""
    servers: tuple[ServerReport, ...]
    outside: dict[str, str]
    """Pool states of servers that are not in the ring, and whose addresses are not known."""
    trouble: str | None
    stores: tuple[StoreReport, ...] = ()
    queues: int = 0
    queues_unavailable: dict[str, str] = {}
    """By name: why a queue cannot be used now."""
    queues_requested: int | None = None
    """Requests about queues that have not ended."""
    queue_levels: tuple[QueueLevels, ...] = ()
    """What queues hold, those with most messages first."""
    engine: EngineReport | None = None
    """The engine that serves; None if there is none, or it is unknown."""

    @property
    def silent(self) -> tuple[str, ...]:
        """What did not answer, by name."""
        return (
            *(() if self.contact else ("coordinator",)),
            *(server.id for server in self.servers if server.trouble),
            *(store.id for store in self.stores if store.trouble),
        )

    @property
    def ready(self) -> bool:
        """Whether the ring is led, all its servers and all stores answer, none lacks its lease, and all queues can be
        used."""
        led = self.leader is not None or not self.leases_known
        in_ring = [server for server in self.servers if server.in_ring]
        leases = [*(server.lease for server in in_ring), *(store.lease for store in self.stores)]
        return bool(led and in_ring and not self.silent and False not in leases and not self.queues_unavailable)


class _Plan(msgspec.Struct, frozen=True):
    """The coordinator's part of a report."""

    ring: Ring | None
    entries: tuple[Entry, ...]
    leases: dict[str, LeaseInfo] | None
    leader: LeaseInfo | None
    states: dict[str, str]
    requested: int | None
    pinned: int | None
    under_way: str
    stores: dict[str, ServerAddress] | None
    """The stores that are alive; None if they are not known."""
    queues: tuple[QueueEntry, ...]
    queues_requested: int | None
    reports: dict[str, QueueReport]
    engine: EngineReport | None


async def read_report(
    address: Address,
    key: bytes | None = None,
    servers: Sequence[ServerAddress] = (),
    stores: Sequence[ServerAddress] = (),
    *,
    interval_s: float,
    timeout_s: float,
) -> ClusterReport:
    """The report of a cluster. `key` verifies its plan; None means the key that the coordinator has. `servers` and
    `stores` are known to be there even if the coordinator does not answer; their load is measured without waiting for
    it."""
    known = asyncio.ensure_future(measure_loads((*servers, *stores), address, interval_s, timeout_s))
    known_records = asyncio.ensure_future(last_records(stores, address, timeout_s))
    plan, trouble = None, None
    try:
        async with asyncio.timeout(timeout_s):
            async with await PRODUCTION.coordinator(address.url, timeout_s) as coordinator:
                plan = await _read_plan(coordinator, key)
    except TimeoutError:
        trouble = f"the coordinator at {address} does not answer within {timeout_s:g} s"
    except ShoalError as error:
        trouble = str(error)
    ring = plan.ring if plan else None
    measured = {server.id for server in (*servers, *stores)}
    every_store = {store.id: store for store in (*stores, *(_known_stores(plan) if plan else ()))}
    found = (*(ring.servers if ring else ()), *every_store.values())
    others = [server for server in found if server.id not in measured]
    other_stores = [store for store in every_store.values() if store.id not in measured]
    other_loads, other_records = await asyncio.gather(
        measure_loads(others, address, interval_s, timeout_s), last_records(other_stores, address, timeout_s)
    )
    loads, records = {**other_loads, **await known}, {**other_records, **await known_records}
    everyone = {server.id: server for server in (*servers, *(ring.servers if ring else ()))}
    if plan is not None and ring is None:
        trouble = "the coordinator has no ring yet: start the servers' agents and a balancer"
    return ClusterReport(
        coordinator=str(address),
        contact=plan is not None,
        ring_version=ring.version if ring else 0,
        leader=plan.leader.holder if plan and plan.leader else None,
        leases_known=plan is not None and plan.leases is not None,
        entries=len(plan.entries) if plan else 0,
        moving=sum(entry.is_moving for entry in plan.entries) if plan else 0,
        requested=plan.requested if plan else None,
        pinned=plan.pinned if plan else None,
        plan_under_way=plan.under_way if plan else "",
        servers=tuple(_server(server, plan, loads[server.id]) for server in everyone.values()),
        outside={server: state for server, state in (plan.states if plan else {}).items() if server not in everyone},
        trouble=trouble,
        stores=tuple(_store(store, plan, loads[store.id]) for store in every_store.values()),
        queues=len(plan.queues) if plan else 0,
        queues_unavailable=_unavailable(plan) if plan else {},
        queues_requested=plan.queues_requested if plan else None,
        queue_levels=_levels(plan, records, PRODUCTION.wall()) if plan else (),
        engine=plan.engine if plan else None,
    )


def _levels(plan: _Plan, records: Mapping[str, LastRecord], now: float) -> tuple[QueueLevels, ...]:
    """What the queues of the plan hold."""
    states = {store: _store_state(plan, store, found, now) for store, found in records.items()}
    fresh = (found.record for store, found in records.items() if states[store] == _OK)
    rows = {row.queue: row for row in queue_rows(record for record in fresh if record is not None)}
    levels = [_level(entry, states, rows.get(entry.unit.decode())) for entry in plan.queues]
    return tuple(sorted(levels, key=lambda level: (-(level.messages or 0), level.queue)))


def _store_state(plan: _Plan, store: str, found: LastRecord, now: float) -> str:
    if found.trouble is not None:
        return found.trouble
    age_s = now - found.written_at
    away = plan.stores is not None and store not in plan.stores
    if away or age_s >= STALE_S:
        return "is not alive" if away else f"no data for {age_s:.0f} s"
    return _OK


def _level(entry: QueueEntry, states: Mapping[str, str], row: QueueRow | None) -> QueueLevels:
    stores = {store.id: states[store.id] for store in entry.stores}
    if row is None:
        return QueueLevels(entry.unit.decode(), stores)
    return QueueLevels(row.queue, stores, row.messages, row.oldest_s, row.held, row.consumers, row.dead, row.halted)


def _known_stores(plan: _Plan) -> Iterator[ServerAddress]:
    """The stores that queues name, and those that are alive."""
    for entry in plan.queues:
        yield from entry.stores
    yield from (plan.stores or {}).values()


def _unavailable(plan: _Plan) -> dict[str, str]:
    """The queues that cannot be used now. A queue stays with its store, also when that is away."""
    found = {}
    for entry in plan.queues:
        away = [store.id for store in entry.stores if plan.stores is not None and store.id not in plan.stores]
        reported = [plan.reports[store.id].queues.get(entry.unit) for store in entry.stores if store.id in plan.reports]
        troubles = [status.trouble for status in reported if status is not None and status.trouble]
        if away or troubles:
            why = f"store {', '.join(away)} is not alive" if away else troubles[0]
            found[entry.unit.decode(errors="replace")] = why
    return found


def _store(store: ServerAddress, plan: _Plan | None, load: ServerLoad | str) -> StoreReport:
    alive = plan.stores if plan else None
    return StoreReport(
        store.id,
        store.host,
        store.port,
        None if alive is None else store.id in alive,
        sum(any(one.id == store.id for one in entry.stores) for entry in plan.queues) if plan else 0,
        load if isinstance(load, ServerLoad) else None,
        load if isinstance(load, str) else None,
    )


def _server(server: ServerAddress, plan: _Plan | None, load: ServerLoad | str) -> ServerReport:
    ring = plan.ring if plan else None
    here = ring is not None and server.id in ring.ids
    home = "home" if ring is not None and server.id in ring.homes else "guest" if here else "-"
    state = plan.states.get(server.id, home) if plan else "-"
    leases = plan.leases if plan else None
    return ServerReport(
        server.id,
        server.host,
        server.port,
        here,
        "away" if state == Mark.RETURNED and not here else state,
        None if leases is None else f"{LEASES}{server.id}" in leases,
        load if isinstance(load, ServerLoad) else None,
        load if isinstance(load, str) else None,
    )


async def _read_plan(coordinator: Coordinator, key: bytes | None) -> _Plan:
    await require_format(coordinator)
    stored = await coordinator.list(PLAN_PREFIX)
    leases = await _allowed(coordinator.leases(LEASES))
    leader = await _allowed(coordinator.lease_of(KEEPER_LEASE))
    marks = await _allowed(coordinator.list(POOL_PREFIX))
    requests = await _allowed(coordinator.list(moves_prefix()))
    pins = await _allowed(coordinator.list(PINS_PREFIX))
    state = await _allowed(coordinator.get(STATE_KEY))
    public = key or (stored[PUBLIC_KEY].value if PUBLIC_KEY in stored else None)
    ring: Ring | None = None
    entries: tuple[Entry, ...] = ()
    queues: tuple[QueueEntry, ...] = ()
    members = await _allowed(coordinator.members(STORES))
    queue_requests = await _allowed(coordinator.list(moves_prefix(QUEUE)))
    reports = await _allowed(coordinator.list(reports_prefix(QUEUE)))
    if public is not None and RING_KEY in stored:
        verifier = Verifier(public)
        ring = verifier.ring(stored[RING_KEY].value)
        entries = tuple(verifier.entry(kept.value) for name, kept in stored.items() if entry_unit(name) is not None)
        lines = (kept.value for name, kept in stored.items() if entry_unit(name, QUEUE) is not None)
        queues = tuple(verifier.line(line, QueueEntry) for line in lines)
    return _Plan(
        ring,
        entries,
        leases,
        leader,
        {pool_server(name): read_mark(kept.value).value for name, kept in (marks or {}).items()},
        None if requests is None else len(requests),
        None if pins is None else len(pins),
        decode(state.value, BalancerState).digest if state else "",
        None if members is None else {id: at for id, data in members.items() if (at := read_address(id, data))},
        queues,
        None if queue_requests is None else len(queue_requests),
        {report.host: report for kept in (reports or {}).values() if (report := _read_report(kept.value))},
        await _allowed(read_engine(coordinator, MAIN)),
    )


def _read_report(data: bytes) -> QueueReport | None:
    try:
        return decode_queue_report(data)
    except ProtocolError:
        return None


async def _allowed(answer: Awaitable[T]) -> T | None:
    """The answer; None if the login may not read it."""
    try:
        return await answer
    except CoordinatorError:
        return None
