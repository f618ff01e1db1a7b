"""`shoal soak queue`, briefly: kills of every kind, and the verdict."""

from __future__ import annotations

import pytest
from tests.support.command import run_command, run_json_command


async def test_a_queue_keeps_its_promises_while_everything_is_killed_and_shards_move(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--consumers", "3", "--keys", "30", "--kills", "5", "--moves", "2", "--seconds", "8"]
    status, facts = await run_json_command(capsys, "soak", "queue", *words)
    assert facts["violations"] == []
    assert status == 0
    assert (facts["lost"], facts["duplicated"], facts["reordered"], facts["overlapped"]) == (0, 0, 0, 0)
    assert facts["messages"] > 100
    assert facts["deliveries"] >= facts["messages"] + facts["repeated"]  # more: puts of a killed producer
    for kind in ("consumer", "producer", "agent", "store"):
        assert facts["exercised"][f"{kind} killed"] >= 1
    assert facts["takeover_ms"] > 0
    assert facts["moves"] == 2


async def test_options_of_other_soaks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = await run_command(capsys, "soak", "queue", "--subscribers", "4")
    assert status == 1
    assert "--subscribers" in errors
    status, _, errors = await run_command(capsys, "soak", "channels", "--kills", "4")
    assert status == 1
    assert "--kills" in errors
