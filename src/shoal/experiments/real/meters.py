"""How busy the machine's processors are while an experiment runs.

Owns the reading. Beside what agents report of their servers (`shoal.cluster.server_meter`) it tells a full link from a
full processor.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_CORES: Final = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Shares of all cores of the machine since the last look: by everything that runs there, and by the processes that
    were named (the measuring clients)."""

    machine: float
    clients: float


class CpuMeter:
    """Compares each look with the one before."""

    def __init__(self) -> None:
        self._at = _machine_s()
        self._clients: dict[int, float] = {}

    def look(self, clients: Iterable[int]) -> CpuUse:
        """What was used since the last look."""
        before, self._at = self._at, _machine_s()
        used_before, self._clients = self._clients, {pid: _process_s(pid) for pid in clients}
        busy_s, all_s = self._at[0] - before[0], max(self._at[1] - before[1], 1e-6)
        used_s = sum(total - used_before.get(pid, total) for pid, total in self._clients.items())
        return CpuUse(machine=busy_s / all_s, clients=used_s / all_s)


def cores() -> int:
    """Of this machine."""
    return _CORES


def _machine_s() -> tuple[float, float]:
    """Processor time of all cores so far: busy, and in all."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / _TICKS_PER_S, sum(fields) / _TICKS_PER_S


def _process_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
