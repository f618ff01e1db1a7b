"""A guard for what the tests of a group share: one worker of a run starts it, and no other."""

from __future__ import annotations

import os

import pytest


def only_one_worker(group: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Fails if another worker of this run has started what the tests of the group share."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    try:
        (tmp_path_factory.getbasetemp().parent / f"started-{group}").mkdir()
    except FileExistsError:
        pytest.fail(f"two workers run tests of the group {group}: pytest-xdist ignores groups with this pytest")
