"""The verdict on a run: the clients that it supported, and the bound for any placement."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.flow.flows import SERVER

from shoal.flow import FlowSecond, FlowSimulator, Models, PoolModel, Series, distance_model
from shoal.flow.workloads import ramp
from shoal.lab.experiments.sim.rgame_load import RGame, RGameMap
from shoal.lab.experiments.sim.verdict import bound, is_too_much, supported

FINE = FlowSecond(
    clients=100,
    servers=2,
    response_ms=80.0,
    messages_out=1000.0,
    ratio_mean=0.5,
    ratio_max=0.6,
    utilisation_max=0.5,
    undelivered=0.0,
    decided=0,
    rebalanced=False,
)


@pytest.mark.parametrize(
    ("second", "too_much"),
    [
        (FINE, False),
        (replace(FINE, response_ms=149.9), False),
        (replace(FINE, response_ms=150.0), True),
        (replace(FINE, response_ms=float("inf")), True),
        (replace(FINE, ratio_max=1.15), False),
        (replace(FINE, ratio_max=1.16), True),
    ],
)
def test_the_rule(second: FlowSecond, too_much: bool) -> None:
    assert is_too_much(second, 1.15) == too_much


def test_clients_count_until_the_rule_is_broken_for_the_first_time() -> None:
    seconds = [replace(FINE, clients=count) for count in (10, 20, 30, 40)]
    assert supported(Series(seconds), 1.15) == 40
    seconds[2] = replace(seconds[2], response_ms=200.0)
    assert supported(Series(seconds), 1.15) == 20
    assert supported(Series([replace(FINE, ratio_max=2.0)]), 1.15) == 0


def test_the_bound_is_where_all_links_together_are_full() -> None:
    game = RGame(RGameMap(3), ramp(50, 400, each_s=5.0), distance_model(), seed=1)
    most = bound(game, SERVER, 4)
    seconds = [second for second in range(game.seconds) if game.players[second] <= most]
    full = 4 * SERVER.limit_bytes_per_s / game.game.message_bytes
    assert game.at(seconds[-1]).messages_out.sum() <= full < game.at(seconds[-1] + 1).messages_out.sum()


def test_no_placement_supports_more_than_the_bound() -> None:
    game = RGame(RGameMap(3), ramp(50, 400, each_s=5.0), distance_model(), seed=1)
    models = Models(server=SERVER, pool=PoolModel(servers_first=4, servers_max=4))
    assert 0 < supported(FlowSimulator(game, None, models=models).run(), 1.15) <= bound(game, SERVER, 4)
