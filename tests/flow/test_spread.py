"""The clients of a replicated channel spread over its servers: random, and the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from tests.flow.flows import Steady

from shoal.balance.columns import ALL_PUBLISHERS, ALL_SUBSCRIBERS, SINGLE, Placements
from shoal.flow.spread import Spread, normal

PLACEMENTS = Placements.build([SINGLE, ALL_SUBSCRIBERS, ALL_PUBLISHERS], [(1,), (0, 2), (0, 1, 2)])


def test_the_shares_of_a_channel_sum_to_one() -> None:
    elements = Spread(PLACEMENTS, seed=1).at(Steady([1.0] * 3, [50] * 3, 1, publishers=50).at(0))
    assert np.bincount(elements.rows, elements.part) == pytest.approx([1.0, 1.0, 1.0])
    assert elements.servers.tolist() == [1, 0, 2, 0, 1, 2]


def test_publications_and_fan_out_depend_on_the_mode() -> None:
    elements = Spread(PLACEMENTS, seed=1).at(Steady([1.0] * 3, [50] * 3, 1, publishers=50).at(0))
    assert elements.receives[0] == elements.fans[0] == 1.0
    assert elements.receives[1:3] == pytest.approx(elements.part[1:3])
    assert elements.fans[1:3] == pytest.approx(1.0)
    assert elements.receives[3:] == pytest.approx(1.0)
    assert elements.fans[3:] == pytest.approx(elements.part[3:])


def test_shares_are_more_even_with_more_clients() -> None:
    spread = Spread(Placements.build([ALL_PUBLISHERS] * 200, [(0, 1)] * 200), seed=3)

    def off(clients: int) -> float:
        return float(np.std(spread.at(Steady([1.0] * 200, [clients] * 200, 1).at(0)).part))

    # As if each client had tossed a coin.
    assert off(100) == pytest.approx(0.5 / np.sqrt(100), rel=0.25)
    assert off(10_000) == pytest.approx(0.5 / np.sqrt(10_000), rel=0.25)


def test_a_server_that_replaces_another_has_its_share() -> None:
    traffic = Steady([1.0], [50], 1, publishers=50).at(0)
    before = Spread(Placements.build([ALL_SUBSCRIBERS], [(0, 2, 1)]), seed=1).at(traffic)
    after = Spread(Placements.build([ALL_SUBSCRIBERS], [(0, 3, 1)]), seed=1).at(traffic)
    assert after.part.tolist() == before.part.tolist()


def test_a_deviation_depends_on_nothing_but_its_seed_row_and_position() -> None:
    rows, turns = np.arange(1000), np.zeros(1000, np.int64)
    everyone = normal(5, rows, turns)
    assert normal(5, rows[10:20], turns[10:20]).tolist() == everyone[10:20].tolist()
    assert normal(6, rows, turns).tolist() != everyone.tolist()
    assert float(everyone.mean()) == pytest.approx(0.0, abs=0.1)
    assert float(everyone.std()) == pytest.approx(1.0, abs=0.1)
