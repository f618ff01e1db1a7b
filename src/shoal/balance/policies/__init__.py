"""Policies: pure functions from a situation and settings to a decision.

Owns the signature of a policy and the table of all policies by name. The same situation and settings always give the
same decision.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final, TypeAlias

from shoal.balance.decision import Decision
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation
from shoal.errors import ConfigError

Policy: TypeAlias = Callable[[Situation, BalanceSettings], Decision]

POLICIES: Final = {
    "shoal": "shoal.balance.policies.shoal",
    "dynamoth": "shoal.balance.policies.dynamoth",
    "consistent-hashing": "shoal.balance.policies.consistent_hashing",
    "bounded-load": "shoal.balance.policies.bounded_load",
    "slots": "shoal.balance.policies.slots",
}
"""Policy name to the module with its function `decide`."""


def policy(name: str) -> Policy:
    """Return the policy of that name."""
    if name not in POLICIES:
        raise ConfigError(f"unknown policy {name!r}", do=f"choose one of {', '.join(POLICIES)}")
    decide: Policy = importlib.import_module(POLICIES[name]).decide
    return decide
