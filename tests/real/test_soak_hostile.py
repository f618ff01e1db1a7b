"""`shoal soak hostile`, briefly: attacks beside an honest load. Latency is not judged: the machine may be busy."""

from __future__ import annotations

import pytest
from tests.support.command import run_command, run_json_command

from shoal.lab.soak.hostile_round import RSS_MB_MAX

BRIEF = (
    "welcomes",
    "answers",
    "heartbeats",
    "resends",
    "giant-names",
    "hellos",
    "heals",
    "streams",
    "channels",
    "large",
    "slow-readers",
)


async def test_hostile_clients_cost_honest_ones_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_LIMITS_SERVER_LEASE_S", "30")  # a busy machine must not evict a server either
    attacks = [word for name in BRIEF for word in ("--attack", name)]
    _, facts = await run_json_command(capsys, "soak", "hostile", "--seconds", "12", "--subscribers", "8", *attacks)
    assert facts["protocol"] == "hostile"
    assert (facts["lost"], facts["duplicated"], facts["reordered"]) == (0, 0, 0)
    assert (facts["silent"], facts["gaps_false"], facts["evicted"]) == (0, 0, 0), facts["violations"]
    assert facts["agent_rss_mb_max"] <= RSS_MB_MAX
    assert facts["messages"] > 0
    assert facts["p99_ms"]["harmless"] > 0
    hostile = [phase for phase in facts["phases"] if not phase["harmless"]]
    sent = {phase["attack"] for phase in hostile if phase["commands"] or phase["cut_off"]}
    assert sent >= {*BRIEF}


async def test_an_unknown_attack_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = await run_command(capsys, "soak", "hostile", "--attack", "no-such")
    assert status == 1
    assert "no-such" in errors
    assert "giant-names" in errors
