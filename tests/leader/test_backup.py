"""The file of a backup: private, checked when it is read, never overwritten. When a restore is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.mover_scene import CHANNEL, RING, MoverScene, mover_scene

from shoal.errors import BackupError
from shoal.leader.backup import Backup, read_backup, read_file, restore_backup, write_file
from shoal.plan.entry import Entry
from shoal.plan.keys import PUBLIC_KEY, RING_KEY, entry_key
from shoal.plan.placement import Mode, Placement
from shoal.plan.signature import Signer

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


# -- Restore, on a real coordinator ------------------------------------------------------------------------------------


@pytest.fixture
async def scene() -> AsyncIterator[MoverScene]:
    async with mover_scene() as scene:
        yield scene


def moved(revision: int) -> Entry:
    return Entry(CHANNEL, Placement(7, Mode.SINGLE, (RING.ids[0],)), revision=revision)


async def write_entry(scene: MoverScene, entry: Entry) -> bytes:
    data = scene.signer.line(entry)
    await scene.coordinator.put(entry_key(CHANNEL), data)
    return data


async def save_moved(scene: MoverScene) -> Backup:
    await scene.coordinator.put(RING_KEY, scene.signer.ring(RING))
    await write_entry(scene, moved(revision=9))
    return await read_backup(scene.coordinator, 1234.5)


async def test_a_restore_can_be_repeated_after_a_leader_has_continued_a_move(scene: MoverScene) -> None:
    backup = await save_moved(scene)
    newer = await write_entry(scene, moved(revision=10))
    assert await restore_backup(scene.coordinator, backup) == 0
    stored = await scene.coordinator.get(entry_key(CHANNEL))
    assert stored is not None
    assert stored.value == newer


async def test_an_older_entry_refuses_a_restore(scene: MoverScene) -> None:
    backup = await save_moved(scene)
    await write_entry(scene, moved(revision=8))
    with pytest.raises(BackupError, match="not empty"):
        await restore_backup(scene.coordinator, backup)


async def test_a_newer_entry_of_another_cluster_refuses_a_restore(scene: MoverScene) -> None:
    backup = await save_moved(scene)
    await scene.coordinator.put(entry_key(CHANNEL), Signer(Signer.generate()).line(moved(revision=10)))
    with pytest.raises(BackupError, match="not empty"):
        await restore_backup(scene.coordinator, backup)
