"""The balancer's core: servers that join, leave, die and become homes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.balance.balancer_scene import OPTIONS, Scene, moving, resting, single, wish
from tests.balance.tiny_policy import Wish

from shoal.balance import pool_keeper
from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.effects import (
    AddHosts,
    HurryMove,
    ProviderState,
    PutMark,
    RemoveServer,
    WriteMove,
)
from shoal.plan.keys import Mark
from shoal.plan.kinds import SERVER
from shoal.plan.move_request import MoveRequest
from shoal.plan.placement import Mode

__all__ = ["wish"]

BY_HAND = replace(OPTIONS, auto=False)


class TestServersComing:
    def test_no_more_servers_are_requested_than_servers_max(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        scene.provider = ProviderState(servers_min=1, servers_max=5)
        wish.add = 9
        scene.window()
        assert scene.took(AddHosts) == [AddHosts(SERVER, 3)]
        scene.core.added(SERVER, ["s3", "s4", "s5"], scene.now)
        scene.window()
        assert scene.took(AddHosts) == []

    def test_no_more_servers_are_requested_than_the_provider_has(self, wish: Wish) -> None:
        scene = Scene("s1")
        scene.provider = ProviderState(servers_min=1, servers_max=9, spare=1)
        wish.add = 3
        scene.window()
        assert scene.took(AddHosts) == [AddHosts(SERVER, 1)]
        assert wish.seen[-1].pool.servers_max == 2

    def test_a_joined_server_no_longer_counts_as_requested(self, wish: Wish) -> None:
        scene = Scene("s1")
        scene.core.added(SERVER, ["s2"], scene.now)
        scene.look()
        assert scene.state.adding == {"s2": scene.now - 0.25}
        scene.join("s2")
        scene.window()
        assert scene.state.adding == {}
        assert wish.seen[-1].hosts.joined_at.tolist() == [float("-inf"), scene.now]

    def test_a_server_that_does_not_join_is_given_up_and_may_be_requested_again(self, wish: Wish) -> None:
        scene = Scene("s1")
        scene.core.added(SERVER, ["s2"], scene.now)
        scene.look()
        scene.take_over()  # the next leader knows of it too
        scene.look(OPTIONS.join_timeout_s)
        assert scene.state.adding == {}
        assert scene.marks == {"s2": Mark.OUT}
        scene.provider = replace(scene.provider, servers=("s1", "s2"))
        scene.look()
        scene.look(pool_keeper.LEFT_S)
        assert scene.took(RemoveServer) == [RemoveServer("s2")]
        wish.add = 1
        scene.window()
        assert scene.took(AddHosts) == [AddHosts(SERVER, 1)]

    def test_after_a_refusal_the_next_request_waits(self, wish: Wish) -> None:
        scene = Scene("s1")
        scene.provider = ProviderState(servers_min=1, servers_max=2)
        wish.add = 1
        scene.window()
        scene.core.refused(SERVER, scene.now)
        scene.took(AddHosts)
        scene.window()
        assert scene.took(AddHosts) == []
        scene.windows(3)
        assert scene.took(AddHosts) == [AddHosts(SERVER, 1)]  # and not twice, although there is no answer yet
        assert wish.seen[-1].pool.adding == 1


class TestServersGoing:
    def drained(self, wish: Wish) -> Scene:
        """Three homes, of which s3 is to be drained; its channel `cold` has moved."""
        scene = Scene("s1", "s2", "s3")
        scene.load = {**scene.load, ("s3", b"cold"): {"publications": 1.0, "bytes_out": 1.0}}
        scene.entries[b"cold"] = resting(b"cold", "s3")
        wish.drain, wish.moves = ("s3",), {b"cold": single("s1")}
        scene.window()
        wish.drain, wish.moves = (), {}
        return scene

    def test_a_home_is_freed_then_drained_then_marked_out_then_removed(self, wish: Wish) -> None:
        scene = self.drained(wish)
        assert scene.marks == {"s3": Mark.FREEING}
        scene.windows(2)
        assert scene.marks == {"s3": Mark.FREEING}  # an entry names it
        scene.end_moves()
        scene.window()
        assert scene.marks == {"s3": Mark.FREEING}  # there are still publications
        scene.load = {("s3", b"cold"): {"publications": 0.0, "bytes_out": 0.0}}
        scene.window()
        assert scene.marks == {"s3": Mark.DRAIN}
        scene.windows(5)
        assert scene.marks == {"s3": Mark.DRAIN}  # it has a subscriber and is a home of the ring
        scene.load = {}
        scene.join()
        scene.windows(2)
        assert scene.marks == {"s3": Mark.DRAIN}  # empty, but not for long
        scene.window()
        assert scene.marks == {"s3": Mark.OUT}
        scene.provider = replace(scene.provider, servers=("s1", "s2", "s3"))
        scene.look()
        assert scene.took(RemoveServer) == []  # it is in the ring
        scene.drop("s3")
        scene.look()
        scene.look(pool_keeper.LEFT_S - 1)
        assert scene.took(RemoveServer) == []  # its clients have not all left it
        scene.look(1.0)
        assert scene.took(RemoveServer) == [RemoveServer("s3")]
        scene.core.removed("s3")
        del scene.marks["s3"]
        scene.provider = replace(scene.provider, servers=("s1", "s2"))
        scene.windows(2)
        assert scene.marks == {}  # it does not count as dead
        assert scene.state.removed == ("s3",)
        scene.take_over()
        scene.look()
        assert scene.marks == {}

    def test_every_step_can_be_taken_by_the_next_leader(self, wish: Wish) -> None:
        scene = self.drained(wish)
        scene.end_moves()
        scene.load = {}
        scene.take_over()
        scene.window()
        scene.join()
        assert scene.marks == {"s3": Mark.DRAIN}
        scene.take_over()
        scene.windows(4)
        assert scene.marks == {"s3": Mark.OUT}

    def test_an_incomplete_window_does_not_count_as_quiet(self, wish: Wish) -> None:
        scene = self.drained(wish)
        scene.end_moves()
        scene.load = {}
        for _ in range(6):
            scene.window(incomplete=["s3"])
        assert scene.marks == {"s3": Mark.FREEING}

    def test_a_move_that_has_not_ended_keeps_its_old_server(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", "s3")
        scene.load = {}
        scene.marks["s3"] = Mark.DRAIN
        scene.join()
        scene.entries[b"cold"] = moving(b"cold", "s3", "s1")
        scene.windows(8)
        assert scene.marks == {"s3": Mark.DRAIN}
        scene.entries[b"cold"] = resting(b"cold", "s1", version=9)
        scene.window()
        assert scene.marks == {"s3": Mark.OUT}

    def test_a_server_stays_until_its_records_are_archived(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", "s3")
        scene.load = {}
        scene.marks["s3"] = Mark.DRAIN
        scene.join()
        scene.recorded = {"s3"}
        scene.windows(8)
        assert scene.marks == {"s3": Mark.DRAIN}
        scene.recorded = set()
        scene.window()
        assert scene.marks == {"s3": Mark.OUT}

    @pytest.mark.parametrize("mark", [Mark.FREEING, Mark.DRAIN, Mark.LOST])
    def test_a_lazy_move_away_from_a_server_that_waits_for_it_is_hurried_once(self, wish: Wish, mark: Mark) -> None:
        scene = Scene("s1", "s2", "s3")
        scene.marks["s3"] = mark
        scene.join()
        lazy = moving(b"cold", "s3", "s1")
        scene.entries = {b"cold": lazy, b"other": moving(b"other", "s2", "s1"), b"rests": resting(b"rests", "s3")}
        scene.windows(2)
        (hurry,) = scene.took(HurryMove)
        assert hurry.request == MoveRequest(b"cold", ("s1",), Mode.SINGLE, True, hurry.request.id, goes_there=True)
        assert scene.whys == {}
        scene.entries[b"cold"] = replace(lazy, eager=True, revision=7)
        scene.requests.clear()
        scene.windows(2)
        assert scene.took(HurryMove) == []

    def test_moves_to_a_drained_server_and_requested_moves_are_not_hurried(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", "s3")
        scene.marks["s3"] = Mark.DRAIN
        scene.join()
        scene.entries = {b"there": moving(b"there", "s1", "s3"), b"asked": moving(b"asked", "s3", "s1")}
        scene.requests[b"asked"] = MoveRequest(b"asked", ("s2",), Mode.SINGLE, False, "by hand")
        scene.windows(2)
        assert scene.took(HurryMove) == []

    def test_a_guest_is_drained_at_once(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", "s3")
        scene.marks["s3"] = Mark.GUEST
        scene.join()
        wish.drain = ("s3",)
        scene.window()
        assert scene.marks == {"s3": Mark.DRAIN}

    def test_a_server_may_be_kept_after_all(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", "s3", "s4")
        scene.load = {("s3", b"a"): {"publications": 1.0}, ("s4", b"b"): {"publications": 1.0}}
        scene.marks = {"s3": Mark.FREEING, "s4": Mark.DRAIN}
        scene.join()
        wish.keep = ("s3", "s4")
        scene.window()
        assert scene.marks == {"s4": Mark.GUEST}

    def test_who_takes_over_finishes_a_removal_of_which_nobody_was_told(self, wish: Wish) -> None:
        scene = Scene("s1")
        scene.marks["s2"] = Mark.OUT
        scene.provider = replace(scene.provider, servers=("s1", "s2"))
        scene.look()
        scene.look(pool_keeper.LEFT_S)
        assert scene.took(RemoveServer) == [RemoveServer("s2")]
        scene.take_over()  # the provider did it after the leader died
        scene.provider = replace(scene.provider, servers=("s1",), knows_all=True)
        scene.look()
        assert scene.state.removed == ("s2",)
        scene.look(pool_keeper.FORGET_S)
        assert scene.marks == {}

    def test_a_server_in_reserve_keeps_its_mark(self, wish: Wish) -> None:
        scene = Scene("s1")
        scene.marks["s2"] = Mark.OUT
        scene.provider = replace(scene.provider, spare=1)
        scene.look()
        scene.look(2 * pool_keeper.FORGET_S)
        assert scene.marks == {"s2": Mark.OUT}

    def test_the_mark_of_a_server_that_is_gone_outlives_its_lease(self, wish: Wish) -> None:
        scene = Scene("s1")
        scene.marks["s2"] = Mark.OUT
        scene.provider = replace(scene.provider, servers=("s1", "s2"))
        scene.look()
        scene.core.removed("s2")
        scene.provider = replace(scene.provider, servers=("s1",))
        scene.look()
        scene.look(pool_keeper.FORGET_S - 1)
        assert scene.marks == {"s2": Mark.OUT}
        scene.look(1.0)
        assert scene.marks == {}

    def test_a_removal_that_failed_is_asked_for_again(self, wish: Wish) -> None:
        scene = Scene("s1")
        scene.marks["s2"] = Mark.OUT
        scene.provider = replace(scene.provider, servers=("s1", "s2"))
        scene.look()
        scene.look(pool_keeper.LEFT_S)
        scene.look(1.0)
        assert scene.took(RemoveServer) == [RemoveServer("s2")]
        scene.look(OPTIONS.retry_s)
        assert scene.took(RemoveServer) == [RemoveServer("s2")]


class TestDeaths:
    def test_a_dead_server_is_lost_until_no_entry_names_it_and_may_then_come_back(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", "s3")
        scene.entries = {
            b"alone": resting(b"alone", "s3"),
            b"shared": resting(b"shared", "s1", "s3", mode=Mode.ALL_SUBSCRIBERS),
            b"hot": resting(b"hot", "s1"),
        }
        scene.window()
        scene.took(WriteMove)
        scene.drop("s3")
        scene.look()
        assert scene.marks == {"s3": Mark.LOST}
        scene.window()
        moves = {move.request.unit: move for move in scene.took(WriteMove)}
        assert moves.keys() == {b"alone", b"shared"}
        assert moves[b"alone"].request.servers == (scene.ring.home(b"alone"),)
        assert (moves[b"shared"].request.mode, moves[b"shared"].request.servers) == (Mode.ALL_SUBSCRIBERS, ("s1",))
        assert {move.why.reason for move in moves.values()} == {"lost"}
        assert all(move.request.eager for move in moves.values())
        scene.look()
        assert scene.marks == {"s3": Mark.LOST}
        scene.end_moves()
        scene.look()
        assert scene.marks == {"s3": Mark.RETURNED}

    @pytest.mark.parametrize("options", [OPTIONS, BY_HAND])
    def test_a_server_that_came_back_is_a_home_again(self, options: BalancerOptions, wish: Wish) -> None:
        """Channels without an entry, new ones among them, are placed there again."""
        scene = Scene("s1", "s2", "s3", options=options)
        scene.load = {("s1", b"busy %d" % number): {"publications": 1.0, "bytes_out": 9.0} for number in range(90)}
        scene.window()
        scene.drop("s3")
        scene.windows(2)
        assert scene.marks == {"s3": Mark.RETURNED}
        scene.join("s3")
        assert scene.ring.guests == ("s3",)
        scene.windows(2)
        assert scene.marks == {}
        scene.join()
        assert {scene.ring.home(b"new %d" % number) for number in range(30)} == {"s1", "s2", "s3"}

    def test_a_server_stays_a_guest_while_its_share_of_the_ring_would_overload_it(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", "s3")
        scene.marks = {"s3": Mark.RETURNED}
        scene.join()
        scene.load = {("s1", b"busy %d" % number): {"publications": 1.0, "bytes_out": 30.0} for number in range(90)}
        scene.windows(2)
        assert scene.marks == {"s3": Mark.RETURNED}

    def test_a_death_before_this_balancer_led_is_noticed(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", "s3")
        scene.drop("s3")
        scene.look()
        assert scene.marks == {"s3": Mark.LOST}

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (Mark.GUEST, Mark.GUEST),
            (Mark.RETURNED, Mark.RETURNED),
            (Mark.FREEING, Mark.LOST),
            (Mark.DRAIN, Mark.OUT),
            (Mark.OUT, Mark.OUT),
        ],
    )
    def test_what_a_server_was_when_it_died(self, before: Mark, after: Mark, wish: Wish) -> None:
        scene = Scene("s1", "s2", "s3")
        scene.marks["s3"] = before
        scene.drop("s3")
        scene.entries[b"hot"] = resting(b"hot", "s3")
        scene.look()
        assert scene.marks == {"s3": after}


class TestHomes:
    def test_guests_become_homes_when_these_are_fewer_than_half(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        scene.marks = dict.fromkeys(("s3", "s4", "s5"), Mark.GUEST)
        scene.join("s3", "s4", "s5")
        scene.load = {}
        scene.window()
        assert [put.server for put in scene.took(PutMark)] == ["s3"]
        assert wish.seen == []  # the policy sees the resulting ring
        scene.join()
        scene.window()
        assert len(wish.seen) == 1

    def test_half_is_enough_and_who_is_drained_does_not_count(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        scene.marks = {"s3": Mark.GUEST, "s4": Mark.GUEST, "s5": Mark.DRAIN}
        scene.join("s3", "s4", "s5")
        scene.load = {("s5", b"x"): {"publications": 1.0}}
        scene.window()
        assert scene.took(PutMark) == []

    def test_nobody_is_promoted_while_that_would_move_load_without_a_plan(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        scene.marks = dict.fromkeys(("s3", "s4", "s5"), Mark.GUEST)
        scene.join("s3", "s4", "s5")
        scene.load = {("s1", b"busy %d" % number): {"publications": 1.0, "bytes_out": 9.0} for number in range(90)}
        scene.window()
        assert scene.took(PutMark) == []
        scene.entries.update({channel: resting(channel, "s1") for _, channel in scene.load})
        scene.window()
        assert [put.server for put in scene.took(PutMark)] == ["s3"]

    def test_without_auto_nobody_is_promoted(self, wish: Wish) -> None:
        scene = Scene("s1", options=BY_HAND)
        scene.marks = dict.fromkeys(("s3", "s4"), Mark.GUEST)
        scene.join("s3", "s4")
        scene.windows(2)
        assert scene.took(PutMark) == []
