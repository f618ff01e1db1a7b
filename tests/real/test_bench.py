"""`shoal bench channels` and `recording`, on real clusters, so short that only shape and sense can be judged."""

from __future__ import annotations

import asyncio
import json

import pytest

from shoal import cli
from shoal.lab.bench.channels import WORKLOADS, ChannelsOptions, ratios
from shoal.lab.bench.contender import CONTENDERS

FIXED_RATIOS = {
    "throughput_vs_redis_py",
    "fanout_vs_redis_py",
    "cpu_vs_redis_py",
    "cpu_vs_raw",
    "latency_p50_vs_redis_py",
}


async def test_a_short_run_has_every_row_and_every_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("bench", "channels", "--rounds", "1", "--run-seconds", "0.02", "--connections", "5", "--json")
    status = await asyncio.to_thread(cli.main, words)
    (line,) = capsys.readouterr().out.splitlines()
    facts = json.loads(line)
    assert status == 0
    assert facts["name"] == "channels"
    assert facts["machine"]["cores"] >= 1
    assert facts["machine"]["cpu"]
    assert {*WORKLOADS, *CONTENDERS} <= facts["workload"].keys()
    *rows, agent = facts["rows"]
    assert {(row["workload"], row["contender"]) for row in rows} == {
        (workload, contender) for workload in WORKLOADS for contender in CONTENDERS
    }
    for row in rows:
        assert row["messages"] > 0
        assert row["messages_per_s"] > 0
        if row["workload"].startswith("latency"):
            assert 0 < row["latency_us_p50"] <= row["latency_us_p99"]
        else:
            assert row["cpu_us_publisher"] > 0
            assert row["cpu_us_subscriber"] > 0
    assert agent["contender"] == "agent"
    assert agent["kept_up"]
    assert agent["observed"] == 10_000
    assert facts["ratios"].keys() >= FIXED_RATIOS
    assert all(value > 0 for value in facts["ratios"].values())


def test_ratios_compare_the_bus_with_the_others() -> None:
    def row(factor: float) -> dict[str, float]:
        return {
            "messages_per_s": 100 * factor,
            "deliveries_per_s": 1000 * factor,
            "cpu_us_publisher": 6 / factor,
            "cpu_us_subscriber": 2 / factor,
            "latency_us_p50": 80 / factor,
        }

    factors = {"redis-py": 1.0, "raw": 16.0, "shoal": 8.0}
    found = ratios({(workload, name): row(factors[name]) for workload in WORKLOADS for name in CONTENDERS})
    assert found["throughput_vs_redis_py"] == 8
    assert found["fanout_vs_redis_py"] == 8
    assert found["cpu_vs_redis_py"] == 1 / 8
    assert found["cpu_vs_raw"] == 2
    assert found["latency_p50_vs_redis_py"] == 1 / 8


def test_a_run_never_publishes_more_than_a_server_buffers_for_one_subscriber() -> None:
    options = ChannelsOptions(run_s=1000.0, payload_bytes=1000)
    for workload in WORKLOADS:
        for contender in CONTENDERS:
            assert options.messages(workload, contender) * options.payload_bytes < 32 << 20


def test_a_tiny_run_still_gives_every_task_a_message() -> None:
    assert ChannelsOptions(run_s=1e-9, tasks=64).messages("confirmed", "shoal") == 64


async def test_a_short_run_of_the_recorder_has_its_rate_and_a_burst(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("bench", "recording", "--rounds", "1", "--rate-messages", "800", "--burst-max", "800", "--json")
    status = await asyncio.to_thread(cli.main, words)
    facts = json.loads(capsys.readouterr().out)
    assert status == 0
    sustained, burst = facts["rows"]
    assert facts["rows_per_s"] == sustained["rows_per_s"] > 0
    assert (burst["recorded"], burst["gaps"]) == (800, 0)
    assert facts["burst_messages"] == 800
    assert not facts["burst_is_limit"]
