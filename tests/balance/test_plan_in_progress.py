"""A plan under way: which of its moves have ended, seen in copies of entries and requests of different moments."""

from __future__ import annotations

from collections.abc import Mapping

from tests.balance.balancer_scene import ring_of

from shoal.balance.change import Units
from shoal.balance.channel_requests import ChannelRequests
from shoal.balance.effects import BalancerView, ProviderState
from shoal.balance.plan_in_progress import UNSEEN_S, PlanInProgress, request_id
from shoal.plan.entry import Entry, Phase
from shoal.plan.kinds import CHANNEL
from shoal.plan.move_request import MoveRequest
from shoal.plan.placement import Mode, Placement

OLD, NEW = Placement(1, Mode.SINGLE, ("s1",)), Placement(2, Mode.SINGLE, ("s2",))
TIMEOUT_S = 60.0
KINDS = {CHANNEL: ChannelRequests()}
T = 1000.0


def plan() -> tuple[PlanInProgress, MoveRequest]:
    under_way = PlanInProgress("d" * 64, T, KINDS)
    request = MoveRequest(b"c", ("s2",), Mode.SINGLE, False, request_id("d" * 64, 0))
    under_way.ask(CHANNEL, request, T)
    return under_way, request


def view(entry: Entry | None = None, request: MoveRequest | None = None) -> Mapping[str, Units]:
    seen = BalancerView(
        ring_of("s1", "s2"), {b"c": entry} if entry else {}, {b"c": request} if request else {}, {}, ProviderState(1, 9)
    )
    return seen.units


def moving(phase: Phase) -> Entry:
    return Entry(b"c", NEW, phase=phase, earlier=(OLD,), revision=3)


def test_a_started_move_has_not_ended_although_its_request_is_not_visible_yet() -> None:
    under_way, _ = plan()
    assert under_way.look(view(moving(Phase.PREPARE)), T + 0.1, TIMEOUT_S) is None
    assert under_way.look(view(moving(Phase.NARROW)), T + 0.2, TIMEOUT_S) is None


def test_a_move_whose_request_was_never_visible_ends_with_its_entry() -> None:
    under_way, _ = plan()
    ended = under_way.look(view(Entry(b"c", NEW)), T + 0.1, TIMEOUT_S)
    assert ended is not None
    assert (ended.moved, ended.given_up, ended.late) == (1, 0, 0)


def test_a_dropped_request_has_ended_in_any_phase_of_its_entry() -> None:
    under_way, request = plan()
    assert under_way.look(view(moving(Phase.WIDEN), request), T + 0.1, TIMEOUT_S) is None
    ended = under_way.look(view(moving(Phase.NARROW)), T + 3.0, TIMEOUT_S)
    assert ended is not None
    assert ended.moved == 1


def test_a_request_that_never_becomes_visible_is_given_up() -> None:
    under_way, _ = plan()
    assert under_way.look(view(), T + UNSEEN_S / 2, TIMEOUT_S) is None
    ended = under_way.look(view(), T + UNSEEN_S, TIMEOUT_S)
    assert ended is not None
    assert (ended.moved, ended.given_up) == (0, 1)
