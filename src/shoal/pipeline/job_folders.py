"""Folders that jobs write to: created, checked and locked before slow work starts.

Owns the errors for folders that cannot be used, and the lock that allows one job at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shoal.errors import CheckpointError, PipelineError, ShoalError

LOCK: Final = "lock"
"""Name of the lock file. The lock ends with its process; the file stays."""


def make_folder(folder: Path) -> None:
    """Creates a folder for output unless it exists. PipelineError if that fails, or if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"no permission to write to {str(folder)!r}")
    except FileExistsError:
        raise PipelineError(f"cannot write to {folder}: it is a file, not a folder", do="name another folder") from None
    except OSError as error:
        raise PipelineError(f"cannot write to {folder}: {error}", do="name another folder") from error


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Locks the checkpoint directory of a job, and creates it unless it exists. CheckpointError if another job uses it:
    two jobs on one checkpoint would stop each other."""
    make_folder(directory)
    busy = CheckpointError(f"{directory}: another job uses this checkpoint", do="name another one with --checkpoint")
    with exclusive_lock(directory, busy):
        yield


@contextlib.contextmanager
def exclusive_lock(directory: Path, busy: ShoalError) -> Iterator[None]:
    """Holds the lock file of a directory. Raises `busy` if another process holds it."""
    with (directory / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        yield
