"""Load windows on a real Spark: the same as in process, on the same telemetry, good and bad."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipeline.source.streaming import BASE_S, Stream, entry, listed, options, seconds_of, table_of
from tests.support.cluster_thread import ClusterThread
from tests.support.redis_server import RedisServer

from shoal import cli
from shoal.balance.settings import BalanceSettings
from shoal.cli import pipeline_load
from shoal.cluster.local import LocalCluster
from shoal.errors import CheckpointError
from shoal.load.fold_state import FoldState
from shoal.load.ordered_fold import fold_in_order
from shoal.load.record import TelemetryRecord, encode
from shoal.load.window import LoadWindow
from shoal.load_kinds import KINDS
from shoal.metrics import REGISTRY
from shoal.pipeline import load_job
from shoal.pipeline.load_job import LoadFacts, LoadJob, run_once
from shoal.pipeline.source.offset_planner import OffsetPlanner
from shoal.pipeline.source.options import read_options
from shoal.pipeline.spark.error_translation import explained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from shoal.queues.agent.meter import QueueLoad, ShardLoad, StoreMeter, StoreSample

SETTINGS = BalanceSettings()
SECONDS = 40
WAIT_S = 60.0


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[RedisServer, RedisServer]]:
    with RedisServer() as one, RedisServer() as two:
        yield one, two


@pytest.fixture(autouse=True)
def streams(servers: tuple[RedisServer, RedisServer]) -> tuple[Stream, Stream]:
    one, two = (Stream(server) for server in servers)
    one.clear()
    two.clear()
    return one, two


def fill(one: Stream, two: Stream) -> None:
    """Telemetry of two servers, with everything that can be wrong with it."""
    two_at: list[tuple[int, bytes, bytes]] = []
    for second in range(BASE_S, BASE_S + SECONDS):
        at_ms = (second + 1) * 1000
        record = entry("s1", second, channels=3)
        one.add_raw(at_ms + 50, record.id.encode(), encode(record))
        if second % 10 == 3:  # the agent has repeated its XADD
            one.add_raw(at_ms + 60, record.id.encode(), encode(record))
        if second % 10 == 5:  # bytes that are no record, under an id and under none
            one.add_raw(at_ms + 70, b"s1/a/%d/%d" % (second, second + 1000), b"not a record")
            one.add_raw(at_ms + 71, b"no id", encode(record))
        if second % 10 == 6:  # a record of an older version of the schema
            old = record._replace(id=record.id._replace(sequence=second + 2000))
            one.add_raw(at_ms + 80, old.id.encode(), encode_old(old))
        late_ms = 4000 if second % 10 == 7 else 90
        record = entry("s2", second, channels=5)
        two_at.append((at_ms + late_ms, record.id.encode(), encode(record)))
    for at_ms, id, data in sorted(two_at):
        two.add_raw(at_ms, id, data)


def encode_old(record: TelemetryRecord) -> bytes:
    """A record as a version before this one wrote it: Arrow."""
    sink = pa.BufferOutputStream()
    schema = pa.schema([("channel", pa.binary())], metadata={b"shoal.telemetry.version": b"1"})
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([{"channel": record.id.encode()}], schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def in_process(*servers: RedisServer) -> tuple[list[LoadWindow], FoldState]:
    """The windows of what is on the streams, by the fold alone."""
    asked = options(*servers)
    planning = OffsetPlanner(asked)
    end = planning.next({})
    table = table_of(planning.parts({}, end), asked.kind)
    return fold_in_order(FoldState(), table, SETTINGS, KINDS)


def on_spark(
    spark: SparkSession, directory: Path, *servers: RedisServer, **more: str
) -> tuple[dict[int, bytes], LoadFacts]:
    """The windows of what is on the streams, by the job."""
    found: dict[int, bytes] = {}

    def take(batch: int, windows: list[LoadWindow]) -> None:
        for window in windows:
            assert window.start_s not in found
            found[window.start_s] = window.to_bytes()

    job = LoadJob(directory, {"servers": listed(*servers), **more}, SETTINGS)
    facts = run_once(spark, job, take)
    return found, facts


def test_both_ways_give_the_same_tables_on_the_same_telemetry(
    spark: SparkSession,
    servers: tuple[RedisServer, RedisServer],
    streams: tuple[Stream, Stream],
    tmp_path: Path,
) -> None:
    fill(*streams)
    windows, state = in_process(*servers)
    found, facts = on_spark(spark, tmp_path, *servers)
    assert found == {window.start_s: window.to_bytes() for window in windows}
    assert facts.counters == {name: getattr(state.counters, name) for name in state.counters.__struct_fields__}
    assert facts.counters["duplicates"] == SECONDS // 10
    assert facts.counters["garbage"] == 3 * SECONDS // 10
    assert facts.counters["late"] > 0
    assert len(windows) >= SECONDS // 2 - 2
    assert facts.hosts == {"s1", "s2"}
    assert any("record of version 1; this process knows version 2: upgrade the agent" in why for why in facts.refused)
    assert any("not a telemetry record" in why for why in facts.refused)
    kept = pa.concat_tables(pq.read_table(path) for path in (tmp_path / "refused").glob("*.parquet"))
    assert kept.num_rows == facts.counters["garbage"]  # nothing is thrown away
    assert (facts.refused_in, facts.refused_kept) == (tmp_path / "refused", kept.num_rows)
    assert facts.refused_only_counted == 0


def test_stores_and_queues_give_the_same_tables_both_ways(
    spark: SparkSession, servers: tuple[RedisServer, RedisServer], streams: tuple[Stream, Stream], tmp_path: Path
) -> None:
    meter = StoreMeter("q1", "a", "hall")
    fill(*streams)
    streams[0].clear()
    for at in range(SECONDS):
        puts = 160 * at
        state = (0, 0, 0, 50, 5000, 4, 0, 4, 0, 0, 0, 0, 0, 0, puts, 100 * puts, puts // 2)
        shards = {
            shard: ShardLoad(2, 1, 0, puts * (shard + 1) // 3, puts // 4, 9, 2, BASE_S * 10**6) for shard in (0, 1)
        }
        sample = StoreSample(float(at), "run", at / 4, None, at * 1000, 3, 10**6, 10**7)
        load = QueueLoad(state, 2, 1, 0, shards)
        record = meter.close_second(BASE_S + at, BASE_S + at + 1.0, sample, {b"orders": load})
        streams[0].add_raw((BASE_S + at + 1) * 1000 + 50, record.id.encode(), encode(record))
    windows, _ = in_process(*servers)
    found, _ = on_spark(spark, tmp_path, *servers)
    assert found == {window.start_s: window.to_bytes() for window in windows}
    rows = windows[2].units_of("queue").to_pylist()
    assert [(row["unit"], row["host"], row["host_kind"], row["puts"]) for row in rows] == [
        (b"orders/0", "q1", "store", 53.0),
        (b"orders/1", "q1", "store", 107.0),
    ]


def test_records_that_are_not_kept_are_counted(
    spark: SparkSession,
    servers: tuple[RedisServer, RedisServer],
    streams: tuple[Stream, Stream],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(*streams)
    monkeypatch.setattr(load_job, "REFUSED_MAX", 5)
    _, facts = on_spark(spark, tmp_path / "few", *servers)
    assert (facts.refused_kept, facts.refused_only_counted) == (5, facts.counters["garbage"] - 5)
    (tmp_path / "full").write_text("no directory")
    job = LoadJob(tmp_path / "job", {"servers": listed(*servers)}, SETTINGS, tmp_path / "full")
    facts = run_once(spark, job)
    assert facts.windows > 0
    assert (facts.refused_in, facts.refused_kept) == (None, 0)
    assert facts.refused_only_counted == facts.counters["garbage"]


def test_a_single_run_keeps_what_it_refused_and_says_where(
    spark: SparkSession,
    servers: tuple[RedisServer, RedisServer],
    streams: tuple[Stream, Stream],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(*streams)
    source = {"servers": listed(*servers), "startingOffsets": "earliest"}
    monkeypatch.setattr(pipeline_load, "_source", lambda args, starting: source)
    for _ in range(2):
        assert cli.main(["pipeline", "load", "--once", "--json", "--state-dir", str(tmp_path)]) == 0
        facts = json.loads(capsys.readouterr().out.splitlines()[-1])
        kept = [pq.read_table(path).num_rows for path in Path(facts["refused_in"]).glob("*.parquet")]
        assert sum(kept) == facts["refused_kept"] == facts["counters"]["garbage"]
        assert tmp_path in Path(facts["refused_in"]).parents


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--url", "shoal://a:1"], {"coordinator": "shoal://a:1"}),
        ([], {"coordinator": "shoal://b:2"}),
        (["--state-dir", "/here"], {"stateDir": "/here"}),
        (["--url", "shoal://a:1", "--state-dir", "/here"], {"coordinator": "shoal://a:1"}),
    ],
)
def test_the_cluster_is_that_of_the_flag_or_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, words: list[str], found: dict[str, str]
) -> None:
    monkeypatch.setenv("SHOAL_URL", "shoal://b:2")
    monkeypatch.delenv("SHOAL_STATE_DIR", raising=False)
    seen: list[dict[str, str]] = []

    def run(args: argparse.Namespace) -> int:
        seen.append(pipeline_load._source(args, "latest"))
        return 0

    monkeypatch.setattr(pipeline_load, "run", run)
    assert cli.main(["pipeline", "load", *words]) == 0
    assert found.items() <= seen[0].items()


def test_a_job_goes_on_where_it_stopped_with_the_same_windows_as_without_a_stop(
    spark: SparkSession,
    servers: tuple[RedisServer, RedisServer],
    streams: tuple[Stream, Stream],
    tmp_path: Path,
) -> None:
    one, two = streams
    read = rows_read()
    for half in (range(BASE_S, BASE_S + 10), range(BASE_S + 10, BASE_S + 20)):
        one.add((entry("s1", second) for second in half), late_ms=50)
        two.add((entry("s2", second) for second in half), late_ms=90)
        if half.start == BASE_S:
            first, _ = on_spark(spark, tmp_path, *servers)
    second, _ = on_spark(spark, tmp_path, *servers)
    whole, _ = in_process(*servers)
    assert rows_read() - read == 40, "the metrics follow the query"
    assert not first.keys() & second.keys()
    assert first | second == {window.start_s: window.to_bytes() for window in whole}


def rows_read() -> float:
    return REGISTRY.get_sample_value("shoal_pipeline_rows_total", {"job": "load"}) or 0.0


def test_missing_memories_are_said_and_nothing_is_lost(
    spark: SparkSession,
    servers: tuple[RedisServer, RedisServer],
    streams: tuple[Stream, Stream],
    tmp_path: Path,
) -> None:
    streams[0].add(entry("s1", BASE_S + second) for second in range(10))
    first, _ = on_spark(spark, tmp_path / "job", servers[0], maxRowsPerBatch="4")
    shutil.copytree(tmp_path / "job", tmp_path / "copy")
    shutil.rmtree(tmp_path / "job" / "checkpoint")
    with pytest.raises(CheckpointError, match="its checkpoint is missing"), explained():
        on_spark(spark, tmp_path / "job", servers[0])
    streams[0].add([entry("s1", BASE_S + 10)])
    shutil.rmtree(tmp_path / "copy" / "fold")
    with pytest.raises(CheckpointError, match="state of the fold before it"), explained():
        on_spark(spark, tmp_path / "copy", servers[0])
    again, _ = on_spark(spark, tmp_path / "new", servers[0])
    assert first.items() <= again.items()


def test_the_command_folds_what_a_cluster_has_reported(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["pipeline", "load", "--once", "--state-dir", str(tmp_path / "none")]) == 1
    assert "no cluster runs in" in capsys.readouterr().err
    with ClusterThread(servers=2) as cluster:
        root = cluster.call(root_of)
        give_up = time.monotonic() + WAIT_S
        while seconds_reported(root) < 6:  # two windows of two seconds each, and one that is cut off
            assert time.monotonic() < give_up
            time.sleep(0.1)
        assert cli.main(["pipeline", "load", "--once", "--json", "--state-dir", root]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["hosts"] == ["s1", "s2"]
    assert facts["windows"] >= 1
    assert facts["records"] >= 6
    assert facts["counters"]["garbage"] == 0
    assert facts["last_s"] > facts["first_s"]


def seconds_reported(root: str) -> int:
    """How many seconds both servers of a cluster have reported."""
    asked = read_options({"stateDir": root, "rows": "records"})
    planning = OffsetPlanner(asked)
    hosts = Counter(host for host, _ in seconds_of(planning, asked, {}, planning.next({})))
    return min(hosts["s1"], hosts["s2"])


async def root_of(cluster: LocalCluster) -> str:
    return str(cluster.directory.root)
