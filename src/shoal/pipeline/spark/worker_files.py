"""Sends files to Spark's workers.

Owns a temporary directory for such files. A worker fetches a file when it first runs a task, perhaps much later and for
another job, and Spark rejects two contents under one name. So a file's name contains a hash of its contents, and the
file stays until this process ends.
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
    """Sends the file that `write` creates; returns the name by which workers find it in `SparkFiles`."""
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
