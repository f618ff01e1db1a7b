"""Damaged archives and unsafe output paths are rejected; outputs never replace files that no job wrote."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal import cli
from shoal.errors import ArchiveError, PipelineError
from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import ArchivedFile, Positions
from shoal.history.table import SCHEMA
from shoal.pipeline import bulk_match_job, event_archive
from shoal.pipeline.archive.table_writer import create_table
from shoal.pipeline.filter_sets import read_filters

PATH = "day=2026-01-01/part-0123456789abcdef-quotes-s1.parquet"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of recorded channels, with one file."""
    folder = tmp_path / "archive"
    (folder / PATH).parent.mkdir(parents=True)
    pq.write_table(SCHEMA.empty_table(), folder / PATH)
    file = ArchivedFile(
        path=PATH, day="2026-01-01", channel="quotes", channel_max="quotes", rows=0, bytes=1, from_us=0, to_us=1
    )
    create_table(ArchiveLocation.of(folder), [file], Positions())
    return folder


def test_an_output_replaces_nothing_that_no_job_has_written(archive: Path, tmp_path: Path) -> None:
    where = tmp_path / "out" / bulk_match_job.OUT_FILE
    where.parent.mkdir()
    where.write_text("my notes")
    with pytest.raises(PipelineError, match="was not written by a job: move it away"):
        bulk_match_job._new_file(where.parent, archive)
    assert where.read_text() == "my notes"
    where.unlink()
    where.mkdir()
    pq.write_table(pa.table({"a": [1]}), where / "part-0.parquet")
    (where / "_SUCCESS").touch()
    (where / ".part-0.parquet.crc").write_bytes(b"crc")
    (where / "thesis.txt").write_text("mine")
    with pytest.raises(PipelineError, match="was not written by a job"):
        bulk_match_job._new_file(where.parent, archive)
    assert (where / "thesis.txt").read_text() == "mine"
    (where / "thesis.txt").unlink()
    assert bulk_match_job._new_file(where.parent, archive) == where
    assert not where.exists()


def test_that_is_said_before_filters_are_read_and_spark_is_started(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / bulk_match_job.OUT_FILE).write_text("my notes")
    words = ["pipeline", "match", "--filters", "none.txt", "--archive", str(archive), "--out", str(tmp_path)]
    assert cli.main(words) == 1
    assert "was not written by a job" in capsys.readouterr().err


def test_a_damaged_file_is_named_with_what_to_do(archive: Path, tmp_path: Path) -> None:
    opened = event_archive.open_archive(archive)
    (archive / PATH).write_bytes((archive / PATH).read_bytes()[:-20])
    with pytest.raises(
        ArchiveError, match=r"cannot be read: .*abcdef-quotes-s1\.parquet.*: restore a copy of the file"
    ):
        list(opened.read(["channel"]))
    (tmp_path / "plain").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "plain" / "a.parquet")
    (tmp_path / "plain" / "b.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(PipelineError, match=r"b\.parquet: .*: restore a copy of the file"):
        event_archive.open_archive(tmp_path / "plain")


def test_without_java_nothing_is_said_or_made_before_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    from shoal.pipeline import session

    monkeypatch.setattr(session, "current_session", lambda: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert cli.main(["pipeline", "archive", "--once", "--archive", str(tmp_path / "new")]) == 1
    assert not (tmp_path / "new").exists()
    assert cli.main(["pipeline", "load", "--once", "--state-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.count("Spark needs Java 17 or newer") == 2
    assert "starting" not in said


def test_a_file_of_filters_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "filters.txt").write_bytes(b"\xef\xbb\xbf7: a = 1\n")
    assert list(read_filters(tmp_path / "filters.txt")) == [7]
