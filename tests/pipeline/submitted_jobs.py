"""Jobs of every kind in the session of `spark-submit`.

    spark-submit --master MASTER tests/pipeline/submitted_jobs.py SERVERS DIRECTORY COMMAND...

Prints one JSON object: `windows`, by their start, as hexadecimal digests of their bytes, the results of the bulk jobs
in `bulk`, the `master`, and where driver and workers import Shoal from, in `imported`. The archive is in `archive` of
the directory. Then `pyspark_shoal/submit.py` runs the command in the same session, and prints its facts.
"""

from __future__ import annotations

import hashlib
import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.pipeline.bulk_jobs import run_bulk_jobs

import pyspark_shoal
import shoal
from shoal.balance.settings import BalanceSettings
from shoal.history.server_reader import Login
from shoal.lab.soak.pipeline_driver import RESTARTS_MAX, TOO_SLOW
from shoal.load.window import LoadWindow
from shoal.pipeline.archive.job import ArchiveJob, on_spark
from shoal.pipeline.load_job import LoadJob, run_once
from shoal.pipeline.source.cluster_address import listed_servers


def main(servers: str, directory: str, *command: str) -> None:
    found: dict[int, str] = {}

    def take(batch: int, windows: list[LoadWindow]) -> None:
        found.update({window.start_s: hashlib.sha256(window.to_bytes()).hexdigest() for window in windows})

    job = LoadJob(Path(directory), {"servers": servers, "partitionsPerServer": "2"}, BalanceSettings())
    spark = SparkSession.builder.getOrCreate()
    for _ in range(RESTARTS_MAX):
        try:
            run_once(spark, job, take)
            break
        except StreamingQueryException as error:  # on a busy machine a Python process may start slowly
            if TOO_SLOW not in str(error):
                raise
    with ArchiveJob(Path(directory) / "archive", Login(None, None), 10) as archive:
        while archive.batch(listed_servers(servers), on_spark(spark)) is not None:
            pass
        archive.compact(on_spark(spark), 2)
    facts = {
        "windows": found,
        "bulk": run_bulk_jobs(Path(directory) / "bulk", spark),
        "master": spark.sparkContext.master,
        "imported": [shoal.__file__, *spark.sparkContext.parallelize([0], 1).map(origin).collect()],
    }
    print(json.dumps(facts), flush=True)
    run_as_submitted(Path(pyspark_shoal.__file__).with_name("submit.py"), command)


def run_as_submitted(program: Path, words: Sequence[str]) -> None:
    """As Python runs a program that it is given: from now on the program's folder is the first for imports."""
    sys.argv = [str(program), *words]
    sys.path[0] = str(program.parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


def origin(_: int) -> str:
    import shoal

    return shoal.__file__


if __name__ == "__main__":
    main(*sys.argv[1:])
