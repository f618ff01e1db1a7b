"""Many seeds on all cores: the same function for many tasks, in a pool of processes.

Owns the pool. Results come in the order of the tasks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Task = TypeVar("Task")
Found = TypeVar("Found")


def on_all_cores(
    function: Callable[[Task], Found], tasks: Sequence[Task], progress: Callable[[int], None]
) -> list[Found]:
    """The results of all tasks. `progress` is called with the number of finished tasks."""
    workers = min(os.cpu_count() or 1, len(tasks))
    found: list[Found] = []
    if workers <= 1:
        for task in tasks:
            found.append(function(task))
            progress(len(found))
        return found
    with ProcessPoolExecutor(workers) as pool:
        for result in pool.map(function, tasks):
            found.append(result)
            progress(len(found))
    return found
