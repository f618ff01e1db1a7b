"""Pinned channels: policies cannot move them, their servers are not drained, and failover still works."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from tests.balance.balancer_scene import OPTIONS, SETTINGS, Scene, pinned, resting, single, wish
from tests.balance.tiny_policy import Wish

from shoal.balance.balancer import Balancer
from shoal.balance.balancer_keys import Ask, decode, encode, pin_channel, pin_key
from shoal.balance.balancer_keys import Pin as StoredPin
from shoal.balance.decision_record import record_situation, replay, restore_situation
from shoal.balance.effects import PutMark, RecordDecision, WriteMove
from shoal.balance.policies import POLICIES, policy
from shoal.balance.settings import BalanceSettings
from shoal.load_kinds import REGISTRY
from shoal.plan.keys import Mark
from shoal.rules import without

__all__ = ["wish"]


def test_a_pin_is_stored_under_a_key_of_its_channel() -> None:
    pin = pinned("s1")
    assert pin_channel(pin_key(b"tile \xff")) == b"tile \xff"
    assert pin_channel("balance/why/abc") is None
    assert decode(encode(pin), StoredPin) == pin


def test_a_policy_does_not_see_a_pinned_channel_but_its_load(wish: Wish) -> None:
    scene = Scene("s1", "s2")
    scene.entries[b"hot"] = resting(b"hot", "s1")
    scene.pins[b"hot"] = pinned("s1")
    wish.moves = {b"hot": single("s2")}
    scene.windows(31)  # more than a minute of a policy that wants to move it
    assert scene.took(WriteMove) == []
    seen = wish.seen[-1]
    assert b"hot" not in seen.channels.names.to_pylist()
    assert seen.residual()[0].tolist() == [900.0, 0.0]
    assert seen.hosts.pinned.tolist() == [True, False]


def test_a_released_channel_moves_again(wish: Wish) -> None:
    scene = Scene("s1", "s2")
    scene.pins[b"hot"] = pinned("s1")
    wish.moves = {b"hot": single("s2")}
    scene.window()
    assert scene.took(WriteMove) == []
    scene.pins.clear()
    scene.window()
    assert [move.request.unit for move in scene.took(WriteMove)] == [b"hot"]


def test_without_the_rule_it_moves(wish: Wish) -> None:
    scene = Scene("s1", "s2")
    scene.core = Balancer(SETTINGS, OPTIONS, REGISTRY, rules=without("pinned"))
    scene.pins[b"hot"] = pinned("s1")
    wish.moves = {b"hot": single("s2")}
    scene.window()
    assert [move.request.unit for move in scene.took(WriteMove)] == [b"hot"]


def test_when_its_server_dies_it_is_placed_anew_and_then_stays_there(wish: Wish) -> None:
    scene = Scene("s1", "s2", "s3")
    scene.entries[b"hot"] = resting(b"hot", "s3")
    scene.pins[b"hot"] = pinned("s3")
    scene.load = {("s3", b"hot"): {"publications": 10.0, "bytes_out": 900.0}}
    scene.window()
    scene.drop("s3")
    scene.load = {}
    scene.windows(2)
    (move,) = scene.took(WriteMove)
    assert (move.why.reason, move.request.servers) == ("lost", (scene.ring.home(b"hot"),))
    scene.end_moves()
    wish.moves = {b"hot": single(*({"s1", "s2"} - {*move.request.servers}))}
    scene.windows(3)
    assert scene.took(WriteMove) == []


def test_a_proposal_made_before_the_pin_is_refused(wish: Wish) -> None:
    scene = Scene("s1", "s2", options=replace(OPTIONS, auto=False))
    wish.moves = {b"hot": single("s2")}
    scene.asks["a"] = Ask("propose")
    scene.window()
    digest = scene.answers["a"].digest
    scene.pins[b"hot"] = pinned("s1")
    scene.asks["b"] = Ask("apply", digest=digest)
    scene.look()
    assert scene.answers["b"].error == "the plan has changed since: hot was pinned"


@pytest.mark.parametrize(("mark", "kept"), [(Mark.FREEING, None), (Mark.DRAIN, Mark.GUEST)])
def test_a_server_that_is_being_drained_is_kept_for_a_pinned_channel(mark: Mark, kept: Mark | None, wish: Wish) -> None:
    scene = Scene("s1", "s2")
    scene.marks["s2"] = mark
    scene.join()
    scene.entries[b"hot"] = resting(b"hot", "s2")
    scene.pins[b"hot"] = pinned("s2")
    scene.look()
    (put,) = scene.took(PutMark)
    assert (put.server, put.mark, put.why) == ("s2", kept, "it has a pinned channel")


@pytest.mark.parametrize("name", ["shoal", "dynamoth"])
def test_no_policy_drains_a_server_with_a_pinned_channel(name: str, wish: Wish) -> None:
    """Three idle servers, of which one is enough: all could go, if it were not for the pins."""
    scene = Scene("s1", "s2", "s3")
    scene.load = {}
    scene.entries = {b"a": resting(b"a", "s1"), b"b": resting(b"b", "s2"), b"c": resting(b"c", "s3")}
    settings = BalanceSettings()
    scene.window()
    assert len(policy(name)(wish.seen[-1], settings).drain)
    scene.pins = {channel: pinned(entry.placement.servers[0]) for channel, entry in scene.entries.items()}
    scene.window()
    assert not len(policy(name)(wish.seen[-1], settings).drain)


def test_a_decision_with_pins_can_be_replayed(wish: Wish) -> None:
    scene = Scene("s1", "s2")
    scene.pins[b"hot"] = pinned("s1")
    scene.window()
    (recorded,) = scene.took(RecordDecision)
    assert replay(recorded.record, REGISTRY).digest == recorded.record.digest
    again = restore_situation(recorded.record.situation)
    assert np.array_equal(again.hosts.pinned, wish.seen[-1].hosts.pinned)
    scene.pins.clear()
    scene.window()
    assert len(restore_situation(record_situation(wish.seen[-1])).hosts.pinned) == 0


def test_every_policy_decides_with_pins(wish: Wish) -> None:
    scene = Scene("s1", "s2")
    scene.pins[b"hot"] = pinned("s1")
    scene.window()
    for name in set(POLICIES) - {"tiny"}:
        assert b"hot" not in {wish.seen[-1].channels.name(row) for row in policy(name)(wish.seen[-1], SETTINGS).moves}
