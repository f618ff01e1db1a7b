"""Help texts, live views and tables at 80 columns: no line is longer, and no figure is cut off."""

from __future__ import annotations

import argparse
import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

from shoal import cli
from shoal.cli import bench, bench_match, bench_pipeline, bench_recording, cluster, experiment, plan_audit, top
from shoal.cli.top import ChannelLoad, ClusterSnapshot, ServerRow
from shoal.cli.top_balance import BalanceView, MoveRow
from shoal.cli.top_queues import StoreRow
from shoal.cluster import background
from shoal.cluster.cluster_report import ClusterReport, QueueLevels, ServerReport
from shoal.cluster.doctor import Finding
from shoal.cluster.queue_rows import QueueRow, queue_rows
from shoal.cluster.server_load import ServerLoad
from shoal.cluster.status import ClusterStatus, ServerStatus
from shoal.lab.experiments.result import ExperimentResult, Table
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


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of all commands below a parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield below
                yield from parsers(below)


def command_parsers() -> list[argparse.ArgumentParser]:
    parser = argparse.ArgumentParser(prog="shoal")
    subparsers = parser.add_subparsers()
    for module in sorted({module for module, _ in cli.available_commands().values()}):
        importlib.import_module(f"shoal.cli.{module}").register(subparsers)
    return list(parsers(parser))


@pytest.mark.parametrize("parser", command_parsers(), ids=lambda parser: parser.prog)
def test_help(parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    text = parser.format_help()
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    assert "example:" in text


def test_help_of_all_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    assert cli.main(["--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= WIDTH


def test_examples_that_are_folded_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    (init,) = (parser for parser in command_parsers() if parser.prog == "shoal tls init")
    example = init.format_help().split("example:")[1].replace("\\\n", " ")
    whole = "shoal tls init --dir tls --coordinator 10.0.0.1 --server s1=10.0.0.11 --server s2=10.0.0.12,s2.example"
    assert " ".join(example.split()) == whole


def test_status() -> None:
    load = ServerLoad("s1", 12345, 98765, 12, 123456.0, 1.25e8, 0.97, 1 << 30)
    servers = (
        ServerReport("s1", "10.20.30.41", 6379, True, "returned", True, load, None),
        ServerReport("s2", "192.168.100.142", 6379, True, "home", None, load, None),
        ServerReport("s3", "10.20.30.43", 6379, True, "home", False, None, "no answer within 1 s"),
    )
    report = ClusterReport(
        "10.20.30.40:7400", True, 123, "balancer-7415-1e8fec9c", True, 1234, 12, 3, 45, "ab" * 32, servers, {}, None
    )
    away = "does not answer within 1 s"
    busy = QueueLevels("a.long.queue." * 6, {"q1": "ok", "q2": away}, 1_234_567, 12.3, 12345, 123, 9999, 88)
    levels = (busy, QueueLevels("mails", {"q12": away}), *(QueueLevels(f"x{n}", {"q1": "ok"}) for n in range(20)))
    report = replace(report, queue_levels=levels)
    lines = cluster._report_lines(report, True)
    (row,) = (line for line in lines if line.startswith("a.long.queue"))
    assert row.split()[1:] == ["q1", "+1", "1.23", "M", "12.3", "s", "12,345", "123", "9,999", "88"]
    assert "figures without store q2: does not answer within 1 s" in lines
    (row,) = (line for line in lines if line.startswith("mails"))
    assert row.split() == ["mails", "q12", *"------"]
    assert "... and 12 more queues: `shoal queue stats`" in lines
    assert max(map(len, lines)) <= WIDTH
    assert any(line.startswith("s1      10.20.30.41:6379  yes     returned") for line in lines)
    assert "s2      192.168.100.142:6379" in lines  # was glued to the next column
    assert sum("98765" in line.split() for line in lines) == 2


def test_doctor() -> None:
    found = Finding(
        "server",
        "warn",
        "/usr/bin/redis-server: redis 7.0.15, package 5:7.0.15-1~deb12u7 (used)",
        "the package lacks security fixes: apt install --only-upgrade redis-server",
    )
    lines = cluster._finding_text(found, colour=False).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert [line for line in lines if "-> the package lacks" in line] == [lines[2]]


def test_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = ("--coordinator", "10.0.0.1", "--server", "s1=10.0.0.11", "--server", "s2=10.0.0.12,s2.example")
    assert cli.main(["tls", "init", "--dir", str(tmp_path / "tls"), *hosts]) == 0
    assert cli.main(["tls", "show", "--dir", str(tmp_path / "tls")]) == 0
    text = capsys.readouterr().out.replace(str(tmp_path), "")
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "coordinator  ca.pem coordinator.pem coordinator.redis.conf" in text


def test_explain() -> None:
    found = plan_audit.Explanation(
        channel="tile.3.4",
        mode="all_subscribers",
        servers=("s1", "s2", "s3"),
        home="s1",
        source="policy",
        reason="overload",
        figures={"load_before": 1.23, "load_after": 0.74},
        policy="dynamoth",
        digest="ab" * 32,
        window_end_s=1794995823.6,
        placed_at=1794995825.0,
        before=("s1",),
    )
    lines = plan_audit._explanation_text(found).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert lines[0] == "tile.3.4: all_subscribers on s1, s2, s3"
    assert lines[1].startswith("  reason: overload")


@pytest.mark.parametrize(("flag", "hint"), [(True, "shoal status --state-dir {}"), (False, "shoal status")])
def test_up_names_commands_that_find_the_cluster(
    flag: bool, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text after `up --state-dir DIR` advised commands without it, which found no cluster."""
    server = ServerStatus("s1", "127.0.0.1", 6379, True, True)
    status = ClusterStatus("bec1bb18", str(tmp_path), 0.0, True, "127.0.0.1:7400", True, 1, (server,), (), None)
    monkeypatch.setattr(background, "up", lambda *args, **kwargs: msgspec.structs.replace(status, resumed=True))
    monkeypatch.setenv("SHOAL_STATE_DIR", str(tmp_path / "other"))
    assert cli.main(["up", *(["--state-dir", str(tmp_path)] if flag else [])]) == 0
    told = capsys.readouterr()
    assert f"  {hint.format(tmp_path)}\n" in told.out
    assert "3 servers" not in told.err  # the cluster that continues has one
    text = told.out.replace(str(tmp_path), "")
    assert max(map(len, text.splitlines())) <= WIDTH


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
        "cpu_us_subscriber": 1.2345,
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
    for words in ("123,456", "1,234,567", "1.23", "p99 us", "12.30"):
        assert words in text
    assert "…" not in text


MACHINE = {"cores": 64, "cpu": "A Processor(R) With A Long Name CPU @ 2.80GHz"}
MATCH = {
    "subscriptions": 1_000_000,
    "events_per_s": 123_456.0,
    "cpu_us_per_event": 123_456.0,
    "matches_per_event": 1234.5,
    "bytes_per_subscription": 1234.5,
    "inserts_per_s": 1_234_567.0,
    "inserts_one_by_one_per_s": 123_456.0,
}
CHURN = {
    **MATCH,
    "match_us_p50": 123.4,
    "match_us_p99": 1234.5,
    "match_us_p999": 12345.6,
    "changes_per_s": 12345.6,
}
QUOTES = {
    "events_per_s": 123_456.0,
    "cpu_us_per_event": 123.4,
    "matches_per_event": 1234.5,
    "deliveries": 123_456_789,
    "deliveries_per_s": 12_345_678.0,
    "seconds": 1234.5,
}
PIPELINE = {
    "rows_per_s": 1_234_567.0,
    "rows_per_s_min": 1_234_567.0,
    "rows_per_s_max": 1_234_567.0,
    "rows_per_cpu_s": 1_234_567.0,
    "batch_ms_p50": 1234.5678,
    "seconds": 123.4567,
}


@pytest.mark.parametrize(
    ("module", "name", "contender", "figures", "more"),
    [
        (bench_match, "match", "shoal-one-by-one", MATCH, {}),
        (bench_match, "match", "while changing", CHURN, {}),
        (bench_match, "quotes", "shoal", QUOTES, {"quotes": 1, "stocks": 1, "deliveries": 1, "seconds": 1.0,
                                                  "checked_events": 1}),
        (bench_pipeline, "pipeline", "load windows, backlog", PIPELINE, {}),
        (bench_recording, "recording", "sustained", {"messages": 12_345_678, "recorded": 12_345_678, "gaps": 0,
         "rows_per_s": 123_456}, {"rows_per_s": 123_456, "burst_messages": 1_234_567, "burst_is_limit": True}),
    ],
    ids=["match", "churn", "quotes", "pipeline", "recording"],
)  # fmt: skip
def test_benchmarks(
    screen: Console,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    name: str,
    contender: str,
    figures: dict[str, Any],
    more: dict[str, Any],
) -> None:
    facts = {
        "name": name,
        "machine": MACHINE,
        "workload": {"all": "1,000,000 subscriptions of the templates of a paper, in words " * 3},
        "rows": [{"contender": contender, **figures}],
        "ratios": {"match_on_spark_vs_one_core": 12345.6},
        **more,
    }
    monkeypatch.setattr(module, "console", lambda args: screen)
    module.show(argparse.Namespace(json=False), facts)
    text = text_of(screen)
    assert contender in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_bench_plan(screen: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {
        "contender": "consistent-hashing",
        "seconds": 1234.56,
        "cpu_seconds": 1234.56,
        "moves": 1_000_000.0,
        "max_load_ratio": 12.345,
    }
    facts = {
        "machine": MACHINE,
        "rows": [row],
        "ratios": {"max_load_of_consistent-hashing_vs_bound": 12.34},
        "workload": {"all": "1,000,000 channels on 1,000 servers"},
        "max_load_ratio_before": 12.3,
        "bound": 0.812,
    }
    monkeypatch.setattr(bench, "console", lambda args: screen)
    bench._show_plan(argparse.Namespace(json=False), facts)
    text = text_of(screen)
    for words in ("consistent-hashing", "1,234.56", "1,000,000", "12.345"):
        assert words.replace("1,234.56", "1234.56") in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_experiments(screen: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    headings = (
        "subscribers", "", "response", "without WAN p50/p99", "undelivered", "load ratio", "link",
        "CPU server / machine",
    )  # fmt: skip
    row = ("1200", "3 servers", "123 ms", "1,234 / 12,345 ms", "1,234 of 123,456", "1.23", "0.98", "0.97 / 0.55")
    found = ExperimentResult.__new__(ExperimentResult)
    object.__setattr__(found, "tables", [Table("dynamoth-1 on real servers", headings, [row])])
    object.__setattr__(found, "paragraph", "All claims hold.")
    monkeypatch.setattr(experiment, "console", lambda args: screen)
    experiment._show(argparse.Namespace(json=False), found)
    text = text_of(screen)
    for figure in ("1200", "123 ms", "1.23", "0.98", "12,345 ms", "123,456"):
        assert figure in text
    for word in " ".join(headings).replace("/", " ").split():
        assert word in text  # no word is broken
