"""Writes in batches, when an attempt fails after everything was decided."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from shoal.coordination import writer
from shoal.coordination.interface import KeyWrite


class BreaksAfterwards:
    """A link whose connection breaks after the first attempt, so that it is tried again."""

    async def run(self, what: str, attempt: Callable[[Any], Awaitable[Any]]) -> Any:
        await attempt(None)
        return await attempt(None)


async def test_writes_that_are_decided_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sent WATCH without a key, which the coordinator's server refuses."""
    tried: list[int] = []

    async def transact(session: Any, pending: Sequence[Any], fence: Any) -> None:
        tried.append(len(pending))
        for one in pending:
            one.outcome = 7

    monkeypatch.setattr(writer, "_transact", transact)
    writes = [KeyWrite(f"plan/{number}", b"x", 0) for number in range(3)]
    outcomes = await writer.Writer(BreaksAfterwards()).write_all(writes, None)  # type: ignore[arg-type]
    assert outcomes == [7, 7, 7]
    assert tried == [3]
