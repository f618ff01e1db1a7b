"""The Dynamoth paper's experiments in the flow simulator, in small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.cli import main
from shoal.errors import ConfigError
from shoal.flow import MoveModel, distance_model
from shoal.flow.workloads import Curve
from shoal.lab.experiments import MODES, ExperimentOptions, experiments
from shoal.lab.experiments.sim import dynamoth_1, dynamoth_2, dynamoth_3
from shoal.lab.experiments.sim.game_settings import GAMES, PAPER_GAME, POLICY_SETTINGS, GameSetting
from shoal.lab.experiments.sim.seeds import on_all_cores

SMALL = GameSetting("paper", "small", PAPER_GAME.map, PAPER_GAME.capacity_bytes_per_s / 4)
"""A quarter of the bandwidth is full with half of the players."""
ONE_SEED = ExperimentOptions(seeds=1)


def double(number: int) -> int:
    return 2 * number


def test_100_subscribers_need_one_server_and_800_need_three() -> None:
    result = dynamoth_1.run_a(ONE_SEED)
    assert result.holds, result.claims
    one, three = result.series["response_ms"].values()
    assert one[0] == pytest.approx(three[0], rel=0.25)
    assert one[-1] == float("inf")
    assert three[-1] < 150
    assert 500 <= result.headline["subscribers_supported"]["1 server"] < 550


in_one_worker = pytest.mark.xdist_group("scalability")
"""So that the experiment runs once."""


@pytest.fixture(scope="module")
def scalability() -> dict[str, Any]:
    return dynamoth_2.run(ONE_SEED, (SMALL,), players_last=560).facts()


@in_one_worker
def test_players_supported_are_in_order_and_below_the_bound(scalability: dict[str, Any]) -> None:
    headline = scalability["headline"]
    players = headline["players_supported"]
    assert set(players) == set(POLICY_SETTINGS)
    assert players["consistent-hashing"] <= players["dynamoth"] <= players["shoal"] <= headline["bound"] < 560
    assert headline["ratio_shoal_vs_hashing"] == pytest.approx(
        players["shoal"] / players["consistent-hashing"], abs=0.01
    )
    assert headline["shoal_vs_bound"] == pytest.approx(players["shoal"] / headline["bound"], abs=0.01)
    assert headline["settings"]["paper"]["players_supported"] == players


@in_one_worker
def test_costs_are_counted_for_every_policy(scalability: dict[str, Any]) -> None:
    for name in ("server_hours", "moves", "server_hours_same_span", "moves_same_span"):
        costs = scalability["headline"][name]
        assert set(costs) == set(POLICY_SETTINGS)
        assert all(cost > 0 for cost in costs.values())


@in_one_worker
def test_the_shown_run_goes_to_the_end(scalability: dict[str, Any]) -> None:
    shown = scalability["series"]["shown"]["policies"]
    assert set(shown) == set(POLICY_SETTINGS)
    for series in shown.values():
        assert series["second"][-1] == 435
        assert len(series["clients"]) == len(series["response_ms"]) == 88
    assert scalability["series"]["players_supported"]["paper"]["bound"]


@in_one_worker
def test_the_parameters_contain_all_assumptions(scalability: dict[str, Any]) -> None:
    parameters = scalability["parameters"]
    assert parameters["seeds"] == 1
    assert parameters["balance"]["dynamoth"] == msgspec.to_builtins(POLICY_SETTINGS["dynamoth"])
    assert parameters["settings"]["paper"]["models"]["server"]["fail_ratio"] == 1.15


def test_the_first_of_several_settings_is_the_papers() -> None:
    assert GAMES[0] is PAPER_GAME
    assert {"paper", "coarse", "fine", "towns"} <= {game.name for game in GAMES}
    for settings in POLICY_SETTINGS.values():
        settings.validate()


def test_one_setting_is_the_papers_with_moves_that_forward_everything() -> None:
    (forwarding,) = [game for game in GAMES if game.models.moves.forward_share == 1.0]
    assert forwarding.models.server == PAPER_GAME.models.server
    assert forwarding.map is PAPER_GAME.map
    assert PAPER_GAME.models.moves == MoveModel()


def test_the_number_of_servers_follows_the_players() -> None:
    players = Curve(((0, 50), (80, 350), (120, 350), (160, 60), (260, 60)))
    found = dynamoth_3.run_seed(dynamoth_3.CurveTask(SMALL, players, 1, distance_model()))
    for series in found.values():
        servers = series.column("servers")
        assert servers[110:120].mean() >= 2 * servers[-10:].mean()
        assert not series.column("undelivered").any()


def test_results_come_in_the_order_of_the_tasks() -> None:
    done: list[int] = []
    assert on_all_cores(double, [3, 1, 2], done.append) == [6, 2, 4]
    assert on_all_cores(double, [5], done.append) == [10]
    assert done == [1, 2, 3, 1]


def test_three_servers_support_nearly_three_times_the_publishers_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experiment", "dynamoth-1b", "--seeds", "1", "--out", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"name", "paper", "parameters", "series", "headline"}
    assert printed["headline"]["publishers_supported"]["1 server"] == 200
    assert printed["headline"]["ratio_replicated_vs_single"] >= 2.7
    assert {path.name for path in tmp_path.iterdir()} == {"figure-4b.svg", "figure-4b.png", "dynamoth-1b.json"}
    assert json.loads((tmp_path / "dynamoth-1b.json").read_text()) == printed


def test_an_unknown_mode_is_rejected() -> None:
    assert MODES[0] == "sim"
    with pytest.raises(ConfigError, match="unknown mode"):
        experiments("dream")


def test_latencies_that_cannot_be_read_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["experiment", "dynamoth-1a", "--seeds", "1", "--out", str(tmp_path)]
    assert main([*words, "--latencies", str(tmp_path / "none.csv")]) == 1
    assert "cannot read latencies" in capsys.readouterr().err
