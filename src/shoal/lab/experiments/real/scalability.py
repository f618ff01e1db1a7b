"""Experiment 2 of the Dynamoth paper (V.D, figures 5 and 6) on real servers: how many players each policy supports.

Owns the ramp of players, a tenth of the paper's, and the rule that ends a game. There is one game for each policy, all
with the same seed, so that players walk the same ways. The result compares the policies and shows how busy the cores
were; its only claim is that nothing is lost.
"""

from __future__ import annotations

from typing import Any, Final

from shoal.flow import Latencies
from shoal.flow.workloads.curves import Curve
from shoal.lab.experiments import ExperimentOptions
from shoal.lab.experiments.paper import PAPER, RESPONSE_LIMIT_MS, latencies_of
from shoal.lab.experiments.real.game import GameRecord, GameSetup, play
from shoal.lab.experiments.real.limited_cluster import FAIL_RATIO
from shoal.lab.experiments.real.network import ExperimentNetwork, run_on_network
from shoal.lab.experiments.result import Drawing, ExperimentResult, Line, Panel, Table

SCALE: Final = 0.1
POLICIES: Final = ("consistent-hashing", "dynamoth", "shoal")
CURVE: Final = Curve(((0.0, 35.0), (72.0, 120.0), (76.0, 120.0)))
SERVERS_MAX: Final = 5
BROKEN_S: Final = 6
"""A game ends when averages have been beyond a limit for this many seconds in a row. A short spike while channels move
does not end it."""
NO_ORDER: Final = (
    "All servers share this machine's cores, so that one more server adds a link but no core: this run does not show "
    "which policy is better."
)


def run(options: ExperimentOptions) -> ExperimentResult:
    """Plays one game for each policy."""
    latencies = latencies_of(options)
    games: dict[str, GameRecord] = {}
    for policy in POLICIES:
        setup = GameSetup(CURVE, SERVERS_MAX, policy)
        options.note(f"dynamoth-2: {policy}")
        games[policy] = _game(setup, latencies, options)
    limited = setup.link.limit is not None
    return compared(games, limited, setup.facts(latencies))


def _game(setup: GameSetup, latencies: Latencies, options: ExperimentOptions) -> GameRecord:
    limit = setup.link.limit

    async def work(network: ExperimentNetwork) -> GameRecord:
        return await play(network, setup, latencies, options.note, lambda played: is_over(played, limit is not None))

    return run_on_network(limit, work)


def is_over(played: GameRecord, limited: bool) -> bool:
    """Whether the game has been beyond the limits for `BROKEN_S`."""
    return all(_beyond(played, limited)[-BROKEN_S:]) and len(played.seconds) >= BROKEN_S


def supported(played: GameRecord, limited: bool) -> int:
    """The most players before the game went beyond the limits for `BROKEN_S`; all players, if it never did."""
    beyond = _beyond(played, limited)
    end = len(beyond)
    for at in range(len(beyond) - BROKEN_S + 1):
        if all(beyond[at : at + BROKEN_S]):
            end = at
            break
    return max((second.players for second in played.seconds[:end]), default=0)


def _beyond(played: GameRecord, limited: bool) -> list[bool]:
    """For each second, whether averages are beyond a limit. Where links are not limited, load ratios are judged too."""
    slow = [value >= RESPONSE_LIMIT_MS for value in played.averaged("response_ms")]
    if limited:
        return slow
    return [one or ratio > FAIL_RATIO for one, ratio in zip(slow, played.averaged("ratio_max"), strict=True)]


def compared(games: dict[str, GameRecord], limited: bool, parameters: dict[str, Any]) -> ExperimentResult:
    """The result of the games of all policies."""
    players = {policy: supported(played, limited) for policy, played in games.items()}
    hashing, dynamoth, shoal = (max(players[policy], 1) for policy in POLICIES)
    counts = ("lost", "duplicated", "reordered", "gaps_reported")
    tallies = {policy: {name: getattr(played.tally, name) for name in counts} for policy, played in games.items()}
    return ExperimentResult(
        name="dynamoth-2",
        paper=PAPER,
        parameters={"scale": SCALE, "response_limit_ms": RESPONSE_LIMIT_MS, "broken_s": BROKEN_S, **parameters},
        series={policy: played.facts() for policy, played in games.items()},
        headline={
            "players_supported": players,
            "order": sorted(POLICIES, key=lambda policy: players[policy]),
            "ratio_dynamoth_vs_hashing": dynamoth / hashing,
            "ratio_shoal_vs_hashing": shoal / hashing,
            "server_hours": {policy: played.server_hours for policy, played in games.items()},
            "moves": {policy: played.moves for policy, played in games.items()},
            "counts": tallies,
            "cpu_share": {policy: played.cpu_share() for policy, played in games.items()},
        },
        tables=[_table(games, players)],
        drawings=[_figure_5(games), _figure_6(games)],
        paragraph=(
            "The paper (figure 5): almost 1,000 players with Dynamoth, 625 with consistent hashing (1.6 times as "
            f"many). Here, with {SCALE:g} times the players, {SERVERS_MAX} small servers and a ramp that is ten times "
            f"as steep: {hashing} with consistent hashing, {dynamoth} with dynamoth ({dynamoth / hashing:.2f} times), "
            f"{shoal} with shoal ({shoal / hashing:.2f} times). The machine used {_cores(games)} of all cores on "
            f"average. {NO_ORDER}"
        ),
        claims={
            f"nothing is lost, doubled or out of order with {policy}": played.is_whole
            for policy, played in games.items()
        },
    )


def _cores(games: dict[str, GameRecord]) -> str:
    return ", ".join(f"{played.cpu_share()['machine_mean']:.2f} ({policy})" for policy, played in games.items())


def _table(games: dict[str, GameRecord], players: dict[str, int]) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            policy,
            str(players[policy]),
            f"{max(played.column('servers'), default=0):.0f}",
            f"{played.server_hours * 60:.1f}",
            str(len(played.rebalanced_at)),
            str(played.moves),
            f"{played.tally.lost} / {played.tally.duplicated} / {played.tally.reordered}",
            f"{played.cpu_share()['server_max']:.2f} / {played.cpu_share()['machine_mean']:.2f}",
        )
        for policy, played in games.items()
    ]
    headings = (
        "policy", "players", "servers", "server min", "plans", "moves", "lost / twice / reordered",
        "CPU server / machine",
    )  # fmt: skip
    return Table("dynamoth-2 on real servers", headings, rows)


def _figure_5(games: dict[str, GameRecord]) -> Drawing:
    marks = [(f"rebalancing, {policy}", played.rebalanced_at) for policy, played in games.items()]

    def lines(name: str, steps: bool = False, right: bool = False) -> list[Line]:
        return [
            Line(
                f"{name.split('_')[0]}, {policy}",
                played.column("at_s"),
                played.column(name),
                steps=steps,
                right=right,
                dashed=right,
            )
            for policy, played in games.items()
        ]

    return Drawing(
        "figure-5-real",
        [
            Panel("Players", "time (s)", "players", lines("players")),
            Panel(
                "Outgoing messages and servers",
                "time (s)",
                "messages a second",
                [*lines("messages_out_per_s"), *lines("servers", steps=True, right=True)],
                right_label="servers",
            ),
            Panel(
                "Average response time",
                "time (s)",
                "response time (ms)",
                lines("response_ms"),
                marks=marks,
                y_max=500.0,
                level=RESPONSE_LIMIT_MS,
            ),
        ],
    )


def _figure_6(games: dict[str, GameRecord]) -> Drawing:
    panels = [
        Panel(
            f"Load of servers, {policy}",
            "time (s)",
            "load ratio",
            [
                Line("average", played.column("at_s"), played.column("ratio_mean")),
                Line("busiest", played.column("at_s"), played.column("ratio_max")),
                Line("servers", played.column("at_s"), played.column("servers"), steps=True, right=True),
            ],
            marks=[("rebalancing", played.rebalanced_at)],
            right_label="servers",
            level=1.0,
        )
        for policy, played in games.items()
    ]
    return Drawing("figure-6-real", panels)
