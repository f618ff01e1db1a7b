"""Queries of the redis-py surface: how the answers of several servers become one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import shoal.redis as redis
from shoal.plan.placement import Mode, Placement


@pytest.mark.parametrize(
    ("mode", "servers", "count"),
    [
        (Mode.SINGLE, ("s1",), 3),  # s2 has clients that followed an earlier ring
        (Mode.ALL_SUBSCRIBERS, ("s1", "s2"), 3),
        (Mode.ALL_PUBLISHERS, ("s1", "s2"), 5),
    ],
)
async def test_each_client_is_counted_once(mode: Mode, servers: tuple[str, ...], count: int) -> None:
    client = redis.Redis()
    book = SimpleNamespace(placement=lambda name: Placement(1, mode, servers))

    async def open_bus() -> Any:
        return SimpleNamespace(router=SimpleNamespace(book=book))

    async def ask_servers(*args: bytes) -> dict[str, Any]:
        return {"s1": [b"x", 3], "s2": [b"x", 2]}

    client._open_bus = open_bus  # type: ignore[method-assign]
    client._ask_servers = ask_servers  # type: ignore[method-assign]
    assert await client.pubsub_numsub("x") == [(b"x", count)]
