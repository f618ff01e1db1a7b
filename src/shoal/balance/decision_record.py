"""The record of a decision: all its inputs in bytes, from which the decision can be replayed.

Owns the format of a record and the replay; `shoal.leader.audit_log` stores records. A record contains the exact
situation that the policy saw (the load window joined with plan and pool), the window itself, and the units that each
planner of another kind was given. A replay needs only the same policy and planners.

A record of version 2 can be shown but not replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from shoal.balance.change import HostsWanted, Planner, PlannerInput, UnitMove, Units
from shoal.balance.columns import Channels, Hosts, Placements
from shoal.balance.forecast import Forecast
from shoal.balance.lost_servers import with_lost
from shoal.balance.policies import policy
from shoal.balance.proposal import Proposal, decode_proposal, digest_of, make_proposal, upgrade_proposal
from shoal.balance.registry import Registry
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Pool, Situation
from shoal.errors import PlanError, ProtocolError
from shoal.load.window import LoadWindow
from shoal.plan.move_request import encode_body

RECORD_VERSION: Final = 3
SHOWN_VERSIONS: Final = (2, RECORD_VERSION)
"""Versions that can be read. Only the newest can be replayed."""

_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_CHANNEL_COLUMNS: Final = tuple(field.name for field in fields(Channels) if field.name != "names")
_HOST_COLUMNS: Final = tuple(field.name for field in fields(Hosts) if field.name not in ("ids", "pinned"))


class SituationRecord(msgspec.Struct, frozen=True):
    """A situation, its tables as Arrow IPC."""

    at_s: float
    planned_at: float
    channels: bytes
    hosts: bytes
    past: bytes
    pool: dict[str, float]
    forecast: bytes = b""
    """The forecast; empty if there was none."""


class PlannerRecord(msgspec.Struct, frozen=True):
    """The input of one kind's planner besides the load window: the encoded entries and requests of its units, the
    number of requested hosts that had not reported, and the live hosts of its group."""

    kind: str
    entries: tuple[bytes, ...]
    requests: tuple[bytes, ...]
    adding: dict[str, int]
    hosts: tuple[str, ...] = ()


class DecisionRecord(msgspec.Struct, frozen=True):
    """One decision: its inputs and the resulting proposal.

    `window` is the load window as Arrow IPC, `revisions` the revisions of the entries of the moved channels, `lost` the
    channels whose entries name dead servers, `planners` the inputs of the planners of other kinds.
    """

    version: int
    at_s: float
    asked: bool
    policy: str
    settings: BalanceSettings
    window: bytes
    situation: SituationRecord
    ring_version: int
    revisions: tuple[tuple[bytes, int], ...]
    lost: tuple[bytes, ...]
    proposal: bytes
    planners: tuple[PlannerRecord, ...] = ()

    @property
    def digest(self) -> str:
        """The digest of the proposal."""
        return digest_of(self.proposal)


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a proposal. `state` is applied, ended, refused or failed; `facts` has details."""

    at_s: float
    digest: str
    state: str
    facts: dict[str, str | int | float] = {}


_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_decoder: Final = msgspec.msgpack.Decoder(DecisionRecord)


def encode_record(record: DecisionRecord) -> bytes:
    """The bytes of a record."""
    return _encoder.encode(record)


def decode_record(data: bytes) -> DecisionRecord:
    """The record in `data`; PlanError if it is invalid or of an unknown version."""
    try:
        record = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise PlanError(f"not a decision record: {error}") from error
    if record.version not in SHOWN_VERSIONS:
        known = ", ".join(map(str, SHOWN_VERSIONS))
        raise PlanError(
            f"a decision record of version {record.version}; this process knows {known}",
            do="upgrade this process" if record.version > RECORD_VERSION else "read it with the Shoal that wrote it",
        )
    return record


def make_record(
    situation: Situation,
    proposal: Proposal,
    settings: BalanceSettings,
    window: LoadWindow,
    lost: tuple[bytes, ...],
    given: Mapping[str, PlannerInput],
    *,
    at_s: float,
    asked: bool,
) -> DecisionRecord:
    """The record of a decision; `given` is the input of each planner, by kind."""
    return DecisionRecord(
        version=RECORD_VERSION,
        at_s=at_s,
        asked=asked,
        policy=proposal.policy,
        settings=settings,
        window=window.to_bytes(),
        situation=record_situation(situation),
        ring_version=proposal.ring_version,
        revisions=tuple((move.unit, move.revision) for move in proposal.moves),
        lost=lost,
        proposal=proposal.encode(),
        planners=tuple(_planner_record(kind, each) for kind, each in given.items()),
    )


def replay(record: DecisionRecord, registry: Registry) -> Proposal:
    """Repeats the decision of a record with its policy and planners. An identical decision has the digest of the
    record. PlanError if the record is too old, or if this process lacks a planner."""
    if record.version != RECORD_VERSION:
        raise PlanError(
            f"a decision record of version {record.version} can be shown, not replayed: {RECORD_VERSION} can",
            do="replay it with the version of Shoal that wrote it",
        )
    situation = restore_situation(record.situation)
    revisions = dict(record.revisions)
    decision = with_lost(situation, policy(record.policy)(situation, record.settings), record.lost)
    return make_proposal(
        situation,
        decision,
        policy=record.policy,
        settings=record.settings,
        ring_version=record.ring_version,
        revision_of=lambda channel: revisions.get(channel, 0),
        others=_replanned(record, registry),
    )


def proposal_of(record: DecisionRecord) -> Proposal:
    """The proposal of a record."""
    read = decode_proposal if record.version == RECORD_VERSION else upgrade_proposal
    return read(record.proposal)


# -- planners of other kinds ---------------------------------------------------------------------------------


def _planner_record(kind: str, given: PlannerInput) -> PlannerRecord:
    units = given.units
    return PlannerRecord(
        kind,
        tuple(_encoder.encode(entry) for _, entry in sorted(units.entries.items())),
        tuple(encode_body(kind, request) for _, request in sorted(units.requests.items())),
        dict(given.adding),
        tuple(sorted(units.hosts)),
    )


def _replanned(record: DecisionRecord, registry: Registry) -> Iterator[UnitMove | HostsWanted]:
    """The changes of the planners, from their recorded inputs."""
    planners = {planner.kind: planner for planner in registry.planners}
    if missing := [given.kind for given in record.planners if given.kind not in planners]:
        raise PlanError(f"this process has no planner for {missing[0]}", do="use the Shoal that wrote the record")
    for given in record.planners:
        try:
            window = LoadWindow.from_bytes(record.window, registry.load)
        except ProtocolError as error:
            raise PlanError(f"the load window of a record cannot be read: {error}") from error
        planner = planners[given.kind]
        yield from planner.plan(PlannerInput(window, _units_of(given, planner), given.adding, record.settings))


def _units_of(given: PlannerRecord, planner: Planner) -> Units:
    try:
        entries = [msgspec.msgpack.decode(data, type=planner.entry_type) for data in given.entries]
    except (msgspec.DecodeError, ValueError) as error:
        raise PlanError(f"the entries of a record cannot be read: {error}") from error
    requests = [planner.read_request(data) for data in given.requests]
    return Units(
        {entry.unit: entry for entry in entries},
        {request.unit: request for request in requests},
        frozenset(given.hosts),
    )


# -- situations ----------------------------------------------------------------------------------------------


def record_situation(situation: Situation) -> SituationRecord:
    """The encoded form of a situation."""
    channels, placements, hosts = situation.channels, situation.placements, situation.hosts
    rows = {
        "name": channels.names,
        **{name: getattr(channels, name) for name in _CHANNEL_COLUMNS},
        "pattern_part": channels.to_patterns,
        "mode": placements.mode,
        "servers": pa.LargeListArray.from_arrays(placements.offsets, placements.servers),
        "parts": pa.LargeListArray.from_arrays(placements.offsets, placements.part),
        "moved_at": situation.moved_at,
    }
    pool = situation.pool
    return SituationRecord(
        at_s=situation.at_s,
        planned_at=situation.planned_at,
        channels=_table_bytes(pa.table(rows)),
        hosts=_table_bytes(pa.table(_host_columns(hosts))),
        past=_table_bytes(pa.table({"at": situation.past_at, "bytes_out": situation.past_bytes_out})),
        forecast=_forecast_bytes(situation.forecast),
        pool={field.name: getattr(pool, field.name) for field in fields(Pool)},
    )


def restore_situation(record: SituationRecord) -> Situation:
    """The recorded situation; PlanError if it cannot be read."""
    try:
        rows, hosts, past = (_read_table(data) for data in (record.channels, record.hosts, record.past))
        servers = rows.column("servers").combine_chunks()
        return Situation(
            at_s=record.at_s,
            channels=Channels(
                rows.column("name").combine_chunks(), **{name: _column(rows, name) for name in _CHANNEL_COLUMNS}
            ),
            placements=Placements(
                _column(rows, "mode"),
                np.array(servers.offsets, np.int64),
                np.array(servers.values, np.int32),
                np.array(rows.column("parts").combine_chunks().values, np.float64),
            ),
            hosts=Hosts(
                tuple(hosts.column("id").to_pylist()),
                **{name: _column(hosts, name) for name in (*_HOST_COLUMNS, *_pinned_column(hosts))},
            ),
            pool=Pool(**_pool(record.pool)),
            moved_at=_column(rows, "moved_at"),
            planned_at=record.planned_at,
            past_at=_column(past, "at"),
            past_bytes_out=_column(past, "bytes_out"),
            forecast=_forecast(record.forecast),
        )
    except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
        raise PlanError(f"the situation of a record cannot be read: {error}") from error


def _host_columns(hosts: Hosts) -> dict[str, Any]:
    """The columns of the hosts. Those that have pinned channels are recorded if there are any."""
    columns = {"id": list(hosts.ids), **{name: getattr(hosts, name) for name in _HOST_COLUMNS}}
    return {**columns, "pinned": hosts.pinned} if len(hosts.pinned) else columns


def _pinned_column(hosts: pa.Table) -> tuple[str, ...]:
    return ("pinned",) if "pinned" in hosts.column_names else ()


def _forecast_bytes(forecast: Forecast | None) -> bytes:
    if forecast is None:
        return b""
    return _table_bytes(pa.table({"at": forecast.at_s, "bytes_out": forecast.bytes_out}))


def _forecast(data: bytes) -> Forecast | None:
    if not data:
        return None
    table = _read_table(data)
    return Forecast(_column(table, "at"), _column(table, "bytes_out"))


def _pool(values: dict[str, float]) -> dict[str, Any]:
    whole = ("servers_min", "servers_max", "adding")
    return {name: int(value) if name in whole else float(value) for name, value in values.items()}


def _column(table: pa.Table, name: str) -> Any:
    """A column as a new NumPy array."""
    return table.column(name).combine_chunks().to_numpy(zero_copy_only=False).copy()


def _table_bytes(table: pa.Table) -> bytes:
    """A table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as writer:
        writer.write_table(table.combine_chunks())
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _read_table(data: bytes) -> pa.Table:
    """The table in an Arrow IPC stream."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
