"""A proposal: the wanted changes, in canonical bytes.

Owns the record, its canonical bytes and its digest, and the check that the plan has not changed since. A proposal is
shown, stored and applied as a whole: applying a digest applies exactly the bytes with that digest. It contains the
policy's decision about channels and servers, and the changes of the planners of other kinds (`shoal.balance.change`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from shoal.balance.change import ChannelMove, HostsWanted, Place, ServerChange, UnitMove, read_change
from shoal.balance.columns import MODES, Floats, Placements, host_loads
from shoal.balance.decision import Decision, Reason, changed
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation
from shoal.errors import PlanError
from shoal.plan.kinds import CHANNEL, SERVER

FORMAT: Final = 2


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """The changes, and what they were decided from.

    `settings` is the digest of the settings, `basis` that of the plan: the ring's version and the revisions of the
    moved units. `changes` are of the types in `shoal.balance.change`. The ratios are those of the busiest server before
    and after, by the load model.
    """

    format: int = FORMAT
    policy: str
    settings: str
    window_end_s: float
    ring_version: int
    basis: str
    changes: tuple[Any, ...]
    max_ratio_before: float
    max_ratio_after: float

    @property
    def is_empty(self) -> bool:
        """Whether the proposal changes nothing."""
        return not self.changes

    @property
    def moves(self) -> tuple[ChannelMove, ...]:
        """The channels to move."""
        return tuple(change for change in self.changes if isinstance(change, ChannelMove))

    @property
    def servers(self) -> tuple[ServerChange, ...]:
        """The servers to add, drain or keep."""
        return tuple(change for change in self.changes if isinstance(change, ServerChange))

    @property
    def others(self) -> tuple[UnitMove, ...]:
        """The moves of units of other kinds."""
        return tuple(move for move in self.changes if isinstance(move, UnitMove) and not isinstance(move, ChannelMove))

    @property
    def moves_count(self) -> int:
        """Number of units of all kinds that move."""
        return sum(isinstance(change, UnitMove) for change in self.changes)

    @property
    def hosts(self) -> tuple[HostsWanted, ...]:
        """The hosts to add that are not servers."""
        return tuple(change for change in self.changes if isinstance(change, HostsWanted))

    def encode(self) -> bytes:
        """The canonical bytes."""
        return _encoder.encode(self)

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical bytes, which identifies the proposal."""
        return digest_of(self.encode())


_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_decoder: Final = msgspec.msgpack.Decoder(Proposal)


def digest_of(data: bytes) -> str:
    """The SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def settings_digest(settings: BalanceSettings) -> str:
    """The digest of settings."""
    return digest_of(_encoder.encode(settings))


def decode_proposal(data: bytes) -> Proposal:
    """The proposal in `data`; PlanError if it is invalid or not in canonical form."""
    try:
        proposal = _decoder.decode(data)
        if proposal.format != FORMAT:
            raise ValueError(f"it is of format {proposal.format}, this process knows {FORMAT}")
        proposal = replace(proposal, changes=tuple(map(read_change, proposal.changes)))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise PlanError(f"not a proposal: {error}") from error
    if proposal.encode() != data:
        raise PlanError("the bytes of the proposal are not in canonical form", do="propose again")
    return proposal


def upgrade_proposal(data: bytes) -> Proposal:
    """Converts a proposal of format 1, which had no kinds, so that old decisions can be shown; PlanError if `data` is
    not one."""
    try:
        old = msgspec.msgpack.decode(data, type=dict[str, Any])
        moves = [{"change": CHANNEL, "unit": move.pop("channel"), **move} for move in old.pop("moves")]
        servers = [{"change": SERVER, **change} for change in old.pop("servers")]
        return msgspec.convert({**old, "changes": tuple(map(read_change, (*moves, *servers)))}, Proposal)
    except (msgspec.DecodeError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PlanError(f"not a proposal of format 1: {error}") from error


def basis_of(ring_version: int, revisions: Iterable[tuple[str, bytes, int]]) -> str:
    """The digest of the part of the plan that a proposal is based on: kind, name and revision of its units."""
    return digest_of(_encoder.encode((ring_version, sorted(revisions))))


def kind_of(move: UnitMove) -> str:
    """The kind of the moved unit."""
    return str(type(move).__struct_config__.tag)


def make_proposal(
    situation: Situation,
    decision: Decision,
    *,
    policy: str,
    settings: BalanceSettings,
    ring_version: int,
    revision_of: Callable[[bytes], int],
    others: Iterable[UnitMove | HostsWanted] = (),
) -> Proposal:
    """Makes the proposal of a decision. `revision_of` returns the revision of a channel's entry, 0 if it has none.
    `others` are the changes of the planners of other kinds."""
    wanted = tuple(others)
    hosts = tuple(change for change in wanted if isinstance(change, HostsWanted))
    moves = (*_moves(situation, decision, revision_of), *(move for move in wanted if isinstance(move, UnitMove)))
    before, after = expected_ratios(situation, decision)
    return Proposal(
        policy=policy,
        settings=settings_digest(settings),
        window_end_s=situation.at_s,
        ring_version=ring_version,
        basis=basis_of(ring_version, ((kind_of(move), move.unit, move.revision) for move in moves)),
        changes=(*moves, *_server_changes(situation, decision), *hosts),
        max_ratio_before=before,
        max_ratio_after=after,
    )


def why_stale(proposal: Proposal, ring_version: int, revision_of: Callable[[str, bytes], int]) -> str | None:
    """Why a proposal can no longer be applied; None if the plan has not changed since it was made."""
    if ring_version != proposal.ring_version:
        return (
            f"the plan has changed since: the ring was version {proposal.ring_version}, and is version {ring_version}"
        )
    moves = (*proposal.moves, *proposal.others)
    moved = [move.unit for move in moves if revision_of(kind_of(move), move.unit) != move.revision]
    if moved:
        names = ", ".join(unit.decode("utf-8", "backslashreplace") for unit in moved[:3])
        more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
        return f"the plan has changed since: {names}{more} moved meanwhile"
    revisions = ((kind_of(move), move.unit, revision_of(kind_of(move), move.unit)) for move in moves)
    if basis_of(ring_version, revisions) != proposal.basis:
        return "the proposal's digest of its plan is wrong"
    return None


def expected_ratios(situation: Situation, decision: Decision) -> tuple[float, float]:
    """The load ratio of the busiest server before and after, by the load model."""
    after = changed(situation.placements, decision.moves, decision.placements)
    residual = situation.residual()
    return _max_ratio(situation, situation.placements, residual), _max_ratio(situation, after, residual)


def _max_ratio(situation: Situation, placements: Placements, residual: tuple[Floats, Floats]) -> float:
    hosts = situation.hosts
    bytes_out, cpu = host_loads(situation.channels, placements, len(hosts))
    ratios = np.maximum(_ratio(bytes_out + residual[0], hosts.capacity), _ratio(cpu + residual[1], hosts.cpu_capacity))
    return float(ratios.max(initial=0.0))


def _ratio(load: Floats, capacity: Floats) -> Floats:
    """Load divided by capacity; 0 for servers without capacity, such as dead ones."""
    return np.divide(load, capacity, out=np.zeros_like(load), where=capacity > 0)


def _moves(situation: Situation, decision: Decision, revision_of: Callable[[bytes], int]) -> Iterable[ChannelMove]:
    ids = situation.hosts.ids
    for index, row in enumerate(decision.moves.tolist()):
        channel = situation.channels.name(row)
        yield ChannelMove(
            channel,
            revision_of(channel),
            _place(situation.placements, row, ids),
            _place(decision.placements, index, ids),
            decision.reasons[index].value,
            {
                name: value
                for name, value in zip(decision.figure_names, decision.figures[index].tolist(), strict=True)
                if math.isfinite(value)
            },
        )


def _place(placements: Placements, row: int, ids: tuple[str, ...]) -> Place:
    return Place(MODES[int(placements.mode[row])], tuple(ids[host] for host in placements.of(row)))


def _server_changes(situation: Situation, decision: Decision) -> Iterable[ServerChange]:
    ids = situation.hosts.ids
    reason = (decision.server_reason or Reason.SPREAD).value
    figures = {name: float(value) for name, value in decision.server_figures.items() if math.isfinite(value)}
    if decision.add:
        yield ServerChange("add", "", int(decision.add), reason, figures)
    for host in decision.drain.tolist():
        yield ServerChange("drain", ids[host], 1, reason, figures)
    for host in decision.keep.tolist():
        yield ServerChange("keep", ids[host], 1, reason, figures)
