"""Providers: a fixed pool adds servers of its reserve; without a provider nothing is added."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.balance.balancer_options import BalancerOptions
from shoal.cluster.local_provider import LocalProcesses
from shoal.cluster.state import StateDir
from shoal.errors import ClusterError
from shoal.leader.providers import FixedPool, NoProvider
from shoal.plan.keys import Mark
from shoal.plan.kinds import SERVER
from shoal.plan.ring import ServerAddress

POOL = BalancerOptions(pool="a@10.0.0.1:7001, b@[::1]:7002/oslo,c@host:7003/oslo", servers_min=2, servers_max=3)


def test_addresses_of_a_pool() -> None:
    assert POOL.pool_addresses() == (
        ServerAddress("a", "10.0.0.1", 7001),
        ServerAddress("b", "::1", 7002, "oslo"),
        ServerAddress("c", "host", 7003, "oslo"),
    )


async def test_a_fixed_pool_gives_from_its_reserve() -> None:
    marks = {"a": Mark.OUT, "b": Mark.GUEST, "c": Mark.OUT, "z": Mark.OUT}
    pool = FixedPool(POOL, lambda: marks)
    state = pool.state()
    assert (state.spare, state.servers, state.servers_min, state.servers_max) == (2, (), 2, 3)
    assert await pool.add(SERVER, 1) == ("a",)
    assert await pool.add(SERVER, 9) == ("a", "c")
    with pytest.raises(ClusterError, match="no shelf"):
        await pool.add("shelf", 1)
    assert await pool.add(SERVER, 9, "oslo") == ("c",)
    with pytest.raises(ClusterError, match="in reserve at site bergen"):
        await pool.add(SERVER, 1, "bergen")
    await pool.remove("b")  # its mark puts it in reserve
    marks.clear()
    assert pool.state().spare == 0
    with pytest.raises(ClusterError, match="in reserve"):
        await pool.add(SERVER, 1)


async def test_no_provider_refuses_to_add_and_remove() -> None:
    provider = NoProvider(BalancerOptions())
    assert provider.state().is_fixed
    with pytest.raises(ClusterError, match="no provider that adds"):
        await provider.add(SERVER, 1)
    with pytest.raises(ClusterError, match="no provider that removes s1"):
        await provider.remove("s1")


async def test_an_absent_supervisor(tmp_path: Path) -> None:
    provider = LocalProcesses(StateDir(tmp_path), BalancerOptions(servers_max=4))
    assert (provider.state().servers, provider.state().servers_max) == ((), 4)
    with pytest.raises(ClusterError, match="does not answer"):
        await provider.add(SERVER, 1)
