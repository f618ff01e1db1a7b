"""The rules of the balancer that can be switched off, one by one, to prove that the checkers see it.

Owns their names and what each guards. Production always runs with every rule on; `shoal sim balancer --break NAME`
removes one (`shoal.channels.rules` has all that there are).
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec


class BalancerRules(Protocol):
    """One flag for each rule."""

    @property
    def drained(self) -> bool:
        """A server leaves when nobody has used it for a while, and nothing names it."""

    @property
    def one_at_a_time(self) -> bool:
        """A plan is made when the moves of the one before have ended."""

    @property
    def basis(self) -> bool:
        """A proposal is applied only to the plan that it was made from."""

    @property
    def once(self) -> bool:
        """A proposal is applied once, also if nothing but the number of servers tells that it was."""

    @property
    def settle(self) -> bool:
        """It is remembered when plans were made and channels placed, so that a policy leaves them alone for a while."""


class _AllRules(msgspec.Struct, frozen=True):
    drained: bool = True
    one_at_a_time: bool = True
    basis: bool = True
    once: bool = True
    settle: bool = True


ALL_RULES: Final[BalancerRules] = _AllRules()
