"""Experiment 3 of the Dynamoth paper (V.E, figure 7) on real servers: the number of servers follows that of players.

Owns the curve, a tenth of the paper's players in two minutes, and the claims: servers are added, removed and added
again, and no update is lost.
"""

from __future__ import annotations

from typing import Any, Final

from shoal.flow.workloads.curves import Curve
from shoal.lab.experiments import ExperimentOptions
from shoal.lab.experiments.paper import PAPER, RESPONSE_LIMIT_MS, latencies_of
from shoal.lab.experiments.real.game import GameRecord, GameSetup, play
from shoal.lab.experiments.real.network import ExperimentNetwork, run_on_network
from shoal.lab.experiments.result import Drawing, ExperimentResult, Line, Panel, Table

SCALE: Final = 0.1
CURVE: Final = Curve(
    ((0.0, 25.0), (45.0, 80.0), (57.0, 80.0), (70.0, 20.0), (95.0, 20.0), (114.0, 59.0), (124.0, 59.0))
)
"""The paper's 800, 200 and almost 600 clients, scaled."""
FIRST_END_S: Final = 60.0
"""Until then the number of players grows."""
SERVERS_MAX: Final = 6
POLICY: Final = "shoal"


def run(options: ExperimentOptions) -> ExperimentResult:
    """Plays one game."""
    latencies = latencies_of(options)
    setup = GameSetup(CURVE, SERVERS_MAX, POLICY)
    options.note(f"dynamoth-3: {POLICY}")

    async def work(network: ExperimentNetwork) -> GameRecord:
        return await play(network, setup, latencies, options.note)

    played = run_on_network(setup.link.limit, work)
    return _result(played, setup.facts(latencies))


def extremes(played: GameRecord) -> tuple[int, int, int]:
    """Most servers while players joined, fewest after that, and most after the fewest."""
    first = [second.servers for second in played.seconds if second.at_s < FIRST_END_S]
    later = [second.servers for second in played.seconds if second.at_s >= FIRST_END_S]
    low = min(later, default=0)
    return max(first, default=0), low, max(later[later.index(low) :], default=0) if later else 0


def _result(played: GameRecord, parameters: dict[str, Any]) -> ExperimentResult:
    high, low, again = extremes(played)
    tally = played.tally
    good = sum(value < RESPONSE_LIMIT_MS for value in played.averaged("response_ms"))
    share = good / max(len(played.seconds), 1)
    return ExperimentResult(
        name="dynamoth-3",
        paper=PAPER,
        parameters={"policy": POLICY, "scale": SCALE, "response_limit_ms": RESPONSE_LIMIT_MS, **parameters},
        series={POLICY: played.facts()},
        headline={
            "servers": {"high": high, "low": low, "again": again},
            "lost": tally.lost,
            "duplicated": tally.duplicated,
            "reordered": tally.reordered,
            "gaps_reported": tally.gaps_reported,
            "messages": tally.messages,
            "deliveries": tally.deliveries,
            "moves": played.moves,
            "rebalancings": len(played.rebalanced_at),
            "server_hours": played.server_hours,
            "share_of_time_under_limit": share,
            "cpu_share": played.cpu_share(),
        },
        tables=[_table(played)],
        drawings=[_drawing(played)],
        paragraph=(
            "The paper (figure 7): servers are added as players join, released with some delay as they leave, and "
            f"added again. Here, with {SCALE:g} times the players: up to {high} servers at first, then {low}, then "
            f"{again}; {len(played.rebalanced_at)} rebalancings moved channels {played.moves} times. Of "
            f"{tally.deliveries:,} deliveries {tally.lost} were lost, {tally.duplicated} duplicated and "
            f"{tally.reordered} reordered. The response time was under {RESPONSE_LIMIT_MS:.0f} ms for {share:.0%} of "
            "the time."
        ),
        claims={
            "servers are added as players come": high > 1,
            "servers are removed as players leave": low < high,
            "servers are added again": again > low,
            "nothing is lost, doubled or out of order": played.is_whole,
        },
    )


def _table(played: GameRecord) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            f"{second.at_s:.0f}",
            str(second.players),
            str(second.servers),
            f"{second.response_ms:.0f} ms",
            f"{second.messages_out_per_s:,.0f}",
            f"{second.ratio_mean:.2f}",
            f"{second.ratio_max:.2f}",
        )
        for second in played.seconds[4::10]
    ]
    headings = ("second", "players", "servers", "response", "messages/s", "load ratio", "busiest")
    return Table("dynamoth-3 on real servers", headings, rows)


def _drawing(played: GameRecord) -> Drawing:
    at = played.column("at_s")
    marks = [("rebalancing", played.rebalanced_at)]
    return Drawing(
        "figure-7-real",
        [
            Panel(
                "Players and servers",
                "time (s)",
                "players",
                [
                    Line("players", at, played.column("players")),
                    Line("servers", at, played.column("servers"), steps=True, right=True),
                ],
                marks=marks,
                right_label="servers",
            ),
            Panel(
                "Response time and outgoing messages",
                "time (s)",
                "response time (ms)",
                [
                    Line("response time", at, played.column("response_ms")),
                    Line("messages", at, played.column("messages_out_per_s"), right=True, dashed=True),
                ],
                marks=marks,
                right_label="messages a second",
                level=RESPONSE_LIMIT_MS,
            ),
        ],
    )
