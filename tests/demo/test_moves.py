"""The demo's moves: which tile is asked to move when, and what is told of it."""

from __future__ import annotations

from shoal.demo.game import World
from shoal.demo.moves import TILES, TURNS, Plot
from shoal.demo.script import Kind
from shoal.plan.entry import Entry, Phase
from shoal.plan.moving import MoveRequest
from shoal.plan.placement import Mode, Placement, check_servers

SERVERS = ["s1", "s2", "s3"]
HOME = Placement(1, Mode.SINGLE, ("s3",))


class Told(list[str]):
    def __call__(self, now: float, kind: Kind, text: str) -> None:
        self.append(f"{kind} {text}")


def at_home(channel: bytes) -> Placement:
    return HOME


def a_plot(told: Told, channels: int = TILES) -> Plot:
    return Plot([f"t{number}" for number in range(channels)], 100.0, 0.0, told)


def entry(request: MoveRequest, phase: Phase, version: int = 5) -> dict[bytes, Entry]:
    placement = Placement(version, request.mode, request.servers)
    earlier = () if phase is Phase.END else (HOME,)
    publish = HOME.version if phase is Phase.WIDEN else 0
    return {request.channel: Entry(request.channel, placement, phase, earlier, publish)}


def test_every_turn_asks_for_a_placement_that_can_be_with_every_mode_among_them() -> None:
    plot = a_plot(Told())
    asked = plot.due(SERVERS, at_home, 100.0)
    for request in asked:
        check_servers(request.mode, request.servers)
        plot.has_asked(request, 100.0)
    assert len(asked) == len(TURNS)
    assert {request.mode for request in asked} == set(Mode)
    assert plot.due(SERVERS, at_home, 200.0) == []
    assert [share for share, _, _ in TURNS] == sorted(share for share, _, _ in TURNS)


def test_a_move_is_told_when_it_is_asked_for_and_when_publishers_and_subscribers_have_followed() -> None:
    told = Told()
    plot = a_plot(told)
    assert plot.due(SERVERS, at_home, 11.9) == []
    (request,) = plot.due(SERVERS, at_home, 12.0)
    plot.has_asked(request, 12.0)
    plot.look({}, [request.channel], 12.1)
    plot.look(entry(request, Phase.WIDEN), [request.channel], 12.2)
    assert (plot.asked, plot.ended, plot.under_way) == (1, 0, 1)
    plot.look(entry(request, Phase.NARROW), [request.channel], 12.5)
    plot.look(entry(request, Phase.END), [], 12.6)
    assert (plot.asked, plot.ended, plot.under_way) == (1, 1, 0)
    assert told == ["plan t0 is replicated on s1 and s2 (all_subscribers)", "good moved: t0 is on s1, s2, after 0.5 s"]


def test_a_move_whose_request_is_gone_without_it_was_given_up() -> None:
    told = Told()
    plot = a_plot(told)
    (request,) = plot.due(SERVERS, at_home, 12.0)
    plot.has_asked(request, 12.0)
    plot.look({request.channel: Entry(request.channel, HOME)}, [], 15.0)
    assert (plot.ended, plot.under_way) == (0, 0)
    assert told[-1] == "seen given up: t0 stays where it was"


def test_an_entry_of_before_that_looks_the_same_is_not_the_end_of_a_move() -> None:
    plot = a_plot(Told())
    (request,) = plot.due(SERVERS, at_home, 12.0)
    plot.look(entry(request, Phase.END), [], 12.0)
    plot.has_asked(request, 12.0)
    plot.look(entry(request, Phase.END), [request.channel], 12.1)
    assert plot.under_way == 1
    plot.look(entry(request, Phase.END), [], 12.2)
    assert (plot.ended, plot.under_way) == (1, 0)


def test_nothing_is_asked_to_move_where_it_is() -> None:
    for server in SERVERS:
        here = Placement(1, Mode.SINGLE, (server,))
        asked = a_plot(Told()).due(SERVERS, {f"t{tile}".encode(): here for tile in range(TILES)}.__getitem__, 100.0)
        assert len(asked) == len(TURNS)
        assert (Mode.SINGLE, (server,)) not in {(request.mode, request.servers) for request in asked}


def test_a_ring_of_one_server_and_a_small_world_have_fewer_moves() -> None:
    assert a_plot(Told()).due(["s1"], at_home, 100.0) == []
    assert {request.channel for request in a_plot(Told(), 1).due(SERVERS, at_home, 100.0)} == {b"t0"}


def test_the_busiest_tiles_are_in_the_middle() -> None:
    world = World(5)
    assert world.busiest[0] == "tile.2.2"
    assert sorted(world.busiest) == sorted(world.channels)
