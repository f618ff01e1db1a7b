"""The directory in which compiled loops are cached.

Owns the choice: numba's own directory (`NUMBA_CACHE_DIR`, beside the source, the user's cache), else a private
directory of the user (private because cached code is executed), else none, and every process compiles for itself. It
does not depend on the code that is compiled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from numba.core import config as _config

from shoal.folders import default_cache_dir, is_private
from shoal.logs import get_log

_log: Final = get_log(__name__)
_numba: Final[Any] = _config
"""Numba's settings; they are created at import, so type checkers do not know them."""


def keep(compiled: Any) -> Any:
    """Caches a compiled loop on disk for the next process."""
    try:
        compiled.enable_caching()
    except RuntimeError:  # numba found no writable directory
        place = own_place()
        if place is not None:
            with _numba_in(place):
                compiled.enable_caching()
    return compiled


@cache
def own_place() -> Path | None:
    """The directory for loops if numba found none; None, with a warning, if there is no private one."""
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
        "compiled loops cannot be cached, so every process compiles for up to a minute: "
        "set NUMBA_CACHE_DIR to a directory of your own"
    )
    return None


@contextmanager
def _numba_in(place: Path) -> Iterator[None]:
    """Makes numba cache in a directory during the block; other packages keep theirs."""
    before, _numba.CACHE_DIR = _numba.CACHE_DIR, str(place)
    try:
        yield
    finally:
        _numba.CACHE_DIR = before
