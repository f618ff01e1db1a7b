"""Jobs of every kind in one session, in a process of its own, on any master.

    python -m tests.pipeline.on_cluster MASTER SERVERS DIRECTORY

Prints one JSON object: `windows`, by their start, as hexadecimal digests of their bytes, and the results of the bulk
jobs in `bulk`. The archive is in `archive` of the directory.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from tests.pipeline.bulk_jobs import run_bulk_jobs

from shoal.balance.settings import BalanceSettings
from shoal.history.server_reader import Login
from shoal.load.window import LoadWindow
from shoal.pipeline.archive.job import ArchiveJob, on_spark
from shoal.pipeline.load_job import LoadJob, run_once
from shoal.pipeline.session import SessionOptions, running
from shoal.pipeline.source.cluster_address import listed_servers


def main(master: str, servers: str, directory: str) -> None:
    found: dict[int, str] = {}

    def take(batch: int, windows: list[LoadWindow]) -> None:
        found.update({window.start_s: hashlib.sha256(window.to_bytes()).hexdigest() for window in windows})

    job = LoadJob(Path(directory), {"servers": servers, "partitionsPerServer": "2"}, BalanceSettings())
    with running(SessionOptions(master=master, name="tests on a cluster")) as spark:
        run_once(spark, job, take)
        with ArchiveJob(Path(directory) / "archive", Login(None, None), 10) as archive:
            while archive.batch(listed_servers(servers), on_spark(spark)) is not None:
                pass
            archive.compact(on_spark(spark), 2)
        bulk = run_bulk_jobs(Path(directory) / "bulk", spark)
    print(json.dumps({"windows": found, "bulk": bulk}))


if __name__ == "__main__":
    main(*sys.argv[1:])
