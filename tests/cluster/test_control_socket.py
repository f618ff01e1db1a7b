"""Requests to the supervisor are answered, whatever goes wrong with them."""

from __future__ import annotations

import errno
import os
from typing import Any, cast

import pytest

from shoal.cluster.control_socket import _answer
from shoal.errors import ClusterError


class Failing:
    """A cluster that fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def add_hosts(self, *_: object) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (ClusterError("it cannot"), "it cannot"),
        (TimeoutError(), "timed out"),
    ],
)
async def test_a_failure_is_the_answer(error: Exception, words: str) -> None:
    answer = await _answer(cast(Any, Failing(error)), b'{"do": "add"}')
    assert not answer.ok
    assert words in answer.error
