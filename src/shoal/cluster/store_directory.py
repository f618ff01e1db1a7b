"""The directory of a store: whose it is, and taking one in from elsewhere.

Owns the mark in it, a small file with the cluster, the store and its address. It is copied with the directory, so that
`shoal queue recover` knows a directory that comes from a backup or a broken machine.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import msgspec

from shoal.cluster.state import write_private
from shoal.errors import ClusterError
from shoal.plan.ring import ServerAddress

MARK: Final = "shoal-store.json"
_DATA: Final = ("appendonlydir", "appendonly.aof")
"""The append-only file, by version of Redis: one of them."""


class StoreMark(msgspec.Struct, frozen=True):
    """A store of a cluster, and its port."""

    cluster: str
    store: str
    port: int


def mark_store(directory: Path, cluster: str, store: ServerAddress) -> None:
    """Writes the mark."""
    new = directory / f"{MARK}.new"
    write_private(new, msgspec.json.encode(StoreMark(cluster, store.id, store.port)))
    new.replace(directory / MARK)


def read_store_mark(directory: Path) -> StoreMark:
    """The mark of a directory; ClusterError if it is not the directory of a store."""
    try:
        mark = msgspec.json.decode((directory / MARK).read_bytes(), type=StoreMark)
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise ClusterError(
            f"{directory} is not the directory of a store of Shoal: it has no valid {MARK}",
            do="name the directory itself, for example stores/q1 of a state directory",
        ) from error
    if not any((directory / name).exists() for name in _DATA):
        raise ClusterError(f"{directory} has no append-only file", do="copy the whole directory of the store")
    return mark


def take_in(source: Path, home: Path) -> None:
    """Copies the data of a store's directory to its home. A directory that is there stays beside it, under another
    name."""
    if source.resolve() == home.resolve():
        return
    new = home.with_name(f"{home.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700, parents=True)
    for name in (*_DATA, MARK):
        if (source / name).is_dir():
            shutil.copytree(source / name, new / name)
        elif (source / name).exists():
            shutil.copy2(source / name, new / name)
    if home.exists():
        number = 1
        while (aside := home.with_name(f"{home.name}.before-{number}")).exists():
            number += 1
        home.rename(aside)
    new.rename(home)
