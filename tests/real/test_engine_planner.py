"""The planner of engines on a real cluster: a matcher that is overloaded gets help, unless an operator forbids it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import run_command, run_json_command

import shoal
from shoal.balance.settings import BalanceSettings
from shoal.cluster.local import LocalCluster
from shoal.config import environment_of
from shoal.engine.warm_up import warm_up

WAIT_S = 300.0
FILTERS = 20_000
SETTINGS = BalanceSettings(window_s=1, engine_settle_s=4.0, engine_shrink_s=3600.0, engine_latency_ms=10_000.0)
"""The wait is not the reason: on a busy machine it depends on what else runs."""


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    warm_up()  # so that processes of the engine start quickly


async def _emit_until_cancelled(bus: shoal.Bus) -> None:
    """As many events as the engine takes; no filter matches them."""
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await bus.emit({"a": "left", "b": "right", "c": 0})


async def _until(capsys: pytest.CaptureFixture[str], where: tuple[str, ...], **wanted: Any) -> dict[str, Any]:
    """What `engine plan` says when it says this. On a busy machine, there may be no engine for a moment."""
    deadline = time.monotonic() + WAIT_S
    while True:
        status, out, said = await run_command(capsys, "engine", "plan", "--json", *where)
        facts = json.loads(out) if status == 0 else {}
        if facts and all(facts[name] == value for name, value in wanted.items()):
            return facts
        if time.monotonic() > deadline:
            raise AssertionError(f"not {wanted}: {facts or said}")
        await asyncio.sleep(1.0)


async def test_an_overloaded_matcher_gets_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # This is about load, not about death: on a busy machine, a turn with costly filters takes long.
    for limit in ("engine_lease_s", "engine_member_silent_s", "engine_join_s_max", "engine_change_s_max"):
        monkeypatch.setenv(f"SHOAL_LIMITS_{limit.upper()}", "120")
    state = tmp_path / "state"
    where = ("--state-dir", str(state))
    environment = environment_of(balance=SETTINGS)
    async with (
        LocalCluster(1, state, engine=True, balancers=1, balancer_environment=environment) as cluster,
        shoal.connect(cluster.url) as reader,
        shoal.connect(cluster.url) as emitter,
        reader.match() as events,
    ):
        costly = "not a contains '{0}x' and not b contains '{0}x' and c < -1"
        await events.add_many({str(number): costly.format(number) for number in range(FILTERS)})
        status, facts = await run_json_command(capsys, "engine", "scale", "1-1-1", *where)
        assert (status, facts["done"]) == (0, True)
        emitting = [asyncio.create_task(_emit_until_cancelled(emitter)) for _ in range(4)]
        facts = await _until(capsys, where, configuration="1-1-1", pinned=True, phase="idle")
        assert "--auto" in facts["reason"]
        status, _, _ = await run_command(capsys, "engine", "scale", "--auto", *where)
        assert status == 0
        facts = await _until(capsys, where, configuration="1-2-1", pinned=False, phase="idle")
        for task in emitting:
            task.cancel()
        await asyncio.gather(*emitting)
        assert len(facts["load"]["processes"]) >= 2
        assert facts["wanted"] == "1-2-1"
        _, audit = await run_json_command(capsys, "plan", "audit", *where)
        (decision,) = [one for one in audit["decisions"] if one["engines"]]
        assert decision["engines"] == ["engine main: 1-1-1 -> 1-2-1"]
        asked = [one["hosts"] for one in audit["decisions"] if one["hosts"]]
        assert asked == [["add 1 engine"]]
        status, facts = await run_json_command(capsys, "plan", "replay", decision["digest"], *where)
        assert (status, facts["same"]) == (0, True)
        _, text, _ = await run_command(capsys, "engine", "plan", *where)
        assert "matching" in text
