"""Filter sets: many filters in a text file, and the same as an index in a versioned file that workers map.

Owns the form of the text, the name of the file, and the cache by which a process opens each version once. Never touches
events.

The text has one filter a line, in either spelling, with an id before it or not:

    # stocks that I follow
    class = 'STOCK' and volume > 300000
    17: symbol = 'YHOO' and high > 40

Empty lines and lines that begin with `#` are skipped. A filter without an id has the number of its line, from 1 on.
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

FILE_FORMAT: Final = b"1"
"""Part of the version: another one when the file of a set has another form."""
INDEXES_OPEN_MAX: Final = 4
"""Indexes that a process keeps open; the one that was used longest ago is closed first."""
_VERSION_CHARACTERS: Final = 16
_LINE: Final = re.compile(r"(?:(\d+)\s*:\s*)?(.*)")


class FilterSet(msgspec.Struct, frozen=True, kw_only=True):
    """A set of filters as workers get it: where its index is, which version, and what is known without opening it."""

    path: str
    version: str
    filters: int
    attributes: tuple[str, ...]
    """The attributes that filters ask for: no others have to be read."""


def read_filters(path: Path) -> dict[int, Filter]:
    """The filters of a text file by id. PipelineError names the file and the line of what is wrong."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(
            f"cannot read filters from {path}: {error}", do="name a text file, one filter a line"
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
                f"{path}, line {number}: the id {identity} is taken or above {ID_MAX}",
                do="give each filter an id of its own (one without an id has the number of its line)",
            )
        found[identity] = parsed
    if not found:
        raise PipelineError(f"there are no filters in {path}", do="write one filter a line")
    return found


def keep(ids: Sequence[int] | npt.NDArray[np.uint32], filters: Sequence[Filter], folder: Path) -> FilterSet:
    """Makes the index of some filters and writes it to a folder, unless this version is there already. PipelineError if
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
            f"cannot keep the index of the filters in {folder}: {error}", do="set XDG_CACHE_HOME to a folder of yours"
        ) from error
    return FilterSet(path=str(path), version=version, filters=len(numbers), attributes=attributes_of(filters))


def attributes_of(filters: Iterable[Filter]) -> tuple[str, ...]:
    """Every attribute that some filter asks for, in order."""
    names = {name for each in filters for conjunction in each.conjunctions for name, _ in conjunction.constraints}
    return tuple(sorted(names))


@lru_cache(maxsize=INDEXES_OPEN_MAX)
def opened(path: str, version: str) -> Index:
    """The index of a version, mapped from its file: once for each process, however many tasks it runs."""
    if version not in Path(path).name:
        raise PipelineError(f"{path} is not version {version} of its filters", do="make the set of filters again")
    return Index.open(path)
