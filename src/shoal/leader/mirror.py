"""A copy of one area of the coordinator, kept by a watch, so that a look at it costs nothing.

Owns the copy and the watch that keeps it. What a copy may be behind by is no matter to its readers: they write only
where nothing has changed since (`expect`), and ask for a key anew when something has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final, Generic, TypeVar

from shoal.coordination.interface import Coordinator, Versioned
from shoal.errors import CoordinatorError
from shoal.logs import get_log

_RETRY_S: Final = 1.0
_log: Final = get_log(__name__)

K = TypeVar("K")
V = TypeVar("V")


class Mirror(Generic[K, V]):
    """What the keys with a prefix hold. `read` makes a name and a value of a key, or None of garbage; `changed` is set
    with every change."""

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
        """Keeps the copy until it is cancelled."""
        while True:
            try:
                async with aclosing(self._coordinator.watch(self._prefix)) as changes:
                    async for change in changes:
                        self.take(change.key, change.now)
            except CoordinatorError as error:
                _log.warning("a part of the coordinator cannot be watched", prefix=self._prefix, why=str(error))
            await asyncio.sleep(_RETRY_S)

    async def refresh(self, key: str) -> None:
        """Asks for one key anew, after a write that came too late."""
        self.take(key, await self._coordinator.get(key))

    def deleted(self, key: str, version: int) -> None:
        """This process has deleted a key of this version. The watch may have brought a newer value already."""
        if self._names.get(key, (None, 0))[1] <= version:
            self.take(key, None)

    def take(self, key: str, now: Versioned | None) -> None:
        """What a key holds now; what is older than the copy is passed over."""
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
