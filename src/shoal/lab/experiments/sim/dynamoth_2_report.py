"""The report of experiment 2: tables, drawings like the paper's figures 5 and 6, and the paragraph.

Owns texts and drawings; computes nothing.
"""

from __future__ import annotations

from typing import Any, Final

from shoal.flow import Series
from shoal.lab.experiments.paper import RESPONSE_LIMIT_MS
from shoal.lab.experiments.result import Drawing, Line, Panel, Table
from shoal.lab.experiments.sim.game_settings import POLICY_SETTINGS, GameSetting

EVERY_S: Final = 5
"""Distance of the seconds in the JSON series."""
DRAWN: Final = ("dynamoth", "shoal", "consistent-hashing")
"""The policies in figure 5: the paper's two, and shoal."""
SHORT: Final = {"consistent-hashing": "hashing", "bounded-load": "bounded"}
"""Short names of policies for tables."""
RATIOS: Final = {
    "ratio_dynamoth_vs_hashing": "dynamoth/hashing",
    "ratio_shoal_vs_hashing": "shoal/hashing",
    "bound_vs_hashing": "bound/hashing",
    "dynamoth_vs_bound": "dynamoth/bound",
    "shoal_vs_bound": "shoal/bound",
}
"""Keys of the headline, and their names in tables."""
COLUMNS: Final = ("clients", "servers", "response_ms", "messages_out", "ratio_mean", "ratio_max")
RESPONSE_SHOWN_MS: Final = 400.0


def shown_series(runs: dict[str, Series]) -> dict[str, Any]:
    """The runs in the figures, sampled."""
    return {name: series.sampled(COLUMNS, EVERY_S) for name, series in runs.items()}


def tables(games: tuple[GameSetting, ...], settings: dict[str, dict[str, Any]]) -> list[Table]:
    """Players by setting and policy, their ratios, and their cost in server hours and moves."""
    names = list(POLICY_SETTINGS)
    heads = [SHORT.get(name, name) for name in names]
    players, ratios, costs = [], [], []
    for game in games:
        found = settings[game.name]
        supported = found["players_supported"]
        hours, moves = found["server_hours_same_span"], found["moves_same_span"]
        players.append((game.name, *(f"{supported[name]:.0f}" for name in names), f"{found['bound']:.0f}"))
        ratios.append((game.name, *(f"{found[ratio]:.2f}" for ratio in RATIOS)))
        costs.append((game.name, *(f"{hours[name]:.2f} / {moves[name]:.0f}" for name in names)))
    return [
        Table("players supported (median)", ("", *heads, "bound"), players),
        Table("ratios of players", ("", *RATIOS.values()), ratios),
        Table("server hours / moves until hashing fails (median)", ("", *heads), costs),
    ]


def drawings(runs: dict[str, Series]) -> list[Drawing]:
    """Figures 5 and 6."""
    if not runs:
        return []
    seconds = [float(second) for second in range(max(len(series) for series in runs.values()))]

    def line(name: str, column: str, label: str = "", **how: bool) -> Line:
        values = runs[name].column(column).tolist()
        return Line(label or name, seconds[: len(values)], values, **how)

    drawn = [name for name in DRAWN if name in runs]
    marks = [(f"{name} rebalances", [float(at) for at in runs[name].rebalanced_at]) for name in drawn]
    figure_5 = [
        Panel("(a) Players", "time (s)", "players", [line(drawn[0], "clients", "players")]),
        Panel(
            "(b) Outgoing messages and servers",
            "time (s)",
            "messages/s",
            [line(name, "servers", f"servers, {name}", steps=True, right=True, dashed=True) for name in drawn]
            + [line(drawn[0], "messages_out", "messages/s")],
            right_label="servers",
        ),
        Panel(
            "(c) Average response time",
            "time (s)",
            "response time (ms)",
            [line(name, "response_ms") for name in drawn],
            marks=marks,
            y_max=RESPONSE_SHOWN_MS,
            level=RESPONSE_LIMIT_MS,
        ),
    ]
    figure_6 = [
        Panel(
            f"Load ratio, {name}",
            "time (s)",
            "load ratio",
            [
                line(name, "ratio_mean", "average"),
                line(name, "ratio_max", "busiest server"),
                line(name, "servers", "servers", steps=True, right=True, dashed=True),
            ],
            marks=[("rebalances", [float(at) for at in runs[name].rebalanced_at])],
            right_label="servers",
            level=1.0,
            y_max=2.0,
        )
        for name in drawn
    ]
    return [Drawing("figure-5", figure_5), Drawing("figure-6", figure_6)]


def paragraph(games: tuple[GameSetting, ...], settings: dict[str, dict[str, Any]]) -> str:
    """The comparison with the paper."""
    first, figures = games[0], settings[games[0].name]
    players = figures["players_supported"]
    others = "; ".join(
        f"{game.name} ({game.words}) {settings[game.name]['ratio_dynamoth_vs_hashing']:.2f}, shoal "
        f"{settings[game.name]['ratio_shoal_vs_hashing']:.2f}, at most {settings[game.name]['bound_vs_hashing']:.2f}"
        for game in games[1:]
    )
    text = (
        f"The paper (figure 5): 625 players with consistent hashing, almost 1000 with Dynamoth, 1.6 times as many. "
        f"Here, in the setting {first.name} ({first.words}): {players['consistent-hashing']:.0f} and "
        f"{players['dynamoth']:.0f}, {figures['ratio_dynamoth_vs_hashing']:.2f} times as many; shoal supports "
        f"{players['shoal']:.0f}, {figures['ratio_shoal_vs_hashing']:.2f} times as many, and no placement could carry "
        f"more than {figures['bound']:.0f} ({figures['bound_vs_hashing']:.2f} times). "
    )
    if others:
        text += (
            f"The possible gain depends on how unevenly hashing divides the load, which grows with the square of the "
            f"players on a tile. Ratios to hashing, by setting: {others}."
        )
    return text
