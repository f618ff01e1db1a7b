"""A local copy of the keys of the coordinator with one prefix, updated by a watch.

Owns the copy and the watch. The copy may be behind: its users write with an expected version (`expect`), and read a key
again after a conflict. A process that begins to lead loads the copy, so that it is not older than its lease.

A reply can arrive after the watch has delivered a newer value. Such a reply never replaces the newer value.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final, Generic, TypeVar

from shoal.coordination.interface import Coordinator, Versioned
from shoal.errors import CoordinatorError, DataLostError
from shoal.logs import get_log
from shoal.plan.keys import POOL_PREFIX, Mark, pool_server, read_mark

_RETRY_S: Final = 1.0
_log: Final = get_log(__name__)

K = TypeVar("K")
V = TypeVar("V")


class Mirror(Generic[K, V]):
    """The values of the keys with a prefix. `read` decodes a key and its value, None if they are invalid; `changed` is
    set at every change."""

    def __init__(
        self,
        coordinator: Coordinator,
        prefix: str,
        read: Callable[[str, Versioned], tuple[K, V] | None],
        changed: asyncio.Event,
    ) -> None:
        self.values: dict[K, V] = {}
        self._coordinator = coordinator
        self._prefix = prefix
        self._read = read
        self._changed = changed
        self._names: dict[str, tuple[K | None, int]] = {}

    async def follow(self) -> None:
        """Updates the copy until it is cancelled."""
        while True:
            try:
                async with aclosing(self._coordinator.watch(self._prefix)) as changes:
                    async for change in changes:
                        self.take(change.key, change.now)
            except DataLostError as error:
                _log.error("coordinator data lost", prefix=self._prefix, why=error.what, do=error.do)
                self._names = {key: (name, 0) for key, (name, _) in self._names.items()}  # versions begin again
            except CoordinatorError as error:
                _log.warning("watch of the coordinator failed", prefix=self._prefix, why=str(error))
            await asyncio.sleep(_RETRY_S)

    async def load(self) -> None:
        """Reads all keys now, without waiting for the watch. Changes that the watch delivers meanwhile stay."""
        before = dict(self._names)
        found = await self._coordinator.list(self._prefix)
        for key in sorted(before.keys() | found.keys()):
            known, now = self._names.get(key), found.get(key)
            if known == before.get(key) or (known is not None and now is not None):
                self.take(key, now)

    async def refresh(self, key: str) -> None:
        """Reads one key again, after a conflict."""
        before = self._names.get(key)
        now = await self._coordinator.get(key)
        if now is not None or self._names.get(key) == before:
            self.take(key, now)

    def deleted(self, key: str, version: int) -> None:
        """Notes that a key was deleted at this version; a newer value in the copy stays."""
        if self._names.get(key, (None, 0))[1] <= version:
            self.take(key, None)

    def take(self, key: str, now: Versioned | None) -> None:
        """Takes the value of a key. A value older than the copy is ignored."""
        name, version = self._names.get(key, (None, 0))
        if now is not None and now.version <= version:
            return
        if name is not None:
            self.values.pop(name, None)
        if now is None:
            self._names.pop(key, None)
        else:
            read = self._read(key, now)
            self._names[key] = (read[0] if read else None, now.version)
            if read is not None:
                self.values[read[0]] = read[1]
        self._changed.set()


def mirror_marks(coordinator: Coordinator, changed: asyncio.Event) -> Mirror[str, Mark]:
    """A copy of the marks of servers in the pool."""
    return Mirror(coordinator, POOL_PREFIX, lambda key, stored: (pool_server(key), read_mark(stored.value)), changed)
