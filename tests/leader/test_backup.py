"""The file of a backup: private, checked when it is read, never overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import BackupError
from shoal.leader.backup import Backup, read_file, write_file
from shoal.plan.keys import PUBLIC_KEY, RING_KEY

BACKUP = Backup(1234.5, {PUBLIC_KEY: b"k" * 32, RING_KEY: b"ring", "plan/recorded/abc": b"\x00\n\n"})


def test_what_was_saved_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    assert write_file(path, BACKUP) == path.stat().st_size
    assert read_file(path) == BACKUP
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["backup"]


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    path.write_text("dear")
    with pytest.raises(BackupError, match="exists"):
        write_file(path, BACKUP)
    assert path.read_text() == "dear"


def test_a_directory_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="cannot write"):
        write_file(tmp_path / "none" / "backup", BACKUP)


@pytest.mark.parametrize("position", [-1, -20, 40])
def test_damage_is_noticed(tmp_path: Path, position: int) -> None:
    path = tmp_path / "backup"
    write_file(path, BACKUP)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(BackupError, match="checksum"):
        read_file(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "not a backup"), (b"\n\n", "not a backup"), (b"shoal coordinator backup 2\nx\ny", "format 2")],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "backup"
    path.write_bytes(data)
    with pytest.raises(BackupError, match=words):
        read_file(path)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="cannot read"):
        read_file(tmp_path / "backup")
