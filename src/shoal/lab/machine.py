"""The machine that a measurement runs on, and how busy its processors are.

Owns the reading of `/proc` and of the clocks of processes. The load of servers is not here: agents report it
(`shoal.cluster.server_meter`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_SCHEDULED: Final = 2
"""The clock of a process in `~pid << 3 | clock` that counts what its threads were given (clock_getcpuclockid(3))."""


def machine() -> dict[str, int | str]:
    """The cores that this process may use, and the name of the CPU."""
    return {"cores": len(os.sched_getaffinity(0)), "cpu": _cpu_name()}


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def process_cpu_s(pid: int) -> float:
    """CPU time that a process has used so far, user and system; 0 if it has ended. `/proc` counts it in steps of 10 ms,
    its clock in nanoseconds."""
    try:
        return time.clock_gettime(~pid << 3 | _SCHEDULED)
    except OSError:
        return 0.0


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
