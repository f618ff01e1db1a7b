"""`shoal soak pipeline` on a real Spark, as short as it can be: one driver, which is not killed."""

from __future__ import annotations

import pytest
from tests.support.command import run_command

from shoal.lab.soak.pipeline_round import PipelineSoakOptions, run_pipeline
from shoal.limits import DEFAULT_LIMITS


@pytest.mark.spark
async def test_jobs_have_everything_through_moves_a_killed_server_and_a_joined_one() -> None:
    options = PipelineSoakOptions(seconds=5.0, seed=1, limits=DEFAULT_LIMITS, kill_driver=False)
    outcome = await run_pipeline(options, lambda _: None)
    facts = outcome.facts()
    assert (facts["missing"], facts["doubled"], facts["dropped_late"]) == (0, 0, 0), facts
    assert outcome.holds, facts["violations"]
    assert 0 < facts["owed"] <= facts["confirmed"] <= facts["messages"]
    assert facts["owed"] + facts["lost_with_server"] == facts["confirmed"]
    assert facts["exercised"]["server killed"] == facts["exercised"]["server joined"] == 1


async def test_options_of_other_soaks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = await run_command(capsys, "soak", "pipeline", "--kill-server")
    assert status == 1
    assert "--kill-server does not apply to `shoal soak pipeline`" in errors
