"""Compiled loops are kept where only the user can write, and work where nothing can be kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest
from numba.core import caching, config

from shoal.folders import is_private
from shoal.wire import compiled_cache as compiled
from shoal.wire.compiled_cache import keep, own_place

UNWRITABLE = "from numba.core import caching; caching.CacheImpl._locator_classes = [caching.UserProvidedCacheLocator];"
"""What numba knows of where nothing can be written: the package is read-only, and there is no home."""
USE = "import numpy; from shoal.wire.raw_bytes import kernel; from shoal.filters.index.hash_tables import IdSet; "
WORK = "print(5 in IdSet.of_table(numpy.array([6], numpy.uint32), 1))"


def one_more(number: int) -> int:
    return number + 1


@pytest.fixture
def unwritable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """numba finds no place; the user's cache and the temporary directory are in a directory of the test."""
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [caching.UserProvidedCacheLocator])
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own_place.cache_clear()
    yield tmp_path
    own_place.cache_clear()


def imported(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Imports the index in a process of its own in which numba finds no place, and runs a loop of it."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    source = str(Path(compiled.__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-c", UNWRITABLE + USE + WORK],
        env={**kept, "PYTHONPATH": source, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_index_is_imported_where_numba_can_write_nowhere(tmp_path: Path) -> None:
    done = imported({"XDG_CACHE_HOME": str(tmp_path)})
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
    assert list(tmp_path.glob("shoal/numba/*/*.nbi"))


def test_the_index_is_imported_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "none")
    (tmp_path / f"shoal-cache-{os.getuid()}").touch()
    done = imported({"XDG_CACHE_HOME": nowhere, "TMPDIR": str(tmp_path)})
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
    assert done.stderr.count("NUMBA_CACHE_DIR") == 1


def test_loops_are_kept_in_a_place_of_the_user_alone(unwritable: Path) -> None:
    place = unwritable / "user" / "shoal" / "numba"
    assert keep(numba.njit(one_more))(1) == 2
    assert [each.suffix for each in sorted(place.glob("*/*"))] == [".nbc", ".nbi"]
    assert place.stat().st_mode & 0o777 == 0o700
    assert vars(config)["CACHE_DIR"] == "", "other packages keep theirs where they did"


@pytest.mark.parametrize("part", ["shoal", "shoal/numba"])
def test_a_place_that_others_can_write_to_is_not_used(unwritable: Path, part: str) -> None:
    (unwritable / "user" / "shoal" / "numba").mkdir(parents=True)
    (unwritable / "user" / part).chmod(0o777)
    assert own_place() == unwritable / f"shoal-cache-{os.getuid()}" / "numba"


def test_a_place_of_somebody_else_is_not_used(unwritable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_place() is not None
    own_place.cache_clear()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert own_place() is None
    assert keep(numba.njit(one_more))(1) == 2


def test_a_link_is_no_private_place(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert is_private(tmp_path / "real")
    assert not is_private(tmp_path / "link")
