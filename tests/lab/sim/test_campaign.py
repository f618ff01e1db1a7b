"""`shoal sim`: the breaks of each protocol and their spelling, the totals of a campaign and its conditions."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from shoal import cli
from shoal.lab.sim.campaign import CORNERS_SEEDS_MIN, Result, run_campaign
from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.protocols import PROTOCOLS
from shoal.lab.sim.scenario import Outcome

MOVES_RULES = {
    "forward_old_to_new",
    "forward_new_to_old",
    "home_help",
    "version_in_header",
    "mark_forwarded",
    "all_unended_placements",
    "prepare",
    "widen_before_switch",
    "narrow_last",
}


def listed(protocol: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert cli.main(["sim", protocol, "--break", "list", "--json"]) == 0
    breaks: list[str] = json.loads(capsys.readouterr().out.splitlines()[-1])["breaks"]
    return breaks


def test_each_protocol_lists_its_own_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(listed("channels", capsys)) == 26
    assert not MOVES_RULES & {*listed("channels", capsys)}
    assert {*listed("moves", capsys)} >= MOVES_RULES


def test_a_break_of_another_protocol_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sim", "channels", "--break", "narrow-last"]) == 2
    assert "unknown break 'narrow_last'" in capsys.readouterr().err


@pytest.mark.parametrize("spelling", ["mark-forwarded", "mark_forwarded"])
def test_a_break_may_be_spelled_with_dashes(spelling: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sim", "moves", "--seeds", "3", "--from-seed", "3", "--break", spelling, "--json"]
    assert cli.main(words) == 1
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["break"] == "mark_forwarded"
    assert facts["failing_seeds"]


def test_a_campaign_prints_the_facts_that_scripts_rely_on() -> None:
    facts = run_campaign(PROTOCOLS["moves"], 2, 8, None, lambda *_: None, workers=1).facts()
    fixed = ["protocol", "seeds", "messages", "deliveries", "moves", "faults", "lost", "duplicated", "reordered"]
    assert {*fixed, "gaps_reported", "violations", "exercised", "seconds"} <= {*facts}
    assert (facts["protocol"], facts["seeds"]) == ("moves", 2)
    assert facts["moves"] > 0
    assert facts["exercised"]["phase prepare"] >= facts["moves"]


@pytest.mark.parametrize("name", ["channels", "moves"])
def test_a_corner_that_was_never_exercised_fails_a_campaign(name: str) -> None:
    protocol = PROTOCOLS[name]
    met = Counter(protocol.corners.values())
    result = Result(protocol)
    for seed in range(CORNERS_SEEDS_MIN):
        result.add(Outcome(seed, Verdict(), 0, met if seed == 0 else Counter()))
    assert result.holds
    corner, counter = next(iter(protocol.corners.items()))
    result.exercised[counter] = 0
    assert result.corners_missed
    assert f"never exercised: {corner}" in result.facts()["violations"]
