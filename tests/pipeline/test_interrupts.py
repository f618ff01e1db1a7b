"""Ctrl-C: a job ends at once, and its Java with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from shoal.cluster.process import wait_until

PROGRAM = """
import sys, time
from shoal.pipeline.session import running

def task(batches):
    time.sleep(600)
    yield from batches

try:
    with running() as spark:
        print(spark.sparkContext._gateway.proc.pid, flush=True)
        spark.range(1).mapInArrow(task, "id bigint").toArrow()
except KeyboardInterrupt:
    sys.exit(130)
"""
END_S_MAX = 60.0
"""On a busy machine. On a quiet one it takes a second."""
JOB_S = 3.0
"""Until the job runs, more or less. The test holds at any moment."""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.spark
def test_an_interrupt_ends_a_job_and_its_java() -> None:
    job = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a process group of its own, to which a terminal would send Ctrl-C
    )
    assert job.stdout is not None
    java = int(job.stdout.readline())
    time.sleep(JOB_S)
    os.killpg(job.pid, signal.SIGINT)
    _, said = job.communicate(timeout=END_S_MAX)
    assert job.returncode == 130, said
    assert "py4j" not in said
    assert wait_until(lambda: not is_running(java), END_S_MAX)
