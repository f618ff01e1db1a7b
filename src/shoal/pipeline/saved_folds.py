"""The fold's state between micro-batches: one file for each batch, beside Spark's checkpoint.

Owns the directory, and the errors when it does not fit the checkpoint. A batch that Spark repeats after a failure
starts with the same state as before, and so gives the same windows. Files are written under another name and renamed,
so none is incomplete.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from shoal.errors import CheckpointError, ProtocolError
from shoal.load.fold_state import FoldState

KEPT: Final = 5
"""Number of states kept. Spark only repeats the last batch."""

_START_OVER: Final = "start over with another directory (--checkpoint), or remove this one; its telemetry is read again"


class SavedFolds:
    """The states in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cached: tuple[int, FoldState] | None = None

    def check(self, checkpoint: Path) -> None:
        """CheckpointError if there are states, but no batch in Spark's checkpoint. Spark would start over, and
        telemetry would be folded twice. Spark writes a batch to its checkpoint before the batch is folded."""
        saved = self._batches()
        if saved and not any(path.name.isdecimal() for path in (checkpoint / "offsets").glob("*")):
            raise self._without_checkpoint(max(saved))

    def before(self, batch: int) -> FoldState:
        """The state that a batch starts with; CheckpointError if it is missing."""
        if self._cached is not None and self._cached[0] == batch - 1:
            return self._cached[1]
        saved = self._batches()
        if batch == 0:
            if any(number > 0 for number in saved):
                raise self._without_checkpoint(max(saved))
            return FoldState()
        path = self._path(batch - 1)
        try:
            return FoldState.from_bytes(path.read_bytes())
        except FileNotFoundError:
            raise CheckpointError(
                f"Spark continues with batch {batch}, but the state of the fold before it ({path}) is missing",
                do=_START_OVER,
            ) from None
        except ProtocolError as error:
            raise CheckpointError(f"{path} cannot be read: {error.what}", do=_START_OVER) from error

    def save(self, batch: int, state: FoldState) -> None:
        """Saves the state after a batch."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._path(batch)
        new = path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(state.to_bytes())
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        self._cached = (batch, state)
        for number in self._batches():
            if number <= batch - KEPT:
                self._path(number).unlink(missing_ok=True)

    def _without_checkpoint(self, last: int) -> CheckpointError:
        return CheckpointError(
            f"{self._directory} holds the fold of batch {last}, but Spark starts with batch 0: "
            "its checkpoint is missing",
            do=_START_OVER,
        )

    def _batches(self) -> list[int]:
        return [int(path.stem) for path in self._directory.glob("*.fold") if path.stem.isdecimal()]

    def _path(self, batch: int) -> Path:
        return self._directory / f"{batch}.fold"
