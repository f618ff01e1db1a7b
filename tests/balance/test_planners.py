"""Planners of other kinds: their inputs, how their changes are applied, recorded and replayed.

The lamps of `tests.support.lamp_kind` stand on shelves that report beside the servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace
from tests.balance.balancer_scene import OPTIONS, SETTINGS, T, ring_of, wish
from tests.balance.tiny_policy import Wish
from tests.load.telemetry_samples import record as server_record
from tests.load.telemetry_samples import records_to_batch
from tests.support.lamp_kind import BOTH, LAMP, REGISTRY, SHELF, LampEntry, LampMove, LampRequest, shelf_record

from shoal.balance.balancer import Balancer
from shoal.balance.balancer_keys import Ask, BalancerState, decode, encode
from shoal.balance.change import HostsWanted, Units
from shoal.balance.decision_record import decode_record, encode_record, replay
from shoal.balance.effects import (
    AddHosts,
    BalancerView,
    Effect,
    ProviderState,
    PutState,
    RecordDecision,
    RecordOutcome,
    Reply,
    WriteUnitMove,
)
from shoal.balance.proposal import decode_proposal
from shoal.errors import PlanError
from shoal.load.fold import fold
from shoal.load.fold_state import FoldState
from shoal.load.window import LoadWindow
from shoal.load_kinds import REGISTRY as SHIPPED

__all__ = ["wish"]

DESK, FLOOR = b"desk lamp", b"floor lamp"
FULL: Mapping[str, Mapping[bytes, Any]] = {"x": {DESK: {"lit_s": 1.0}, FLOOR: {"lit_s": 0.5}}, "y": {}}
E = TypeVar("E")


class Lamps:
    """A balancer's core with one quiet server, and shelves whose fuses take 80 W."""

    def __init__(self) -> None:
        self.core = Balancer(SETTINGS, OPTIONS, REGISTRY)
        self.units = Units({DESK: LampEntry(DESK, "x", 4), FLOOR: LampEntry(FLOOR, "x", 7)}, {})
        self.asks: dict[str, Ask] = {}
        self.at = T

    def look(self, *windows: LoadWindow) -> list[Effect]:
        view = BalancerView(
            ring_of("s1"), {}, {}, {}, ProviderState(1, 9), dict(self.asks), others={LAMP.name: self.units}
        )
        return self.core.observe(windows, view, self.at + 0.5)

    def window(self, shelves: Mapping[str, Mapping[bytes, Any]]) -> list[Effect]:
        """Two seconds pass in which lamps were lit, and their window is closed."""
        made = [server_record("s1", second, {}) for second in (self.at, self.at + 1)]
        for shelf, lamps in shelves.items():
            watts = sum(60.0 * lamp["lit_s"] for lamp in lamps.values())
            made += [shelf_record(shelf, self.at + part, lamps, watts=watts, fuse_watts=80.0) for part in (0, 1)]
        batch = records_to_batch((each, self.at + 2.1) for each in made)
        (window,), _ = fold(FoldState(), batch, self.at + 9.0, SETTINGS, BOTH)
        self.at += 2
        return self.look(window)


def only(effects: list[Effect], kind: type[E]) -> E:
    (found,) = (effect for effect in effects if isinstance(effect, kind))
    return found


def test_a_planner_sees_the_load_and_its_moves_are_requested(wish: Wish) -> None:
    lamps = Lamps()
    effects = lamps.window(FULL)
    asked = only(effects, WriteUnitMove)
    assert (asked.kind, asked.request.unit, asked.request.shelf) == (LAMP.name, DESK, "y")
    proposal = decode_proposal(only(effects, RecordDecision).record.proposal)
    figures = {"watts": 90.0, "fuse_watts": 80.0, "lamp_watts": 60.0}
    assert proposal.others == (LampMove(DESK, 4, "y", "overload", figures),)
    assert only(effects, RecordOutcome).outcome.facts["moves"] == proposal.moves_count == lamps.core.waiting == 1


def test_the_next_leader_continues_a_plan(wish: Wish) -> None:
    lamps = Lamps()
    effects = lamps.window(FULL)
    request = only(effects, WriteUnitMove).request
    lamps.core = Balancer(SETTINGS, OPTIONS, REGISTRY, only(effects, PutState).state)
    lamps.units = Units({**lamps.units.entries, DESK: LampEntry(DESK, "y", 5, "carry", "x")}, {DESK: request})
    assert lamps.look() == []
    assert lamps.core.waiting == 1
    lamps.units = Units({**lamps.units.entries, DESK: LampEntry(DESK, "y", 7)}, {})
    ended = only(lamps.look(), RecordOutcome).outcome
    assert (ended.state, ended.facts["moved"], ended.facts["given_up"]) == ("ended", 1, 0)


def test_the_record_has_the_inputs_of_the_planner_and_replays_them(wish: Wish) -> None:
    lamps = Lamps()
    lamps.units = Units(lamps.units.entries, {FLOOR: LampRequest(FLOOR, "y", "by hand")})
    waits = only(lamps.window(FULL), RecordDecision)
    lamps.units = Units(lamps.units.entries, {})
    moves = only(lamps.window(FULL), RecordDecision)
    assert [waits.is_empty, moves.is_empty] == [True, False]
    for decided in (waits, moves):
        record = decode_record(encode_record(decided.record))
        assert replay(record, REGISTRY).encode() == record.proposal
    (given,) = [each for each in moves.record.planners if each.kind == LAMP.name]
    other = replace(moves.record, planners=(replace(given, entries=given.entries[1:]),))
    assert replay(other, REGISTRY).digest != other.digest
    broken = replace(moves.record, planners=(replace(given, entries=(b"?",)),))
    with pytest.raises(PlanError, match="entries of a record cannot be read"):
        replay(broken, REGISTRY)
    with pytest.raises(PlanError, match="no planner for lamp"):
        replay(moves.record, SHIPPED)


def test_hosts_wanted_by_a_planner_are_requested_until_they_report(wish: Wish) -> None:
    lamps = Lamps()
    crowded = {"x": FULL["x"]}
    wanted = only(lamps.window(crowded), AddHosts)
    assert wanted == AddHosts(SHELF.name, 1, "attic")
    asked = lamps.window(crowded)
    assert not any(isinstance(effect, AddHosts) for effect in asked)
    assert dict(only(asked, RecordDecision).record.planners[0].adding) == {SHELF.name: 1}
    lamps.core.added(SHELF.name, ["y"], lamps.at)
    begun = lamps.window(crowded)
    state = only(begun, PutState).state
    assert decode(encode(state), BalancerState).adding_hosts == {"y": (SHELF.name, lamps.at - 2)}
    assert not any(isinstance(effect, AddHosts) for effect in begun)
    there = lamps.window(FULL)
    assert only(there, PutState).state.adding_hosts == {}
    assert only(there, WriteUnitMove).request.shelf == "y"


def test_hosts_that_are_refused_or_never_report_are_requested_again(wish: Wish) -> None:
    lamps = Lamps()
    crowded = {"x": FULL["x"]}
    only(lamps.window(crowded), AddHosts)
    lamps.core.refused(SHELF.name, lamps.at + 0.5)
    effects = lamps.window(crowded)
    assert not any(isinstance(effect, AddHosts) for effect in effects)
    assert only(effects, RecordDecision).is_empty
    assert lamps.core.state.planned_at is None
    lamps.at += 2 * int(OPTIONS.retry_s)
    only(lamps.window(crowded), AddHosts)
    lamps.core.added(SHELF.name, ["y"], lamps.at)
    lamps.at += 2 * int(OPTIONS.join_timeout_s)
    assert only(lamps.window(crowded), AddHosts) == AddHosts(SHELF.name, 1, "attic")


def test_a_proposal_for_lamps_can_be_requested(wish: Wish) -> None:
    lamps = Lamps()
    lamps.window({"x": {}, "y": {}})
    lamps.asks["a"] = Ask("propose")
    answer = only(lamps.window(FULL), Reply).answer
    assert answer.moves == 1
    assert [move.unit for move in decode_proposal(answer.proposal).others] == [DESK]


def test_a_proposal_with_an_unknown_kind_or_impossible_hosts_is_refused(wish: Wish) -> None:
    lamps = Lamps()
    data = only(lamps.window(FULL), RecordDecision).record.proposal
    assert decode_proposal(data).encode() == data
    with pytest.raises(PlanError, match="not a proposal"):
        decode_proposal(data.replace(b"\xa6change\xa4lamp", b"\xa6change\xa4limp"))
    for wanted in (HostsWanted(SHELF.name, 0, "", "overload", {}), HostsWanted("server", 1, "", "overload", {})):
        with pytest.raises(PlanError, match="cannot be requested"):
            decode_proposal(replace(decode_proposal(data), changes=(wanted,)).encode())
