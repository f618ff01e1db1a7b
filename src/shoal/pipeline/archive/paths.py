"""Paths of a manifest stay in their archive.

Owns the check. A manifest is a file that somebody may have written by hand or brought from elsewhere: jobs read what it
lists, and remove what it calls replaced.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from shoal.errors import ArchiveError
from shoal.history.manifest import NAME, Manifest


def check_paths(archive: Path, manifest: Manifest) -> None:
    """ArchiveError if a manifest lists a file that is not in the archive's directory."""
    listed = [file.path for file in manifest.files] + [file.path for file in manifest.retired]
    for name in listed:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ArchiveError(
                f"{archive / NAME} lists {name}, which is not in the archive",
                do="put back a copy of the manifest, or take the entry out",
            )
