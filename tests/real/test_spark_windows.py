"""The hand-over to a real Spark job beside a real cluster, and back when the job dies."""

from __future__ import annotations

import asyncio
import json

import pytest

from shoal import cli
from shoal.balance.window_source import Way
from shoal.cluster.local import LocalCluster
from shoal.cluster.parts import WINDOWS_JOB
from shoal.cluster.process import log_tail

WARM_S = 240.0
BACK_S = 60.0


async def comes(cluster: LocalCluster, way: Way, timeout_s: float) -> str:
    """Waits until load windows come this way; returns why."""
    async with asyncio.timeout(timeout_s):
        while True:
            route = cluster.status().windows
            if route is not None and route.way is way:
                return route.why
            await asyncio.sleep(0.1)


@pytest.mark.spark
@pytest.mark.timeout(400)
async def test_the_balancer_hands_over_to_spark_and_falls_back_when_the_job_is_killed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with LocalCluster(servers=2, balancers=1, windows=Way.SPARK) as cluster:
        assert "not warm yet" in await comes(cluster, Way.IN_PROCESS, BACK_S)
        try:
            assert "in a row came in time" in await comes(cluster, Way.SPARK, WARM_S)
        except TimeoutError:
            pytest.fail(log_tail(cluster.directory.log(WINDOWS_JOB)))
        words = ["status", "--json", "--state-dir", str(cluster.directory.root)]
        assert await asyncio.to_thread(cli.main, words) == 0
        assert json.loads(capsys.readouterr().out)["windows"]["way"] == "spark"
        cluster.hold(WINDOWS_JOB)
        await cluster.kill(WINDOWS_JOB)
        assert await comes(cluster, Way.IN_PROCESS, BACK_S) == "the Spark job has died"
