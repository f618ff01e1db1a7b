"""Turns a folder of load windows, as Shoal kept them before they were a table, into a table in the same place.

Owns the old format:

    manifest.json              {"version": 1, "day_s": 86400, "source": "..."}
    windows-<start_s>.shoal    one after the other: 8 bytes of length (little-endian), then `LoadWindow.to_bytes`

An incomplete window at the end of a file is ignored: its writer was killed. A migration that dies is continued by the
next one, which skips the windows that the table has. The manifest is removed last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from shoal.errors import PipelineError, ProtocolError
from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import OLD_MANIFEST
from shoal.load.window import KEPT_VERSIONS, LoadWindow
from shoal.load_kinds import KINDS
from shoal.pipeline.kept_windows import WindowKeeper

OLD_VERSION: Final = 1
WINDOW_BYTES_MAX: Final = 1 << 32
"""A larger length means that the file is damaged."""
_LENGTH_BYTES: Final = 8
_PATTERN: Final = "windows-*.shoal"


class OldWindows(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of an old folder. Only such a manifest has `day_s`."""

    version: int
    day_s: int
    source: str


def old_windows(location: ArchiveLocation) -> OldWindows | None:
    """The manifest, if the place is an old folder of load windows. PipelineError for one of another version."""
    if location.folder is None or not (location.folder / OLD_MANIFEST).is_file():
        return None
    try:
        found = msgspec.json.decode((location.folder / OLD_MANIFEST).read_bytes(), type=OldWindows)
    except msgspec.DecodeError:
        return None
    if found.version != OLD_VERSION or found.day_s <= 0:
        raise PipelineError(
            f"{location.folder / OLD_MANIFEST} has version {found.version}; this Shoal migrates version {OLD_VERSION}",
            do="use the version of Shoal that wrote it",
        )
    return found


def migrate_windows(location: ArchiveLocation, old: OldWindows) -> int:
    """Turns an old folder into a table, in place; returns the number of its windows. PipelineError names a damaged
    file; nothing is removed then."""
    assert location.folder is not None, "old folders are directories"
    files, count = sorted(location.folder.glob(_PATTERN)), 0
    with WindowKeeper(location.url, day_s=old.day_s, source=old.source, migrating=True) as keeper:
        for path in files:
            for window in _windows(path):
                keeper.add(window)
                count += 1
    for path in (*files, location.folder / OLD_MANIFEST):
        path.unlink()
    return count


def _windows(path: Path) -> Iterator[LoadWindow]:
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        while len(header := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
            size = int.from_bytes(header, "little")
            if size > WINDOW_BYTES_MAX:
                raise PipelineError(f"{path} is damaged: a window of {size} bytes", do="remove the file")
            if file.tell() + size > end:
                return
            try:
                yield LoadWindow.from_bytes(file.read(size), KINDS, KEPT_VERSIONS)
            except ProtocolError as error:
                what = "is damaged" if error.do is None else "cannot be read"
                raise PipelineError(f"{path} {what}: {error.what}", do=error.do or "remove the file") from error
