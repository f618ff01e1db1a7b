"""What the demo shows, once a second: figures of the last second and how they came to be.

Owns rates, percentiles and the use of the processors. Reads `/proc`; decides nothing.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shoal.cluster.local import ClusterStatus
from shoal.cluster.server_meter import ServerSecond
from shoal.demo.audit import Tally
from shoal.demo.script import Event

RESPONSE_WINDOW_S: Final = 5
"""Seconds of response times behind the live percentiles."""

REPORT_S_MAX: Final = 4.0
"""How old the last report of a server may be that is shown as its load."""

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Second(msgspec.Struct, frozen=True):
    """One second of the demo."""

    players: int
    messages_per_s: float
    deliveries_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    cpu_share: float
    """Of all processors."""
    load_mean: float | None
    """Load ratio of the servers on average."""
    load_max: float | None
    """Load ratio of the busiest."""


class Row(msgspec.Struct, frozen=True):
    """One server. `ring` says how it stands in the ring: in, drained, joins or out."""

    id: str
    state: str
    lease: bool
    ring: str
    restarts: int
    load: ServerSecond | None


class Frame(msgspec.Struct, frozen=True):
    """Everything that is shown at one moment."""

    phase: str
    elapsed_s: float
    seconds: float
    players_max: int
    tiles: int
    history: Sequence[Second]
    tally: Tally
    waiting_s: float
    """How long the oldest update that is not back has been out."""
    ring_version: int
    moves_ended: int
    moves_under_way: int
    proposals: int
    replicated: int
    """Channels that were given several servers."""
    servers_added: int
    servers_removed: int
    servers: Sequence[Row]
    events: Sequence[Event]


class Sampler:
    """Makes seconds of counts."""

    def __init__(self, now: float) -> None:
        self.history: list[Second] = []
        self.responses_ms: list[float] = []
        """All of them."""
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
        """Takes a look: what happened since the last one is a second. `ratios` are the servers' load ratios."""
        elapsed_s = max(now - self._at, 1e-6)
        self._at = now
        self.responses_ms += responses_ms
        self._recent.append(responses_ms)
        recent = sorted(value for values in self._recent for value in values)
        cpu_share = self._cpu_share(pids, elapsed_s)
        self._cpu_shares.append(cpu_share)
        self.history.append(
            Second(
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
        """The use of the processors over the whole time."""
        return sum(self._cpu_shares) / max(len(self._cpu_shares), 1)

    @property
    def cpu_share_max(self) -> float:
        """Its busiest second."""
        return max(self._cpu_shares, default=0.0)

    def _cpu_share(self, pids: Iterable[int], elapsed_s: float) -> float:
        before, self._cpu = self._cpu, {pid: _cpu_s(pid) for pid in pids}
        used_s = sum(max(0.0, total - before[pid]) for pid, total in self._cpu.items() if pid in before)
        return used_s / elapsed_s / (os.cpu_count() or 1)


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value that a share of all values do not exceed; None of nothing."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def rows(
    status: ClusterStatus, loads: Mapping[str, ServerSecond], draining: Collection[str], now_s: float
) -> list[Row]:
    """The servers as the table shows them; `now_s` is the time by which agents report."""
    processes = {process.name: process for process in status.processes}
    found = []
    for server in status.servers:
        process = processes.get(server.id)
        load = loads.get(server.id)
        if load is not None and (not server.in_ring or now_s - load.second > REPORT_S_MAX):
            load = None
        stands = ("drained" if server.id in draining else "in") if server.in_ring else "out"
        if stands == "out" and server.id not in loads:
            stands = "joins"
        state = "ends" if process is None else process.state
        restarts = process.restarts if process is not None else 0
        found.append(Row(server.id, state, server.lease, stands, restarts, load))
    return found


def _cpu_s(pid: int) -> float:
    """Processor time that a process has used so far; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
