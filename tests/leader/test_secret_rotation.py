"""Rotation of the agents' secret: each step follows from what is stored, so that any leader goes on with it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from tests.leader.test_agent_secret import SERVER, SIGNER, Coordinator

from shoal.errors import PlanError
from shoal.leader.keeper import Keeper
from shoal.leader.keeper_shell import KeeperShell
from shoal.leader.leader_timeouts import LeaderTiming
from shoal.leader.secret_rotation import RotationSteps, SecretRotation
from shoal.limits import Limits
from shoal.plan import keys
from shoal.plan.ring import AgentKey, Ring
from shoal.plan.secret_rotation import Rotation, decode, encode, generations, revoked, rotated
from shoal.plan.signature import Verifier

LIMITS = Limits(server_lease_s=3.0, secret_overlap_s=100.0)
LEASES_S = 6.0
WALL_S = 1_000_000.0


def decide(wanted: Rotation | None, named: list[int], held: list[int], wall_s: float = WALL_S) -> RotationSteps:
    return SecretRotation(LIMITS).decide(wanted, named, held, wall_s, 0.0)


def test_nothing_happens_that_nobody_wants() -> None:
    assert decide(None, [1], [1]) == RotationSteps((1,))
    assert decide(None, [1], [1, 2]) == RotationSteps((1,)), "a secret that was stored for a request that is gone"


def test_a_secret_is_stored_before_the_ring_names_it() -> None:
    assert decide(Rotation(2, 1), [1], [1]) == RotationSteps((1,), draw=2)
    assert decide(Rotation(2, 1), [1], [1, 2]) == RotationSteps((1, 2))


def test_the_overlap_begins_when_the_ring_names_both() -> None:
    assert decide(Rotation(2, 1), [1, 2], [1, 2]) == RotationSteps((1, 2), record=Rotation(2, 1, WALL_S))
    begun = Rotation(2, 1, WALL_S)
    assert decide(begun, [1, 2], [1, 2], WALL_S + 99.0) == RotationSteps((1, 2))
    assert decide(begun, [1, 2], [1, 2], WALL_S + 100.0) == RotationSteps((2,))


def test_a_revocation_ends_the_older_one_at_once() -> None:
    assert decide(Rotation(2, 2, WALL_S), [1, 2], [1, 2]) == RotationSteps((2,))


def test_a_secret_is_deleted_two_leases_after_the_ring_has_dropped_it() -> None:
    core, wanted = SecretRotation(LIMITS), Rotation(2, 2, WALL_S)
    assert core.decide(wanted, [2], [1, 2], WALL_S, 10.0) == RotationSteps((2,))
    assert core.decide(wanted, [2], [1, 2], WALL_S, 10.0 + LEASES_S - 0.1) == RotationSteps((2,))
    assert core.decide(wanted, [2], [1, 2], WALL_S, 10.0 + LEASES_S) == RotationSteps((2,), delete=(1,))


def test_more_than_two_are_never_in_force() -> None:
    assert decide(Rotation(3, 2, WALL_S), [1, 2], [1, 2]) == RotationSteps((2,))
    assert decide(Rotation(9, 8), [1], [1]) == RotationSteps((1,), draw=2)


def test_there_is_no_generation_after_the_last_one() -> None:
    assert decide(Rotation(256, 255), [255], [255]) == RotationSteps((255,))
    with pytest.raises(PlanError, match="the last one"):
        rotated(ring_of(255))


def ring_of(*named: int) -> Ring:
    return Ring(1, (SERVER,), scheme=1, agent_keys=tuple(AgentKey(one, b"s" * 32, b"x" * 32) for one in named))


def test_what_operators_may_ask_for() -> None:
    assert rotated(ring_of(1)) == Rotation(2, 1)
    assert revoked(ring_of(1, 2), Rotation(2, 1, 5.0)) == Rotation(2, 2, 5.0)
    with pytest.raises(PlanError, match="still in force"):
        rotated(ring_of(1, 2))
    with pytest.raises(PlanError, match="the only one"):
        revoked(ring_of(1), None)
    with pytest.raises(PlanError, match="does not authenticate"):
        rotated(Ring(1, (SERVER,)))


def test_a_record_that_cannot_be_read_is_none() -> None:
    assert decode(encode(Rotation(2, 1, 5.0))) == Rotation(2, 1, 5.0)
    assert decode(b"{") is None


class Cluster:
    """A coordinator with a ring, and one leader after the other."""

    def __init__(self) -> None:
        self.coordinator: Any = Coordinator()
        store = self.coordinator.store
        store.put(keys.FORMAT_KEY, b"2")
        store.put(keys.agent_secret_key(1), bytes(32))
        store.put(keys.RING_KEY, SIGNER.ring(ring_of(1)))
        self.leaders = 0

    @property
    def ring(self) -> Ring:
        return Verifier(SIGNER.public).ring(self.coordinator.store.get(keys.RING_KEY).value)

    def want(self, wanted: Rotation) -> None:
        self.coordinator.store.put(keys.ROTATION_KEY, encode(wanted))

    def new_leader(self) -> KeeperShell:
        self.leaders += 1
        keeper, random = Keeper(SIGNER, LIMITS, (), 0.0), Random(self.leaders)
        limits = Limits(server_lease_s=0.0001, heartbeat_interval_s=0.00001)
        rotation = SecretRotation(limits)
        return KeeperShell(
            self.coordinator, SIGNER, keeper, LeaderTiming(), "a", random, rotation=rotation, wall=lambda: WALL_S
        )

    async def rounds(self, count: int, each_dies: bool) -> None:
        """So many rounds of one leader, or of one leader each."""
        leader = self.new_leader()
        for _ in range(count):
            if each_dies:
                await leader.release()
                leader = self.new_leader()
                await leader._look()
            await leader._look()
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("each_dies", [False, True])
async def test_any_leader_goes_on_with_a_rotation(each_dies: bool) -> None:
    cluster = Cluster()
    await cluster.rounds(2, each_dies)
    first = generations(cluster.ring)
    cluster.want(rotated(cluster.ring))
    await cluster.rounds(4, each_dies)
    assert (first, generations(cluster.ring)) == ([1], [1, 2])
    assert sorted(cluster.coordinator.secrets()) == ["secrets/agents/1", "secrets/agents/2"]
    record = decode(cluster.coordinator.store.get(keys.ROTATION_KEY).value)
    assert record == Rotation(2, 1, WALL_S)
    cluster.want(revoked(cluster.ring, record))
    await cluster.rounds(6, False)
    assert generations(cluster.ring) == [2]
    assert sorted(cluster.coordinator.secrets()) == ["secrets/agents/2"]
