"""Freed memory: large arrays of a process that was told so go back to the operating system."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from shoal.engine.freed_memory import give_back_large_blocks

def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

if "told" in sys.argv:
    give_back_large_blocks()
first = np.ones(2 << 20)  # once it is freed, the C library keeps blocks of this size
del first
arrays = [np.ones(1 << 19) for _ in range(20)]
above = np.ones(60_000)
before = pages()
del arrays
print((before - pages()) >> 8)
"""
ARRAYS_MIB = 80


def test_large_arrays_go_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, "told"], capture_output=True, text=True, check=True)
    assert int(done.stdout) > ARRAYS_MIB / 2


BATCHES = """
import resource
import numpy as np
from shoal.engine.freed_memory import give_back_large_blocks

give_back_large_blocks()
for batch in range(101):
    if batch == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(25_000) for _ in range(4)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES_OF_ARRAYS = 100 * 4 * 49


def test_what_a_batch_of_events_takes_is_there_for_the_next_one() -> None:
    done = subprocess.run([sys.executable, "-c", BATCHES], capture_output=True, text=True, check=True)
    assert int(done.stdout) < PAGES_OF_ARRAYS / 20
