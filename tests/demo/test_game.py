"""The world, and the walk through it."""

from __future__ import annotations

import struct
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.demo.game import SPEED_TILES_PER_S, Update, Walker, World, tiles_for


def test_a_tile_is_a_channel_and_the_edge_belongs_to_the_last_tile() -> None:
    world = World(3)
    assert world.channel(0.0, 2.9) == "tile.0.2"
    assert world.channel(3.0, 3.0) == "tile.2.2"


@given(seed=st.integers(), steps=st.lists(st.floats(0.0, 100.0), max_size=30))
def test_a_walker_stays_in_the_world_and_is_no_faster_than_the_fastest(seed: int, steps: list[float]) -> None:
    world = World(4)
    walker = Walker(world, Random(seed), 0.0)
    now = 0.0
    for step in steps:
        x, y = walker.x, walker.y
        now += step
        walker.move(now)
        assert 0.0 <= walker.x <= 4.0
        assert 0.0 <= walker.y <= 4.0
        distance = ((walker.x - x) ** 2 + (walker.y - y) ** 2) ** 0.5
        assert distance <= step * SPEED_TILES_PER_S[1] + 1e-9


def test_the_same_seed_walks_the_same_way_and_visits_many_tiles() -> None:
    walkers = [Walker(World(4), Random(7), 0.0) for _ in range(2)]
    seen = set()
    for second in range(600):
        for walker in walkers:
            walker.move(float(second))
        assert walkers[0].channel == walkers[1].channel
        seen.add(walkers[0].channel)
    assert len(seen) > 8


def test_an_update_survives_its_payload() -> None:
    update = Update(7, 3, 12.25, 11.75, 0.5, 1.5)
    assert Update.decode(update.encode()) == update
    with pytest.raises(struct.error):
        Update.decode(b"north")


def test_who_is_called_to_the_town_comes_soon_and_stays_until_it_is_let_go() -> None:
    world = World(6)
    town = world.channel(*world.town)
    walkers = [Walker(world, Random(seed), 0.0) for seed in range(20)]
    for walker in walkers:
        walker.call(True, 5.0)
    for second in range(5, 60):
        for walker in walkers:
            walker.call(True, float(second))
            walker.move(float(second))
        if second >= 20:
            assert {walker.channel for walker in walkers} == {town}
    for walker in walkers:
        walker.call(False, 60.0)
        walker.move(90.0)
    assert sum(walker.channel == town for walker in walkers) < 5


def test_the_world_grows_with_the_crowd() -> None:
    assert tiles_for(1) == 2
    assert tiles_for(200) == 6
    assert tiles_for(2000) > 15
