"""Messages that wait until their publisher has announced its position: how far its stream is confirmed.

Owns them until then. Such a message may be new, or an altered copy of one that was published before the agent began
to listen: the tag does not cover the payload, and the agent has not heard the true one. A publisher announces its
position:

- In a Present, which answers a Resync of this agent. The confirmations of all messages that the server received before
  the Resync reached the publisher before it. So messages above the number are new, and the agent has heard the true one
  of each first.
- In a Hello, when it has connected. Messages of an earlier connection may have reached the server without being
  confirmed, so messages above the number may be copies too. The publisher sends these again.

Messages of publishers that have died wait until the incarnation ends.
"""

from __future__ import annotations

from typing import Final

from shoal.channels.telemetry.lane_check import COPY, FRESH
from shoal.limits import MIB
from shoal.wire.envelope import HEADER

UNTOLD_MESSAGES_MAX: Final = 10_000
UNTOLD_BYTES_MAX: Final = 8 * MIB
"""Messages that wait. Further ones are neither recorded nor forwarded as they come; their publishers are asked."""

Key = tuple[bytes, int]
"""Channel and stream."""


class UntoldMessages:
    """The messages of one incarnation that wait for their publishers' positions."""

    def __init__(self) -> None:
        self._messages: dict[Key, list[bytes]] = {}
        self._dropped: dict[Key, int] = {}
        self._count = 0
        self._bytes = 0

    def add(self, channel: bytes, blob: bytes) -> None:
        """Keeps a message."""
        _, _, _, stream, sequence, _ = HEADER.unpack_from(blob)
        key = channel, stream
        if self._count < UNTOLD_MESSAGES_MAX and self._bytes + len(blob) <= UNTOLD_BYTES_MAX:
            self._messages.setdefault(key, []).append(blob)
            self._count += 1
            self._bytes += len(blob)
        elif len(self._dropped) < UNTOLD_MESSAGES_MAX:
            self._dropped[key] = max(sequence, self._dropped.get(key, 0))

    def take(self, channel: bytes, stream: int, last: int) -> list[tuple[bytes, int]]:
        """The messages of a stream that had come as far as `last`, each with its standing."""
        blobs = self._messages.pop((channel, stream), [])
        self._count -= len(blobs)
        found = []
        for blob in blobs:
            self._bytes -= len(blob)
            _, _, _, _, sequence, _ = HEADER.unpack_from(blob)
            found.append((blob, FRESH if sequence > last else COPY))
            last = max(last, sequence)
        return found

    def drop(self, channel: bytes, stream: int) -> None:
        """Forgets the messages of a stream, but not how far they reach."""
        for blob, _ in self.take(channel, stream, 0):
            _, _, _, _, sequence, _ = HEADER.unpack_from(blob)
            self._dropped[channel, stream] = max(sequence, self._dropped.get((channel, stream), 0))

    def take_dropped(self, channel: bytes, stream: int) -> int:
        """The highest number of a stream that was dropped, or for which there was no room; 0 if there is none."""
        return self._dropped.pop((channel, stream), 0)
