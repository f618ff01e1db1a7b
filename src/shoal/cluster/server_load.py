"""Load of the servers of a local cluster, from two INFO replies.

Owns the interpretation of INFO for display. Nothing is decided from it; the balancer uses the analyzer's measurements.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from shoal.cluster.acl import ADMIN
from shoal.cluster.state import ClusterState, ServerProcess
from shoal.errors import ShoalError
from shoal.runtime import PRODUCTION
from shoal.wire.blocking_connection import ask

Sample: TypeAlias = tuple[float, dict[str, str]]
"""The time and the fields of an INFO reply."""


class ServerLoad(msgspec.Struct, frozen=True):
    """A server's activity between two samples. `load_ratio` is the share of one core that its main thread used."""

    id: str
    connections: int
    channels: int
    patterns: int
    messages_per_s: float
    bytes_out_per_s: float
    load_ratio: float
    memory_bytes: int


def measure_load(state: ClusterState, interval_s: float, timeout_s: float) -> dict[str, ServerLoad | None]:
    """Measure the load of each server over `interval_s`; None for a server that does not answer. Blocks."""
    before = {server.id: _sample(state, server, timeout_s) for server in state.servers}
    first = {server.id: _sample(state, server, timeout_s) for server in state.servers}
    time.sleep(interval_s)
    second = {server.id: _sample(state, server, timeout_s) for server in state.servers}
    ids = [server.id for server in state.servers]
    return {server: _compare(server, before[server], first[server], second[server]) for server in ids}


def parse_info(text: str) -> dict[str, str]:
    """Parse the fields of an INFO reply."""
    lines: Iterable[str] = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _sample(state: ClusterState, server: ServerProcess, timeout_s: float) -> Sample | None:
    password = state.passwords[ADMIN]
    try:
        dial = PRODUCTION.with_tls(state.tls_for(ADMIN)).coordinator_dial
        reply: Any = ask(server.host, server.port, ADMIN, password, "INFO", "all", dial=dial, timeout_s=timeout_s)
    except ShoalError:
        return None
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    return time.monotonic(), parse_info(text)


def _compare(server: str, before: Sample | None, first: Sample | None, second: Sample | None) -> ServerLoad | None:
    """Return the difference of the last two samples, minus the cost of a sample itself, which the first two show.

    None if a sample is missing or the server was restarted in between.
    """
    if before is None or first is None or second is None or before[1]["run_id"] != second[1]["run_id"]:
        return None
    elapsed_s = second[0] - first[0]
    now = second[1]
    sample_bytes = _bytes_out(first[1]) - _bytes_out(before[1])
    return ServerLoad(
        id=server,
        connections=int(now["connected_clients"]) - 1,
        channels=int(now["pubsub_channels"]),
        patterns=int(now["pubsub_patterns"]),
        messages_per_s=(_publishes(now) - _publishes(first[1])) / elapsed_s,
        bytes_out_per_s=max(0.0, (_bytes_out(now) - _bytes_out(first[1]) - sample_bytes) / elapsed_s),
        load_ratio=min(1.0, (_cpu_s(now) - _cpu_s(first[1])) / elapsed_s),
        memory_bytes=int(now["used_memory"]),
    )


def _bytes_out(info: dict[str, str]) -> int:
    """Return the total bytes sent by the server."""
    return int(info["total_net_output_bytes"])


def _publishes(info: dict[str, str]) -> int:
    """Return the total number of published messages."""
    calls = dict(part.split("=", 1) for part in info.get("cmdstat_publish", "calls=0").split(","))
    return int(calls["calls"])


def _cpu_s(info: dict[str, str]) -> float:
    """Return the CPU time of the main thread, or of the whole server if it does not report that."""
    user = info.get("used_cpu_user_main_thread", info["used_cpu_user"])
    system = info.get("used_cpu_sys_main_thread", info["used_cpu_sys"])
    return float(user) + float(system)
