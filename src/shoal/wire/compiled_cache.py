"""Where compiled loops are kept on disk.

Owns the choice of the place: numba's own (`NUMBA_CACHE_DIR`, beside the source, the user's cache), else one of ours
that belongs to the user alone, for what is kept there is run; else none, and every process compiles for itself. Knows
nothing of what is compiled.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from numba.core import config as _config

from shoal.folders import default_cache_dir
from shoal.logs import get_log

_log: Final = get_log(__name__)
_numba: Final[Any] = _config
"""Its settings, which are made when it is imported, so that no checker knows them."""


def keep(compiled: Any) -> Any:
    """Has a compiled loop kept on disk, and loaded from there by the next process."""
    try:
        compiled.enable_caching()
    except RuntimeError:  # numba finds no place that it can write to
        place = own_place()
        if place is not None:
            with _numba_in(place):
                compiled.enable_caching()
    return compiled


@cache
def own_place() -> Path | None:
    """Where loops are kept if numba knows no place; None, with a warning, if there is none that is the user's alone."""
    without_home: dict[str, str] = {}
    for environ in (os.environ, without_home):
        try:
            folder = default_cache_dir(environ)
            folder.mkdir(0o700, parents=True, exist_ok=True)
            place = folder / "numba"
            place.mkdir(0o700, exist_ok=True)
            if is_private(folder) and is_private(place):
                place.chmod(0o700)
                return place
        except OSError:
            continue
    _log.warning(
        "compiled loops cannot be kept, so every process compiles for up to a minute: "
        "name a directory of your own in NUMBA_CACHE_DIR"
    )
    return None


def is_private(folder: Path) -> bool:
    """Whether a folder is this user's, can be written to, and nobody else can have put something into it."""
    found = folder.lstat()
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        and os.access(folder, os.W_OK | os.X_OK)
    )


@contextmanager
def _numba_in(place: Path) -> Iterator[None]:
    """Has numba keep what is handed to it meanwhile in a place; other packages keep theirs where they did."""
    before, _numba.CACHE_DIR = _numba.CACHE_DIR, str(place)
    try:
        yield
    finally:
        _numba.CACHE_DIR = before
