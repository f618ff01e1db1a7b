"""Folders: where Shoal keeps what nobody gave it a place for, and can make again.

Owns the choice of the folder. Never touches settings (`config` has the folder of the state), nor the disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def default_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where goes what can be made again at any time: the user's cache, or a directory of their own under the temporary
    one."""
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "shoal"
    if environ.get("HOME"):
        return Path(environ["HOME"]) / ".cache" / "shoal"
    return Path(tempfile.gettempdir()) / f"shoal-cache-{os.getuid()}"
