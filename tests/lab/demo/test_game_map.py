"""The map: tiles are channels, players walk, and run to the town when they are sent there."""

from __future__ import annotations

import pytest

from shoal.lab.demo.game_map import STEP_S, GameMap, tiles_for


def channels(game_map: GameMap, players: int) -> list[str]:
    return [game_map.channel(player) for player in range(players)]


def test_a_player_is_on_the_channel_of_its_tile() -> None:
    game_map = GameMap(3, 50, (1, 0), 0.0)
    for player in range(50):
        x, y = game_map.position(player)
        assert 0.0 <= x <= 3.0
        assert 0.0 <= y <= 3.0
        assert game_map.channel(player) == f"tile.{int(x)}.{int(y)}"


def test_the_same_seed_leads_players_the_same_way_however_often_they_are_asked() -> None:
    rarely, often, other = (GameMap(4, 20, seed, 5.0) for seed in ((7, 0), (7, 0), (7, 1)))
    for second in range(6, 300):
        for tenth in range(10):
            often.advance(second - 1 + tenth / 10)
    for game_map in (rarely, often, other):
        game_map.advance(300.0)
    assert channels(rarely, 20) == channels(often, 20)
    assert channels(rarely, 20) != channels(other, 20)


def test_players_visit_many_tiles() -> None:
    game_map = GameMap(4, 1, (7, 0), 0.0)
    seen = set()
    for second in range(600):
        game_map.advance(float(second))
        seen.add(game_map.channel(0))
    assert len(seen) > 8


def test_time_passes_in_whole_steps() -> None:
    game_map = GameMap(4, 1, (1, 0), 0.0)
    before = game_map.position(0)
    game_map.advance(0.9 * STEP_S)
    assert game_map.position(0) == before
    game_map.advance(1.1 * STEP_S)
    assert game_map.position(0) != before


def test_players_sent_to_the_town_arrive_soon_and_stay_until_they_are_released() -> None:
    game_map, town = GameMap(6, 25, (3, 0), 0.0), "tile.0.3"
    game_map.advance(5.0)
    for second in range(5, 60):
        game_map.gather(20)
        game_map.advance(float(second))
        if second >= 20:
            assert set(channels(game_map, 20)) == {town}
    assert channels(game_map, 25)[20:] != [town] * 5
    game_map.gather(0)
    game_map.advance(90.0)
    assert channels(game_map, 20).count(town) < 5


@pytest.mark.parametrize(("players", "tiles"), [(1, 2), (200, 6), (2000, 18)])
def test_the_map_grows_with_the_crowd(players: int, tiles: int) -> None:
    assert tiles_for(players) == tiles
