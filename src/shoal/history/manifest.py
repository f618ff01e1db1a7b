"""The manifest of an archive: which files belong to it, and how far the records were read into it.

Owns the manifest's format, and how it is read and replaced. Only files that the manifest lists belong to the archive,
whatever else is in the directory.

    ARCHIVE/
      manifest.json                                       replaced as a whole, by renaming
      lock                                                held by the job that writes
      data/day=2026-11-01/channel=orders.eu/batch-00000007-....parquet

A batch commits its files and the positions up to which records were read in one step. A job that dies before that
leaves only unlisted files, and the next job reads the same entries again.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import re
import secrets
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import quote

import msgspec

from shoal.errors import ArchiveError
from shoal.history.record_reader import BEGINNING, RecordPosition
from shoal.history.table import SCHEMA_VERSION

MANIFEST_VERSION: Final = 1
"""Version of the manifest's format. Manifests of other versions are rejected."""

NAME: Final = "manifest.json"
DATA: Final = "data"
QUOTED_MAX: Final = 120
"""Longest quoted channel name in a directory name; file systems allow 255 bytes. A longer name is cut and gets a hash
of the whole name. The manifest and the rows have the full name."""

_OWN_FILE: Final = re.compile(
    r"day=-?\d{4,}-\d\d-\d\d/channel=[^/]+/(?:batch|compact)-(\d{8,})(?:-[^/]+)?-[0-9a-f]{16}\.(?:parquet|new)"
)
"""Paths below `DATA` that a job writes: `file_path`, and the same with `.new` while it is written."""


class ArchivedFile(msgspec.Struct, frozen=True):
    """One Parquet file. Times are those of `published_at`, in microseconds since 1970."""

    path: str
    channel: str
    day: str
    rows: int
    bytes: int
    from_us: int
    to_us: int
    batch: int
    raw_bytes: int = 0
    """Size of its rows in memory; 0 in older manifests, which did not store it."""


class Retired(msgspec.Struct, frozen=True):
    """A file that compaction replaced. It is kept for a while, for readers with an older manifest."""

    path: str
    since_s: float


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of an archive, and how far each record of each server was read into it."""

    version: int = MANIFEST_VERSION
    schema_version: str = SCHEMA_VERSION
    batch: int = 0
    """The number of the last batch."""
    files: tuple[ArchivedFile, ...] = ()
    retired: tuple[Retired, ...] = ()
    positions: dict[str, dict[str, RecordPosition]] = {}
    """Server to channel (in base64url) to the last entry that was archived."""
    left: dict[str, int] = {}
    """Servers in `positions` that have left the cluster: when a job first noticed, in microseconds since 1970."""

    @property
    def rows(self) -> int:
        """Rows of all files. A message that two servers recorded counts twice until compaction."""
        return sum(file.rows for file in self.files)

    def position(self, server: str, channel: str) -> RecordPosition:
        """How far a record was read."""
        return self.positions.get(server, {}).get(channel, BEGINNING)

    def chosen(self, channel: str | None, from_us: int | None, to_us: int | None) -> list[ArchivedFile]:
        """The files that may hold rows of a channel and a time span."""
        return [
            file
            for file in self.files
            if (channel is None or file.channel == channel)
            and (from_us is None or file.to_us >= from_us)
            and (to_us is None or file.from_us < to_us)
        ]


_decoder: Final = msgspec.json.Decoder(Manifest)


def read_manifest(archive: Path) -> Manifest | None:
    """The manifest of an archive; None if the directory has none yet. ArchiveError if the directory does not exist, or
    if the manifest is damaged, of another version, or lists files outside the archive."""
    if not archive.is_dir():
        raise ArchiveError(
            f"there is no archive at {archive}", do="name another directory, or run `shoal pipeline archive`"
        )
    path = archive / NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = msgspec.json.decode(data)
        version, schema = found["version"], found.get("schema_version")
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error
    if version != MANIFEST_VERSION or schema != SCHEMA_VERSION:
        raise ArchiveError(
            f"{path} has version {version!r} with rows of version {schema!r}; this Shoal reads versions "
            f"{MANIFEST_VERSION} and {SCHEMA_VERSION!r}",
            do="read it with the version of Shoal that wrote it, or archive into another directory",
        )
    try:
        manifest = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise _damaged(path, error) from error
    _check_paths(path, manifest)
    return manifest


def _check_paths(path: Path, manifest: Manifest) -> None:
    """ArchiveError if the manifest names a path outside its archive. Jobs read and delete what a manifest names, and it
    may have been edited by hand or copied from elsewhere."""
    for name in (*(file.path for file in manifest.files), *(file.path for file in manifest.retired)):
        listed = PurePosixPath(name)
        if listed.is_absolute() or ".." in listed.parts:
            raise ArchiveError(
                f"{path} lists {name}, which is not in the archive",
                do="restore a copy of the manifest, or remove the entry",
            )


def _damaged(path: Path, error: Exception) -> ArchiveError:
    return ArchiveError(f"{path} is damaged: {error}", do="restore a copy of it; the data files are still there")


def write_manifest(archive: Path, manifest: Manifest) -> None:
    """Replaces the manifest atomically and durably."""
    new = archive / f"{NAME}.new"
    with new.open("wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(archive / NAME)
    sync_directory(archive)


def sync_directory(directory: Path) -> None:
    """Makes new and renamed files in a directory durable, if the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def batch_name(batch: int, server: str) -> str:
    """A unique name for a file with entries of one server."""
    return f"batch-{batch:08d}-{server}-{secrets.token_hex(8)}"


def compact_name(batch: int) -> str:
    """A unique name for a compacted file."""
    return f"compact-{batch:08d}-{secrets.token_hex(8)}"


def file_path(day: str, channel: str, name: str) -> str:
    """The path of a file in the archive, in Hive's layout, which Spark and others understand. The folder's name may be
    shortened; readers find channels by the manifest or by the column `channel`."""
    return f"{DATA}/day={day}/channel={_folder(channel)}/{name}.parquet"


def _folder(channel: str) -> str:
    """A channel's name as a directory name: quoted; if too long, cut between two characters and given a hash."""
    quoted = [quote(character, safe="") for character in channel]
    ends = list(accumulate(map(len, quoted), initial=0))
    if ends[-1] <= QUOTED_MAX:
        return "".join(quoted)
    kept = "".join(quoted[: bisect_right(ends, QUOTED_MAX) - 1])
    return f"{kept}-{hashlib.blake2b(channel.encode(), digest_size=8).hexdigest()}"


def day_of(time_us: int) -> str:
    """The day of a time, UTC."""
    return (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=time_us)).date().isoformat()


def check_new(archive: Path) -> None:
    """ArchiveError if a directory without a manifest has data files: they belong to something else, or the manifest
    was lost."""
    if any(path.is_file() for path in (archive / DATA).rglob("*")):
        raise ArchiveError(
            f"{archive / DATA} has files but no manifest",
            do="name an empty directory, or restore the manifest",
        )


def unlisted(archive: Path, manifest: Manifest) -> Iterator[Path]:
    """Files that a dead job left: named as a job names them, but not in the manifest. Other files are ignored."""
    return (path for path, _ in _unlisted(archive, manifest))


def check_newest(archive: Path, manifest: Manifest) -> None:
    """ArchiveError if unlisted files are from a batch later than the next one. Then the manifest is an old copy, and a
    newer one lists those files."""
    for path, batch in _unlisted(archive, manifest):
        if batch > manifest.batch + 1:
            raise ArchiveError(
                f"{path} is of batch {batch}, but {archive / NAME} ends with batch {manifest.batch}",
                do="restore the newest manifest, or move the file away and accept the loss",
            )


def _unlisted(archive: Path, manifest: Manifest) -> Iterator[tuple[Path, int]]:
    """Unlisted files with names that a job gives, each with its batch."""
    known = {file.path for file in manifest.files} | {file.path for file in manifest.retired}
    data = archive / DATA
    for path in sorted(data.glob("day=*/channel=*/*")):
        own = _OWN_FILE.fullmatch(path.relative_to(data).as_posix())
        if own is not None and path.relative_to(archive).as_posix() not in known and path.is_file():
            yield path, int(own[1])
