"""Live views and benchmarks at 80 columns: no line is cut off in its figures."""

from __future__ import annotations

import argparse
import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from shoal.cli import bench, top
from shoal.cli.top import ChannelLoad, ClusterSnapshot, ServerRow
from shoal.cli.top_balance import BalanceView, MoveRow
from shoal.cli.top_queues import QueueRow, StoreRow, queue_rows
from shoal.load.record import RecordId, TelemetryRecord
from shoal.load.table import UnitTable
from shoal.queues.queue_kind import QUEUE, STORE

WIDTH = 80


@pytest.fixture
def screen() -> Console:
    return Console(file=io.StringIO(), width=WIDTH, no_color=True, highlight=False)


def text_of(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    text = screen.file.getvalue()
    assert max(map(len, text.splitlines())) <= WIDTH
    return text


def test_top(screen: Console) -> None:
    busy = ServerRow("s1", "10.20.30.41:6379", None, 1, 0.1, 12345, 98765.0, 123456.0, 1.2e8, 1.25e8, 0.96, 0.55, 1234)
    away = ServerRow("s2", "10.20.30.42:6379", "no data for 12 s")
    channel = ChannelLoad("a.long.channel.name." * 4, "s1", 98765.0, 123456.0, 1.2e8, 1234, 12345, 123)
    move = MoveRow(
        channel.channel, ("s1",), "all_subscribers", ("s1", "s2"), "replicate", {"left_before": 0.9}, "ab", 9
    )
    balance = BalanceView(7, {"s1": "returned"}, moves=(move,), pinned=("hot",))
    hot = ChannelLoad("hot", "s1", 1.0, 1.0, 1.0, 1, 1, 0)
    store = StoreRow("q1", "10.20.30.43:6379", None, 1, 0.1, 123, 0.71, 0.55, 12_345_678, None, 1.2e8, 1234)
    gone = StoreRow("q2", "10.20.30.44:6379", "no telemetry yet")
    queue = QueueRow("a.long.queue." * 6, ("q1", "q2"), 1_234_567, 12.3, 12345, 9, 123, 9999, 88, 98765.0, 87654.0)
    queues = (queue, replace(queue, queue="mails", oldest_s=7200.0))
    given = ClusterSnapshot(0.0, 0.96, 0.96, (busy, away), (channel, hot), balance, (store, gone), queues)
    screen.print(top.render(given))
    text = text_of(screen)
    for words in ("71 %", "12.3 MB", "1.23 M", "120 min", "98,765", "87,654", "12.3 s", "9,999", "q1 +1"):
        assert words in text
    assert "q2 (10.20.30.44:6379): no telemetry yet" in text
    for words in ("98,765", "123,456", "120 MB/s", "96 %", "55 %", "1,234", "12,345", "returned", "s1 pinned"):
        assert words in text
    assert "s2 (10.20.30.42:6379): no data for 12 s" in text
    assert "pinned, so left alone: hot" in text


def test_a_queue_on_two_stores_is_one_row() -> None:
    def record(store: str, shard: int, **row: float) -> TelemetryRecord:
        host = dict.fromkeys([column.name for column in STORE.row], 0) | {"interval_s": 2.0}
        table = UnitTable.of_rows(QUEUE, {b"a/%d" % shard: row, b"a/%d" % (shard + 1): row})
        return TelemetryRecord(RecordId(store, "a", 1, 1), STORE, host, {QUEUE.name: table})

    given = {"messages": 5, "puts": 10, "dones": 4, "consumers": 3, "dead": 7, "halted": 1, "held": 2, "ready": 1}
    (row,) = queue_rows([record("q1", 0, **given, oldest_s=1.0), record("q2", 2, **given, oldest_s=9.0)], 5)
    assert row == QueueRow("a", ("q1", "q2"), 20, 9.0, 8, 4, 3, 14, 2, 20.0, 8.0)


def test_bench_channels(screen: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {
        "messages_per_s": 123456.0,
        "deliveries_per_s": 1234567.0,
        "cpu_us_publisher": 123.45,
        "cpu_us_subscriber": 123.45,
        "latency_us_p50": 1234.5,
        "latency_us_p99": 123456.0,
    }
    agent = {"cpu_us_agent": 1.0, "messages_per_s": 1.0, "kept_up": True, "cpu_us_server": 1.0}
    facts = {
        "machine": {"cores": 2, "cpu": "A Processor(R) With A Long Name CPU @ 2.80GHz"},
        "rows": [{"workload": "throughput", "contender": "redis-py", **figures}, agent],
        "ratios": {"throughput_vs_redis_py": 12.3},
    }
    agent["cpu_us_server_without_agent"] = 1.0
    monkeypatch.setattr(bench, "console", lambda args: screen)
    bench._show_channels(argparse.Namespace(json=False), facts)
    text = text_of(screen)
    for words in ("123,456", "1,234,567", "123.45", "p99 us", "12.30"):
        assert words in text
    assert "…" not in text
