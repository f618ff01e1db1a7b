"""The balancer's core: when it decides, how it applies decisions and waits, and how the next leader continues."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.balance.balancer_scene import OPTIONS, TINY, Scene, resting, ring_of, single, window_of, wish
from tests.balance.tiny_policy import Wish

from shoal.balance import balancer
from shoal.balance.balancer import MISSING_WINDOWS_MAX
from shoal.balance.balancer_keys import Ask
from shoal.balance.decision import Reason
from shoal.balance.effects import (
    AddHosts,
    ProviderState,
    RecordDecision,
    RecordOutcome,
    WriteMove,
)
from shoal.balance.proposal import decode_proposal
from shoal.plan.keys import Mark
from shoal.plan.kinds import SERVER
from shoal.plan.move_request import MoveRequest
from shoal.plan.placement import Mode

__all__ = ["wish"]

BY_HAND = replace(OPTIONS, auto=False)


def proposed(scene: Scene) -> str:
    """The digest of a proposal requested now."""
    scene.asks["a"] = Ask("propose")
    scene.window()
    return scene.answers["a"].digest


def outcomes(scene: Scene) -> list[str]:
    return [effect.outcome.state for effect in scene.took(RecordOutcome)]


class TestAuto:
    def test_the_decision_is_recorded_and_applied(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        wish.moves, wish.add = {b"hot": single("s2")}, 1
        found = scene.window()
        kinds = [type(effect) for effect in found]
        assert kinds.index(RecordDecision) < kinds.index(WriteMove)
        (move,) = scene.took(WriteMove)
        assert (move.request.unit, move.request.servers, move.request.mode) == (b"hot", ("s2",), Mode.SINGLE)
        assert (move.why.reason, move.why.figures) == ("overload", {"bytes_out": 900.0})
        assert move.why.before.servers == (scene.ring.home(b"hot"),)
        assert scene.took(AddHosts) == [AddHosts(SERVER, 1)]
        assert scene.state.planned_at == scene.now
        assert move.why.digest == scene.state.digest

    def test_the_policy_is_asked_once_for_each_window(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        scene.window()
        scene.look()
        scene.look()
        assert len(wish.seen) == 1
        scene.window()
        assert len(wish.seen) == 2

    def test_a_decision_to_change_nothing_is_recorded_and_nothing_is_done(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        scene.window()
        (recorded,) = scene.took(RecordDecision)
        assert recorded.is_empty
        assert scene.effects == []

    def test_a_server_that_joined_after_a_window_began_does_not_delay_the_decision(self, wish: Wish) -> None:
        scene = Scene("s1")
        scene.window()
        scene.join("s2")
        scene.look(0.25, window_of(scene.window_at, ("s1",), scene.load))
        assert len(wish.seen) == 2
        assert wish.seen[-1].hosts.takes.tolist() == [True, True]
        assert wish.seen[-1].hosts.bytes_out[1] == 0.0

    def test_the_situation_has_marks_servers_and_history(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", "s3")
        scene.marks = {"s2": Mark.FREEING, "s3": Mark.GUEST}
        scene.load = {**scene.load, ("s2", b"warm"): {"publications": 1.0}}
        scene.provider = ProviderState(servers_min=2, servers_max=7, new_capacity=5.0)
        scene.core.added(SERVER, ["s4"], scene.now)
        wish.moves = {b"hot": single("s3")}
        scene.window()
        scene.end_moves()
        wish.moves = {}
        scene.window()
        seen = wish.seen[-1]
        assert seen.hosts.takes.tolist() == [True, False, True]
        assert (seen.pool.servers_min, seen.pool.servers_max, seen.pool.adding) == (2, 7, 1)
        assert seen.pool.new_capacity == 5.0
        assert seen.planned_at == seen.moved_at[0] == scene.state.planned_at
        assert seen.past_bytes_out.tolist() == [900.0, 900.0]

    def test_without_a_provider_the_number_of_servers_is_fixed(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        scene.provider = ProviderState(servers_min=1, servers_max=9, spare=0, is_fixed=True)
        scene.window()
        assert (wish.seen[-1].pool.servers_min, wish.seen[-1].pool.servers_max) == (2, 2)

    def test_a_decision_waits_for_a_member_without_telemetry_for_a_limited_time(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        for number in range(MISSING_WINDOWS_MAX):
            window = window_of(scene.window_at + 2 * number, ["s1"])
            scene.look(2.0, window)
        assert wish.seen == []
        scene.look(2.0, window_of(scene.window_at + 2 * MISSING_WINDOWS_MAX, ["s1"]))
        assert len(wish.seen) == 1

    def test_a_policy_that_fails_stops_nothing_else(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", "s3")
        scene.window()
        wish.fails = True
        scene.drop("s3")
        scene.window()
        assert scene.marks == {"s3": Mark.LOST}
        scene.windows(2)
        assert scene.marks == {"s3": Mark.RETURNED}
        scene.windows(2)
        assert outcomes(scene) == ["failed"]  # recorded once

    def test_clients_are_notified_immediately_when_a_server_must_become_empty(self, wish: Wish) -> None:
        for reason, eager in ((Reason.OVERLOAD, False), (Reason.DRAIN, True)):
            scene = Scene("s1", "s2")
            wish.moves, wish.reason = {b"hot": single("s2")}, reason
            scene.window()
            assert scene.took(WriteMove)[0].request.eager is eager


class TestOneAtATime:
    def test_the_next_decision_waits_for_the_moves_of_the_last(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        wish.moves = {b"hot": single("s2")}
        scene.window()
        scene.windows(3)
        assert len(wish.seen) == 1
        assert scene.core.waiting == 1
        scene.end_moves()
        wish.moves = {}
        scene.window()
        assert len(wish.seen) == 2
        ended = [effect.outcome for effect in scene.took(RecordOutcome) if effect.outcome.state == "ended"]
        assert [(outcome.facts["moved"], outcome.facts["late"]) for outcome in ended] == [(1, 0)]
        assert scene.state.digest == ""

    def test_a_move_that_was_given_up_has_ended(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        wish.moves = {b"hot": single("s2")}
        scene.window()
        scene.look()
        scene.end_moves(moved=False)
        scene.look()
        ended = scene.took(RecordOutcome)[-1].outcome
        assert (ended.state, ended.facts["moved"], ended.facts["given_up"]) == ("ended", 0, 1)

    def test_moves_are_not_awaited_after_the_timeout(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        wish.moves = {b"hot": single("s2")}
        scene.window()
        scene.look(OPTIONS.move_timeout_s - 1)
        assert scene.core.waiting == 1
        scene.look(1.0)
        ended = scene.took(RecordOutcome)[-1].outcome
        assert (ended.state, ended.facts["late"]) == ("ended", 1)

    def test_a_request_that_has_not_been_seen_yet_has_not_ended(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        wish.moves = {b"hot": single("s2")}
        scene.window()
        written = dict(scene.requests)
        scene.requests.clear()
        scene.look(0.1)
        assert scene.core.waiting == 1
        scene.requests = written
        scene.look(5.0)
        assert scene.core.waiting == 1

    def test_the_next_leader_waits_for_them_too(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        wish.moves = {b"hot": single("s2")}
        scene.window()
        scene.requests[b"other"] = MoveRequest(b"other", ("s1",), Mode.SINGLE, False, "by hand")
        scene.take_over()
        scene.windows(2)
        assert (len(wish.seen), scene.core.waiting) == (1, 1)
        del scene.requests[b"hot"]
        scene.entries[b"hot"] = resting(b"hot", "s2")
        wish.moves = {}
        scene.windows(2)
        assert scene.core.waiting == 0
        assert len(wish.seen) > 1
        assert wish.seen[-1].planned_at == scene.state.planned_at  # and knows when the plan was made
        assert wish.seen[-1].moved_at.tolist() == [scene.state.planned_at]


class TestAsked:
    def test_without_auto_nothing_is_done_without_a_request(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", options=BY_HAND)
        wish.moves = {b"hot": single("s2")}
        scene.windows(3)
        assert (wish.seen, scene.effects) == ([], [])

    def test_a_proposal_waits_for_the_first_window(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", options=BY_HAND)
        scene.asks["a"] = Ask("propose")
        scene.look()
        assert scene.answers == {}
        scene.window()
        assert scene.answers["a"].error == ""

    def test_what_was_proposed_is_applied_byte_for_byte(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", options=BY_HAND)
        wish.moves = {b"hot": single("s2")}
        digest = proposed(scene)
        assert scene.took(WriteMove) == []
        wish.moves = {}  # independent of the next decision
        scene.windows(2)
        scene.asks["b"] = Ask("apply", digest=digest)
        scene.look()
        assert (scene.answers["b"].error, scene.answers["b"].moves) == ("", 1)
        assert [move.request.servers for move in scene.took(WriteMove)] == [("s2",)]
        assert outcomes(scene) == ["applied"]

    def test_a_plan_that_has_changed_is_refused(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", options=BY_HAND)
        wish.moves = {b"hot": single("s2")}
        digest = proposed(scene)
        scene.entries[b"hot"] = resting(b"hot", "s1", version=9)
        scene.asks["b"] = Ask("apply", digest=digest)
        scene.look()
        assert "hot moved meanwhile" in scene.answers["b"].error
        assert scene.took(WriteMove) == []
        assert outcomes(scene) == ["refused"]

    def test_a_proposal_is_refused_while_a_plan_is_under_way(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", options=BY_HAND)
        wish.moves = {b"hot": single("s2")}
        digest = proposed(scene)
        for id in ("b", "c"):
            scene.asks[id] = Ask("apply", digest=digest)
            scene.look()
        assert scene.answers["b"].error == ""
        assert "still under way" in scene.answers["c"].error

    def test_a_proposal_is_applied_once_even_if_it_only_adds_servers(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", options=BY_HAND)
        wish.add = 1
        digest = proposed(scene)
        for id in ("b", "c"):
            scene.asks[id] = Ask("apply", digest=digest)
            scene.look()
            scene.look()
        assert scene.answers["b"].error == ""
        assert scene.answers["c"].error == "the plan has changed since: this proposal was applied already"
        assert [effect.count for effect in scene.took(AddHosts)] == [1]

    @pytest.mark.parametrize("digest", ["", "0" * 64])
    def test_an_unknown_digest_cannot_be_applied(self, digest: str, wish: Wish) -> None:
        scene = Scene("s1", "s2", options=BY_HAND)
        scene.asks["a"] = Ask("apply", digest=digest)
        scene.look()
        assert "there is no proposal" in scene.answers["a"].error

    def test_invalid_proposals_are_refused(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", options=BY_HAND)
        scene.proposals["d"] = b"garbage"
        scene.asks["a"] = Ask("apply", digest="d")
        scene.look()
        assert "not a proposal" in scene.answers["a"].error

    def test_another_policy_can_be_requested(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", options=replace(BY_HAND, policy="shoal"))
        scene.asks["a"] = Ask("propose", policy=TINY)
        scene.asks["b"] = Ask("propose", policy="unheard of")
        scene.window()
        assert decode_proposal(scene.answers["a"].proposal).policy == TINY
        assert "unknown policy 'unheard of'" in scene.answers["b"].error

    def test_a_failing_policy_is_reported_in_the_answer(self, wish: Wish) -> None:
        scene = Scene("s1", "s2", options=BY_HAND)
        wish.fails = True
        scene.asks["a"] = Ask("propose")
        scene.window()
        assert "no idea" in scene.answers["a"].error


def test_without_a_ring_nothing_happens(wish: Wish) -> None:
    scene = Scene("s1")
    view_ring, scene.ring = scene.ring, None  # type: ignore[assignment]
    assert scene.look(0.25, window_of(scene.window_at, view_ring.ids)) == []
    scene.ring = ring_of("s1")
    scene.window()
    assert len(wish.seen) == 1


def test_quiet_decisions_about_many_channels_are_recorded_less_often(
    wish: Wish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancer, "QUIET_CHANNELS_MAX", 0)
    scene = Scene("s1", "s2")
    scene.windows(10)
    assert len(wish.seen) == 10
    assert len(scene.took(RecordDecision)) == 1
    scene.look(balancer.QUIET_INTERVAL_S)
    scene.window()
    assert len(scene.took(RecordDecision)) == 1
    wish.moves = {b"hot": single("s2")}
    scene.window()
    assert len(scene.took(RecordDecision)) == 1  # decisions that change something are always recorded
