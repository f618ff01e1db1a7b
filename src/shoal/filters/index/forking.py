"""Forks: what a child process has of the indexes of its parent.

Owns the locks of all indexes around a fork. A child is a copy of its parent at one moment, with one thread of it. So
whoever forks holds all locks meanwhile, that no index is half changed in the copy; and in the child they are made
anew, for who waited for one there does not exist.
"""

from __future__ import annotations

import os
import threading
from typing import Final, Protocol
from weakref import WeakValueDictionary

INDEXES: Final = 0
STORES: Final = 1
"""The order in which locks are taken: an index holds its own while it asks its stores."""


class Guarded(Protocol):
    """Something with a lock that is held around a fork."""

    _lock: threading.RLock

    def _after_fork(self) -> None:
        """Makes the lock anew, in the child."""


_guarded: Final[WeakValueDictionary[tuple[int, int], Guarded]] = WeakValueDictionary()
_held: Final = threading.local()


def guard(owner: Guarded, order: int) -> None:
    """Has the lock of something held around forks, as long as it lives."""
    _guarded[order, id(owner)] = owner


def _alive() -> list[Guarded]:
    """All that there are, in their order. Another thread may come before or after the first call, not into it."""
    found = _guarded.valuerefs()
    return [owner for each in sorted(found, key=lambda each: each.key) if (owner := each()) is not None]


def _before() -> None:
    _held.locks = [each._lock for each in _alive()]
    for lock in _held.locks:
        lock.acquire()


def _after_in_parent() -> None:
    for lock in _held.locks:
        lock.release()
    del _held.locks


def _after_in_child() -> None:
    del _held.locks
    for each in _alive():
        each._after_fork()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
