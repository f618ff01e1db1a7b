"""Builds a situation: joins a load window, the plan and the pool, so that their rows belong together.

Owns which channels and hosts a situation has, and in which order. Channels are all that the window or the plan names,
sorted by name; hosts are the members of the ring, sorted by id. So the same inputs always give the same situation.
Units and hosts of other kinds are left out; their work counts when the processor time of a host is divided.

An idle channel with an entry is included without load: it may have to leave a drained server. The load of a server that
has left the ring still counts for its channels, which continue elsewhere. A member without rows in the window takes no
channels, because its load is unknown.

A pinned channel is left out: its load counts as load of its server that belongs to no channel, which stays when
channels move. So no policy can move it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.balance.columns import ALL_PUBLISHERS, MODES, NEVER, Bools, Floats, Hosts, Ints, Placements
from shoal.balance.decision import changed, positions
from shoal.balance.forecast import Forecast
from shoal.balance.homes import Homes
from shoal.balance.situation import Pool, Situation
from shoal.balance.totals import channel_totals, pattern_share
from shoal.errors import PlanError
from shoal.load.costs import prices
from shoal.load.kinds import CHANNEL, SERVER, Kinds
from shoal.load.window import LoadWindow
from shoal.plan.entry import Entry
from shoal.plan.placement import Mode
from shoal.plan.ring import Ring

CPU: Final = "cpu_share"
"""The figure of servers with the processor time that they used."""

SETTLED_S: Final = 5.0
"""How long before the start of a window a channel must have been placed so that its parts are measured from it."""


class Plan(Protocol):
    """The part of a plan that is used; `PlanBook` implements it."""

    @property
    def ring(self) -> Ring | None:
        """The members, and the homes of channels without an entry."""

    @property
    def entries(self) -> Mapping[bytes, Entry]:
        """The placements of the other channels."""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """Facts about servers that are not in telemetry, by id. Servers without one get the values of a new server."""

    pool: Pool
    draining: frozenset[str] = frozenset()
    capacities: Mapping[str, float] = field(default_factory=dict)
    """Bytes per second, for servers without a capacity in telemetry."""
    cpu_capacities: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    joined_at: Mapping[str, float] = field(default_factory=dict)
    pinned: Mapping[bytes, tuple[str, ...]] = field(default_factory=dict)
    """The pinned channels, and the servers of each."""


@dataclass(frozen=True, slots=True)
class PlacementHistory:
    """The past: when channels were last placed, when the last plan was made, and the load of the last windows; and the
    forecast."""

    moved_at: Mapping[bytes, float] = field(default_factory=dict)
    planned_at: float = NEVER
    past: Sequence[tuple[float, float]] = ()
    """The ends of the last windows, including this one, and the bytes per second sent in them, oldest first."""
    forecast: Forecast | None = None


def join(
    window: LoadWindow, plan: Plan, facts: PoolFacts, history: PlacementHistory, homes: Homes, kinds: Kinds
) -> Situation:
    """The situation at the end of a window. `PlanError` if there is no ring yet."""
    ring = plan.ring
    if ring is None or not ring.homes:
        raise PlanError("there is no ring yet, so channels have no home", do="wait until a server has joined")
    ids = tuple(sorted(ring.ids))
    units, entries, cores = window.units_of(CHANNEL), plan.entries, prices(window, CHANNEL, CPU, kinds)
    if facts.pinned:
        free = pc.invert(pc.is_in(units["unit"], pa.array(list(facts.pinned), pa.binary())))
        units, cores = units.filter(free), cores[free.to_numpy()]
        entries = {channel: entry for channel, entry in entries.items() if channel not in facts.pinned}
    names, rows, entry_rows = _names(units["unit"], entries)
    placements = _placements(names, entry_rows, entries, ring, ids, homes)
    past = np.asarray(history.past, np.float64).reshape(-1, 2)
    moved_at = _moved_at(names, history.moved_at)
    places = pc.index_in(units["host"], pa.array(ids)).fill_null(-1).to_numpy()
    everywhere = placements.mode[rows] == ALL_PUBLISHERS
    sent = units["bytes_out"].to_numpy() * np.where(everywhere, 1.0 - pattern_share(units), 1.0)
    parts = _parts(placements, rows, places, sent, moved_at < window.start_s - SETTLED_S)
    return Situation(
        at_s=float(window.end_s),
        channels=channel_totals(names, placements, units, rows, cores, kinds.unit_kinds[CHANNEL].cost(CPU)),
        placements=replace(placements, parts=parts),
        hosts=_hosts(ids, window.hosts_of(SERVER), facts, window.start_s),
        pool=facts.pool,
        moved_at=moved_at,
        planned_at=history.planned_at,
        past_at=past[:, 0].copy(),
        past_bytes_out=past[:, 1].copy(),
        forecast=history.forecast,
    )


def _names(units: pa.ChunkedArray, entries: Iterable[bytes]) -> tuple[pa.Array, Ints, Ints]:
    """All names, sorted; the row of each unit of the window; the row of each entry, in their order."""
    mentioned = pa.concat_arrays([units.combine_chunks(), pa.array(list(entries), pa.binary())]).dictionary_encode()
    order = pc.sort_indices(mentioned.dictionary)
    row_of = np.empty(len(order), np.int64)
    row_of[order.to_numpy()] = np.arange(len(order))
    rows: Ints = row_of[mentioned.indices.to_numpy()]
    return mentioned.dictionary.take(order), rows[: len(units)], rows[len(units) :]


def _placements(
    names: pa.Array, entry_rows: Ints, entries: Mapping[bytes, Entry], ring: Ring, ids: tuple[str, ...], homes: Homes
) -> Placements:
    """The placement of each channel: the live servers of its entry, or its home if there are none."""
    place_of = {server: place for place, server in enumerate(ids)}
    moved: list[int] = []
    modes: list[int] = []
    servers: list[tuple[int, ...]] = []
    for row, entry in zip(entry_rows.tolist(), entries.values(), strict=True):
        found = _live_placement(entry, place_of)
        if found is not None:
            moved.append(row)
            modes.append(MODES.index(found[0]))
            servers.append(found[1])
    column = np.zeros(len(names), np.int32)
    at_home = np.ones(len(names), np.bool_)
    at_home[moved] = False
    places = np.array([place_of[server] for server in ring.homes], np.int32)
    column[at_home] = places[homes.of(ring, names.filter(pa.array(at_home)).to_pylist())]
    return changed(Placements.single(column), np.array(moved, np.int64), Placements.build(modes, servers))


def _parts(placements: Placements, rows: Ints, places: Ints, sent: Floats, settled: Bools) -> Floats:
    """The part of its channel's bytes that each server sent. Parts are equal for channels that sent nothing there, and
    for those placed so recently that the window still measured their old placement."""
    part = placements.part
    several = np.flatnonzero((placements.degree > 1) & settled)
    if not len(several):
        return part
    here = positions(placements.offsets, several, placements.degree)
    wanted = placements.rows[here] * np.int64(1 << 32) + placements.servers[here]
    order = np.argsort(wanted)
    found = np.searchsorted(wanted, rows * np.int64(1 << 32) + places, sorter=order).clip(max=len(order) - 1)
    seen = wanted[order[found]] == rows * np.int64(1 << 32) + places
    carried = np.bincount(order[found[seen]], sent[seen], len(wanted))
    total = np.bincount(placements.rows[here], carried, len(placements))[placements.rows[here]]
    part[here] = np.divide(carried, total, out=part[here].copy(), where=total > 0)
    return part


def _live_placement(entry: Entry, place_of: Mapping[str, int]) -> tuple[Mode, tuple[int, ...]] | None:
    """The servers of an entry that are in the ring, by the rule of `PlanBook.placement`; None if there are none."""
    for placement in (entry.publishing, *reversed(entry.subscribed)):
        places = tuple(place_of[server] for server in placement.servers if server in place_of)
        if places:
            return placement.mode, places
    return None


def _hosts(ids: tuple[str, ...], rows: pa.Table, facts: PoolFacts, start_s: float) -> Hosts:
    """The members with their figures from the window. A member that joined after the window began is empty and takes
    channels without waiting for its first window."""
    measured = {row["host"]: row for row in rows.to_pylist()}
    told = np.array([server in measured or facts.joined_at.get(server, NEVER) > start_s for server in ids], np.bool_)
    pool = facts.pool

    def measure(server: str, name: str, otherwise: str = "") -> float:
        row = measured.get(server, {})
        value = row.get(name)
        return float(row.get(otherwise, 0.0) if value is None else value)

    def known(values: Mapping[str, float], otherwise: float) -> Floats:
        return np.array([values.get(server, otherwise) for server in ids], np.float64)

    capacity = np.array([measure(server, "capacity_bytes_per_s") for server in ids])
    return Hosts(
        ids=ids,
        capacity=np.where(capacity > 0, capacity, known(facts.capacities, pool.new_capacity)),
        cpu_capacity=known(facts.cpu_capacities, pool.new_cpu_capacity),
        bytes_out=np.array([measure(server, "bandwidth_bytes_per_s", "bytes_out") for server in ids]),
        cpu=np.array([measure(server, CPU) for server in ids]),
        cost=known(facts.costs, pool.new_cost),
        takes=told & np.array([server not in facts.draining for server in ids], np.bool_),
        heard=told,
        joined_at=known(facts.joined_at, NEVER),
        pinned=_pinned(ids, facts.pinned),
    )


def _pinned(ids: tuple[str, ...], pinned: Mapping[bytes, tuple[str, ...]]) -> Bools:
    """Which hosts have a pinned channel; empty if none has."""
    holding = {server for servers in pinned.values() for server in servers}
    return np.array([server in holding for server in ids], np.bool_) if pinned else np.zeros(0, np.bool_)


def _moved_at(names: pa.Array, moved_at: Mapping[bytes, float]) -> Floats:
    """When each channel was last placed."""
    times = np.full(len(names), NEVER)
    if moved_at:
        found = pc.index_in(names, pa.array(list(moved_at), pa.binary())).fill_null(-1).to_numpy()
        known = found >= 0
        times[known] = np.fromiter(moved_at.values(), np.float64, len(moved_at))[found[known]]
    return times
