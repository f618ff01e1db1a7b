"""A plan of format 1: a leader upgrades it, other processes wait or end with advice. A newer plan stops them all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shoal.coordination.interface import Versioned
from shoal.errors import CoordinatorUnavailableError, ForgedEntryError, VersionError
from shoal.lab.sim.models.coordinator import Store
from shoal.leader.keeper import Keeper
from shoal.leader.keeper_shell import KeeperShell
from shoal.leader.leader_timeouts import LeaderTiming
from shoal.limits import Limits
from shoal.plan import keys
from shoal.plan.entry import Entry, Phase
from shoal.plan.format import UNMARKED, require_format, stored_format
from shoal.plan.move_request import MoveRequest, decode_request
from shoal.plan.placement import Mode, Placement
from shoal.plan.ring import AgentKey, Members, Ring, ServerAddress
from shoal.plan.signature import Signer, Verifier
from shoal.plan.upgrade import upgrade_plan
from shoal.wire.identity import AgentSecret

PRIVATE = bytes(range(32))
SIGNER = Signer(PRIVATE)
VERIFIER = Verifier(SIGNER.public)
OLD, NEW = Placement(4, Mode.SINGLE, ("s1",)), Placement(7, Mode.ALL_PUBLISHERS, ("s1", "s2"))
AGENT_KEYS = (AgentKey(1, b"s" * 32, b"x" * 32),)
SERVERS = (("s1", "10.0.0.1", 7001), ("s2", "10.0.0.2", 7002))
MOVING = (b"tile", NEW, Phase.SWITCH, (OLD,), 0, 9, True, ("s1",), 9)


def signed(kind: bytes, body: Any, private: bytes = PRIVATE) -> bytes:
    """A record as format 1 has it."""
    encoded = msgspec.msgpack.encode(body)
    signature = Ed25519PrivateKey.from_private_bytes(private).sign(kind + b"\0" + encoded)
    return msgspec.msgpack.encode([kind, encoded, signature])


class Coordinator:
    """The model's store, asked by coroutines; the operation numbered `fails_at` is done, but not answered."""

    def __init__(self) -> None:
        self.store = Store(lambda: 0.0)
        self.fails_at: int | None = None
        self.operations = 0

    def __getattr__(self, operation: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def ask(*args: Any, **kwargs: Any) -> Any:
            result = getattr(self.store, operation)(*args, **kwargs)
            self.operations += 1
            if self.operations == self.fails_at:
                raise CoordinatorUnavailableError("no answer")
            return result

        return ask

    def value(self, key: str) -> bytes:
        stored = self.store.get(key)
        assert isinstance(stored, Versioned)
        return stored.value


def of_format_1() -> Coordinator:
    coordinator = Coordinator()
    put = coordinator.store.put
    put("plan/key", SIGNER.public)
    put("plan/ring", signed(b"shoal ring", (6, SERVERS, ((("s1",), ()),), ("s2",))))
    put("plan/entries/" + keys.unit_text(b"tile"), signed(b"shoal entry", MOVING))
    put("plan/entries/" + keys.unit_text(b"forged"), signed(b"shoal entry", (b"forged", OLD), Signer.generate()))
    put("plan/entries/" + keys.unit_text(b"swapped"), signed(b"shoal entry", (b"other", OLD)))
    request = {"channel": b"tile", "servers": ["s2"], "mode": "single", "eager": False, "id": "x", "goes_there": False}
    put("moves/" + keys.unit_text(b"tile"), msgspec.msgpack.encode(request))
    put("moves/" + keys.unit_text(b"bad"), b"garbage")
    put("reports/s1", msgspec.msgpack.encode(("s1", 1, {})))
    put("pool/s2", b"guest")
    put("plan/recorded/" + keys.unit_text(b"news.*"), b"on")
    return coordinator


def keeping_on(coordinator: Any) -> KeeperShell:
    limits = Limits(server_lease_s=3.0)
    return KeeperShell(coordinator, SIGNER, Keeper(SIGNER, limits, (), 0.0), LeaderTiming(), "a", Random(1), wall=float)


async def upgrade(coordinator: Coordinator) -> None:
    lease = coordinator.store.acquire(keys.KEEPER_LEASE, "a", 10.0) or coordinator.store.acquire(
        keys.KEEPER_LEASE, "a", 10.0, takeover=True
    )
    assert lease is not None
    await upgrade_plan(coordinator, SIGNER, lease, 3000, AGENT_KEYS)  # type: ignore[arg-type]


def check_upgraded(coordinator: Coordinator, agent_keys: tuple[AgentKey, ...] = AGENT_KEYS) -> None:
    assert coordinator.value(keys.FORMAT_KEY) == b"2"
    ring = VERIFIER.ring(coordinator.value(keys.RING_KEY))
    addresses = tuple(ServerAddress(*server) for server in SERVERS)
    assert ring == Ring(6, addresses, (Members(("s1",)),), ("s2",), 1, 3000, agent_keys)
    assert set(coordinator.store.list(keys.ENTRIES_PREFIX)) == {keys.entry_key(b"tile")}
    assert VERIFIER.entry(coordinator.value(keys.entry_key(b"tile"))) == Entry(*MOVING)
    assert set(coordinator.store.list(keys.MOVES_PREFIX)) == {keys.move_key(b"tile")}
    request = decode_request(coordinator.value(keys.move_key(b"tile")))
    assert request == MoveRequest(b"tile", ("s2",), Mode.SINGLE, False, "x")
    assert coordinator.store.list(keys.REPORTS_PREFIX) == {}
    assert keys.recorded_key(b"news.*") in coordinator.store.list(keys.PLAN_PREFIX)


async def test_a_plan_of_format_1_is_upgraded_where_it_was() -> None:
    """In the middle of a move too: its entry keeps phase and revision."""
    coordinator = of_format_1()
    await upgrade(coordinator)
    check_upgraded(coordinator)


async def test_a_leader_that_dies_on_the_way_leaves_the_rest_to_the_next_one() -> None:
    whole = of_format_1()
    await upgrade(whole)
    for step in range(1, whole.operations):
        coordinator = of_format_1()
        coordinator.fails_at = step
        with pytest.raises(CoordinatorUnavailableError):
            await upgrade(coordinator)
        marked = coordinator.store.get(keys.FORMAT_KEY)
        assert stored_format(marked.value if marked else None) == UNMARKED
        await upgrade(coordinator)
        check_upgraded(coordinator)


async def test_a_ring_of_another_cluster_is_left_alone() -> None:
    coordinator = of_format_1()
    coordinator.store.put("plan/ring", signed(b"shoal ring", (6, SERVERS), Signer.generate()))
    before = coordinator.store.list("plan/")
    with pytest.raises(ForgedEntryError):
        await upgrade(coordinator)
    assert {key: kept for key, kept in coordinator.store.list("plan/").items() if key != keys.KEEPER_LEASE} == before


async def test_a_leader_upgrades_before_it_leads() -> None:
    coordinator = of_format_1()
    keeping = keeping_on(coordinator)
    task = asyncio.create_task(keeping.run())
    while keeping.leading is None:
        assert not task.done()
        await asyncio.sleep(0)
    task.cancel()
    secret = AgentSecret(1, coordinator.value(keys.agent_secret_key(1)))
    check_upgraded(coordinator, (AgentKey(1, secret.signing, secret.exchange),))


async def test_a_leader_stops_at_a_newer_plan() -> None:
    coordinator = of_format_1()
    coordinator.store.put(keys.FORMAT_KEY, b"3")
    keeping = keeping_on(coordinator)
    with pytest.raises(VersionError, match="format '3', this process knows up to 2: upgrade this process"):
        await keeping.run()
    assert keeping.leading is None
    assert coordinator.store.lease_of(keys.KEEPER_LEASE) is None
    assert keeping.view.trouble is not None


async def test_readers_refuse_what_they_cannot_read() -> None:
    coordinator: Any = of_format_1()
    with pytest.raises(VersionError, match="format 1, this process needs 2: start a leader of this version"):
        await require_format(coordinator)
    for value in (b"3", b"x", b""):
        coordinator.store.put(keys.FORMAT_KEY, value)
        with pytest.raises(VersionError, match="upgrade this process"):
            await require_format(coordinator)
    coordinator.store.put(keys.FORMAT_KEY, b"2")
    await require_format(coordinator)
    await require_format(Coordinator())  # type: ignore[arg-type]
