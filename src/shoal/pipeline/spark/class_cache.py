"""A cache of Spark's loaded classes (a Java class data sharing archive), with which Java starts in half the time.

Owns the cache file in the user's cache directory. `./shoal` writes it when it installs PySpark; sessions only read it.
Java ignores a file that does not fit.

    python -m shoal.pipeline.spark.class_cache     writes the file
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shoal.errors import PipelineError
from shoal.folders import default_cache_dir
from shoal.pipeline.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SUBMITTED: Final = "--submitted"
"""The argument with which `spark-submit` runs this file."""


class ClassCache:
    """The cache file for one Java and one Spark."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, java: Java) -> ClassCache:
        """The file for this Java and the installed PySpark."""
        import pyspark

        key = "\n".join((java.path, java.text, pyspark.__version__, pyspark.__file__))
        name = f"classes-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"
        return cls(default_cache_dir() / "spark" / name)

    def option(self) -> str:
        """Java's option to use the file; empty if there is none, or if Java cannot name it."""
        usable = self.path.is_file() and not any(each.isspace() or each in ":\"'\\" for each in str(self.path))
        return f"-XX:SharedArchiveFile={self.path}" if usable else ""

    def write(self) -> None:
        """Writes the file with the classes of a short session."""
        import pyspark

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.path.parent) as directory:
            new = Path(directory) / self.path.name
            command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
            command += ["--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"]
            command += ["--conf", f"spark.sql.warehouse.dir={directory}"]
            command += ["--driver-java-options", f"-XX:ArchiveClassesAtExit={new}", __file__, _SUBMITTED]
            done = subprocess.run(command, env={**os.environ, "PYSPARK_PYTHON": sys.executable}, check=False)
            if not new.is_file():
                raise PipelineError(f"Java wrote no class cache (exit status {done.returncode})")
            new.replace(self.path)


def _use_spark() -> None:
    """Does what jobs do, so that their classes are loaded."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "in").mkdir()
        (Path(directory) / "in" / "one.txt").write_text("a line\n")
        spark.range(1000).selectExpr("id % 7 as k").groupBy("k").count().toArrow()
        lines = spark.readStream.text(str(Path(directory) / "in"))
        stream = lines.writeStream.foreachBatch(_look_at).option("checkpointLocation", f"{directory}/checkpoint")
        stream.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def _look_at(rows: DataFrame, batch: int) -> None:
    rows.toArrow()


if __name__ == "__main__":
    if _SUBMITTED in sys.argv:
        _use_spark()
    else:
        ClassCache.of(find_java()).write()
