"""Requests to move channels, for the plan under way. A policy decides which channels move.

Owns how a change becomes a request, and when a request is fulfilled.
"""

from __future__ import annotations

from typing import Final

from shoal.balance.change import ChannelMove
from shoal.plan.entry import Entry
from shoal.plan.kinds import CHANNEL
from shoal.plan.move_request import MoveRequest

_EAGER: Final = ("drain", "lost", "merge")
"""Reasons for which clients are notified immediately and not with the next message: a server must become empty."""


class ChannelRequests:
    """Makes and checks requests for channels (see `shoal.balance.change.Planner`)."""

    kind: Final = CHANNEL

    def request(self, move: ChannelMove, id: str) -> MoveRequest:
        """The request for a move."""
        place = move.after
        return MoveRequest(move.unit, place.servers, place.mode, move.reason in _EAGER, id)

    def is_at(self, entry: Entry | None, request: MoveRequest) -> bool:
        """Whether a channel's newest placement is the requested one."""
        if entry is None:
            return False
        placement = entry.placement
        return placement.mode is request.mode and {*placement.servers} == {*request.servers}
