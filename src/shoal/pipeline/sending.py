"""Files that travel with Spark jobs: what workers need and cannot compute.

Owns where such files lie. Spark fetches a file when a worker first runs a task, perhaps much later and for another job,
and refuses two contents under one name. So a file's name says what is in it, and it stays until this process ends.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def send(spark: SparkSession, stem: str, suffix: str, write: Callable[[Path], None]) -> str:
    """Sends what `write` writes to a path; returns the name under which `SparkFiles` has it at workers."""
    folder = _folder()
    unnamed = folder / f"{stem}-new{suffix}"
    write(unnamed)
    with unnamed.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    path = unnamed.replace(folder / f"{stem}-{digest}{suffix}")
    spark.sparkContext.addFile(str(path))
    return path.name


@lru_cache(maxsize=1)
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="shoal-sent-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
