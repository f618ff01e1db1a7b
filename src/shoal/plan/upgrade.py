"""Upgrades a plan from format 1 to format 2, once, before a leader starts to lead.

Owns the old structures, and the order of the writes. A plan of format 1 has no `plan/format`, keys without the kind of
unit, and another signed wrapper. The format is written last: if the leader dies before, the plan still counts as format
1, and the next leader upgrades the rest.

    ring                      signed again, same key
    entries                   signed again under a key with the kind; the old key is deleted
    requests                  written again under a key with the kind; the old key is deleted
    reports                   deleted: agents of this version write their own
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec.structs import astuple, replace

from shoal.coordination.interface import Coordinator, KeyWrite, Lease, Versioned
from shoal.errors import CoordinatorError, ForgedEntryError, LeaseLostError
from shoal.logs import get_log
from shoal.plan import keys
from shoal.plan.entry import Entry, Phase
from shoal.plan.format import VALUE
from shoal.plan.move_request import MoveRequest, encode_request
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import AgentKey, Ring
from shoal.plan.signature import Signer, Verifier

BATCH: Final = 256
"""Entries between two renewals of the lease: verifying and signing them takes about 40 ms."""
_log: Final = get_log(__name__)

T = TypeVar("T")


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    """The signed wrapper of format 1; the signature is over kind, a zero byte and the body."""

    kind: bytes
    body: bytes
    signature: bytes


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of format 1: the fields of `Entry`, without the kind of unit."""

    channel: bytes
    placement: Placement
    phase: Phase = Phase.END
    earlier: tuple[Placement, ...] = ()
    publish: int = 0
    revision: int = 0
    eager: bool = False
    helped: tuple[str, ...] = ()
    since: int = 0


class _Request(msgspec.Struct, frozen=True):
    """A request of format 1."""

    channel: bytes
    servers: tuple[str, ...]
    mode: Mode
    eager: bool
    id: str
    goes_there: bool = False


async def upgrade_plan(
    coordinator: Coordinator, signer: Signer, lease: Lease, lease_ms: int, agent_keys: tuple[AgentKey, ...]
) -> None:
    """Upgrades the plan to the format of this version, and the cluster to authenticated messages. Raises
    ForgedEntryError, and changes nothing, if its ring was signed with another key. Every write is fenced by `lease`."""
    stored = await coordinator.get(keys.RING_KEY)
    if stored is not None:
        if (ring := _upgraded_ring(stored.value, signer, lease_ms, agent_keys)) is not None:
            await coordinator.put(keys.RING_KEY, signer.ring(ring), stored.version, fence=lease)
        await _upgrade_entries(coordinator, signer, lease)
        await _upgrade_requests(coordinator, lease)
        reports = _old(await coordinator.list(keys.REPORTS_PREFIX), keys.REPORTS_PREFIX)
        await _write(coordinator, (KeyWrite(keys.REPORTS_PREFIX + server, None) for server, _ in reports), lease)
        _log.info("plan upgraded", format=VALUE.decode())
    await coordinator.put(keys.FORMAT_KEY, VALUE, fence=lease)


async def _upgrade_entries(coordinator: Coordinator, signer: Signer, lease: Lease) -> None:
    entries = _old(await coordinator.list(keys.ENTRIES_PREFIX), keys.ENTRIES_PREFIX)
    for start in range(0, len(entries), BATCH):
        if not await coordinator.renew(lease):
            raise LeaseLostError("the lease of the plan was lost while the plan was upgraded")
        batch = entries[start : start + BATCH]
        upgraded = (_upgraded_entry(name, data, signer) for name, data in batch)
        await _write(coordinator, filter(None, upgraded), lease)
        await _write(coordinator, (KeyWrite(keys.ENTRIES_PREFIX + name, None) for name, _ in batch), lease)


async def _upgrade_requests(coordinator: Coordinator, lease: Lease) -> None:
    requests = _old(await coordinator.list(keys.MOVES_PREFIX), keys.MOVES_PREFIX)
    await _write(coordinator, filter(None, (_upgraded_request(name, data) for name, data in requests)), lease)
    await _write(coordinator, (KeyWrite(keys.MOVES_PREFIX + name, None) for name, _ in requests), lease)


def _old(stored: Mapping[str, Versioned], prefix: str) -> list[tuple[str, bytes]]:
    """The names and values of the keys without a kind."""
    names = ((key.removeprefix(prefix), kept.value) for key, kept in sorted(stored.items()))
    return [(name, value) for name, value in names if "/" not in name]


async def _write(coordinator: Coordinator, writes: Iterable[KeyWrite], lease: Lease) -> None:
    for outcome in await coordinator.write_all(list(writes), fence=lease):
        if isinstance(outcome, CoordinatorError):
            raise outcome


def _upgraded_ring(data: bytes, signer: Signer, lease_ms: int, agent_keys: tuple[AgentKey, ...]) -> Ring | None:
    """The ring of format 1 in `data`, with scheme 1: no process of format 1 can continue with the new plan anyway. None
    if it is already upgraded."""
    try:
        old = _open(signer.public, b"shoal ring", data, Ring)
        return replace(old, scheme=1, lease_ms=lease_ms, agent_keys=agent_keys)
    except ForgedEntryError:
        Verifier(signer.public).ring(data)
        return None


def _upgraded_entry(name: str, data: bytes, signer: Signer) -> KeyWrite | None:
    """The write that replaces an entry of format 1; None, with a warning, if the entry is invalid."""
    try:
        old = _open(signer.public, b"shoal entry", data, _Entry)
        if keys.unit_text(old.channel) != name:
            raise ForgedEntryError("its key is that of another channel")
        return KeyWrite(keys.entry_key(old.channel), signer.line(Entry(*astuple(old))))
    except (ForgedEntryError, ValueError) as error:
        _log.warning("invalid entry of format 1 dropped", key=keys.ENTRIES_PREFIX + name, why=str(error))
        return None


def _upgraded_request(name: str, data: bytes) -> KeyWrite | None:
    try:
        old = msgspec.msgpack.decode(data, type=_Request)
    except (ValueError, RecursionError) as error:
        _log.warning("invalid request of format 1 dropped", key=keys.MOVES_PREFIX + name, why=str(error))
        return None
    return KeyWrite(keys.move_key(old.channel), encode_request(MoveRequest(*astuple(old))))


def _open(public: bytes, kind: bytes, data: bytes, type: type[T]) -> T:
    """The content of a wrapper of format 1; ForgedEntryError if this cluster did not sign it."""
    try:
        signed = msgspec.msgpack.decode(data, type=_Signed)
        if signed.kind != kind:
            raise ForgedEntryError(f"expected a {kind.decode()}, got something else")
        Ed25519PublicKey.from_public_bytes(public).verify(signed.signature, kind + b"\0" + signed.body)
        return msgspec.msgpack.decode(signed.body, type=type)
    except (ValueError, RecursionError, InvalidSignature) as error:
        raise ForgedEntryError("its signature is not this cluster's") from error
