"""Warm-up: every policy decides to change something in the small situation."""

from __future__ import annotations

import pytest
from tests.balance.tiny_policy import decide

from shoal.balance.policies import POLICIES, policy
from shoal.balance.settings import BalanceSettings
from shoal.balance.warm_up import overloaded, warm_up


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_can_be_warmed_up(name: str) -> None:
    warm_up(name)
    assert not policy(name)(overloaded(), BalanceSettings()).is_empty


def test_the_situation_is_valid() -> None:
    situation = overloaded()
    assert decide(situation, BalanceSettings()).is_empty
    assert len(situation.channels) == len(situation.placements) == len(situation.moved_at)
    assert max(situation.hosts.bytes_out / situation.hosts.capacity) > 1.0
