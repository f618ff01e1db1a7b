"""The plan under way: which of its moves have ended, and how.

Owns the wait for one plan at a time, for all kinds of units. A move has ended when the conductor has dropped its
request: the unit has moved, or the move was given up. Moves that have not ended after `move_timeout_s` are not awaited.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from shoal.balance.change import MoveAsked, Units

UNSEEN_S: Final = 2.0
"""How long a written request may be missing from the copy of the coordinator's state."""

DIGEST_CHARACTERS: Final = 16
"""Number of leading characters of the digest in the ids of a plan's requests."""


class Requests(Protocol):
    """The requests of one kind of unit; a part of `shoal.balance.change.Planner`."""

    @property
    def kind(self) -> str:
        """The kind of unit."""

    def is_at(self, entry: Any, request: Any) -> bool:
        """Whether an entry (None if there is none) places the unit as requested."""


class _Asked(msgspec.Struct):
    request: MoveAsked
    asked_at: float
    seen: bool


class Ended(msgspec.Struct, frozen=True):
    """How the moves of a plan ended. `late` moves have not ended."""

    moved: int
    given_up: int
    late: int


class PlanInProgress:
    """The moves of one plan."""

    def __init__(self, digest: str, began_at: float, kinds: Mapping[str, Requests]) -> None:
        self.digest = digest
        self.began_at = began_at
        self._kinds = kinds
        self._asked: dict[tuple[str, bytes], _Asked] = {}
        self._moved = 0
        self._given_up = 0

    @classmethod
    def taken_over(
        cls, digest: str, began_at: float, kinds: Mapping[str, Requests], units: Mapping[str, Units]
    ) -> PlanInProgress:
        """The plan of an earlier leader, with its remaining requests."""
        plan = cls(digest, began_at, kinds)
        prefix = digest[:DIGEST_CHARACTERS]
        for kind in kinds:
            for unit, request in units[kind].requests.items():
                if request.id.startswith(prefix):
                    plan._asked[kind, unit] = _Asked(request, began_at, True)
        return plan

    def ask(self, kind: str, request: MoveAsked, now_s: float) -> None:
        """Adds a request of this plan that is being written."""
        self._asked[kind, request.unit] = _Asked(request, now_s, False)

    @property
    def waiting(self) -> int:
        """Number of moves that have not ended."""
        return len(self._asked)

    def look(self, units: Mapping[str, Units], now_s: float, timeout_s: float) -> Ended | None:
        """Takes the state of the coordinator, by kind; returns how the moves ended once all have ended or the timeout
        is over."""
        for (kind, unit), asked in list(self._asked.items()):
            there = units[kind].requests.get(unit)
            if there is not None and there.id == asked.request.id:
                asked.seen = True
                continue
            entry: Any = units[kind].entries.get(unit)
            moved = self._kinds[kind].is_at(entry, asked.request)
            over = moved and not entry.is_moving
            if asked.seen or over or now_s - asked.asked_at >= UNSEEN_S:
                del self._asked[kind, unit]
                self._moved += moved
                self._given_up += not moved
        if self._asked and now_s - self.began_at < timeout_s:
            return None
        return Ended(self._moved, self._given_up, len(self._asked))


def request_id(digest: str, index: int) -> str:
    """The id of a plan's request, by which the next leader recognizes it."""
    return f"{digest[:DIGEST_CHARACTERS]}-{index}"
