"""The plan under way: which of its moves have ended, and how.

Owns the waiting for one plan at a time. A move has ended when the mover has dropped the request for it: the channel has
moved, or the move was given up. What is left after `move_timeout_s` is waited for no longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from shoal.balance.effects import View
from shoal.plan.entry import Entry, Phase
from shoal.plan.moving import MoveRequest

UNSEEN_S: Final = 2.0
"""How long a request that was written may be missing in what is seen of the coordinator."""

DIGEST_CHARACTERS: Final = 16
"""So much of a digest makes the ids of a plan's requests."""


class _Asked(msgspec.Struct):
    request: MoveRequest
    asked_at: float
    seen: bool


class Ended(msgspec.Struct, frozen=True):
    """How the moves of a plan ended. `late` ones are still on their way."""

    moved: int
    given_up: int
    late: int


class UnderWay:
    """The moves of one plan."""

    def __init__(self, digest: str, began_at: float) -> None:
        self.digest = digest
        self.began_at = began_at
        self._asked: dict[bytes, _Asked] = {}
        self._moved = 0
        self._given_up = 0

    @classmethod
    def taken_over(cls, digest: str, began_at: float, requests: Mapping[bytes, MoveRequest]) -> UnderWay:
        """The plan of a balancer before: its requests that still stand."""
        plan = cls(digest, began_at)
        prefix = digest[:DIGEST_CHARACTERS]
        for channel, request in requests.items():
            if request.id.startswith(prefix):
                plan._asked[channel] = _Asked(request, began_at, True)
        return plan

    def ask(self, request: MoveRequest, now_s: float) -> None:
        """A request of this plan is being written."""
        self._asked[request.unit] = _Asked(request, now_s, False)

    @property
    def waiting(self) -> int:
        """How many moves have not ended."""
        return len(self._asked)

    def look(self, view: View, now_s: float, timeout_s: float) -> Ended | None:
        """Takes what the coordinator holds now; says how it went when all moves have ended or the time is over."""
        for channel, asked in list(self._asked.items()):
            there = view.requests.get(channel)
            if there is not None and there.id == asked.request.id:
                asked.seen = True
                continue
            entry = view.entries.get(channel)
            moved = _is_at(entry, asked.request)
            over = moved and entry is not None and entry.phase is Phase.END
            if asked.seen or over or now_s - asked.asked_at >= UNSEEN_S:
                del self._asked[channel]
                self._moved += moved
                self._given_up += not moved
        if self._asked and now_s - self.began_at < timeout_s:
            return None
        return Ended(self._moved, self._given_up, len(self._asked))


def request_id(digest: str, index: int) -> str:
    """The id of a plan's request: a balancer that takes over knows them by it."""
    return f"{digest[:DIGEST_CHARACTERS]}-{index}"


def _is_at(entry: Entry | None, request: MoveRequest) -> bool:
    """Whether a channel's newest placement is what was asked for."""
    if entry is None:
        return False
    placement = entry.placement
    return placement.mode is request.mode and {*placement.servers} == {*request.servers}
