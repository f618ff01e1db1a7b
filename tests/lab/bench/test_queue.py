"""`shoal bench queue`, so small that only the form of its result can be judged."""

from __future__ import annotations

import json

import pytest

from shoal import cli
from shoal.lab.bench import queue
from shoal.lab.bench.queue import AT_LEAST, AT_MOST, missed


def test_a_small_run_has_a_row_for_every_part_and_contender(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--messages", "2000", "--keys", "500", "--rounds", "1", "--pairs", "1", "--json")
    parts = [word for part in ("throughput", "latency", "stall", "moves", "memory") for word in ("--only", part)]
    status = cli.main(("bench", "queue", *words, *parts))
    (line,) = capsys.readouterr().out.splitlines()
    facts = json.loads(line)
    assert {"name", "workload", "machine", "rows", "ratios"} <= facts.keys()
    assert facts["name"] == "queue"
    rows = {(row["part"], row["contender"]): row for row in facts["rows"]}
    assert rows.keys() - {("throughput", "arq")} == {
        *(("throughput", name) for name in ("shoal", "streams", "dramatiq")),
        *(("latency", name) for name in ("shoal", "streams")),
        ("stall", "healthy"),
        ("stall", "stalled key"),
        ("moves", "shoal"),
        ("memory", "shoal"),
    }
    for name in ("shoal", "streams"):
        row = rows["throughput", name]
        assert row["messages"] == 2000
        assert min(value for value in row.values() if isinstance(value, float)) > 0
        assert rows["latency", name]["latency_us_p50"] > 0
    assert rows["moves", "shoal"]["moves"] == 2
    assert rows["moves", "shoal"]["move_pause_ms_p99"] > 0
    assert rows["memory", "shoal"]["bytes_per_key"] > 100  # the payload alone
    known = {*AT_LEAST, *AT_MOST} - {"join_share_s", "throughput_vs_arq"}
    flow = {"flow_server_cpu_vs_streams", "flow_throughput_vs_streams", "flow_throughput_vs_dramatiq"}
    assert facts["ratios"].keys() - {"throughput_vs_arq", "flow_throughput_vs_arq"} == known | flow
    assert not flow & facts["goals"].keys(), "flow is reported without a goal"
    assert facts["missed"] == missed(facts["ratios"])
    assert status == (1 if facts["missed"] else 0)


def test_goals_are_judged_in_their_direction() -> None:
    good = {"throughput_vs_streams": 0.7, "server_cpu_vs_streams": 1.0}
    assert missed(good) == []
    assert missed({"throughput_vs_streams": 0.69, "server_cpu_vs_streams": 1.01}) == [*good]


def test_a_part_of_another_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(("bench", "queue", "--only", "sink")) != 0
    assert "throughput" in capsys.readouterr().err
    assert queue.PARTS
