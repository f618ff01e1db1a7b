"""What an archive holds: its manifest.

Owns the shape of the manifest and how it is read and replaced. The manifest is the truth: a file that it does not list
is not part of the archive, whatever lies in the directory.

    ARCHIVE/
      manifest.json                                       replaced as a whole, by renaming
      lock                                                held by the one job that writes
      data/day=2026-11-01/channel=orders.eu/batch-00000007-....parquet

A batch is committed with its files and with the positions in the records up to which it was read, in one step: a job
that dies before it leaves files that nobody lists, and the next one reads the same entries again.
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
from shoal.history.records import BEGINNING, Position
from shoal.history.table import SCHEMA_VERSION

MANIFEST_VERSION: Final = 1
"""Of the manifest's shape. One of an older or newer version is refused with what to do."""

NAME: Final = "manifest.json"
DATA: Final = "data"
QUOTED_MAX: Final = 120
"""Longest quoted name of a channel in a directory's name; file systems take 255 bytes. The rest is cut and a hash of
the whole name stands for it: the manifest and the rows have all of it."""

_OWN_FILE: Final = re.compile(
    r"day=-?\d{4,}-\d\d-\d\d/channel=[^/]+/(?:batch|compact)-(\d{8,})(?:-[^/]+)?-[0-9a-f]{16}\.(?:parquet|new)"
)
"""What `file_path` makes, and what it is called while it is written, below `DATA`."""


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
    """What its rows take in memory; 0 in manifests from before that was noted."""


class Retired(msgspec.Struct, frozen=True):
    """A file that others have replaced. It is kept for a while, for those who read by an older manifest."""

    path: str
    since_s: float


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an archive holds, and how far each record of each server was read into it."""

    version: int = MANIFEST_VERSION
    schema_version: str = SCHEMA_VERSION
    batch: int = 0
    """The number of the last batch."""
    files: tuple[ArchivedFile, ...] = ()
    retired: tuple[Retired, ...] = ()
    positions: dict[str, dict[str, Position]] = {}
    """Server to channel (in base64url) to the last entry that was archived."""
    left: dict[str, int] = {}
    """Servers of those that are no longer in the cluster: when a job first found it so, in microseconds since 1970."""

    @property
    def rows(self) -> int:
        """Rows of all files; a message that two servers recorded counts twice until it is compacted."""
        return sum(file.rows for file in self.files)

    def position(self, server: str, channel: str) -> Position:
        """How far a record was read."""
        return self.positions.get(server, {}).get(channel, BEGINNING)

    def chosen(self, channel: str | None, from_us: int | None, to_us: int | None) -> list[ArchivedFile]:
        """The files that may hold rows of a channel and a time."""
        return [
            file
            for file in self.files
            if (channel is None or file.channel == channel)
            and (from_us is None or file.to_us >= from_us)
            and (to_us is None or file.from_us < to_us)
        ]


_decoder: Final = msgspec.json.Decoder(Manifest)


def read_manifest(archive: Path) -> Manifest | None:
    """The manifest of an archive; None if the directory has none yet. ArchiveError with what to do for a directory
    that is not there, and for a manifest that is damaged, of another version, or that leaves its archive."""
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
            f"{path} has version {version!r} with rows of version {schema!r}, this Shoal reads {MANIFEST_VERSION} and "
            f"{SCHEMA_VERSION!r}",
            do="read it with the Shoal that wrote it, or archive into another directory",
        )
    try:
        manifest = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise _damaged(path, error) from error
    _check_paths(path, manifest)
    return manifest


def _check_paths(path: Path, manifest: Manifest) -> None:
    """A manifest may have been written by hand, or brought from elsewhere: what it lists is read, and what it calls
    replaced is removed, so it must name nothing outside of its archive."""
    for name in (*(file.path for file in manifest.files), *(file.path for file in manifest.retired)):
        listed = PurePosixPath(name)
        if listed.is_absolute() or ".." in listed.parts:
            raise ArchiveError(
                f"{path} lists {name}, which is not in the archive",
                do="put back a copy of the manifest, or take the entry out",
            )


def _damaged(path: Path, error: Exception) -> ArchiveError:
    return ArchiveError(
        f"{path} is damaged: {error}", do="put back a copy of it; the files that it listed are still there"
    )


def write_manifest(archive: Path, manifest: Manifest) -> None:
    """Replaces the manifest, at once or not at all, and so that it stays after a crash."""
    new = archive / f"{NAME}.new"
    with new.open("wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(archive / NAME)
    sync_directory(archive)


def sync_directory(directory: Path) -> None:
    """Makes what was created or renamed in a directory stay after a crash, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def batch_name(batch: int, server: str) -> str:
    """A name that nobody used before, for a file with entries of one server."""
    return f"batch-{batch:08d}-{server}-{secrets.token_hex(8)}"


def compact_name(batch: int) -> str:
    """A name that nobody used before, for a file that others were put together in."""
    return f"compact-{batch:08d}-{secrets.token_hex(8)}"


def file_path(day: str, channel: str, name: str) -> str:
    """Where a file lies in the archive: Hive's way, which Spark and others understand. The folder's name is for people:
    who wants a channel goes by the manifest, or by the column of the rows."""
    return f"{DATA}/day={day}/channel={_folder(channel)}/{name}.parquet"


def _folder(channel: str) -> str:
    """A channel's name for a directory: quoted, and if that is long, cut between two characters and with a hash."""
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
    """ArchiveError if a directory without a manifest holds files where an archive has its own: they are somebody's, or
    the manifest was lost."""
    if any(path.is_file() for path in (archive / DATA).rglob("*")):
        raise ArchiveError(
            f"{archive / DATA} has files but no manifest",
            do="name an empty directory, or put the manifest back",
        )


def unlisted(archive: Path, manifest: Manifest) -> Iterator[Path]:
    """Files that a job which died has left: of a name that only jobs give, and not known to the manifest. Whatever else
    lies there is not ours."""
    return (path for path, _ in _unlisted(archive, manifest))


def check_newest(archive: Path, manifest: Manifest) -> None:
    """ArchiveError if there are files of later batches than the one that may have been under way: then this manifest is
    an older one than that which lists them, and they are no garbage."""
    for path, batch in _unlisted(archive, manifest):
        if batch > manifest.batch + 1:
            raise ArchiveError(
                f"{path} is of batch {batch}, but {archive / NAME} ends with batch {manifest.batch}",
                do="put back the newest manifest, or move the file away and accept the loss",
            )


def _unlisted(archive: Path, manifest: Manifest) -> Iterator[tuple[Path, int]]:
    """Files with a job's names that the manifest does not know, each with its batch."""
    known = {file.path for file in manifest.files} | {file.path for file in manifest.retired}
    data = archive / DATA
    for path in sorted(data.glob("day=*/channel=*/*")):
        own = _OWN_FILE.fullmatch(path.relative_to(data).as_posix())
        if own is not None and path.relative_to(archive).as_posix() not in known and path.is_file():
            yield path, int(own[1])
