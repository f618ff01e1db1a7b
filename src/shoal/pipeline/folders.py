"""The folders that jobs write to: made, and held, before anything starts that takes long.

Owns what is said of a folder that cannot be used, and the lock by which one job at a time goes on from a checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shoal.errors import CheckpointError, PipelineError

LOCK: Final = "lock"
"""Held by the one job that uses a directory; a lock is gone with its process, the file stays."""


def make_folder(folder: Path) -> None:
    """Makes a folder for output if it is not there. PipelineError if it cannot be, or cannot be written to."""
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
    """Holds the directory of a job, which is made if it is not there. CheckpointError if another job has it: two that
    go on from one checkpoint would end each other."""
    make_folder(directory)
    with (directory / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"{directory}: another job uses this checkpoint", do="name another by --checkpoint"
            ) from None
        yield
