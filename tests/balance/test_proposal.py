"""A proposal: a decision with names, the same bytes for the same decision, refused after the plan has changed."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from tests.balance import tiny_policy
from tests.balance.balancer_scene import SETTINGS, TINY, Scene, resting, single, wish
from tests.balance.tiny_policy import Wish

from shoal.balance.balancer_keys import Ask
from shoal.balance.decision import Decision, Reason
from shoal.balance.decision_record import decode_record, encode_record, replay, restore_situation
from shoal.balance.decision_record import proposal_of as recorded_proposal
from shoal.balance.effects import RecordDecision
from shoal.balance.lost_servers import with_lost
from shoal.balance.proposal import (
    Proposal,
    decode_proposal,
    expected_ratios,
    make_proposal,
    upgrade_proposal,
    why_stale,
)
from shoal.balance.situation import Situation
from shoal.errors import PlanError
from shoal.load_kinds import REGISTRY
from shoal.plan.placement import Mode

__all__ = ["wish"]


def proposal_of(situation: Situation, decision: Decision, revision: int = 0) -> Proposal:
    return make_proposal(
        situation, decision, policy=TINY, settings=SETTINGS, ring_version=1, revision_of=lambda channel: revision
    )


@pytest.fixture
def situation(wish: Wish) -> Situation:
    """Two servers of 1000 B/s; the channel `hot` sends 900 of them at s1."""
    scene = Scene("s1", "s2")
    scene.entries[b"hot"] = resting(b"hot", "s1", version=7)
    scene.window()
    (seen,) = wish.seen
    return seen


def decision_of(wish: Wish, situation: Situation) -> Decision:
    return tiny_policy.decide(situation, SETTINGS)


class TestNames:
    def test_a_move_has_old_and_new_placement_and_reason(self, wish: Wish, situation: Situation) -> None:
        wish.moves = {b"hot": (Mode.ALL_SUBSCRIBERS, ("s1", "s2"))}
        proposal = proposal_of(situation, decision_of(wish, situation), revision=7)
        (move,) = proposal.moves
        assert (move.unit, move.revision, move.reason) == (b"hot", 7, "overload")
        assert (move.before.mode, move.before.servers) == (Mode.SINGLE, ("s1",))
        assert (move.after.mode, move.after.servers) == (Mode.ALL_SUBSCRIBERS, ("s1", "s2"))
        assert move.figures == {"bytes_out": 900.0}  # unknown figures are left out
        assert proposal.window_end_s == situation.at_s

    def test_servers_to_add_to_drain_and_to_keep(self, wish: Wish, situation: Situation) -> None:
        wish.add, wish.drain, wish.keep = 2, ("s2",), ("s1",)
        proposal = proposal_of(situation, decision_of(wish, situation))
        assert [(change.what, change.server, change.count) for change in proposal.servers] == [
            ("add", "", 2),
            ("drain", "s2", 1),
            ("keep", "s1", 1),
        ]
        assert {change.reason for change in proposal.servers} == {"grow"}
        assert proposal.servers[0].figures == {"average_ratio": 0.5}

    def test_the_busiest_server_before_and_after(self, wish: Wish, situation: Situation) -> None:
        wish.moves = {b"hot": (Mode.ALL_SUBSCRIBERS, ("s1", "s2"))}
        before, after = expected_ratios(situation, decision_of(wish, situation))
        assert before == pytest.approx(0.9)
        assert after == pytest.approx(0.45)

    def test_a_decision_without_changes_is_empty(self, situation: Situation) -> None:
        assert proposal_of(situation, Decision.nothing()).is_empty


class TestBytes:
    def test_the_digest_is_that_of_the_bytes_and_they_decode_to_the_proposal(
        self, wish: Wish, situation: Situation
    ) -> None:
        wish.moves = {b"hot": single("s2")}
        proposal = proposal_of(situation, decision_of(wish, situation))
        data = proposal.encode()
        assert proposal.digest == hashlib.sha256(data).hexdigest()
        assert decode_proposal(data) == proposal
        assert decode_proposal(data).encode() == data

    def test_the_order_of_figures_makes_no_difference(self, wish: Wish, situation: Situation) -> None:
        wish.moves = {b"hot": single("s2")}
        proposal = proposal_of(situation, decision_of(wish, situation))
        (move,) = proposal.moves
        one, other = ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0})
        assert replace(proposal, changes=(replace(move, figures=one),)).digest == (
            replace(proposal, changes=(replace(move, figures=other),)).digest
        )

    @pytest.mark.parametrize("change", ["policy", "settings", "ring_version", "window_end_s", "max_ratio_after"])
    def test_every_field_changes_the_digest(self, change: str, situation: Situation) -> None:
        proposal = proposal_of(situation, Decision.nothing())
        value = getattr(proposal, change)
        assert replace(proposal, **{change: value + type(value)(1)}).digest != proposal.digest

    def test_garbage_is_refused(self, situation: Situation) -> None:
        data = proposal_of(situation, Decision.nothing()).encode()
        with pytest.raises(PlanError, match="not a proposal"):
            decode_proposal(data[:-1])
        with pytest.raises(PlanError, match="canonical"):
            decode_proposal(b"\xde\x00\x09" + data[1:])  # the same map with a longer head

    def test_an_invalid_placement_is_refused(self, wish: Wish, situation: Situation) -> None:
        wish.moves = {b"hot": single("s2")}
        proposal = proposal_of(situation, decision_of(wish, situation))
        (move,) = proposal.moves
        twice = replace(move, after=replace(move.after, servers=("s1", "s2")))
        with pytest.raises(PlanError, match="a single placement has one server"):
            decode_proposal(replace(proposal, changes=(twice,)).encode())


class TestBasis:
    def test_it_is_valid_while_ring_and_entries_are_unchanged(self, wish: Wish, situation: Situation) -> None:
        wish.moves = {b"hot": single("s2")}
        proposal = proposal_of(situation, decision_of(wish, situation), revision=7)
        assert why_stale(proposal, 1, lambda kind, channel: 7) is None
        assert "the ring was version 1, and is version 2" in (why_stale(proposal, 2, lambda kind, channel: 7) or "")
        assert "hot moved meanwhile" in (why_stale(proposal, 1, lambda kind, channel: 8) or "")
        lie = replace(proposal, basis="0" * 64)
        assert "digest of its plan is wrong" in (why_stale(lie, 1, lambda kind, channel: 7) or "")


class TestLost:
    def test_lost_channels_are_placed_where_they_are(self, situation: Situation) -> None:
        decision = with_lost(situation, Decision.nothing(), (b"hot", b"unheard of"))
        proposal = proposal_of(situation, decision)
        (move,) = proposal.moves
        assert (move.unit, move.reason, move.after) == (b"hot", Reason.LOST.value, move.before)

    def test_a_move_of_the_policy_takes_precedence(self, wish: Wish, situation: Situation) -> None:
        wish.moves = {b"hot": single("s2")}
        wanted = decision_of(wish, situation)
        assert with_lost(situation, wanted, (b"hot",)) is wanted

    def test_other_moves_stay_as_they_are(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        scene.load = {**scene.load, ("s2", b"other"): {"bytes_out": 10.0}}
        scene.entries = {name: resting(name, "s1") for name in (b"hot", b"other")}
        scene.window()
        wish.moves = {b"hot": (Mode.ALL_PUBLISHERS, ("s2", "s1"))}
        decision = with_lost(wish.seen[-1], decision_of(wish, wish.seen[-1]), (b"other",))
        proposal = proposal_of(wish.seen[-1], decision)
        assert [(move.unit, move.after.servers, move.reason) for move in proposal.moves] == [
            (b"hot", ("s2", "s1"), "overload"),
            (b"other", ("s1",), "lost"),
        ]
        assert [move.figures for move in proposal.moves] == [{"bytes_out": 900.0}, {}]


class TestRecord:
    def test_a_decision_is_replayed_from_its_record(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        scene.entries = {b"hot": resting(b"hot", "s1"), b"gone": resting(b"gone", "s9")}
        wish.moves = {b"hot": single("s2")}
        scene.window()
        (recorded,) = scene.took(RecordDecision)
        record = decode_record(encode_record(recorded.record))
        assert not recorded.is_empty
        assert [move.unit for move in decode_proposal(record.proposal).moves] == [b"hot", b"gone"]
        assert replay(record, REGISTRY).encode() == record.proposal
        wish.moves = {b"hot": (Mode.ALL_SUBSCRIBERS, ("s1", "s2"))}
        assert replay(record, REGISTRY).digest != record.digest

    def test_a_situation_is_restored_exactly(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        scene.windows(3)
        seen = wish.seen[-1]
        back = restore_situation(scene.took(RecordDecision)[-1].record.situation)
        for part in ("channels", "placements", "hosts"):
            one, other = getattr(seen, part), getattr(back, part)
            for name in one.__slots__:
                assert np.array_equal(np.asarray(getattr(one, name)), np.asarray(getattr(other, name))), name
        assert (back.at_s, back.planned_at, back.pool) == (seen.at_s, seen.planned_at, seen.pool)
        assert np.array_equal(back.past_bytes_out, seen.past_bytes_out)
        assert np.array_equal(back.moved_at, seen.moved_at)
        assert len(back.past_at) == 3

    @pytest.mark.parametrize("data", [b"", b"garbage", b"\x80"])
    def test_an_invalid_record_is_refused(self, data: bytes) -> None:
        with pytest.raises(PlanError, match="not a decision record"):
            decode_record(data)

    def test_another_version_is_refused(self, wish: Wish) -> None:
        scene = Scene("s1")
        scene.window()
        (recorded,) = scene.took(RecordDecision)
        for version, advice in ((99, "upgrade this process"), (1, "the Shoal that wrote it")):
            with pytest.raises(PlanError, match=f"version {version}; .*{advice}"):
                decode_record(encode_record(replace(recorded.record, version=version)))

    def test_version_2_is_shown_and_not_replayed(self, wish: Wish) -> None:
        scene = Scene("s1", "s2")
        wish.moves = {b"hot": single("s2")}
        scene.window()
        (recorded,) = scene.took(RecordDecision)
        new = ("planners",)
        fields = {name: getattr(recorded.record, name) for name in recorded.record.__struct_fields__ if name not in new}
        proposal = decode_proposal(recorded.record.proposal)
        fields["proposal"] = bytes_of_format_1(proposal)
        old = decode_record(msgspec.msgpack.encode({**fields, "version": 2}))
        assert (old.version, old.planners) == (2, ())
        assert recorded_proposal(old) == proposal
        with pytest.raises(PlanError, match="version 2 can be shown, not replayed"):
            replay(old, REGISTRY)


def test_a_requested_proposal_equals_the_stored_one(wish: Wish) -> None:
    scene = Scene("s1", "s2")
    scene.asks["a"] = Ask("propose")
    scene.window()
    answer = scene.answers["a"]
    assert scene.proposals[answer.digest] == answer.proposal


def bytes_of_format_1(proposal: Proposal) -> bytes:
    """The proposal as it was written before changes had kinds."""
    fields = msgspec.to_builtins(proposal, builtin_types=(bytes,))
    moves = [change for change in fields["changes"] if change.pop("change") == "channel"]
    for move in moves:
        move["channel"] = move.pop("unit")
    fields["servers"] = [change for change in fields["changes"] if "channel" not in change]
    del fields["format"], fields["changes"]
    return msgspec.msgpack.encode({**fields, "moves": moves})


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x80", msgspec.msgpack.encode({"moves": [1], "servers": []})])
def test_invalid_proposals_of_format_1_are_rejected(data: bytes) -> None:
    with pytest.raises(PlanError, match="not a proposal of format 1"):
        upgrade_proposal(data)
