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


HOLES = """
import sys, threading
from pathlib import Path
import numpy as np
from shoal.engine.freed_memory import TidyThreads, give_back_large_blocks

def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

give_back_large_blocks()
arrays = [np.ones(12_500) for _ in range(800)]  # 80 MB in small blocks
del arrays[::2], arrays[::2]
before = pages()
done = threading.Event()
if "merge" in sys.argv:
    TidyThreads().start(done.set)
    for thread in threading.enumerate():
        if thread.name == "shoal-merge":
            thread.join()
print((before - pages()) >> 8)
"""


def test_holes_in_the_heap_go_back_after_a_merge() -> None:
    def given_back(*words: str) -> int:
        done = subprocess.run([sys.executable, "-c", HOLES, *words], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert abs(given_back()) < 5, "the counters themselves take some pages"
    assert given_back("merge") > 40
