"""The requests of channels' moves, for the plan under way. Which channels move is decided by a policy.

Owns how a change becomes a request, and when a channel is where a request wants it.
"""

from __future__ import annotations

from typing import Final

from shoal.balance.change import ChannelMove
from shoal.plan.entry import Entry
from shoal.plan.kinds import CHANNEL
from shoal.plan.move_request import MoveRequest

_TOLD_AT_ONCE: Final = ("drain", "lost", "merge")
"""Reasons for which clients are told of a move at once, and not with the next message: a server is to become empty."""


class ChannelRequests:
    """How channels are asked for (see `shoal.balance.change.Planner`)."""

    kind: Final = CHANNEL

    def request(self, move: ChannelMove, id: str) -> MoveRequest:
        """The request for a move."""
        place = move.after
        return MoveRequest(move.unit, place.servers, place.mode, move.reason in _TOLD_AT_ONCE, id)

    def is_at(self, entry: Entry | None, request: MoveRequest) -> bool:
        """Whether a channel's newest placement is the one that was asked for."""
        if entry is None:
            return False
        placement = entry.placement
        return placement.mode is request.mode and {*placement.servers} == {*request.servers}
