"""`spark-submit`: every job, from the wheel, on a standalone master and worker, does what it does in one process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pipeline.bulk_jobs import run_bulk_jobs
from tests.pipeline.source.streaming import BASE_S, Stream, entry, listed, options, table_of
from tests.support.agent_site import SOURCE, agent_site
from tests.support.records import Recording, sequences
from tests.support.redis_server import RedisServer
from tests.support.spark_cluster import SparkCluster

from shoal.balance.settings import BalanceSettings
from shoal.history.archive import read_archive
from shoal.history.merge import merge_rows
from shoal.history.table import to_items
from shoal.load.fold_state import FoldState
from shoal.load.ordered_fold import fold_in_order
from shoal.load_kinds import KINDS
from shoal.pipeline.source.offset_planner import OffsetPlanner

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bulk(tmp_path_factory: pytest.TempPathFactory) -> object:
    """The results of the bulk jobs in this process, as JSON holds them."""
    return json.loads(json.dumps(run_bulk_jobs(tmp_path_factory.mktemp("here") / "bulk", None)))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, bulk: object) -> Path:
    """The wheel, unpacked as pip does it, with what is compiled: the loops of `bulk` take a minute, and Spark gives a
    Python process 10 s to start."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    packages = directory / "packages"
    (wheel,) = directory.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(packages)
    for module in packages.rglob("*.py"):
        shutil.copystat(
            SOURCE / module.relative_to(packages), module
        )  # what is compiled belongs to a file of a certain age
    for cache in SOURCE.rglob("__pycache__"):
        shutil.copytree(cache, packages / cache.relative_to(SOURCE), dirs_exist_ok=True)
    return packages


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, installed: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark"), installed) as made:
        yield made


@pytest.mark.spark
async def test_jobs_and_a_command_on_a_cluster_do_what_they_do_in_one_process(
    tmp_path: Path, cluster: SparkCluster, installed: Path, bulk: object
) -> None:
    async with agent_site() as site:
        with RedisServer() as one, RedisServer() as two:
            Stream(one).add((entry("s1", BASE_S + second) for second in range(20)), late_ms=50)
            Stream(two).add((entry("s2", BASE_S + second) for second in range(20)), late_ms=90)
            Recording(one).write(*range(1, 40))
            Recording(two).write(*range(30, 60))
            Recording(site.server).write(*range(1, 60))
            program = ROOT / "tests" / "pipeline" / "submitted_jobs.py"
            command = ["archive", "--once", "--json", "--archive", str(tmp_path / "command"), "--url", site.url]
            words = [listed(one, two), str(tmp_path), *command]
            said = await asyncio.to_thread(cluster.submit, program, words, more_path=ROOT)
            expected = window_digests(one, two)
    found, commanded = (json.loads(line) for line in said.splitlines() if line.startswith("{"))
    assert found["windows"] == expected
    assert len(expected) >= 9
    _, rows = read_archive(tmp_path / "archive", "orders.eu")
    assert sequences(to_items(merge_rows(rows))) == list(range(1, 60))
    assert found["bulk"] == bulk
    assert found["master"] == cluster.master
    assert found["imported"] == [str(installed / "shoal" / "__init__.py")] * 2
    assert commanded["rows"] == 59


def window_digests(*servers: RedisServer) -> dict[str, str]:
    """The windows of the telemetry on the servers, folded in process, as `submitted_jobs` prints them."""
    asked = options(*servers)
    planning = OffsetPlanner(asked)
    table = table_of(planning.parts({}, planning.next({})), asked.kind)
    windows, _ = fold_in_order(FoldState(), table, BalanceSettings(), KINDS)
    return {str(window.start_s): hashlib.sha256(window.to_bytes()).hexdigest() for window in windows}
