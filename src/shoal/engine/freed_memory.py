"""Freed memory of an engine's process.

Owns two settings of the C library, and when its heap is tidied up. The library keeps large blocks that were freed once,
up to 32 MiB each; after an index of 500,000 filters was merged, that is a third of the process's memory. With a setting
of its own for these, it would give back what is at the end of its heap from 128 KiB on, and a batch of events would get
its memory anew, page by page. What is freed between blocks that are in use stays too: a merged index leaves such holes.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Final

from shoal.filters.index.background import Threads

M_MMAP_THRESHOLD: Final = -3
"""The parameter of glibc's `mallopt`."""
LARGE_BYTES: Final = 1 << 20
"""Blocks from this size on go back to the operating system when they are freed."""
M_TRIM_THRESHOLD: Final = -1
KEPT_BYTES: Final = 2 << 20
"""So much at the end of the heap is kept for the next batches: 16 MiB were 33 bytes for each of 500,000 filters."""


def give_back_large_blocks() -> None:
    """From now on, large blocks go back when they are freed. Without glibc, nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


class TidyThreads(Threads):
    """Threads for the merges of an index. After each, the holes in the heap go back: that takes a few milliseconds."""

    def start(self, work: Callable[[], None]) -> None:
        """Start a thread."""

        def merge() -> None:
            try:
                work()
            finally:
                give_back_holes()

        super().start(merge)


def give_back_holes() -> None:
    """Unused pages between blocks that are in use go back. Without glibc, nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(KEPT_BYTES)
