"""Load windows kept in a folder, for what-if and forecasts.

Owns the format of the folder:

    manifest.json              {"version": 1, "day_s": 86400, "source": "..."}
    windows-<start_s>.shoal    one after the other: 8 bytes of length (little-endian), then `LoadWindow.to_bytes`

Files are only appended to, and a new one starts after `WINDOWS_PER_FILE` windows. So a writer that is killed loses at
most the window that it was writing; an incomplete window at the end of a file is ignored. `day_s` is the length of a
day, which is shorter in generated load.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Final

import msgspec

from shoal.errors import PipelineError, ProtocolError
from shoal.load.window import KEPT_VERSIONS, LoadWindow
from shoal.load_kinds import KINDS
from shoal.pipeline.job_folders import make_folder

MANIFEST: Final = "manifest.json"
MANIFEST_VERSION: Final = 1
DAY_S: Final = 86_400
WINDOWS_PER_FILE: Final = 1800
"""An hour of windows of two seconds."""
WINDOW_BYTES_MAX: Final = 1 << 32
"""A larger length means that the file is damaged."""
_LENGTH_BYTES: Final = 8
_NAME: Final = "windows-{:012d}.shoal"
_PATTERN: Final = "windows-*.shoal"


class WindowsManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of all windows in a folder."""

    version: int = MANIFEST_VERSION
    day_s: int = DAY_S
    source: str = "recorded"
    """Where the windows are from, for people."""


class WindowKeeper:
    """Adds windows to a folder, which it creates if needed. Windows that are not later than all kept ones are ignored:
    a restarted job repeats some."""

    def __init__(self, folder: Path, *, day_s: int = DAY_S, source: str = "recorded") -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._in_file = 0
        self._until_s = _end_of(folder)
        make_folder(folder)
        path = folder / MANIFEST
        if path.exists():
            self.manifest = read_windows_manifest(folder)
            if self.manifest.day_s != day_s:
                raise PipelineError(
                    f"{folder} has days of {self.manifest.day_s} s, not of {day_s} s", do="name another folder"
                )
        else:
            self.manifest = WindowsManifest(day_s=day_s, source=source)
            unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
            unfinished.write_bytes(msgspec.json.encode(self.manifest) + b"\n")
            unfinished.replace(path)

    def __enter__(self) -> WindowKeeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def add(self, window: LoadWindow) -> None:
        """Keeps one more window."""
        if self._until_s is not None and window.start_s < self._until_s:
            return
        self._until_s = window.end_s
        if self._file is None or self._in_file >= WINDOWS_PER_FILE:
            self.close()
            self._file = (self._folder / _NAME.format(window.start_s)).open("wb")
        data = window.to_bytes()
        self._file.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
        self._file.flush()
        self._in_file += 1

    def take(self, batch: int, windows: list[LoadWindow]) -> None:
        """Keeps the windows that a batch of a job closed."""
        for window in windows:
            self.add(window)

    def close(self) -> None:
        """Closes the current file."""
        if self._file is not None:
            self._file.close()
        self._file, self._in_file = None, 0


def read_windows_manifest(folder: Path) -> WindowsManifest:
    """The manifest of a folder of windows. PipelineError if there is none, or one of another version."""
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=WindowsManifest)
    except OSError:
        raise PipelineError(
            f"there are no load windows in {folder}",
            do="keep some with `shoal pipeline load --keep`, or use --generate",
        ) from None
    except (msgspec.DecodeError, msgspec.ValidationError, json.JSONDecodeError) as error:
        raise PipelineError(f"{path} cannot be read: {error}") from error
    if manifest.version != MANIFEST_VERSION or manifest.day_s <= 0:
        raise PipelineError(
            f"{path} has version {manifest.version}; this Shoal reads version {MANIFEST_VERSION}",
            do="read it with the version of Shoal that wrote it",
        )
    return manifest


def read_windows(folder: Path) -> Iterator[LoadWindow]:
    """The windows of a folder in order, none twice. PipelineError names a damaged file."""
    read_windows_manifest(folder)
    until_s: int | None = None
    for path in sorted(folder.glob(_PATTERN)):
        for window in _windows(path):
            if until_s is None or window.start_s >= until_s:
                yield window
                until_s = window.end_s


def _end_of(folder: Path) -> int | None:
    """The end of the last window of a folder; None if it has none."""
    for path in sorted(folder.glob(_PATTERN), reverse=True):
        for window in list(_windows(path))[-1:]:
            return window.end_s
    return None


def _windows(path: Path) -> Iterator[LoadWindow]:
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        while len(header := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
            size = int.from_bytes(header, "little")
            if size > WINDOW_BYTES_MAX:
                raise PipelineError(f"{path} is damaged: a window of {size} bytes", do="remove the file")
            if file.tell() + size > end:
                return  # the writer was stopped here
            try:
                yield LoadWindow.from_bytes(file.read(size), KINDS, KEPT_VERSIONS)
            except ProtocolError as error:
                what = "is damaged" if error.do is None else "cannot be read"
                raise PipelineError(f"{path} {what}: {error.what}", do=error.do or "remove the file") from error
