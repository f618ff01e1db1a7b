"""Experiment 3 of the Dynamoth paper (V.E, figure 7) in the flow simulator: the number of servers follows that of
players.

Owns the runs of dynamoth and shoal on the setting `paper`, and the claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from shoal.balance.columns import Floats
from shoal.balance.policies import policy
from shoal.flow import FlowSimulator, Latencies, Series
from shoal.flow.workloads import Curve
from shoal.lab.experiments import ExperimentOptions
from shoal.lab.experiments.paper import PAPER, RESPONSE_LIMIT_MS, latencies_of
from shoal.lab.experiments.result import Drawing, ExperimentResult, Line, Panel, Table
from shoal.lab.experiments.sim.game_settings import PAPER_GAME, POLICY_SETTINGS, SERVERS_MAX, GameSetting
from shoal.lab.experiments.sim.rgame_load import RGame
from shoal.lab.experiments.sim.seeds import on_all_cores
from shoal.lab.experiments.sim.verdict import median

POLICIES: Final = ("dynamoth", "shoal")
PLAYERS: Final = Curve(((0, 50), (500, 800), (600, 800), (850, 200), (1050, 200), (1300, 590), (1400, 590)))
"""Up to 800 players, down to 200, up to almost 600. The paper gives no times."""
PHASES: Final = {"at 800": (550, 600), "at 200": (1000, 1050), "at 600": (1350, 1400)}
"""Seconds near the end of each level part of the curve, when the number of servers has settled."""
EVERY_S: Final = 5
"""Distance of the seconds in the JSON series."""
COLUMNS: Final = ("clients", "servers", "response_ms", "messages_out", "ratio_max")
SHOWN_SEED: Final = 0
BROKEN_SHARE_MAX: Final = 0.02
"""The average response time may exceed the limit in this share of the seconds: the paper has short spikes too."""


@dataclass(frozen=True, slots=True)
class CurveTask:
    """One seed, for both policies."""

    game: GameSetting
    players: Curve
    seed: int
    latencies: Latencies


def run(options: ExperimentOptions) -> ExperimentResult:
    """Runs the experiment."""
    latencies = latencies_of(options)
    tasks = [CurveTask(PAPER_GAME, PLAYERS, seed, latencies) for seed in range(options.seeds)]
    found = on_all_cores(run_seed, tasks, lambda done: options.note(f"dynamoth-3: {done} of {len(tasks)} games"))
    figures = {name: figures_of([seed[name] for seed in found]) for name in POLICIES}
    shown = found[SHOWN_SEED]
    return ExperimentResult(
        name="dynamoth-3",
        paper=PAPER,
        parameters={
            "mode": "sim",
            "seeds": options.seeds,
            "players": [list(point) for point in PLAYERS.points],
            "servers_max": SERVERS_MAX,
            "response_limit_ms": RESPONSE_LIMIT_MS,
            "latencies": latencies.source,
            "game": PAPER_GAME.words,
            "models": msgspec.to_builtins(PAPER_GAME.models),
            "balance": {name: msgspec.to_builtins(POLICY_SETTINGS[name]) for name in POLICIES},
        },
        series={
            "seed": SHOWN_SEED,
            "policies": {name: series.sampled(COLUMNS, EVERY_S) for name, series in shown.items()},
        },
        headline=figures,
        tables=[_table(figures)],
        drawings=[_drawing(name, series) for name, series in shown.items()],
        paragraph=_paragraph(figures),
        claims=_claims(figures),
    )


def run_seed(task: CurveTask) -> dict[str, Series]:
    """Runs both policies on one game."""
    workload = RGame(task.game.map, task.players, task.latencies, task.seed)
    models = task.game.models
    return {
        name: FlowSimulator(workload, policy(name), POLICY_SETTINGS[name], models, seed=task.seed).run()
        for name in POLICIES
    }


def figures_of(runs: list[Series]) -> dict[str, Any]:
    """The headline of one policy: medians over all seeds."""

    def over(values: list[float]) -> float:
        return round(median(values), 3)

    return {
        "servers": {
            phase: over([float(np.median(series.column("servers")[first:last])) for series in runs])
            for phase, (first, last) in PHASES.items()
        },
        "response_ms_mean": over([_mean_finite(series.column("response_ms")) for series in runs]),
        "response_ms_p99": over([float(np.quantile(series.column("response_ms"), 0.99)) for series in runs]),
        "seconds_over_limit": over(
            [float((series.column("response_ms") >= RESPONSE_LIMIT_MS).mean()) for series in runs]
        ),
        "undelivered": over([float(series.column("undelivered").sum()) for series in runs]),
        "server_hours": over([series.server_hours for series in runs]),
        "moves": over([float(series.moves) for series in runs]),
        "rebalancings": over([float(len(series.rebalanced_at)) for series in runs]),
    }


def _mean_finite(values: Floats) -> float:
    return float(values[np.isfinite(values)].mean())


def _claims(figures: dict[str, dict[str, Any]]) -> dict[str, bool]:
    claims = {}
    for name in POLICIES:
        full, low, again = figures[name]["servers"].values()
        claims[f"{name}: servers follow the players down"] = low <= full / 2
        claims[f"{name}: servers follow the players up again"] = again > low
        claims[f"{name}: 600 players take fewer servers than 800"] = again < full
        claims[f"{name}: response times are under the limit but for short spikes"] = (
            figures[name]["seconds_over_limit"] <= BROKEN_SHARE_MAX
        )
        claims[f"{name}: everything is delivered"] = not figures[name]["undelivered"]
    return claims


def _table(figures: dict[str, dict[str, Any]]) -> Table:
    rows = [
        (
            name,
            *(f"{servers:.0f}" for servers in found["servers"].values()),
            f"{found['response_ms_mean']:.0f}",
            f"{found['response_ms_p99']:.0f}",
            f"{found['server_hours']:.2f}",
            f"{found['moves']:.0f}",
        )
        for name, found in figures.items()
    ]
    headings = ("servers", *PHASES, "mean ms", "p99 ms", "hours", "moves")
    return Table("dynamoth-3: servers, response times, server hours and moves (median)", headings, rows)


def _drawing(name: str, series: Series) -> Drawing:
    seconds = [float(second) for second in range(len(series))]

    def line(column: str, label: str, **how: bool) -> Line:
        return Line(label, seconds, series.column(column).tolist(), **how)

    marks = [("rebalances", [float(at) for at in series.rebalanced_at])]
    players = Panel(
        f"(a) Players and servers, {name}",
        "time (s)",
        "players",
        [line("clients", "players"), line("servers", "servers", steps=True, right=True)],
        marks=marks,
        right_label="servers",
    )
    responses = Panel(
        f"(b) Response time and outgoing messages, {name}",
        "time (s)",
        "response time (ms)",
        [line("response_ms", "response time"), line("messages_out", "messages/s", right=True)],
        marks=marks,
        right_label="messages/s",
        level=RESPONSE_LIMIT_MS,
        y_max=250.0,
    )
    return Drawing(f"figure-7-{name}", [players, responses])


def _paragraph(figures: dict[str, dict[str, Any]]) -> str:
    texts = []
    for name, found in figures.items():
        servers = list(found["servers"].values())
        texts.append(
            f"{name} has {servers[0]:.0f} servers at 800 players, {servers[1]:.0f} at 200 and {servers[2]:.0f} at 590, "
            f"answers in {found['response_ms_mean']:.0f} ms on average and pays for {found['server_hours']:.2f} server "
            f"hours with {found['moves']:.0f} moves"
        )
    return (
        "The paper (figure 7): servers are added as players join and, with a delay, released as they leave; response "
        "times have small spikes when loaded servers are rebalanced, and none when servers are released. Here: "
        f"{'; '.join(texts)}."
    )
