"""Kept windows: load windows in a folder, as they were closed, for everything that looks at the past.

Owns the form of the folder:

    manifest.json              {"version": 1, "day_s": 86400, "source": "..."}
    windows-<start_s>.shoal    one after the other: 8 bytes of length (little-endian), then `LoadWindow.to_bytes`

A file is only ever added to, and a new one begins after `WINDOWS_PER_FILE` windows, so a writer that is killed loses
nothing but the window it was writing: what is cut short at the end of a file is left out. `day_s` is how long a day is;
generated load has shorter ones than the world.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Final

import msgspec

from shoal.balance.window import LoadWindow
from shoal.errors import PipelineError, ProtocolError
from shoal.pipeline.folders import make_folder

MANIFEST: Final = "manifest.json"
MANIFEST_VERSION: Final = 1
DAY_S: Final = 86_400
WINDOWS_PER_FILE: Final = 1800
"""An hour of windows of two seconds."""
WINDOW_BYTES_MAX: Final = 1 << 32
"""A length above it was not written by a keeper."""
_LENGTH_BYTES: Final = 8
_NAME: Final = "windows-{:012d}.shoal"
_PATTERN: Final = "windows-*.shoal"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is said about all windows of a folder."""

    version: int = MANIFEST_VERSION
    day_s: int = DAY_S
    source: str = "recorded"
    """Where they are from, for people."""


class WindowKeeper:
    """Adds windows to a folder, which is made if it is not there. Windows that are not later than all that are kept are
    left out: a job that was started again tells of some once more."""

    def __init__(self, folder: Path, *, day_s: int = DAY_S, source: str = "recorded") -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._in_file = 0
        self._until_s = _end_of(folder)
        make_folder(folder)
        path = folder / MANIFEST
        if path.exists():
            self.manifest = read_manifest(folder)
            if self.manifest.day_s != day_s:
                raise PipelineError(
                    f"{folder} has days of {self.manifest.day_s} s, not of {day_s} s", do="name another folder"
                )
        else:
            self.manifest = Manifest(day_s=day_s, source=source)
            unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
            unfinished.write_bytes(msgspec.json.encode(self.manifest) + b"\n")
            unfinished.replace(path)

    def __enter__(self) -> WindowKeeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def add(self, window: LoadWindow) -> None:
        """Keeps one window more."""
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
        """Keeps the windows of a batch of a job."""
        for window in windows:
            self.add(window)

    def close(self) -> None:
        """Ends the file that is open."""
        if self._file is not None:
            self._file.close()
        self._file, self._in_file = None, 0


def read_manifest(folder: Path) -> Manifest:
    """What is said about a folder's windows. PipelineError if it has none, or of another version."""
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError:
        raise PipelineError(
            f"there are no load windows in {folder}", do="keep some with shoal pipeline load --keep, or --generate"
        ) from None
    except (msgspec.DecodeError, msgspec.ValidationError, json.JSONDecodeError) as error:
        raise PipelineError(f"{path} cannot be read: {error}") from error
    if manifest.version != MANIFEST_VERSION or manifest.day_s <= 0:
        raise PipelineError(f"{path} is of version {manifest.version}, this reader knows {MANIFEST_VERSION}")
    return manifest


def read_windows(folder: Path) -> Iterator[LoadWindow]:
    """The windows of a folder in order, each time once. PipelineError names the file that is damaged."""
    read_manifest(folder)
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
                yield LoadWindow.from_bytes(file.read(size))
            except ProtocolError as error:
                raise PipelineError(f"{path} is damaged: {error}", do="remove the file") from error
