"""The same jobs on a cluster of processes: one session for all of them, since a cluster is slow to start."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.bulk_jobs import run_bulk_jobs
from tests.pipeline.source.streaming import BASE_S, Stream, entry, listed, options, table_of
from tests.support.records import Recording, sequences
from tests.support.redis_server import RedisServer

from shoal.balance.settings import BalanceSettings
from shoal.history.archive import read_archive
from shoal.history.merge import merge_rows
from shoal.history.table import to_items
from shoal.load.fold_state import FoldState
from shoal.load.ordered_fold import fold_in_order
from shoal.load_kinds import KINDS
from shoal.pipeline.source.offset_planner import OffsetPlanner

ROOT = Path(__file__).parents[2]
RUN_TIMEOUT_S = 1000.0


@pytest.mark.spark
def test_jobs_on_a_cluster_of_two_workers_do_what_they_do_in_one_process(tmp_path: Path) -> None:
    with RedisServer() as one, RedisServer() as two:
        Stream(one).add((entry("s1", BASE_S + second) for second in range(20)), late_ms=50)
        Stream(two).add((entry("s2", BASE_S + second) for second in range(20)), late_ms=90)
        Recording(one).write(*range(1, 40))
        Recording(two).write(*range(30, 60))
        found = run_on_cluster(tmp_path, one, two)
        expected = window_digests(one, two)
    assert found["windows"] == expected
    assert len(expected) >= 9
    _, rows = read_archive(tmp_path / "archive", "orders.eu")
    assert sequences(to_items(merge_rows(rows))) == list(range(1, 60))
    assert found["bulk"] == json.loads(json.dumps(run_bulk_jobs(tmp_path / "here", None)))


def run_on_cluster(directory: Path, *servers: RedisServer) -> dict[str, Any]:
    words = ["-m", "tests.pipeline.on_cluster", "local-cluster[2,1,1024]", listed(*servers), str(directory)]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def window_digests(*servers: RedisServer) -> dict[str, str]:
    """The windows of the telemetry on the servers, folded in process, as `on_cluster` prints them."""
    asked = options(*servers)
    planning = OffsetPlanner(asked)
    table = table_of(planning.parts({}, planning.next({})), asked.kind)
    windows, _ = fold_in_order(FoldState(), table, BalanceSettings(), KINDS)
    return {str(window.start_s): hashlib.sha256(window.to_bytes()).hexdigest() for window in windows}
