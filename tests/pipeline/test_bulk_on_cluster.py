"""Bulk matching, profiles and what-if give the same on a cluster of processes as in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pipeline.bulk_on_cluster import found
from tests.support.spark import need_spark

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(600)
"""The kernels may have to be compiled."""


def test_bulk_jobs_on_a_cluster_of_two_workers_find_what_one_process_finds(tmp_path: Path) -> None:
    need_spark()
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    expected = json.loads(json.dumps(found(tmp_path / "here", None)))
    words = ["-m", "tests.pipeline.bulk_on_cluster", "local-cluster[2,1,1024]", str(tmp_path / "there")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == expected
