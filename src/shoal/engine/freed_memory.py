"""Freed memory of an engine's process.

Owns one setting of the C library. It keeps large blocks that were freed once for later, up to 32 MiB each; after an
index of 500,000 filters was merged, that is a third of the process's memory.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

M_MMAP_THRESHOLD: Final = -3
"""The parameter of glibc's `mallopt`."""
LARGE_BYTES: Final = 1 << 20
"""Blocks from this size on go back to the operating system when they are freed."""


def give_back_large_blocks() -> None:
    """From now on, large blocks go back when they are freed. Without glibc, nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
