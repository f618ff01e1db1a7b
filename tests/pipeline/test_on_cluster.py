"""The same job on a cluster of processes on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.pipeline.source.streaming import BASE_S, Stream, entry, listed, options, table_of
from tests.support.records import Recording, sequences
from tests.support.redis_server import RedisServer
from tests.support.spark import need_spark

from shoal.balance.fold_in_order import fold_in_order
from shoal.balance.fold_state import FoldState
from shoal.balance.settings import BalanceSettings
from shoal.history.archive import read_archive
from shoal.history.merge import merge_rows
from shoal.history.table import to_items
from shoal.pipeline.source.offset_planner import OffsetPlanner

ROOT = Path(__file__).parents[2]


def test_jobs_on_a_cluster_of_two_workers_do_what_they_do_in_one_process(tmp_path: Path) -> None:
    need_spark()
    with RedisServer() as one, RedisServer() as two:
        Stream(one).add((entry("s1", BASE_S + second) for second in range(20)), late_ms=50)
        Stream(two).add((entry("s2", BASE_S + second) for second in range(20)), late_ms=90)
        Recording(one).write(*range(1, 40))
        Recording(two).write(*range(30, 60))
        words = ["-m", "tests.pipeline.on_cluster", "local-cluster[2,1,1024]", listed(one, two), str(tmp_path)]
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        environ = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=110, check=False
        )
        assert done.returncode == 0, done.stderr
        asked = options(one, two)
        planning = OffsetPlanner(asked)
        windows, _ = fold_in_order(
            FoldState(), table_of(planning.parts({}, planning.next({})), asked.kind), BalanceSettings()
        )
    expected = {str(window.start_s): hashlib.sha256(window.to_bytes()).hexdigest() for window in windows}
    assert json.loads(done.stdout.splitlines()[-1]) == expected
    assert len(expected) >= 9
    _, rows = read_archive(tmp_path / "archive", "orders.eu")
    assert sequences(to_items(merge_rows(rows))) == list(range(1, 60))
