"""The machine that a measurement runs on, and how busy its processors are.

Owns the reading of `/proc`. The load of servers is not here: agents report it (`shoal.cluster.server_meter`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def machine() -> dict[str, int | str]:
    """The cores that this process may use, and the name of the CPU."""
    return {"cores": len(os.sched_getaffinity(0)), "cpu": _cpu_name()}


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def process_cpu_s(pid: int) -> float:
    """CPU time that a process has used so far, user and system; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class MachineMeter:
    """Measures the share of all cores that is in use, by any process."""

    def __init__(self) -> None:
        self._before = _cpu_ticks()

    def share(self) -> float:
        """The share since the last call, or since the meter was made."""
        before, self._before = self._before, _cpu_ticks()
        busy, total = self._before[0] - before[0], self._before[1] - before[1]
        return busy / max(total, 1)


def _cpu_ticks() -> tuple[int, int]:
    """Ticks of all cores since the start of the machine: busy, and all."""
    user, nice, system, idle, iowait, *others = map(int, Path("/proc/stat").read_text().split()[1:9])
    busy = user + nice + system + sum(others)
    return busy, busy + idle + iowait
