"""States of the fold beside Spark's checkpoint: kept, found again, and missed aloud."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import CheckpointError
from shoal.load.fold_state import FoldState
from shoal.pipeline.saved_folds import KEPT, SavedFolds


def test_a_batch_begins_with_what_the_one_before_left_also_after_a_restart(tmp_path: Path) -> None:
    saved = SavedFolds(tmp_path)
    assert saved.before(0) == FoldState()
    saved.save(0, FoldState(closed_until=10))
    assert saved.before(1).closed_until == 10
    assert SavedFolds(tmp_path).before(1).closed_until == 10


def test_a_batch_that_is_repeated_begins_as_it_did(tmp_path: Path) -> None:
    for batch in range(3):
        SavedFolds(tmp_path).save(batch, FoldState(closed_until=batch))
    assert SavedFolds(tmp_path).before(2).closed_until == 1


def test_only_the_last_states_are_kept(tmp_path: Path) -> None:
    saved = SavedFolds(tmp_path)
    for batch in range(20):
        saved.save(batch, FoldState())
    assert len(list(tmp_path.iterdir())) == KEPT


def test_a_missing_checkpoint_of_spark_is_said(tmp_path: Path) -> None:
    SavedFolds(tmp_path).save(7, FoldState())
    with pytest.raises(
        CheckpointError, match="fold of batch 7, but Spark starts with batch 0: its checkpoint is missing"
    ):
        SavedFolds(tmp_path).before(0)


def test_a_missing_checkpoint_is_said_also_after_a_single_batch(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    saved = SavedFolds(tmp_path / "fold")
    saved.check(checkpoint)
    saved.save(0, FoldState())
    with pytest.raises(CheckpointError, match=r"fold of batch 0, but .* its checkpoint is missing"):
        saved.check(checkpoint)
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / ".0.crc").touch()
    with pytest.raises(CheckpointError):
        saved.check(checkpoint)
    (checkpoint / "offsets" / "0").touch()
    saved.check(checkpoint)
    assert SavedFolds(tmp_path / "fold").before(0) == FoldState()  # a batch that failed is repeated


def test_a_missing_state_of_the_fold_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"batch 5, but the state of the fold before it .* is missing: start over"
    ):
        SavedFolds(tmp_path).before(5)


def test_a_damaged_state_is_said(tmp_path: Path) -> None:
    (tmp_path / "4.fold").write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match=r"4\.fold cannot be read"):
        SavedFolds(tmp_path).before(5)
