"""`shoal fuzz` runs for the given time and reports the result."""

from __future__ import annotations

import json

import pytest

from shoal import cli


def test_a_short_run_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fuzz", "--seconds", "0.5", "--seed", "3", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["seed"] == 3
    assert facts["texts"] >= facts["accepted"] + facts["refused"] > 0
    assert facts["failures"] == []
