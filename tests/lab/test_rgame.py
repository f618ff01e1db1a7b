"""The movement of players in RGame."""

from __future__ import annotations

import numpy as np

from shoal.lab.rgame import Meeting, Walk, Walkers

CORNER = Meeting(x=0.1, y=0.5, side=0.1, run_per_s=0.05)


def make(count: int, walk: Walk, seed: int = 1) -> Walkers:
    return Walkers(count, walk, np.random.default_rng(seed))


def in_corner(walkers: Walkers) -> list[bool]:
    low, high = np.array((CORNER.x, CORNER.y)), np.array((CORNER.x, CORNER.y)) + CORNER.side
    return [bool((low <= at).all() and (at <= high).all()) for at in walkers.at]


def test_players_walk_no_faster_than_their_speed_take_breaks_and_stay_on_the_map() -> None:
    walkers = make(500, Walk(speed_per_s=0.01, break_s=(2.0, 4.0)))
    first = walkers.at.copy()
    farthest, rested = 0.0, False
    for _ in range(100):
        before = walkers.at.copy()
        walkers.step(1.0)
        moved = np.hypot(*(walkers.at - before).T)
        assert moved.max() <= 0.01 + 1e-9
        rested = rested or bool((moved == 0).any())
        farthest = max(farthest, float(np.hypot(*(walkers.at - first).T).max()))
    assert rested
    assert farthest > 0.3
    assert walkers.at.min() >= 0
    assert walkers.at.max() < 1


def test_towns_attract_players() -> None:
    def largest(walk: Walk) -> float:
        return float(make(2000, walk, seed=3).players_per_tile(2000, 10).max())

    assert largest(Walk(towns=3, town_share=0.6)) > 2 * largest(Walk())


def test_the_players_of_all_tiles_are_the_players_that_are_counted() -> None:
    walkers = make(100, Walk())
    counts = walkers.players_per_tile(60, 4)
    assert counts.sum() == 60
    tiles = [walkers.tile(row, 4) for row in range(60)]
    assert [counts[x * 4 + y] for x, y in tiles] == [tiles.count(tile) for tile in tiles]


def test_gathered_players_run_to_the_meeting_and_stay_until_they_are_released() -> None:
    walk = Walk(speed_per_s=0.005)
    walkers = make(50, walk)
    walkers.gather(30, CORNER)
    for second in range(41):
        before = walkers.at.copy()
        walkers.step(1.0)
        moved = np.hypot(*(walkers.at - before).T)
        assert moved[30:].max() <= walk.speed_per_s + 1e-9
        assert moved[:30].max() <= (CORNER.run_per_s if second < 40 else walk.speed_per_s) + 1e-9
    assert in_corner(walkers)[:30] == [True] * 30
    walkers.gather(0, CORNER)
    for _ in range(60):
        walkers.step(1.0)
    assert sum(in_corner(walkers)[:30]) < 10


def test_a_meeting_that_does_not_change_changes_nothing() -> None:
    once, again = make(10, Walk()), make(10, Walk())
    once.gather(4, CORNER)
    for _ in range(20):
        again.gather(4, CORNER)
        for walkers in (once, again):
            walkers.step(1.0)
    assert once.at.tolist() == again.at.tolist()
