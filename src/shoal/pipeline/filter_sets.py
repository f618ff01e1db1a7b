"""Filter sets: many filters in a text file, compiled into an index file that workers map into memory.

Owns the text format, the name of the index file, and the cache that opens each version once per process. Never touches
events.

The text has one filter on each line, in either syntax, optionally with an id before it:

    # stocks that I follow
    class = 'STOCK' and volume > 300000
    17: symbol = 'YHOO' and high > 40

Empty lines and lines that begin with `#` are skipped. The id of a filter without one is its line number, from 1.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import FilterError, PipelineError
from shoal.filters.filter import Filter
from shoal.filters.index import ID_MAX, SNAPSHOT_MAGIC, Index, filter_table
from shoal.filters.language import parse
from shoal.filters.views import base_of

FILE_FORMAT: Final = b"1"
"""Part of the version; changes when the format of the file changes."""
INDEXES_OPEN_MAX: Final = 4
"""Indexes that a process keeps open; the least recently used one is closed first."""
_VERSION_CHARACTERS: Final = 16
_LINE: Final = re.compile(r"(?:(\d+)\s*:\s*)?(.*)")


class FilterSet(msgspec.Struct, frozen=True, kw_only=True):
    """A filter set as workers get it: path and version of its index, and facts that do not need the index."""

    path: str
    version: str
    filters: int
    attributes: tuple[str, ...]
    """The attributes that the filters use. No others have to be read."""


def read_filters(path: Path) -> dict[int, Filter]:
    """The filters of a text file by id. PipelineError names the file and the line of a mistake."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(
            f"cannot read filters from {path}: {error}", do="name a text file with one filter on each line"
        ) from None
    found: dict[int, Filter] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        assert match is not None  # it matches every line
        identity = int(match[1]) if match[1] else number
        try:
            parsed = parse(match[2])
        except FilterError as error:
            raise PipelineError(f"{path}, line {number}: {error}") from error
        if identity > ID_MAX or identity in found:
            raise PipelineError(
                f"{path}, line {number}: the id {identity} is already used or above {ID_MAX}",
                do="give each filter its own id (the default id is the line number)",
            )
        found[identity] = parsed
    if not found:
        raise PipelineError(f"there are no filters in {path}", do="write one filter on each line")
    return found


def keep(ids: Sequence[int] | npt.NDArray[np.uint32], filters: Sequence[Filter], folder: Path) -> FilterSet:
    """Builds the index of some filters and writes it to a folder, unless this version exists there. PipelineError if
    the folder cannot be used."""
    table = filter_table(filters)
    numbers = np.asarray(ids, np.uint32)
    digest = hashlib.sha256(b"|".join((SNAPSHOT_MAGIC, FILE_FORMAT, numbers.tobytes(), table.offsets.tobytes())))
    digest.update(table.data.tobytes())
    version = digest.hexdigest()[:_VERSION_CHARACTERS]
    path = folder / f"filters-{version}.index"
    try:
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            index = Index()
            index.insert_many(numbers, table)
            index.settle()
            index.save(path)
    except OSError as error:
        raise PipelineError(
            f"cannot write the index of the filters to {folder}: {error}",
            do="set XDG_CACHE_HOME to a writable folder",
        ) from error
    return FilterSet(path=str(path), version=version, filters=len(numbers), attributes=attributes_of(filters))


def attributes_of(filters: Iterable[Filter]) -> tuple[str, ...]:
    """All attributes that the filters use, sorted."""
    names = {
        base_of(name) for each in filters for conjunction in each.conjunctions for name, _ in conjunction.constraints
    }
    return tuple(sorted(names))


@lru_cache(maxsize=INDEXES_OPEN_MAX)
def opened(path: str, version: str) -> Index:
    """The index of a version, mapped from its file once per process, however many tasks the process runs."""
    if version not in Path(path).name:
        raise PipelineError(f"{path} is not version {version} of its filters", do="start the job again")
    return Index.open(path)
