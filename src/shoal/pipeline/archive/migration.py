"""Turns an archive that lists its files in `manifest.json`, as Shoal wrote until now, into a table.

Owns the old format. The data files are not rewritten: each gets a second name at its new place (a hard link; a copy
where the file system has none). Then one commit adds all of them with the positions, and the old names are removed.
A migration that dies before the commit leaves the old archive as it was; after it, the next one finishes the removal.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from shoal.errors import ArchiveError
from shoal.history.archive_location import ArchiveLocation, require_deltalake
from shoal.history.archive_table import OLD_MANIFEST, POSITIONS, ArchivedFile, Positions
from shoal.history.record_reader import RecordPosition
from shoal.pipeline.archive.parquet_files import file_path
from shoal.pipeline.archive.table_writer import create_table
from shoal.pipeline.job_folders import LOCK, exclusive_lock

OLD_VERSION: Final = 1
OLD_DATA: Final = "data"


class OldFile(msgspec.Struct, frozen=True):
    """A file in a manifest."""

    path: str
    channel: str
    day: str
    rows: int
    bytes: int
    from_us: int
    to_us: int


class OldManifest(msgspec.Struct, frozen=True):
    """What the migration needs of a manifest."""

    version: int
    files: tuple[OldFile, ...] = ()
    positions: dict[str, dict[str, RecordPosition]] = {}
    left: dict[str, int] = {}


def migrate(archive: str | Path) -> int:
    """Turns an old archive into a table, in place; returns the number of its files. ArchiveError if there is none."""
    require_deltalake()
    from deltalake import DeltaTable

    location = ArchiveLocation.of(archive)
    root = location.folder
    if root is None or not (root / OLD_MANIFEST).is_file():
        raise ArchiveError(f"{location} has no {OLD_MANIFEST}", do="there is nothing to migrate")
    busy = ArchiveError(f"another job writes the archive {location}", do="wait for it, or stop it first")
    (root / POSITIONS).mkdir(exist_ok=True)
    with exclusive_lock(root, busy), exclusive_lock(root / POSITIONS, busy):
        manifest = _read(root)
        if not DeltaTable.is_deltatable(location.url):
            files = [_moved(root, file) for file in manifest.files]
            create_table(location, files, Positions(records=manifest.positions, left=manifest.left))
        _remove_old(root)
    return len(manifest.files)


def _read(root: Path) -> OldManifest:
    path = root / OLD_MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=OldManifest)
    except msgspec.DecodeError as error:
        raise ArchiveError(f"{path} is damaged: {error}", do="restore a copy of it") from error
    if manifest.version != OLD_VERSION:
        raise ArchiveError(
            f"{path} has version {manifest.version}; this Shoal migrates version {OLD_VERSION}",
            do="use the version of Shoal that wrote it",
        )
    for file in manifest.files:
        listed = PurePosixPath(file.path)
        if listed.is_absolute() or ".." in listed.parts:
            raise ArchiveError(f"{path} lists {file.path}, which is not in the archive", do="remove the entry")
    for other in (root / OLD_DATA).rglob("*"):
        if other.is_file() and other.suffix not in (".parquet", ".new"):
            raise ArchiveError(f"{other} was not written by an archive job", do="move it away")
    return manifest


def _moved(root: Path, file: OldFile) -> ArchivedFile:
    """The file at its new place, where it has a second name."""
    path = file_path(file.day, file.channel, "part")
    new = root / path
    new.parent.mkdir(exist_ok=True)
    try:
        os.link(root / file.path, new)
    except FileNotFoundError as error:
        raise ArchiveError(
            f"the manifest lists {file.path}, but the archive does not have it", do="restore a copy of the file"
        ) from error
    except OSError:
        shutil.copy2(root / file.path, new)
    return ArchivedFile(
        path=path,
        day=file.day,
        channel=file.channel,
        channel_max=file.channel,
        rows=file.rows,
        bytes=file.bytes,
        from_us=file.from_us,
        to_us=file.to_us,
    )


def _remove_old(root: Path) -> None:
    """Removes the old names; the manifest is the last one, so that a removal that was interrupted is finished."""
    if (root / OLD_DATA).is_dir():
        shutil.rmtree(root / OLD_DATA)
    (root / LOCK).unlink(missing_ok=True)
    (root / OLD_MANIFEST).unlink()
