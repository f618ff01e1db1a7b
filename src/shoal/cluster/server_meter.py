"""The agents' reports about their servers, second by second: the same telemetry that the balancer uses.

Owns reading it for display and checks. It makes no decisions.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from shoal.cluster.acl import READER
from shoal.cluster.local import LocalCluster
from shoal.errors import ProtocolError
from shoal.leader.telemetry_reader import TelemetryReader
from shoal.limits import DEFAULT_LIMITS
from shoal.load.kinds import CHANNEL, SERVER
from shoal.load.reports import arrivals, read_report
from shoal.load_kinds import KINDS
from shoal.runtime import PRODUCTION


@dataclass(frozen=True, slots=True)
class ServerSecond:
    """One second of one server. `load_ratio` is relative to the capacity configured in its agent (the paper's equation
    1), `cpu_share` to one core.
    """

    server: str
    second: int
    load_ratio: float
    bytes_out_per_s: float
    messages_sent: int
    cpu_share: float
    connections: int


class ServerMeter:
    """Follows the telemetry of a cluster's servers. An async context manager."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        state = cluster.state
        runtime = PRODUCTION.with_tls(state.tls_for(READER))
        self._reader = TelemetryReader(READER, state.passwords[READER], DEFAULT_LIMITS, asyncio.Event(), runtime)

    async def __aenter__(self) -> Self:
        self.follow()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._reader.close()

    def follow(self) -> None:
        """Follow the servers that are in the ring now."""
        members = {server.id for server in self._cluster.status().servers if server.in_ring}
        self._reader.follow([server for server in self._cluster.servers if server.id in members])

    def take(self) -> list[ServerSecond]:
        """Return the reports since the last call."""
        rows, _ = arrivals(self._reader.take(), float("inf"))
        found = []
        for row in rows:
            try:
                report = read_report(row, KINDS)
            except ProtocolError:
                continue
            if report.host.measured and report.host.kind == SERVER:
                figures: dict[str, Any] = report.host.figures
                sent = report.units[CHANNEL]["messages_sent"].to_pylist()
                found.append(
                    ServerSecond(
                        server=row.id.host,
                        second=row.id.second,
                        load_ratio=figures["bandwidth_bytes_per_s"] / figures["capacity_bytes_per_s"],
                        bytes_out_per_s=figures["bandwidth_bytes_per_s"],
                        messages_sent=sum(sent),
                        cpu_share=figures["cpu_share"],
                        connections=figures["connections"],
                    )
                )
        return found
