"""What-if: recorded load is replayed as it was, cases are compared by the objective, and the held-back day decides."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from shoal import config
from shoal.cli import main, pipeline_what_if
from shoal.errors import ConfigError, PipelineError
from shoal.flow.workloads import traffic_of
from shoal.load.window import LoadWindow
from shoal.pipeline import generated_windows, what_if, what_if_job
from shoal.pipeline.kept_windows import WindowKeeper, open_windows
from shoal.pipeline.what_if import ReplayPool, WhatIfCase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_S = 60
SITE = ReplayPool(capacity_bytes_per_s=125e6, servers_first=2, servers_max=4)


def short_days(days: int) -> list[LoadWindow]:
    """The evenings of some made days, as days of a minute."""
    window_s = generated_windows.WINDOW_S
    evening_s = generated_windows.EVENT_HOUR * generated_windows.HOUR_S - DAY_S // 2
    places = [(day, at_s) for day in range(days) for at_s in range(0, DAY_S, window_s)]
    starts = [day * generated_windows.DAY_S + evening_s + at_s for day, at_s in places]
    made = generated_windows.make_windows(days, 5, starts=starts)
    return [
        LoadWindow(day * DAY_S + at_s, day * DAY_S + at_s + window_s, window.table)
        for (day, at_s), window in zip(places, made, strict=True)
    ]


@pytest.fixture(scope="module")
def windows() -> list[LoadWindow]:
    return short_days(3)


@pytest.fixture
def folder(windows: list[LoadWindow], tmp_path: Path) -> Path:
    with WindowKeeper(tmp_path / "windows", day_s=DAY_S) as keeper:
        for window in windows:
            keeper.add(window)
    return tmp_path / "windows"


def test_a_day_is_replayed_with_the_deliveries_that_were_recorded(windows: list[LoadWindow]) -> None:
    series = what_if.replay(traffic_of(windows[:30]), WhatIfCase(policy="consistent-hashing"), SITE)
    recorded = [sum(window.hosts["messages_sent"].to_pylist()) for window in windows[:30]]
    np.testing.assert_allclose(series.column("messages_out"), np.repeat(recorded, 2))


def test_the_grid_has_the_defaults_first_and_every_combination_that_can_be(tmp_path: Path) -> None:
    cases = what_if.read_grid(None)
    assert len(cases) >= 60
    assert cases[0] == WhatIfCase()
    assert len({json.dumps([case.policy, case.settings], sort_keys=True) for case in cases}) == len(cases)
    path = tmp_path / "grid.toml"
    path.write_text('[[grid]]\npolicy = ["shoal", "dynamoth"]\nsafe_ratio = [0.6, 0.7]\nhigh_ratio = [0.65, 0.8]\n')
    found = [(case.policy, case.settings) for case in what_if.read_grid(path)]
    given = [{"safe_ratio": 0.6, "high_ratio": 0.65}, {"safe_ratio": 0.6}]
    assert found == [
        ("shoal", {}),
        *(("shoal", each) for each in given),
        *(("dynamoth", each) for each in (*given, {})),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[grid]]\nhigh = 1\n", "'high', which is not a setting"),
        ('[[grid]]\npolicy = "none"\n', "no policy 'none'"),
        ("[[grid]]\nhigh_ratio = 'much'\n", "high_ratio"),
        ("grid", "cannot read the grid"),
        ("a = 1\n", "has no grid"),
        ("[grid]\nsafe_ratio = 0.6\n", "is not a list of tables: write \\[\\[grid\\]\\]"),
        ("grid = [1]\n", "is not a list of tables"),
        ("[[grid]]\nsafe_ratio = []\n", "no values for 'safe_ratio'"),
        ("[[grid]]\npolicy = []\n", "no values for 'policy'"),
    ],
)
def test_a_grid_that_cannot_be_is_said(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        what_if.read_grid(path)


def test_the_objective_weighs_overload_servers_and_moves() -> None:
    row = {"server_hours": 2.0, "overload_s": 36, "undelivered_s": 3.6, "moves": 100}
    assert what_if.cost(row) == pytest.approx(2.0 + 20 * 0.01 + 200 * 0.001 + 0.05)


def test_the_same_runs_in_process_and_on_spark(folder: Path, tmp_path: Path, spark: SparkSession) -> None:
    days = what_if_job.read_days(folder, servers_min=1, servers_max=4, start_s=5)
    cases = [WhatIfCase(), WhatIfCase(settings={"safe_ratio": 0.6}), WhatIfCase(policy="bounded-load")]
    notes: list[str] = []
    here = what_if_job.find(days, cases, 2, note=notes.append)
    there = what_if_job.find(days, cases, 2, spark, note=notes.append)
    assert here.runs.num_rows == 6
    assert here.runs.equals(there.runs)
    assert here.held_back.equals(there.held_back)
    assert here.chosen_cost <= here.default_cost
    assert here.with_forecast is not None
    assert here.with_forecast["cost"][0].as_py() <= here.chosen_cost
    assert here.chosen == there.chosen
    best = what_if.summary(here.runs)["case"][0].as_py()
    assert cases[best] == here.best


def test_a_best_case_that_is_worse_on_the_held_back_day_is_not_chosen(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = what_if_job.read_days(folder, servers_min=1, servers_max=4, start_s=5)
    lucky = WhatIfCase(settings={"safe_ratio": 0.6})

    def run(number: int, case: WhatIfCase, day: int, *more: object) -> pa.RecordBatch:
        worse = (number == 1) == (day == 2)
        figures = dict.fromkeys(what_if.RUN_SCHEMA.names, 0) | {
            "case": number,
            "day": day,
            "policy": "",
            "settings": "",
        }
        return pa.RecordBatch.from_pylist([figures | {"cost": 2.0 if worse else 1.0}], what_if.RUN_SCHEMA)

    monkeypatch.setattr(what_if, "run", run)
    found = what_if_job.find(days, [WhatIfCase(), lucky], 2, note=lambda _: None)
    assert found.best == lucky
    assert found.chosen == WhatIfCase()
    assert (found.best_cost, found.default_cost, found.chosen_cost) == (2.0, 1.0, 1.0)
    assert not found.best_no_worse


def test_a_first_day_that_is_not_whole_takes_the_forecast_and_not_the_runs(folder: Path, tmp_path: Path) -> None:
    with WindowKeeper(tmp_path / "cut", day_s=DAY_S) as keeper:
        for window in open_windows(folder).windows():
            if window.start_s >= 0.2 * DAY_S:
                keeper.add(window)
    days = what_if_job.read_days(tmp_path / "cut", servers_min=1, servers_max=4, start_s=5)
    assert list(days.traffic) == [0, 1, 2]
    notes: list[str] = []
    found = what_if_job.find(days, [WhatIfCase()], 2, note=notes.append)
    assert found.runs.num_rows == 2
    assert found.with_forecast is None
    assert any("no run with a forecast: group 's' has 1.8 days" in each for each in notes)


def test_the_best_settings_are_a_file_that_config_reads(tmp_path: Path) -> None:
    case = WhatIfCase(policy="dynamoth", settings={"high_ratio": 0.85, "moves_max": 7})
    what_if_job.write_config(case, tmp_path / "best.toml", "because")
    read = config.load(environ={}, file=tmp_path / "best.toml").settings
    assert read.balancer.policy == "dynamoth"
    assert read.balance == case.balance()


def test_too_few_days_and_days_that_are_not_there_are_said(folder: Path, tmp_path: Path) -> None:
    days = what_if_job.read_days(folder, servers_min=1, servers_max=4, start_s=5)
    assert what_if_job.day_held_back(days, "last") == 2
    assert what_if_job.day_held_back(days, "1") == 1
    with pytest.raises(PipelineError, match="no day '9'"):
        what_if_job.day_held_back(days, "9")
    with WindowKeeper(tmp_path / "short", day_s=DAY_S) as keeper:
        for window in open_windows(folder).windows():
            if window.end_s <= DAY_S:
                keeper.add(window)
    with pytest.raises(PipelineError, match="has 1 days"):
        what_if_job.read_days(tmp_path / "short", servers_min=1, servers_max=4, start_s=5)


@pytest.mark.parametrize("text", ["days=0,seed=1", "days=,seed=1", "seed=1"])
def test_days_that_cannot_be_made_are_said(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pipeline", "what-if", "--windows", str(tmp_path / "w"), "--generate", text, "--out", str(tmp_path / "o")]
    assert main([*words, "--in-process"]) == 1
    assert "write it as days=4,seed=1, with at least one day" in capsys.readouterr().err


def test_a_file_instead_of_a_folder_is_said_before_the_runs(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["pipeline", "what-if", "--windows", str(folder), "--out", str(tmp_path / "file")]) == 1
    said = capsys.readouterr().err
    assert "is a file, not a folder" in said
    assert "Spark" not in said


def test_settings_can_be_read_on_a_terminal_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    settings = {"high_ratio": 0.75, "server_hour_price": 1.25}
    figures = dict.fromkeys(what_if.RUN_SCHEMA.names, 12345) | {"case": 0, "day": 0, "cost": 1234.5}
    row = figures | {"policy": "consistent-hashing", "settings": json.dumps(settings)}
    runs = pa.Table.from_pylist([row], what_if.RUN_SCHEMA)
    found = what_if_job.WhatIfResult(
        runs=runs,
        held_back=runs,
        best=WhatIfCase(),
        chosen=WhatIfCase(),
        held_back_day=2,
        chosen_cost=1.0,
        best_cost=1.0,
        default_cost=1.0,
        with_forecast=None,
    )
    pipeline_what_if._show(argparse.Namespace(json=False), found)
    said = capsys.readouterr().out
    for words in (
        "consistent-hashing",
        "high_ratio 0.75",
        "server_hour_price 1.25",
        "overload",
        "response",
        "12345.00",
    ):
        assert words in said


def test_the_command_writes_table_figure_and_settings(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[what_if_job.WhatIfResult] = []

    def find(*args: Any, **more: Any) -> what_if_job.WhatIfResult:
        results.append(real_find(*args, **more))
        return results[-1]

    real_find = what_if_job.find
    monkeypatch.setattr(what_if_job, "find", find)
    grid = tmp_path / "grid.toml"
    grid.write_text('[[grid]]\npolicy = "consistent-hashing"\n')
    words = ["pipeline", "what-if", "--windows", str(folder), "--grid", str(grid), "--out", str(tmp_path / "out")]
    assert main([*words, "--in-process", "--servers-max", "4", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["cases"] == 2
    assert facts["held_back"]["no_worse"]
    assert facts["held_back"]["best_no_worse"] == (
        facts["held_back"]["best_cost"] <= facts["held_back"]["default_cost"]
    )
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"best.toml", "runs.parquet", "what-if.svg", "what-if.png"}
    pipeline_what_if._show(argparse.Namespace(json=False), results[0])  # as without --json
    said = capsys.readouterr().out
    assert "held-back day (2)" in said
    assert "best case of the grid on the held-back day" in said
