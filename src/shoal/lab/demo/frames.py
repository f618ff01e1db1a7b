"""The frames that the demo shows, and the figures of each second in them.

Owns rates, percentiles, the use of the processors and the rows of servers. Decides nothing.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from shoal.cluster.local import ClusterStatus
from shoal.cluster.server_meter import ServerSecond
from shoal.lab.demo.delivery_audit import Tally
from shoal.lab.demo.server_events import DemoEvent
from shoal.lab.machine import process_cpu_s

RESPONSE_WINDOW_S: Final = 5
"""Seconds of response times behind the live percentiles."""

REPORT_S_MAX: Final = 4.0
"""A server's load is shown as long as its last report is no older than this."""


class DemoSecond(msgspec.Struct, frozen=True):
    """One second of the demo."""

    players: int
    messages_per_s: float
    deliveries_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    cpu_share: float
    """Share of all processors."""
    load_mean: float | None
    """Average load ratio of the servers."""
    load_max: float | None
    """Load ratio of the busiest server."""


class ServerFrame(msgspec.Struct, frozen=True):
    """One server. `ring` is its state in the ring: in, drained, joins or out."""

    id: str
    state: str
    lease: bool
    ring: str
    restarts: int
    load: ServerSecond | None


class DemoFrame(msgspec.Struct, frozen=True):
    """Everything that is shown at one moment."""

    phase: str
    elapsed_s: float
    seconds: float
    players_max: int
    tiles: int
    history: Sequence[DemoSecond]
    tally: Tally
    waiting_s: float
    """Age of the oldest update that has not come back."""
    ring_version: int
    moves_ended: int
    moves_under_way: int
    proposals: int
    replicated: int
    """Number of channels that were placed on several servers."""
    servers_added: int
    servers_removed: int
    servers: Sequence[ServerFrame]
    events: Sequence[DemoEvent]


class Sampler:
    """Turns counts into the figures of each second."""

    def __init__(self, now: float) -> None:
        self.history: list[DemoSecond] = []
        self.responses_ms: list[float] = []
        """All response times so far."""
        self._recent: deque[list[float]] = deque(maxlen=RESPONSE_WINDOW_S)
        self._at = now
        self._messages = 0
        self._deliveries = 0
        self._cpu: dict[int, float] = {}
        self._cpu_shares: list[float] = []

    def sample(
        self,
        now: float,
        players: int,
        tally: Tally,
        responses_ms: list[float],
        pids: Iterable[int],
        ratios: Sequence[float],
    ) -> None:
        """Adds a second: everything since the last call. `ratios` are the servers' load ratios."""
        elapsed_s = max(now - self._at, 1e-6)
        self._at = now
        self.responses_ms += responses_ms
        self._recent.append(responses_ms)
        recent = sorted(value for values in self._recent for value in values)
        cpu_share = self._cpu_share(pids, elapsed_s)
        self._cpu_shares.append(cpu_share)
        self.history.append(
            DemoSecond(
                players=players,
                messages_per_s=(tally.messages - self._messages) / elapsed_s,
                deliveries_per_s=(tally.deliveries - self._deliveries) / elapsed_s,
                p50_ms=percentile(recent, 0.50),
                p99_ms=percentile(recent, 0.99),
                cpu_share=cpu_share,
                load_mean=sum(ratios) / len(ratios) if ratios else None,
                load_max=max(ratios, default=None),
            )
        )
        self._messages, self._deliveries = tally.messages, tally.deliveries

    @property
    def cpu_share_mean(self) -> float:
        """Average use of the processors."""
        return sum(self._cpu_shares) / max(len(self._cpu_shares), 1)

    @property
    def cpu_share_max(self) -> float:
        """Use of the processors in the busiest second."""
        return max(self._cpu_shares, default=0.0)

    def _cpu_share(self, pids: Iterable[int], elapsed_s: float) -> float:
        before, self._cpu = self._cpu, {pid: process_cpu_s(pid) for pid in pids}
        used_s = sum(max(0.0, total - before[pid]) for pid, total in self._cpu.items() if pid in before)
        return used_s / elapsed_s / (os.cpu_count() or 1)


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value that a share of all values does not exceed; None if there are no values."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def server_rows(
    status: ClusterStatus, loads: Mapping[str, ServerSecond], draining: Collection[str], now_s: float
) -> list[ServerFrame]:
    """The rows of the table of servers; `now_s` is wall-clock time, as in the agents' reports."""
    processes = {process.name: process for process in status.processes}
    found = []
    for server in status.servers:
        process = processes.get(server.id)
        load = loads.get(server.id)
        if load is not None and (not server.in_ring or now_s - load.second > REPORT_S_MAX):
            load = None
        ring = ("drained" if server.id in draining else "in") if server.in_ring else "out"
        if ring == "out" and server.id not in loads:
            ring = "joins"
        state = "ends" if process is None else process.state
        restarts = process.restarts if process is not None else 0
        found.append(ServerFrame(server.id, state, server.lease, ring, restarts, load))
    return found
