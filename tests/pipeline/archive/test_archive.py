"""The archive: every recorded message once, through batches, copies, compaction, deaths and bad input."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import Field, write_deltalake
from deltalake.schema import PrimitiveType
from deltalake.transaction import CommitProperties, Transaction
from tests.support.agent_site import SOURCE, agent_site
from tests.support.records import BOB, DAY_US, NOON_US, Recording, sequences
from tests.support.redis_server import RedisServer

from shoal.errors import ArchiveError
from shoal.history.archive import read_archive
from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import POSITIONS_ID, ArchiveTable, Positions, open_table
from shoal.history.merge import merge_rows
from shoal.history.record_reader import RecordPosition
from shoal.history.server_reader import Login
from shoal.history.table import to_items
from shoal.message import Gap
from shoal.pipeline.archive.job import ArchiveJob, Runner, on_spark, run_here
from shoal.pipeline.archive.table_writer import TableWriter, create_table
from shoal.pipeline.spark.tasks import Task
from shoal.plan.keys import unit_text as record_name
from shoal.plan.ring import ServerAddress
from shoal.wire.record_entry import record_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOBODY = Login(None, None)
MESSAGES = 3000
KILLS_MAX = 3


@pytest.fixture
def servers() -> Iterator[tuple[RedisServer, RedisServer]]:
    with RedisServer() as first, RedisServer() as second:
        yield first, second


def addresses(*servers: RedisServer) -> list[ServerAddress]:
    return [ServerAddress(f"s{i}", server.host, server.port) for i, server in enumerate(servers, 1)]


def archive_all(
    archive: Path, *servers: RedisServer, runner: Runner = run_here, rows: int = 1000, compact: int = 0
) -> int:
    batches = 0
    with ArchiveJob(archive, NOBODY, rows) as job:
        while job.batch(addresses(*servers), runner) is not None:
            batches += 1
        if compact:
            job.compact(runner, compact)
    return batches


def table(archive: Path) -> ArchiveTable:
    return open_table(ArchiveLocation.of(archive))


def archived(archive: Path, channel: str = "orders.eu") -> list[int]:
    return sequences(to_items(merge_rows(read_archive(archive, channel)[1])))


def test_records_become_files_by_day_and_channel(servers: tuple[RedisServer, RedisServer], tmp_path: Path) -> None:
    recording = Recording(servers[0])
    recording.write(1, 2, 3)
    recording.write(4, 5, from_us=NOON_US + DAY_US)
    Recording(servers[0], b"deals/\xff?").write(1)
    archive_all(tmp_path, servers[0])
    files = table(tmp_path).files
    assert {(file.channel, file.day, file.rows) for file in files} == {
        ("orders.eu", "2026-11-01", 3),
        ("orders.eu", "2026-11-02", 2),
        ("deals/\\xff?", "2026-11-01", 1),
    }
    assert all((tmp_path / file.path).stat().st_size == file.bytes for file in files)
    assert all(
        re.fullmatch(r"day=2026-11-0[12]/part-[0-9a-f]{16}-[A-Za-z0-9_.]+-s1\.parquet", file.path) for file in files
    )
    assert archived(tmp_path) == [1, 2, 3, 4, 5]
    assert archived(tmp_path, "deals/\\xff?") == [1]
    _, rows = read_archive(tmp_path, "orders.eu", NOON_US + 2_000_000, NOON_US + 3_000_000)
    assert sequences(to_items(rows)) == [2]


def test_the_next_batch_goes_on_where_the_last_one_ended(
    servers: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    recording = Recording(servers[0])
    recording.write(*range(1, 11))
    assert archive_all(tmp_path, servers[0], rows=3) == 4
    assert archive_all(tmp_path, servers[0]) == 0
    recording.write(11, 12)
    archive_all(tmp_path, servers[0])
    assert archived(tmp_path) == list(range(1, 13))


def test_the_job_tells_how_far_it_is_behind(servers: tuple[RedisServer, RedisServer], tmp_path: Path) -> None:
    Recording(servers[0]).write(*range(1, 11))  # a second apart
    behind = []
    with ArchiveJob(tmp_path, NOBODY, 3) as job:
        while (done := job.batch(addresses(servers[0]), run_here)) is not None:
            behind.append((done.behind, job.behind_s()))
    assert behind == [(7, 7.0), (4, 4.0), (1, 1.0), (0, 0.0)]


def test_a_message_of_two_servers_is_read_once_and_compacted_to_one(
    servers: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    Recording(servers[0]).write(1, 2, 3, 4)
    archive_all(tmp_path, *servers)
    Recording(servers[1]).write(3, 4, 5)
    archive_all(tmp_path, *servers)
    assert archived(tmp_path) == [1, 2, 3, 4, 5]
    before = table(tmp_path)
    assert before.rows == 7
    archive_all(tmp_path, *servers, compact=2)
    after = table(tmp_path)
    assert (after.rows, len(after.files)) == (5, 1)
    assert after.positions == before.positions
    assert all((tmp_path / file.path).is_file() for file in before.files), "for readers of the older version"
    assert archived(tmp_path) == [1, 2, 3, 4, 5]


def test_the_same_on_spark(servers: tuple[RedisServer, RedisServer], tmp_path: Path, spark: SparkSession) -> None:
    for server, numbers in zip(servers, (range(1, 60), range(40, 100)), strict=True):
        Recording(server).write(*numbers)
        Recording(server, b"deals").write(*numbers)
    archive_all(tmp_path / "spark", *servers, runner=on_spark(spark), rows=25, compact=2)
    archive_all(tmp_path / "here", *servers, rows=25, compact=2)
    for channel in ("orders.eu", "deals"):
        assert archived(tmp_path / "spark", channel) == archived(tmp_path / "here", channel) == list(range(1, 100))


def test_entries_that_were_trimmed_before_they_were_archived_are_a_gap(
    servers: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    recording = Recording(servers[0])
    recording.write(1, 2, 3)
    archive_all(tmp_path, servers[0])
    recording.write(4, 5, 6, 7)
    recording.redis.xtrim(record_key(recording.channel), maxlen=2, approximate=False)
    archive_all(tmp_path, servers[0])
    items = list(to_items(merge_rows(read_archive(tmp_path, "orders.eu")[1])))
    assert sequences(items) == [1, 2, 3, 6, 7]
    gaps = [gap for gap in items if isinstance(gap, Gap)]
    assert {(gap.publisher, gap.first, gap.last) for gap in gaps} == {(BOB, 4, 5), (None, 0, None)}
    assert any("2 entries of the record were dropped" in gap.reason for gap in gaps)


def test_a_record_that_a_server_has_lost_is_a_gap(servers: tuple[RedisServer, RedisServer], tmp_path: Path) -> None:
    recording = Recording(servers[0])
    recording.write(1, 2, 3, from_us=NOON_US + 100_000_000)
    archive_all(tmp_path, servers[0])
    recording.redis.flushall()
    Recording(servers[0]).write(5)
    archive_all(tmp_path, servers[0])
    items = list(to_items(merge_rows(read_archive(tmp_path, "orders.eu")[1])))
    assert sorted(sequences(items)) == [1, 2, 3, 5]
    assert any("lost its record" in gap.reason for gap in items if isinstance(gap, Gap))


def test_a_corrupt_entry_is_a_gap_and_stops_nothing(servers: tuple[RedisServer, RedisServer], tmp_path: Path) -> None:
    recording = Recording(servers[0])
    recording.write(1)
    recording.garbage()
    recording.write(2, at=False)
    archive_all(tmp_path, servers[0])
    items = list(to_items(merge_rows(read_archive(tmp_path, "orders.eu")[1])))
    assert sequences(items) == [1, 2]
    assert ["cannot be read" in gap.reason for gap in items if isinstance(gap, Gap)] == [True]


def test_a_server_that_is_away_is_named_and_the_others_are_archived(
    servers: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    Recording(servers[0]).write(1)
    away = ServerAddress("s9", "127.0.0.1", 1)
    with ArchiveJob(tmp_path, NOBODY) as job:
        assert job.batch([*addresses(servers[0]), away], run_here) is not None
        assert [*job.unreachable] == ["s9"]
    assert archived(tmp_path) == [1]


def test_a_server_that_dies_after_planning_is_left_for_the_next_batch(
    servers: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    for server in servers:
        Recording(server, b"orders.eu").write(1, 2)
        Recording(server, b"deals").write(1, 2)
    all_servers = addresses(*servers)

    def dies(function: Task, rows: pa.Table) -> pa.Table:
        places = [{**row, "port": 1} if row["server"] == "s2" else row for row in rows.to_pylist()]
        return run_here(function, pa.Table.from_pylist(places, schema=rows.schema))

    with ArchiveJob(tmp_path, NOBODY) as job:
        progress = job.batch(all_servers, dies)
        assert progress is not None
        assert (progress.entries, progress.behind, [*job.unreachable]) == (4, 4, ["s2"])
        assert [*job.positions.records] == ["s1"]
        assert not job.behind(job.ends)
        progress = job.batch(all_servers, dies)
        assert progress is not None
        assert (progress.entries, job.table.delta.version()) == (0, 1)
        assert job.batch(all_servers, run_here) is not None
        assert job.batch(all_servers, run_here) is None
    assert archived(tmp_path) == archived(tmp_path, "deals") == [1, 2]


def test_one_record_does_not_hide_what_another_still_has(
    servers: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    busy, quiet = Recording(servers[0], b"busy"), Recording(servers[0], b"quiet")
    busy.write(*range(1, 11))
    quiet.write(*range(1, 21))

    def grows(function: Task, rows: pa.Table) -> pa.Table:
        busy.write(*range(busy.number + 1, busy.number + 11))
        return run_here(function, rows)

    with ArchiveJob(tmp_path, NOBODY, 15) as job:
        progress = job.batch(addresses(servers[0]), grows)
        assert progress is not None
        goal = job.ends
        assert (progress.behind, job.behind(goal)) == (5, [("s1", b"quiet")])
        job.batch(addresses(servers[0]), grows)
        assert job.behind(goal) == []
        assert job.behind(job.ends) == []


def test_a_record_that_was_begun_anew_counts_whole(servers: tuple[RedisServer, RedisServer], tmp_path: Path) -> None:
    Recording(servers[0]).write(*range(1, 31))
    known = Positions(
        records={"s1": {record_name(b"orders.eu"): RecordPosition(f"{NOON_US // 1000 + DAY_US}-0", 100_000)}}
    )
    create_table(ArchiveLocation.of(tmp_path), [], known)
    with ArchiveJob(tmp_path, NOBODY, 10) as job:
        progress = job.batch(addresses(servers[0]), run_here)
        assert progress is not None
        assert (progress.entries, progress.behind) == (10, 20)


def dies(function: Task, rows: pa.Table) -> pa.Table:
    """A runner that writes its files and is then interrupted."""
    run_here(function, rows)
    raise KeyboardInterrupt


def test_what_a_job_that_died_wrote_is_read_again_and_deleted_later(
    servers: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    Recording(servers[0]).write(1, 2)
    with ArchiveJob(tmp_path, NOBODY) as job, pytest.raises(KeyboardInterrupt):
        job.batch(addresses(servers[0]), dies)
    assert archived(tmp_path) == []
    archive_all(tmp_path, servers[0])
    assert archived(tmp_path) == [1, 2]
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    with ArchiveJob(tmp_path, NOBODY) as job:
        assert job.vacuum() == 0, "a reader may still use it"
        for path in tmp_path.rglob("*.parquet"):
            os.utime(path, (1, 1))
        assert job.vacuum() == 1
        assert [tmp_path / file.path for file in job.table.files] == list(tmp_path.rglob("*.parquet"))
    assert archived(tmp_path) == [1, 2]


@pytest.mark.parametrize("after", [False, True])
def test_a_job_that_dies_at_its_commit_has_archived_all_or_nothing(
    after: bool, servers: tuple[RedisServer, RedisServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the commit its positions are already written; after it the job has not noticed that it succeeded."""
    recording = Recording(servers[0])
    recording.write(1, 2)
    archive_all(tmp_path, servers[0])
    recording.write(3, 4)
    commit = TableWriter._commit

    def dies_at_commit(writer: TableWriter, *details: Any) -> None:
        if after:
            commit(writer, *details)
        raise KeyboardInterrupt

    with ArchiveJob(tmp_path, NOBODY) as job, monkeypatch.context() as broken:
        broken.setattr(TableWriter, "_commit", dies_at_commit)
        with pytest.raises(KeyboardInterrupt):
            job.batch(addresses(servers[0]), run_here)
    assert archived(tmp_path) == ([1, 2, 3, 4] if after else [1, 2])
    assert archive_all(tmp_path, servers[0]) == (0 if after else 1)
    assert archived(tmp_path) == [1, 2, 3, 4]
    assert table(tmp_path).rows == 4


def test_replaced_and_old_files_are_deleted_after_a_delay(
    servers: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    recording = Recording(servers[0])
    recording.write(1, 2)
    recording.write(3, from_us=NOON_US + DAY_US)
    archive_all(tmp_path, servers[0], rows=1, compact=2)
    reading = table(tmp_path)
    with ArchiveJob(tmp_path, NOBODY) as job:
        assert job.retain(NOON_US) == 0
        assert job.retain(NOON_US + DAY_US) == 1
        assert job.vacuum() == 0
        assert archived(tmp_path) == [3]
        assert reading.delta.to_pyarrow_dataset().count_rows() == 3, "a reader of the older version"
        assert len(list((tmp_path / "_positions").glob("*.json"))) == 4
        _age_log(tmp_path)
        assert job.vacuum(3600.0) == 3
        assert len(list((tmp_path / "_positions").glob("*.json"))) == 4, "none of them is an hour old"
    assert archived(tmp_path) == [3]
    assert archive_all(tmp_path, servers[0]) == 0, "positions stay"


def _age_log(archive: Path) -> None:
    """Makes the removals of all commits two hours older."""
    for commit in (archive / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] -= 7_200_000
        commit.write_text("\n".join(json.dumps(action) for action in actions))


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ArchiveError, match=r"has files but is not an archive.*name an empty directory"):
        ArchiveJob(tmp_path, NOBODY).__enter__()
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_another_table_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"channel": [1]}))
    for use in (lambda: read_archive(tmp_path, None), ArchiveJob(tmp_path, NOBODY).__enter__):
        with pytest.raises(ArchiveError, match="is a Delta table, but not an archive"):
            use()


def test_a_table_without_a_newer_column_is_read_and_continued(
    servers: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    recording = Recording(servers[0])
    recording.write(1, 2, attributes={"volume": 7})
    archive_all(tmp_path / "now", servers[0])
    _, rows = read_archive(tmp_path / "now", None)
    older = rows.drop_columns(["attributes"]).append_column("day", pa.array([dt.date(2026, 11, 1)] * 2))
    properties = CommitProperties(app_transactions=[Transaction(POSITIONS_ID, table(tmp_path / "now").number)])
    write_deltalake(tmp_path / "old", older, partition_by="day", commit_properties=properties)
    shutil.copytree(tmp_path / "now" / "_positions", tmp_path / "old" / "_positions")
    _, found = read_archive(tmp_path / "old", "orders.eu")
    assert found.drop_columns(["attributes"]).equals(rows.drop_columns(["attributes"]))
    assert found["attributes"].null_count == 2
    recording.write(3, attributes={"volume": 8})
    assert archive_all(tmp_path / "old", servers[0]) == 1
    _, found = read_archive(tmp_path / "old", "orders.eu")
    assert found.sort_by("sequence")["attributes"].to_pylist() == [None, None, '{"volume":8}']


def test_a_table_with_columns_of_a_newer_version_is_read(
    servers: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    Recording(servers[0]).write(1, 2)
    archive_all(tmp_path, servers[0])
    table(tmp_path).delta.alter.add_columns(Field("colour", PrimitiveType("string")))
    assert archived(tmp_path) == [1, 2]


@pytest.mark.parametrize("channel", ["ü" * 256, "a b" * 170, "/" * 512, "x" * 512])
def test_the_longest_names_of_channels_have_files(
    channel: str, servers: tuple[RedisServer, RedisServer], tmp_path: Path
) -> None:
    Recording(servers[0], channel.encode()).write(1)
    Recording(servers[0], channel.encode()[:-2]).write(1, 2)
    archive_all(tmp_path, servers[0])
    assert archived(tmp_path, channel) == [1]
    assert archived(tmp_path, channel.encode()[:-2].decode()) == [1, 2]


def test_an_archive_has_one_writer(tmp_path: Path) -> None:
    with ArchiveJob(tmp_path, NOBODY), pytest.raises(ArchiveError, match="another job"):
        ArchiveJob(tmp_path, NOBODY).__enter__()
    with ArchiveJob(tmp_path, NOBODY):
        pass


def test_a_second_writer_loses_without_harm(servers: tuple[RedisServer, RedisServer], tmp_path: Path) -> None:
    """As in an object store, where there is no lock."""
    recording = Recording(servers[0])
    recording.write(1, 2)
    archive_all(tmp_path, servers[0])
    recording.write(3, 4)
    first, second = ArchiveJob(tmp_path, NOBODY), ArchiveJob(tmp_path, NOBODY)
    for job in (first, second):
        job._writer = TableWriter(ArchiveLocation.of(tmp_path))
    assert first.batch(addresses(servers[0]), run_here) is not None
    with pytest.raises(ArchiveError, match=r"another job has written to the archive .* run one job for a table"):
        second.batch(addresses(servers[0]), run_here)
    assert archived(tmp_path) == [1, 2, 3, 4]
    assert table(tmp_path).rows == 4


def test_bad_archives_are_refused_with_what_to_do(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ArchiveError, match=r"no archive at .*shoal pipeline archive"):
            read_archive(place, None)
    (tmp_path / "manifest.json").write_text("{}")
    for use in (lambda: read_archive(tmp_path, None), ArchiveJob(tmp_path, NOBODY).__enter__):
        with pytest.raises(ArchiveError, match=r"older version of Shoal: run `shoal pipeline archive --migrate"):
            use()


def test_a_missing_or_damaged_file_is_named(servers: tuple[RedisServer, RedisServer], tmp_path: Path) -> None:
    Recording(servers[0]).write(1)
    archive_all(tmp_path, servers[0])
    (file,) = table(tmp_path).files
    (tmp_path / file.path).write_bytes(b"garbage")
    with pytest.raises(ArchiveError, match=f"cannot be read.*{file.path}.*restore a copy"):
        archived(tmp_path)
    (tmp_path / file.path).unlink()
    with pytest.raises(ArchiveError, match=f"is missing.*{file.path}.*restore a copy"):
        archived(tmp_path)
    for path in (tmp_path / "_positions").glob("*.json"):
        path.unlink()
    with pytest.raises(ArchiveError, match=r"_positions/\d+\.json .* cannot be read"):
        archived(tmp_path)


@pytest.mark.spark
async def test_a_job_that_is_killed_in_the_middle_of_a_batch_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with agent_site() as site:
        recording = Recording(site.server)
        recording.write(*range(1, MESSAGES + 1))
        for _ in range(KILLS_MAX):
            job = _start_job(site.url, tmp_path)
            try:
                if _kill_in_the_middle(job, tmp_path):
                    break  # one that died with files that it had not committed is enough
            finally:
                if job.poll() is None:
                    os.killpg(job.pid, signal.SIGKILL)
                    job.wait()
        else:
            pytest.fail("each had committed its batch in the very moment in which it was killed")
        archive_all(tmp_path, site.server, rows=700)
        assert archived(tmp_path) == list(range(1, MESSAGES + 1))
        assert table(tmp_path).rows == MESSAGES
        assert _unlisted(tmp_path), "files of the job that was killed, which nobody reads"


def _start_job(url: str, archive: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "shoal.cli", "pipeline", "archive", "--once", "--json"]
    command += ["--archive", str(archive), "--url", url, "--batch-rows", "700"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)


def _kill_in_the_middle(job: subprocess.Popen[bytes], archive: Path) -> bool:
    """Kills the driver, and what it started, when it has committed a batch and files lie there that it has not; False
    if it had committed those too in that very moment."""
    deadline = time.monotonic() + 100
    begun: int | None = None
    while time.monotonic() < deadline:
        assert job.poll() is None, "it has ended before it could be killed"
        version = _version(archive)
        begun = version if begun is None else begun
        if version <= max(begun, 0):  # Spark starts: a look at the names of the commits costs little
            time.sleep(0.01)
            continue
        if _unlisted(archive):
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            assert 0 < table(archive).rows < MESSAGES
            return bool(_unlisted(archive))
        time.sleep(0.001)
    pytest.fail("no batch was ever under way")


def _version(archive: Path) -> int:
    """The number of the newest commit; -1 if there is none."""
    return max((int(path.stem) for path in (archive / "_delta_log").glob("*.json")), default=-1)


def _unlisted(archive: Path) -> set[Path]:
    return {*archive.rglob("*.parquet")} - {archive / file.path for file in table(archive).files}
