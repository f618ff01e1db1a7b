"""`shoal bench engine`, briefly: all figures are there, and every delivery was counted."""

from __future__ import annotations

import pytest
from tests.support.command import run_command, run_json_command

from shoal.engine.warm_up import warm_up


async def test_all_figures_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    warm_up()  # so that the engine's process starts quickly
    words = ["--events", "400", "--filters", "1000", "--rounds", "1", "--only", "throughput", "--only", "layouts"]
    _, facts = await run_json_command(capsys, "bench", "engine", *words)  # a busy machine may miss a goal
    engine, channel, *others = facts["rows"]
    assert (engine["contender"], channel["contender"]) == ("1-1-1", "channel")
    assert [row["contender"] for row in others] == ["1-2-1", "1-2-2"]
    for row in facts["rows"]:
        assert row["events_per_s"] > 0
        assert 0 < row["latency_ms_p50"] <= row["latency_ms_p99"]
    for row in (engine, *others):
        assert row["deliveries_per_event"] == 1.0
        assert 1 <= row["matches_per_event"] <= 10
        used = row["cpu_us_per_event"]
        operators = [used[name] for name in ("access_point", "matcher", "exit_point")]
        assert min(*operators, used["emitter"], used["reader"]) > 0
        assert sum(operators) + used["transport"] == pytest.approx(used["engine"], abs=0.1)
    ratios = facts["ratios"]
    assert min(ratios[name] for name in ("cpu_vs_channel", "latency_p50_vs_channel", "in_force_ms_p99")) > 0
    without_goal = {"in_force_ms_p50", "latency_p50_vs_channel_max"}
    assert set(facts["missed"]) <= facts["goals"].keys() == {*ratios} - without_goal


async def test_unknown_parts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = await run_command(capsys, "bench", "engine", "--only", "memory")
    assert status == 1
    assert "memory" in errors
