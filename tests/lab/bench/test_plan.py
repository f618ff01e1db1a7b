"""`shoal bench plan`, so small that only the form of its result can be judged."""

from __future__ import annotations

import json

import numpy as np
import pytest

from shoal import cli
from shoal.balance.columns import host_loads
from shoal.balance.policies import POLICIES
from shoal.lab.bench import plan_load
from shoal.lab.bench.plan import BUDGETS


def test_a_small_run_has_a_row_for_every_policy_and_budget(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("bench", "plan", "--channels", "3000", "--servers", "12", "--rounds", "1", "--json")
    assert cli.main(words) == 0
    (line,) = capsys.readouterr().out.splitlines()
    facts = json.loads(line)
    assert facts["name"] == "plan"
    assert facts["machine"]["cores"] >= 1
    rows = {row["contender"]: row for row in facts["rows"]}
    assert rows.keys() == {*POLICIES, *(f"shoal-{budget}" for budget in BUDGETS)}
    for name, row in rows.items():
        assert row["seconds"] > 0
        assert row["cpu_seconds"] >= 0
        assert row["max_load_ratio"] >= facts["bound"] - 1e-9
        assert facts["ratios"][f"max_load_of_{name}_vs_bound"] == pytest.approx(row["max_load_ratio"] / facts["bound"])
    for budget in BUDGETS:
        assert rows[f"shoal-{budget}"]["moves"] <= budget
    assert facts["ratios"]["max_load_of_shoal_vs_bound"] <= 1.05


def test_the_figures_are_shown_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(("bench", "plan", "--channels", "500", "--servers", "4", "--rounds", "1")) == 0
    shown = capsys.readouterr().out
    assert "shoal-100" in shown
    assert "dynamoth" in shown


def test_the_load_is_as_described() -> None:
    situation = plan_load.situation(5000, 40, seed=3)
    assert plan_load.bound(situation) == pytest.approx(plan_load.BOUND)
    assert sorted(set(situation.hosts.capacity.tolist())) == [plan_load.CAPACITY, 2 * plan_load.CAPACITY]
    assert situation.channels.bytes_out.max() > situation.hosts.capacity.max()
    ranked = np.sort(situation.channels.bytes_out)[::-1]
    assert ranked[0] / ranked[9] == pytest.approx(10**plan_load.EXPONENT)
    bytes_out, _ = host_loads(situation.channels, situation.placements, 40)
    assert situation.hosts.bytes_out.tolist() == pytest.approx(bytes_out.tolist())
    again = plan_load.situation(5000, 40, seed=3)
    assert again.placements.servers.tolist() == situation.placements.servers.tolist()
    assert plan_load.situation(5000, 40, seed=4).channels.bytes_out[0] != situation.channels.bytes_out[0]
