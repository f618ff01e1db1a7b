"""Which messages the scenario `moves` owes to plain subscribers, which messages of plain clients it owes to others, and
when they are no longer owed."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.lab.sim.checkers import Verdict
from shoal.lab.sim.history import Interval
from shoal.lab.sim.scenarios.channel_run_history import SubscriberRecord
from shoal.lab.sim.scenarios.moves import MovesRun
from shoal.lab.sim.scenarios.moves_checkers import BEFORE_TROUBLE_S, MovesCheck
from shoal.lab.sim.scenarios.plain import PlainSubscriber

TROUBLE_AT = 20.0
CHANNEL = "c.0"


def lost(*, lapses: bool, called_at: float, confirmed_at: float | None, first_fault_at: float | None = None) -> int:
    """The losses that the checker counts for a plain subscriber that never got the only message."""
    run = MovesRun(0)
    run.shape = dataclasses.replace(run.shape, lapses=lapses)
    run.network.node("plain")
    run.plain = [PlainSubscriber(run.network, "plain", CHANNEL, ("s1",))]
    run.plain[0].in_force_at = 1.0
    run.history.unwatched.append(Interval("s1 left the ring", TROUBLE_AT))
    run.faults.first_at = first_fault_at
    number = run.history.publish(CHANNEL, 1, 1, called_at)
    if confirmed_at is not None:
        run.history.confirmed(number, confirmed_at)
    verdict = Verdict()
    MovesCheck(run).judge(verdict)
    run.processes.close()
    return verdict.lost


@pytest.mark.parametrize("lapses", [False, True])
def test_messages_confirmed_long_before_a_fault_are_owed(lapses: bool) -> None:
    assert lost(lapses=lapses, called_at=2.0, confirmed_at=2.1) == 1


@pytest.mark.parametrize("confirmed_at", [None, TROUBLE_AT + 1.0])
def test_unconfirmed_messages_are_owed_if_no_lease_lapses(confirmed_at: float | None) -> None:
    """Without lapses nothing may delay a message for that long."""
    assert lost(lapses=False, called_at=2.0, confirmed_at=confirmed_at) == 1


@pytest.mark.parametrize("confirmed_at", [None, TROUBLE_AT - BEFORE_TROUBLE_S + 0.1, TROUBLE_AT + 1.0])
def test_messages_that_waited_for_a_lease_until_a_fault_are_not_owed(confirmed_at: float | None) -> None:
    assert lost(lapses=True, called_at=2.0, confirmed_at=confirmed_at) == 0


def test_messages_that_waited_until_faults_began_are_not_owed() -> None:
    """A burst on a congested link takes that long."""
    facts = {"called_at": 2.0, "first_fault_at": TROUBLE_AT}
    assert lost(lapses=False, confirmed_at=TROUBLE_AT + 1.0, **facts) == 0
    assert lost(lapses=False, confirmed_at=TROUBLE_AT - 1.0, **facts) == 1
    assert lost(lapses=False, confirmed_at=None, **facts) == 1


def test_messages_published_after_a_fault_are_not_owed() -> None:
    assert lost(lapses=False, called_at=TROUBLE_AT + 1.0, confirmed_at=TROUBLE_AT + 1.1) == 0


def foreign_lost(cut_off_at: float | None) -> int:
    """The losses that the checker counts for a subscriber that never got the only foreign message, published at 5.0."""
    run = MovesRun(0)
    run.history.unwatched = [Interval("s1", TROUBLE_AT)]
    run.history.subscribers = [SubscriberRecord(CHANNEL, False, 7, 1.0, in_force_at=2.0)]
    run.history.foreign_sent("s1", CHANNEL.encode(), 5.0)
    if cut_off_at is not None:
        run.cut_off_at[7] = cut_off_at
    verdict = Verdict()
    MovesCheck(run)._foreign(verdict)
    run.processes.close()
    return verdict.lost


def test_foreign_messages_are_owed_to_a_subscriber() -> None:
    assert foreign_lost(None) == 1


def test_foreign_messages_are_not_owed_to_a_subscriber_that_was_disconnected() -> None:
    """Redis drops the output buffer with the connection, and foreign messages in it have no numbers."""
    assert foreign_lost(6.0) == 0
    assert foreign_lost(TROUBLE_AT + 1.0) == 1, "it had enough time to arrive before"
