"""The tags that an agent gives to messages in place of their publishers: forwarded ones, and its own beacons.

Owns the prepared states of lanes on other servers (see `shoal.wire.lane_tag`). Without secrets messages have no tags.
"""

from __future__ import annotations

from typing import Final

from shoal.wire.envelope import FOREIGN, HEADER, client_of, is_envelope
from shoal.wire.identity import AgentSecret
from shoal.wire.lane_tag import LaneState, lane_state, tagged

LANES_MAX: Final = 10_000
"""States that are kept; when there are more, the cache starts over."""


class LaneTags:
    """Makes tags for any client and server, with the newest secret."""

    def __init__(self) -> None:
        self._secret: AgentSecret | None = None
        self._states: dict[tuple[int, str, bytes], LaneState] = {}

    def use(self, secret: AgentSecret | None) -> None:
        """Uses a secret from now on; None for no tags."""
        if secret is not self._secret:
            self._secret = secret
            self._states.clear()

    def tagged(self, server: str, channel: bytes, blob: bytes) -> bytes:
        """A message as it is published on a channel of a server."""
        if self._secret is None or not is_envelope(blob):
            return blob
        _, flags, _, stream, _, _ = HEADER.unpack_from(blob)
        if flags & FOREIGN:
            return blob
        key = client_of(stream), server, channel
        state = self._states.get(key)
        if state is None:
            if len(self._states) >= LANES_MAX:
                self._states.clear()
            state = self._states[key] = lane_state(self._secret.client(key[0]).lane(server, channel))
        return tagged(blob, state)
