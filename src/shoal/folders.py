"""The default cache directory, for files that Shoal can create again, and whether a directory is private.

Owns the choice of the directory. It creates nothing. The state directory is a setting (`shoal.config`).
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path


def default_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the user's cache directory, or a private directory under the temporary one if the user has no home."""
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "shoal"
    if environ.get("HOME"):
        return Path(environ["HOME"]) / ".cache" / "shoal"
    return Path(tempfile.gettempdir()) / f"shoal-cache-{os.getuid()}"


def is_private(folder: Path) -> bool:
    """Whether a folder belongs to this user, is writable, and is not writable for others."""
    found = folder.lstat()
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        and os.access(folder, os.W_OK | os.X_OK)
    )
