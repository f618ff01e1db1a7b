"""A plan under way: which of its moves have ended, as far as two copies of the coordinator that are not of one moment
can tell."""

from __future__ import annotations

from collections.abc import Mapping

from tests.balance.balancing import ring_of

from shoal.balance.change import Units
from shoal.balance.channel_requests import ChannelRequests
from shoal.balance.effects import ProviderState, View
from shoal.balance.under_way import UNSEEN_S, UnderWay, request_id
from shoal.plan.entry import Entry, Phase
from shoal.plan.kinds import CHANNEL
from shoal.plan.move_request import MoveRequest
from shoal.plan.placement import Mode, Placement

OLD, NEW = Placement(1, Mode.SINGLE, ("s1",)), Placement(2, Mode.SINGLE, ("s2",))
TIMEOUT_S = 60.0
KINDS = {CHANNEL: ChannelRequests()}
T = 1000.0


def plan() -> tuple[UnderWay, MoveRequest]:
    under_way = UnderWay("d" * 64, T, KINDS)
    request = MoveRequest(b"c", ("s2",), Mode.SINGLE, False, request_id("d" * 64, 0))
    under_way.ask(CHANNEL, request, T)
    return under_way, request


def view(entry: Entry | None = None, request: MoveRequest | None = None) -> Mapping[str, Units]:
    seen = View(
        ring_of("s1", "s2"), {b"c": entry} if entry else {}, {b"c": request} if request else {}, {}, ProviderState(1, 9)
    )
    return seen.units


def moving(phase: Phase) -> Entry:
    return Entry(b"c", NEW, phase=phase, earlier=(OLD,), revision=3)


def test_a_move_that_has_begun_has_not_ended_though_its_request_is_not_seen_yet() -> None:
    under_way, _ = plan()
    assert under_way.look(view(moving(Phase.PREPARE)), T + 0.1, TIMEOUT_S) is None
    assert under_way.look(view(moving(Phase.NARROW)), T + 0.2, TIMEOUT_S) is None


def test_a_move_so_fast_that_its_request_is_never_seen_has_ended_with_its_entry() -> None:
    under_way, _ = plan()
    ended = under_way.look(view(Entry(b"c", NEW)), T + 0.1, TIMEOUT_S)
    assert ended is not None
    assert (ended.moved, ended.given_up, ended.late) == (1, 0, 0)


def test_a_request_that_was_seen_and_is_gone_has_ended_in_whatever_phase_the_rest_is() -> None:
    under_way, request = plan()
    assert under_way.look(view(moving(Phase.WIDEN), request), T + 0.1, TIMEOUT_S) is None
    ended = under_way.look(view(moving(Phase.NARROW)), T + 3.0, TIMEOUT_S)
    assert ended is not None
    assert ended.moved == 1


def test_a_request_that_is_never_seen_is_given_up_after_a_while() -> None:
    under_way, _ = plan()
    assert under_way.look(view(), T + UNSEEN_S / 2, TIMEOUT_S) is None
    ended = under_way.look(view(), T + UNSEEN_S, TIMEOUT_S)
    assert ended is not None
    assert (ended.moved, ended.given_up) == (0, 1)
