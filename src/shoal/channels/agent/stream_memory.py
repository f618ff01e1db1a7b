"""What an agent knows of streams: those heard in this life, and those of the lives before.

Owns the answer to "which streams are there on a channel or pattern, and how far have they come". The numbers of this
life stand in the scanner's tables; a stream of a life before is kept apart until it has been heard in this one.
"""

from __future__ import annotations

from typing import Final

from shoal.channels.telemetry.scanner import Scanner
from shoal.wire.envelope import client_of
from shoal.wire.glob import glob_match

Streams = dict[tuple[bytes, int], int]

INCARNATIONS_MAX: Final = 1000
"""Lives that an agent remembers as its own. Who comes back from an older one is told that something may be missing."""


class StreamMemory:
    """The streams on one server. Those silent for `idle_s` have ended, and nobody waits for them."""

    def __init__(self, scanner: Scanner, idle_s: float) -> None:
        self._scanner = scanner
        self._idle_s = idle_s
        self._previous: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._incarnations: dict[int, None] = {}

    def begin_incarnation(self, ended: int, second: int) -> None:
        """Nothing has been heard yet in the life that begins; `ended` is the one before it, 0 if it is the first."""
        if ended:
            self._incarnations[ended] = None
            if len(self._incarnations) > INCARNATIONS_MAX:
                del self._incarnations[next(iter(self._incarnations))]
            self._forget(second)
            for channel in self._scanner.channels():
                for stream, last in self.of(channel).items():
                    self._previous[channel, stream] = last, second
            self._scanner.clear()

    def _forget(self, second: int) -> None:
        oldest = second - self._idle_s
        self._previous = {key: seen for key, seen in self._previous.items() if seen[1] >= oldest}

    def remembers(self, incarnation: int) -> bool:
        """Whether this agent has lived through all that happened since a life; 0 stands for the first that it had."""
        return incarnation in self._incarnations if incarnation else bool(self._incarnations)

    def of(self, channel: bytes) -> dict[int, int]:
        """The streams of a channel; nobody has the client id 0, so a stream with it is somebody's garbage."""
        return {stream: last for stream, last in self._scanner.streams(channel).streams if client_of(stream)}

    def current(self, name: bytes, pattern: bool) -> tuple[Streams, bool]:
        """The streams of a channel, or of channels that match a pattern, and whether the tables had room for all."""
        channels = [name]
        if pattern:
            channels = [channel for channel in self._scanner.channels() if glob_match(name, channel)]
        streams: Streams = {}
        complete = True
        for channel in channels:
            listing = self._scanner.streams(channel)
            complete = complete and listing.complete
            streams.update({(channel, stream): last for stream, last in listing.streams if client_of(stream)})
        return streams, complete

    def absent(self, name: bytes, pattern: bool, current: Streams, second: int) -> Streams:
        """The same of the lives before, without those that are current."""
        self._forget(second)
        return {
            key: last
            for key, (last, _) in self._previous.items()
            if key not in current and (glob_match(name, key[0]) if pattern else key[0] == name)
        }
