"""The default cache directory, for files that Shoal can create again.

Owns the choice of the directory. It never touches the disk. The state directory is a setting (`shoal.config`).
"""

from __future__ import annotations

import os
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
