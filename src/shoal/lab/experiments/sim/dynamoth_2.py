"""Experiment 2 of the Dynamoth paper (V.D, figures 5 and 6) in the flow simulator: how many players 8 servers support.

Owns the runs (every policy on the same game, for every setting and seed) and the figures computed from them. The rule
for a run is in `verdict`; tables, drawings and texts are in `dynamoth_2_report`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from shoal.balance.policies import policy
from shoal.flow import FlowSimulator, Latencies, Series
from shoal.flow.workloads import ramp
from shoal.lab.experiments import ExperimentOptions
from shoal.lab.experiments.paper import PAPER, RESPONSE_LIMIT_MS, latencies_of
from shoal.lab.experiments.result import ExperimentResult
from shoal.lab.experiments.sim import dynamoth_2_report as report
from shoal.lab.experiments.sim.game_settings import GAMES, PAPER_GAME, POLICY_SETTINGS, SERVERS_MAX, GameSetting
from shoal.lab.experiments.sim.rgame_load import RGame
from shoal.lab.experiments.sim.seeds import on_all_cores
from shoal.lab.experiments.sim.verdict import bound, is_too_much, median, supported

PLAYERS_FIRST: Final = 120
PLAYERS_LAST: Final = 1200
JOINS_PER_S: Final = 1.0
SHOWN_SEED: Final = 0
"""The seed that the figures show: it always runs to the end."""
HASHING: Final = "consistent-hashing"
VS_BOUND_MIN: Final = 0.95


@dataclass(frozen=True, slots=True)
class GameTask:
    """One game from one seed, for all policies."""

    game: GameSetting
    seed: int
    latencies: Latencies
    players_last: int


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One policy on one game. Server hours and moves are counted while the policy supported its players, and also while
    consistent hashing did, which is the same span for all policies."""

    players: int
    server_hours: float
    moves: int
    server_hours_same_span: float
    moves_same_span: int
    series: Series | None


@dataclass(frozen=True, slots=True)
class SeedRuns:
    """All policies on one game."""

    game: str
    seed: int
    bound: int
    runs: dict[str, PolicyRun]


def run(
    options: ExperimentOptions, games: tuple[GameSetting, ...] = GAMES, players_last: int = PLAYERS_LAST
) -> ExperimentResult:
    """Runs the experiment."""
    latencies = latencies_of(options)
    tasks = [GameTask(game, seed, latencies, players_last) for game in games for seed in range(options.seeds)]
    done_before = [0]

    def progress(done: int) -> None:
        if done * 20 // len(tasks) > done_before[0] * 20 // len(tasks):
            options.note(f"dynamoth-2: {done} of {len(tasks)} games")
        done_before[0] = done

    found = on_all_cores(run_seed, tasks, progress)
    by_game = {game.name: [seed for seed in found if seed.game == game.name] for game in games}
    settings = {game.name: figures_of(by_game[game.name]) for game in games}
    shown = next((seed for seed in by_game.get(PAPER_GAME.name, found) if seed.seed == SHOWN_SEED), found[0])
    return ExperimentResult(
        name="dynamoth-2",
        paper=PAPER,
        parameters=_parameters(options, latencies, games, players_last),
        series={
            "shown": {"setting": shown.game, "seed": shown.seed, "policies": report.shown_series(_series(shown))},
            "players_supported": {
                name: {policy: [seed.runs[policy].players for seed in seeds] for policy in POLICY_SETTINGS}
                | {"bound": [seed.bound for seed in seeds]}
                for name, seeds in by_game.items()
            },
        },
        headline={**settings[games[0].name], "setting": games[0].name, "settings": settings},
        tables=report.tables(games, settings),
        drawings=report.drawings(_series(shown)),
        paragraph=report.paragraph(games, settings),
        claims=_claims(settings),
    )


def run_seed(task: GameTask) -> SeedRuns:
    """Runs every policy on one game."""
    models = task.game.models
    players = ramp(PLAYERS_FIRST, task.players_last, JOINS_PER_S)
    workload = RGame(task.game.map, players, task.latencies, task.seed)
    fail_ratio = models.server.fail_ratio
    whole = task.game.name == PAPER_GAME.name and task.seed == SHOWN_SEED
    all_series = {
        name: FlowSimulator(workload, policy(name), settings, models, seed=task.seed).run(
            None if whole else lambda second: is_too_much(second, fail_ratio)
        )
        for name, settings in POLICY_SETTINGS.items()
    }
    span = _span(all_series[HASHING], fail_ratio)
    runs = {name: _judged(series, fail_ratio, span, whole) for name, series in all_series.items()}
    return SeedRuns(task.game.name, task.seed, bound(workload, models.server, SERVERS_MAX), runs)


def _span(series: Series, fail_ratio: float) -> int:
    """The number of seconds before the rule was first broken."""
    broken = (second for second, seen in enumerate(series.seconds) if is_too_much(seen, fail_ratio))
    return next(broken, len(series))


def _judged(series: Series, fail_ratio: float, same_span: int, whole: bool) -> PolicyRun:
    own, same = Series(series.seconds[: _span(series, fail_ratio)]), Series(series.seconds[:same_span])
    return PolicyRun(
        players=supported(series, fail_ratio),
        server_hours=own.server_hours,
        moves=own.moves,
        server_hours_same_span=same.server_hours,
        moves_same_span=same.moves,
        series=series if whole else None,
    )


def _series(shown: SeedRuns) -> dict[str, Series]:
    return {name: run.series for name, run in shown.runs.items() if run.series is not None}


def figures_of(seeds: list[SeedRuns]) -> dict[str, Any]:
    """The headline of one setting: medians over all seeds, and their ratios."""
    players = {name: median([seed.runs[name].players for seed in seeds]) for name in POLICY_SETTINGS}
    most = median([seed.bound for seed in seeds])

    def medians(field: str) -> dict[str, float]:
        return {
            name: round(median([float(getattr(seed.runs[name], field)) for seed in seeds]), 3)
            for name in POLICY_SETTINGS
        }

    return {
        "players_supported": players,
        "bound": most,
        "ratio_dynamoth_vs_hashing": _ratio(players["dynamoth"], players[HASHING]),
        "ratio_shoal_vs_hashing": _ratio(players["shoal"], players[HASHING]),
        "bound_vs_hashing": _ratio(most, players[HASHING]),
        "shoal_vs_bound": _ratio(players["shoal"], most),
        "dynamoth_vs_bound": _ratio(players["dynamoth"], most),
        "server_hours": medians("server_hours"),
        "moves": medians("moves"),
        "server_hours_same_span": medians("server_hours_same_span"),
        "moves_same_span": medians("moves_same_span"),
    }


def _ratio(one: float, other: float) -> float:
    return round(one / other, 3) if other else float("nan")


def _claims(settings: dict[str, dict[str, Any]]) -> dict[str, bool]:
    claims = {}
    for name, figures in settings.items():
        players = figures["players_supported"]
        claims[f"{name}: shoal supports at least as many players as dynamoth"] = players["shoal"] >= players["dynamoth"]
        claims[f"{name}: dynamoth supports at least as many players as hashing"] = (
            players["dynamoth"] >= players[HASHING]
        )
        claims[f"{name}: shoal reaches {VS_BOUND_MIN} of the bound"] = figures["shoal_vs_bound"] >= VS_BOUND_MIN
    return claims


def _parameters(
    options: ExperimentOptions, latencies: Latencies, games: tuple[GameSetting, ...], players_last: int
) -> dict[str, Any]:
    return {
        "mode": "sim",
        "seeds": options.seeds,
        "players": [PLAYERS_FIRST, players_last],
        "joins_per_s": JOINS_PER_S,
        "updates_per_s": 3,
        "servers_max": SERVERS_MAX,
        "response_limit_ms": RESPONSE_LIMIT_MS,
        "latencies": latencies.source,
        "latency_ms_mean": round(float(np.mean(latencies.samples_ms)), 1),
        "settings": {
            game.name: {
                "words": game.words,
                "tiles": game.map.side**2,
                "walk": {name: getattr(game.map.walk, name) for name in type(game.map.walk).__dataclass_fields__},
                "message_bytes": game.map.message_bytes,
                "models": msgspec.to_builtins(game.models),
            }
            for game in games
        },
        "balance": {name: msgspec.to_builtins(settings) for name, settings in POLICY_SETTINGS.items()},
    }
