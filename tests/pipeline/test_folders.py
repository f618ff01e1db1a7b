"""Folders of jobs: made before anything starts, and one job at a time goes on from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal import cli
from shoal.errors import CheckpointError, PipelineError
from shoal.pipeline import session
from shoal.pipeline.job_folders import locked, make_folder
from shoal.pipeline.session import SessionOptions

WORDS = "another job uses this checkpoint: name another one with --checkpoint"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is refused here is refused before Spark."""

    def start(options: SessionOptions) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr(session, "_start", start)


def test_a_folder_is_made_and_a_file_in_its_place_is_said(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match="is a file, not a folder: name another folder"):
        make_folder(tmp_path / "file")
    with pytest.raises(PipelineError, match="cannot write to"):
        make_folder(tmp_path / "file" / "below")


def test_a_second_job_is_refused_and_one_that_ended_leaves_the_directory_to_others(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path / "job"), pytest.raises(CheckpointError, match=WORDS), locked(tmp_path / "job"):
            pass


@pytest.mark.spark
@pytest.mark.parametrize("once", [["--once"], []])
def test_a_job_with_a_checkpoint_takes_its_lock_first(
    once: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pipeline", "load", *once, "--checkpoint", str(tmp_path), "--state-dir", str(tmp_path)]
    with locked(tmp_path):
        assert cli.main(words) == 1
    said = capsys.readouterr().err
    assert WORDS in said
    assert "starting Spark" not in said


@pytest.mark.spark
@pytest.mark.parametrize(
    "words",
    [
        ["forecast", "--windows", "none", "--out", "FILE"],
        ["profiles", "--filters", "none", "--archive", "none", "--out", "FILE"],
        ["match", "--filters", "none", "--archive", "none", "--out", "FILE"],
        ["load", "--once", "--keep", "FILE"],
        ["load", "--once", "--checkpoint", "FILE"],
        ["forecast", "--windows", "FILE", "--generate", "days=1,seed=1"],
    ],
)
def test_a_file_where_a_folder_should_be_is_said_at_once(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    given = [str(tmp_path / "file") if word == "FILE" else word for word in words]
    assert cli.main(["pipeline", *given, "--state-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "is a file, not a folder" in said
    assert "starting Spark" not in said
    assert (tmp_path / "file").read_text() == "mine"
