"""A cache of Spark's loaded classes (a Java class data sharing archive), with which Java starts in half the time.

Owns the cache file in the user's cache directory: the flags for Java, and the removal of old files. The first Java that
ends in good order writes the file; later ones map it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from typing import Final

from shoal.folders import default_cache_dir
from shoal.logs import get_log
from shoal.pipeline.spark.java import Java

UNFINISHED_S_MAX: Final = 600.0
"""Age from which a half-written cache file is taken for that of a killed session, and removed."""

CACHES_MAX: Final = 2
"""Number of cache files kept, the newest. Each combination of Java and Spark has one."""

_log: Final = get_log(__name__)


class ClassCache:
    """The cache file for one Java and one Spark."""

    def __init__(self, java: Java, spark: str) -> None:
        key = hashlib.sha256("\n".join((java.path, java.text, spark)).encode()).hexdigest()[:16]
        self._file = default_cache_dir() / "spark" / f"classes-{key}.jsa"
        self._new = self._file.with_name(f"{self._file.name}.{os.getpid()}")

    def flags(self, write: bool) -> str:
        """The options for Java: use the file, or (with `write`) create it at exit. Empty if neither is possible."""
        if ":" in str(self._file):  # Java takes it as the separator of two files
            _log.info("no class cache: sessions start more slowly", why=f"a colon in {self._file}")
            return ""
        if self._file.exists():
            return quote_option(f"-XX:SharedArchiveFile={self._file}")
        if not write:
            return ""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._sweep()
        except OSError as error:
            _log.info("no class cache: sessions start more slowly", why=str(error))
            return ""
        return quote_option(f"-XX:ArchiveClassesAtExit={self._new}")

    def close(self, orderly: bool) -> None:
        """Puts the file that Java has just written in place, or removes it if Java was killed meanwhile."""
        with contextlib.suppress(OSError):
            if orderly and self._new.exists():
                self._new.replace(self._file)
                self._sweep()
            elif not orderly:
                self._new.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Removes half-written files of killed sessions, and all but the newest caches."""
        for unfinished in self._file.parent.glob("classes-*.jsa.*"):
            if time.time() - unfinished.stat().st_mtime > UNFINISHED_S_MAX:
                unfinished.unlink(missing_ok=True)
        caches = sorted(self._file.parent.glob("classes-*.jsa"), key=lambda path: path.stat().st_mtime)
        for old in caches[:-CACHES_MAX]:
            old.unlink(missing_ok=True)


def quote_option(option: str) -> str:
    """One option of Java, quoted for `spark.driver.extraJavaOptions`, which Spark splits at blanks."""
    if not any(each.isspace() or each in "\"'\\" for each in option):
        return option
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
