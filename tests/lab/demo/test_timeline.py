"""The timeline: how many players there are when, how many gather, and the capacity of a server."""

from __future__ import annotations

import pytest

from shoal.config import environment_of, load
from shoal.lab.demo.game_map import NEIGHBOURS
from shoal.lab.demo.timeline import CROWD_SERVERS, OPTIONS, SETTINGS, TOWN_SERVERS, Timeline
from shoal.lab.rgame import UPDATES_PER_S


def test_the_crowd_grows_gathers_and_leaves() -> None:
    timeline = Timeline(60.0, 200)
    sizes = [timeline.crowd(second) for second in range(61)]
    assert sizes[0] == 20
    assert max(sizes) == 200
    height = sizes.index(200)
    assert sizes[: height + 1] == sorted(sizes[: height + 1])
    assert sizes[height:] == sorted(sizes[height:], reverse=True)
    assert sizes[-1] == 40
    town = [timeline.gathered(second) for second in range(61)]
    assert town[0] == town[-1] == 0
    assert sizes[town.index(max(town))] >= max(town)
    phases = list(dict.fromkeys(timeline.phase(second) for second in range(61)))
    assert phases == ["the crowd grows", "players gather in the town", "players leave", "few players are left"]


def test_a_short_demo_ends_before_players_leave() -> None:
    timeline = Timeline(20.0, 200)
    assert timeline.crowd(20.0) == timeline.crowd(100.0) == 200
    assert {timeline.phase(second) for second in range(20)} == {"the crowd grows", "players gather in the town"}


@pytest.mark.parametrize("seconds", [1.0, 20.0, 60.0, 600.0])
def test_a_server_is_killed_while_the_crowd_grows(seconds: float) -> None:
    timeline = Timeline(seconds, 100)
    assert 0 < timeline.kill_at_s < seconds
    assert timeline.phase(timeline.kill_at_s) == "the crowd grows"


@pytest.mark.parametrize("players", [1, 30, 200, 2000])
def test_a_crowd_of_any_size_fills_as_many_servers(players: int) -> None:
    timeline = Timeline(60.0, players)
    crowd_bytes_per_s = players * UPDATES_PER_S * NEIGHBOURS * timeline.delivery_bytes
    assert crowd_bytes_per_s / timeline.capacity_bytes_per_s == pytest.approx(CROWD_SERVERS)
    gathered = max(timeline.gathered(second) for second in range(60))
    assert 1 <= gathered <= players
    if players >= 30:
        town_bytes_per_s = gathered**2 * UPDATES_PER_S * timeline.delivery_bytes
        assert town_bytes_per_s / timeline.capacity_bytes_per_s == pytest.approx(TOWN_SERVERS, rel=0.15)


def test_balancers_get_the_settings_by_their_environment() -> None:
    settings = load(environ=environment_of(balance=SETTINGS, balancer=OPTIONS)).settings
    assert settings.balance == SETTINGS
    assert settings.balancer == OPTIONS
