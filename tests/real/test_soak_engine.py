"""`shoal soak engine`, briefly: processes are killed while matchers come and go."""

from __future__ import annotations

import pytest
from tests.support.command import run_command, run_json_command

from shoal.engine.warm_up import warm_up


async def test_the_engine_keeps_its_promises_while_its_processes_are_killed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    warm_up()  # so that the engines' processes start quickly
    words = ["--filters", "1000", "--rate", "80", "--seconds", "18"]
    _, facts = await run_json_command(capsys, "soak", "engine", "--kill", "--scale", "4", *words)
    slow = [text for text in facts["violations"] if text.startswith("slow")]  # a busy machine may take longer
    assert [text for text in facts["violations"] if text not in slow] == []
    for name in ("lost", "duplicated", "reordered", "unmatched", "false_alarms", "gaps", "missed"):
        assert facts[name] == 0, name
    assert facts["events"] > 200
    assert facts["owed"] >= facts["deliveries"] > facts["events"]
    assert facts["kills"] == 2
    assert facts["scalings"] == 4
    assert min(facts["exercised"].values()) > 0
    assert 0.0 < facts["recovered_s_max"] < 30.0


async def test_options_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--filters", "1"), ("--kill", "--seconds", "5"), ("--keys", "3")):
        status, _, errors = await run_command(capsys, "soak", "engine", *words)
        assert status == 1
        assert words[-2] in errors
    status, _, errors = await run_command(capsys, "soak", "channels", "--rate", "4")
    assert status == 1
    assert "--rate" in errors
