"""How loaded the servers of a local cluster are, as they say themselves (INFO, asked twice).

Owns the reading of INFO for people. Decides nothing from it; the analyzer measures for the balancer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from shoal.cluster.acl import ADMIN
from shoal.cluster.state import ClusterState, Endpoint
from shoal.errors import ShoalError
from shoal.wire.blocking import ask

Look: TypeAlias = tuple[float, dict[str, str]]
"""When, and what INFO said."""


class ServerLoad(msgspec.Struct, frozen=True):
    """What a server did between two looks. `load_ratio` is the share of one core that its one busy thread
    took."""

    id: str
    connections: int
    channels: int
    patterns: int
    messages_per_s: float
    bytes_out_per_s: float
    load_ratio: float
    memory_bytes: int


def measure_load(state: ClusterState, interval_s: float, timeout_s: float) -> dict[str, ServerLoad | None]:
    """The load of each server over `interval_s`; None for one that does not answer. Blocks."""
    before = {server.id: _look(state, server, timeout_s) for server in state.servers}
    first = {server.id: _look(state, server, timeout_s) for server in state.servers}
    time.sleep(interval_s)
    second = {server.id: _look(state, server, timeout_s) for server in state.servers}
    ids = [server.id for server in state.servers]
    return {server: _compare(server, before[server], first[server], second[server]) for server in ids}


def parse_info(text: str) -> dict[str, str]:
    """The fields of an INFO reply."""
    lines: Iterable[str] = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _look(state: ClusterState, server: Endpoint, timeout_s: float) -> Look | None:
    password = state.passwords[ADMIN]
    try:
        reply: Any = ask(server.host, server.port, ADMIN, password, "INFO", "all", timeout_s=timeout_s)
    except ShoalError:
        return None
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    return time.monotonic(), parse_info(text)


def _compare(server: str, before: Look | None, first: Look | None, second: Look | None) -> ServerLoad | None:
    """The difference of the last two looks, less what a look itself costs, which the first two tell.

    None if one is missing or the server was restarted between them.
    """
    if before is None or first is None or second is None or before[1]["run_id"] != second[1]["run_id"]:
        return None
    elapsed_s = second[0] - first[0]
    now = second[1]
    look_bytes = _bytes_out(first[1]) - _bytes_out(before[1])
    return ServerLoad(
        id=server,
        connections=int(now["connected_clients"]) - 1,
        channels=int(now["pubsub_channels"]),
        patterns=int(now["pubsub_patterns"]),
        messages_per_s=(_publishes(now) - _publishes(first[1])) / elapsed_s,
        bytes_out_per_s=max(0.0, (_bytes_out(now) - _bytes_out(first[1]) - look_bytes) / elapsed_s),
        load_ratio=min(1.0, (_cpu_s(now) - _cpu_s(first[1])) / elapsed_s),
        memory_bytes=int(now["used_memory"]),
    )


def _bytes_out(info: dict[str, str]) -> int:
    """How many bytes the server has sent so far."""
    return int(info["total_net_output_bytes"])


def _publishes(info: dict[str, str]) -> int:
    """How many messages were published so far."""
    calls = dict(part.split("=", 1) for part in info.get("cmdstat_publish", "calls=0").split(","))
    return int(calls["calls"])


def _cpu_s(info: dict[str, str]) -> float:
    """Processor time of the thread that carries the messages; of the whole server where it does not say."""
    user = info.get("used_cpu_user_main_thread", info["used_cpu_user"])
    system = info.get("used_cpu_sys_main_thread", info["used_cpu_sys"])
    return float(user) + float(system)
