"""Progress of Spark jobs: how many of the tasks that are under way have ended.

Owns the asking, on a thread of its own for as long as a job runs. How it looks is for who gives `note`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY_S: Final = 2.0


@contextlib.contextmanager
def shown(spark: SparkSession, what: str, note: Callable[[str], None], every_s: float = EVERY_S) -> Iterator[None]:
    """Notes how far the session's stages are, whenever that has changed."""
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def follow() -> None:
        said = ""
        while not ended.wait(every_s):
            # A stage can end between two questions, and the session with it.
            with contextlib.suppress(Exception):
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
                total = sum(stage.numTasks for stage in stages if stage is not None)
                words = f"{what}: {done} of {total}"
                if total and words != said:
                    note(words)
                    said = words

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
