"""Progress of Spark jobs: how many tasks of the running stages are done.

Owns a thread that polls Spark while a job runs. The caller's `note` prints.
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
    """Calls `note` whenever the number of finished tasks has changed, until the block ends."""
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def follow() -> None:
        last = ""
        while not ended.wait(every_s):
            # A stage, or the whole session, can end between two queries.
            with contextlib.suppress(Exception):
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
                total = sum(stage.numTasks for stage in stages if stage is not None)
                text = f"{what}: {done} of {total}"
                if total and text != last:
                    note(text)
                    last = text

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
