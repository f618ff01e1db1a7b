"""What machine a measurement ran on.

Owns the two facts that every measurement names.
"""

from __future__ import annotations

import os
from pathlib import Path


def machine() -> dict[str, int | str]:
    """The cores that this process may use, and the name of the CPU."""
    return {"cores": len(os.sched_getaffinity(0)), "cpu": _cpu_name()}


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"
