"""An archive of an older version becomes a table, in place, with the same rows and positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.records import NOON_US, Recording, sequences
from tests.support.redis_server import RedisServer

from shoal import cli
from shoal.errors import ArchiveError
from shoal.history.archive import read_archive
from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import open_table
from shoal.history.record_reader import RecordPosition
from shoal.history.server_reader import Login
from shoal.history.table import SCHEMA, to_items
from shoal.pipeline import event_archive
from shoal.pipeline.archive import migration
from shoal.pipeline.archive.job import ArchiveJob, run_here
from shoal.plan.keys import unit_text as record_name
from shoal.plan.ring import ServerAddress

DAY = "2026-11-01"
RECORD = record_name(b"deals/eu")


def old_archive(archive: Path) -> None:
    """What the last version with a manifest wrote: two files of one channel, one of them compacted, and leftovers."""
    folder = f"data/day={DAY}/channel=deals%2Feu"
    (archive / folder).mkdir(parents=True)
    files = [old_file(archive, f"{folder}/batch-00000001-s1-{1:016x}.parquet", 1, 2)]
    files += [old_file(archive, f"{folder}/compact-00000002-{2:016x}.parquet", 3)]
    retired = f"{folder}/batch-00000002-s1-{3:016x}.parquet"
    (archive / retired).write_bytes(b"PAR1")
    manifest = {
        "version": 1,
        "schema_version": "1",
        "batch": 3,
        "files": files,
        "retired": [{"path": retired, "since_s": 1.0}],
        "positions": {"s1": {RECORD: [f"{NOON_US // 1000 + 3000}-0", 3]}, "s9": {RECORD: ["7-0", 7]}},
        "left": {"s9": 17},
    }
    (archive / "manifest.json").write_text(json.dumps(manifest))
    (archive / "lock").touch()


def old_file(archive: Path, path: str, *numbers: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {
            "channel": "deals/eu",
            "server": "s1",
            "entry": f"{NOON_US // 1000 + 1000 * number}-0",
            "number": number,
            "publisher": 7,
            "epoch": 1,
            "sequence": number,
            "published_at": NOON_US + 1_000_000 * number,
            "payload": b"m%d" % number,
            "is_gap": False,
            "is_end": False,
        }
        for number in numbers
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), archive / path, compression="zstd")
    times = [row["published_at"] for row in rows]
    size = (archive / path).stat().st_size
    facts = {"path": path, "channel": "deals/eu", "day": DAY, "rows": len(rows), "bytes": size, "batch": 1}
    return {**facts, "from_us": min(times), "to_us": max(times), "raw_bytes": 1000}


def found(archive: Path) -> list[int]:
    return sorted(sequences(to_items(read_archive(archive, "deals/eu")[1])))


def test_the_command_turns_an_old_archive_into_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old_archive(tmp_path)
    with pytest.raises(ArchiveError, match=r"`shoal pipeline archive --migrate --archive .*` once"):
        read_archive(tmp_path, "deals/eu")
    with pytest.raises(ArchiveError, match="older version of Shoal"):
        event_archive.open_archive(tmp_path)
    assert cli.main(["pipeline", "archive", "--migrate", "--archive", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["migrated_files"] == 2
    assert found(tmp_path) == [1, 2, 3]
    table = open_table(ArchiveLocation.of(tmp_path))
    assert table.rows == table.delta.to_pyarrow_dataset().count_rows() == 3
    assert table.positions.left == {"s9": 17}
    assert table.positions.of("s9", RECORD) == RecordPosition("7-0", 7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_delta_log", "_positions", f"day={DAY}"]
    assert cli.main(["pipeline", "archive", "--migrate", "--archive", str(tmp_path)]) == 1
    assert "nothing to migrate" in capsys.readouterr().err


def test_the_job_goes_on_where_the_old_one_ended(tmp_path: Path) -> None:
    old_archive(tmp_path)
    migration.migrate(tmp_path)
    with RedisServer() as server:
        Recording(server, b"deals/eu").write(1, 2, 3, 4, 5)
        with ArchiveJob(tmp_path, Login(None, None)) as job:
            progress = job.batch([ServerAddress("s1", server.host, server.port)], run_here)
            assert progress is not None
            assert progress.entries == 2
            assert job.compact(run_here, 2) == 3
    assert found(tmp_path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("step", ["_moved", "create_table", "_remove_old"])
def test_a_migration_that_dies_is_repeated(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_archive(tmp_path)

    def dies(*details: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(migration, step, dies)
        with pytest.raises(KeyboardInterrupt):
            migration.migrate(tmp_path)
    with pytest.raises(ArchiveError, match="--migrate"):
        found(tmp_path)
    assert migration.migrate(tmp_path) == 2
    assert found(tmp_path) == [1, 2, 3]
    assert open_table(ArchiveLocation.of(tmp_path)).rows == 3


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "data/../../x.parquet"])
def test_a_manifest_that_leads_elsewhere_is_refused(path: str, tmp_path: Path) -> None:
    old_archive(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["files"][0]["path"] = path
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArchiveError, match="which is not in the archive"):
        migration.migrate(tmp_path)


def test_files_that_no_job_wrote_are_not_removed(tmp_path: Path) -> None:
    old_archive(tmp_path)
    (tmp_path / "data" / "thesis.txt").write_text("mine")
    with pytest.raises(ArchiveError, match=r"thesis\.txt was not written by an archive job: move it away"):
        migration.migrate(tmp_path)
    assert (tmp_path / "data" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(("text", "why"), [("{", "is damaged"), ('{"version": 2}', "has version 2")])
def test_a_bad_manifest_is_refused(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ArchiveError, match=why):
        migration.migrate(tmp_path)
