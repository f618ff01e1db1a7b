"""The agents' secret: a leader provides it before the first ring, and rings announce its public keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from shoal.lab.sim.models.coordinator import Store
from shoal.leader.keeper import Keeper, Snapshot
from shoal.leader.keeper_shell import KeeperShell
from shoal.leader.leader_timeouts import LeaderTiming
from shoal.limits import Limits
from shoal.plan import keys
from shoal.plan.ring import AgentKey, Ring, ServerAddress
from shoal.plan.signature import Signer, Verifier
from shoal.wire.identity import AgentSecret

SIGNER = Signer(bytes(range(32)))
LIMITS = Limits(server_lease_s=3.0)
SERVER = ServerAddress("s1", "127.0.0.1", 7001)
KEYS = (AgentKey(1, b"s" * 32, b"x" * 32),)


class Coordinator:
    """The model's store, asked by coroutines."""

    def __init__(self) -> None:
        self.store = Store(lambda: 0.0)
        self.order: list[str] = []

    def __getattr__(self, operation: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def ask(*args: Any, **kwargs: Any) -> Any:
            if operation == "put":
                self.order.append(args[0])
            return getattr(self.store, operation)(*args, **kwargs)

        return ask

    def secrets(self) -> dict[str, bytes]:
        return {key: stored.value for key, stored in self.store.list(keys.SECRETS_PREFIX).items()}


async def lead(coordinator: Any, seed: int = 1, keeping: KeeperShell | None = None) -> KeeperShell:
    """Leads until the plan is prepared."""
    keeper = Keeper(SIGNER, LIMITS, (), 0.0)
    keeping = keeping or KeeperShell(coordinator, SIGNER, keeper, LeaderTiming(), "a", Random(seed), wall=float)
    task = asyncio.create_task(keeping.run())
    while keeping.leading is None:
        assert not task.done()
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await keeping.release()
    return keeping


async def test_a_new_cluster_gets_a_secret_before_anything_else() -> None:
    coordinator = Coordinator()
    await lead(coordinator)
    ((key, value),) = coordinator.secrets().items()
    assert key == "secrets/agents/1"
    assert len(value) == 32
    assert coordinator.order[0] == key


async def test_the_next_leader_uses_the_same_secret() -> None:
    coordinator = Coordinator()
    await lead(coordinator, 1)
    first = coordinator.secrets()
    await lead(coordinator, 2)
    assert coordinator.secrets() == first


async def test_a_coordinator_that_lost_its_data_gets_the_secret_again() -> None:
    coordinator = Coordinator()
    keeping = await lead(coordinator)
    first = coordinator.secrets()
    coordinator.store = Store(lambda: 0.0)
    await lead(coordinator, keeping=keeping)
    assert coordinator.secrets() == first


async def test_a_ring_whose_secret_is_lost_gets_the_next_generation() -> None:
    """Clients of the lost generation are refused with the reason, instead of being taken for forgers."""
    coordinator = Coordinator()
    coordinator.store.put(keys.FORMAT_KEY, b"2")
    coordinator.store.put(keys.RING_KEY, SIGNER.ring(Ring(4, (SERVER,), scheme=1, lease_ms=3000, agent_keys=KEYS)))
    await lead(coordinator)
    ((key, value),) = coordinator.secrets().items()
    assert key == "secrets/agents/2"
    stored = coordinator.store.get(keys.RING_KEY)
    assert stored is not None
    ring = Verifier(SIGNER.public).ring(stored.value)
    secret = AgentSecret(2, value)
    assert (ring.version, ring.scheme) == (5, 1)
    assert ring.agent_keys == (AgentKey(2, secret.signing, secret.exchange),)


def snapshot(ring: bytes = b"") -> Snapshot:
    return Snapshot(True, {"s1": SERVER}, {"s1": 3.0}, ring, 1 if ring else 0)


def test_the_first_ring_names_the_scheme_and_the_keys() -> None:
    keeper = Keeper(SIGNER, LIMITS, (), 0.0)
    keeper.use_keys(KEYS)
    put = keeper.observe(snapshot(), 0.0)
    assert put is not None
    assert (put.ring.scheme, put.ring.agent_keys) == (1, KEYS)
    keeper.written(put.ring)
    assert keeper.observe(snapshot(put.data), 1.0) is None


def test_a_cluster_that_began_without_authentication_goes_on_without() -> None:
    """Its clients have no keys: a ring that asks for them would cut them all off."""
    old = SIGNER.ring(Ring(4, (SERVER,), lease_ms=3000))
    keeper = Keeper(SIGNER, LIMITS, (), 0.0)
    keeper.use_keys(KEYS)
    assert keeper.observe(snapshot(old), 0.0) is None
    second = ServerAddress("s2", "127.0.0.1", 7002)
    grown = Snapshot(True, {"s1": SERVER, "s2": second}, {"s1": 3.0, "s2": 3.0}, old, 1)
    put = keeper.observe(grown, 1.0)
    assert put is not None
    assert (put.ring.scheme, put.ring.agent_keys) == (0, ())
