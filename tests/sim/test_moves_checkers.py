"""What the scenario `moves` owes to plain subscribers, and from when on it owes them nothing any more."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.sim.checkers import Verdict
from shoal.sim.history import Interval
from shoal.sim.moves import MovesRun
from shoal.sim.moves_checkers import BEFORE_TROUBLE_S, MovesCheck
from shoal.sim.plain import PlainSubscriber

TROUBLE_AT = 20.0
CHANNEL = "c.0"


def lost(*, lapses: bool, called_at: float, confirmed_at: float | None) -> int:
    """How many messages a plain subscriber misses by the checker, that never heard the only one there was."""
    run = MovesRun(0)
    run.shape = dataclasses.replace(run.shape, lapses=lapses)
    run.network.node("plain")
    run.plain = [PlainSubscriber(run.network, "plain", CHANNEL, ("s1",))]
    run.plain[0].in_force_at = 1.0
    run.history.unwatched.append(Interval("s1 left the ring", TROUBLE_AT))
    number = run.history.publish(CHANNEL, 1, 1, called_at)
    if confirmed_at is not None:
        run.history.confirmed(number, confirmed_at)
    verdict = Verdict()
    MovesCheck(run).judge(verdict)
    return verdict.lost


@pytest.mark.parametrize("lapses", [False, True])
def test_what_was_confirmed_long_before_trouble_is_owed(lapses: bool) -> None:
    assert lost(lapses=lapses, called_at=2.0, confirmed_at=2.1) == 1


@pytest.mark.parametrize("confirmed_at", [None, TROUBLE_AT + 1.0])
def test_what_waits_is_owed_where_no_lease_lapses(confirmed_at: float | None) -> None:
    """Nothing may hold it up for so long."""
    assert lost(lapses=False, called_at=2.0, confirmed_at=confirmed_at) == 1


@pytest.mark.parametrize("confirmed_at", [None, TROUBLE_AT - BEFORE_TROUBLE_S + 0.1, TROUBLE_AT + 1.0])
def test_what_waited_for_a_lease_until_there_was_trouble_is_not_owed(confirmed_at: float | None) -> None:
    assert lost(lapses=True, called_at=2.0, confirmed_at=confirmed_at) == 0


def test_what_was_published_in_trouble_is_not_owed() -> None:
    assert lost(lapses=False, called_at=TROUBLE_AT + 1.0, confirmed_at=TROUBLE_AT + 1.1) == 0
