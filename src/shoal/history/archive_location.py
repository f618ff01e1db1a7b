"""Where an archive is: a directory, or a place in an object store.

Owns the spelling of locations, and the file system through which files of an archive are read and written. Object
stores take their credentials and endpoints from the environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...), on the
driver and on every worker.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from shoal.errors import ConfigError
from shoal.extras import needed

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileSystem

OBJECT_STORES: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "abfs": "abfss", "abfss": "abfss"}
"""Schemes of URLs that name an object store, and how the library spells them."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


@dataclass(frozen=True, slots=True)
class ArchiveLocation:
    """The location of an archive. `of` makes one from what a user wrote."""

    url: str
    """An absolute path, or the URL of an object store."""

    @classmethod
    def of(cls, given: str | Path) -> ArchiveLocation:
        """The location that a path or a URL names. ConfigError for a URL that Shoal cannot use: it must never become a
        local folder with a name like `s3:`."""
        text = str(given)
        found = _SCHEME.match(text)
        if found is None:
            return cls(str(Path(text).expanduser().absolute()))
        scheme = found[1].lower()
        parts = urlsplit(text)
        if scheme == "file" and parts.netloc in ("", "localhost"):
            return cls(unquote(parts.path))
        if scheme not in OBJECT_STORES or not parts.netloc:
            known = ", ".join(f"{name}://" for name in OBJECT_STORES)
            raise ConfigError(f"{text} is not the location of an archive", do=f"give a directory, or a URL ({known})")
        return cls(f"{OBJECT_STORES[scheme]}://{parts.netloc}{parts.path}".rstrip("/"))

    @property
    def folder(self) -> Path | None:
        """The directory; None in an object store."""
        return None if _SCHEME.match(self.url) else Path(self.url)

    def filesystem(self) -> FileSystem:
        """The file system whose root is the archive."""
        from pyarrow import fs

        if self.folder is not None:
            return fs.SubTreeFileSystem(self.url, fs.LocalFileSystem())
        require_deltalake()
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(self.url))

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[NativeFile]:
        """A new file of the archive, which is durable at the end."""
        files = self.filesystem()
        files.create_dir(str(PurePosixPath(path).parent), recursive=True)
        with files.open_output_stream(path) as stream:
            yield stream
        self.sync(path)

    def write(self, path: str, data: bytes) -> None:
        """Writes a whole file. The buffer is larger than the data, because the library takes no buffers of Arrow."""
        import pyarrow as pa

        with self.writing(path) as stream, pa.BufferedOutputStream(stream, len(data) + 1) as buffered:
            buffered.write(data)

    def sync(self, path: str) -> None:
        """Makes a file and its name durable. An object store has done so when the file was closed."""
        if self.folder is not None:
            for target in (self.folder / path, (self.folder / path).parent):
                _sync(target)

    def __str__(self) -> str:
        return self.url


def _sync(target: Path) -> None:
    """Makes a file or a directory durable, if the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def reason(error: Exception) -> str:
    """What an error of the library says, on one line: it draws a coloured tree of causes."""
    return ": ".join(part.strip() for part in re.split(r"\n\s*(?:\x1b\[\d+m)?↳(?:\x1b\[\d+m)?", str(error)))


def require_deltalake() -> None:
    """MissingExtraError unless the library for Delta tables is installed. Clients that read no archive do not need
    it."""
    with needed("an archive"):
        import deltalake  # noqa: F401
