"""The streams that an agent knows: those heard in this incarnation, and those of earlier ones.

Owns the answer to "which streams are there on a channel or pattern, and how far have they come". The numbers of this
incarnation are in the scanner's tables; a stream of an earlier one is kept apart until it has been heard in this one.
"""

from __future__ import annotations

from typing import Final

from shoal.channels.telemetry.scanner import Scanner
from shoal.wire.envelope import client_of
from shoal.wire.glob import glob_match

Streams = dict[tuple[bytes, int], int]

INCARNATIONS_MAX: Final = 1000
"""Incarnations that an agent remembers. Clients that come back from an older one are told that something may be
missing."""


class StreamMemory:
    """The streams on one server. Those silent for `idle_s` have ended, and are not waited for."""

    def __init__(self, scanner: Scanner, idle_s: float) -> None:
        self._scanner = scanner
        self._idle_s = idle_s
        self._previous: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._incarnations: dict[int, None] = {}

    def begin_incarnation(self, ended: int, second: int) -> None:
        """A new incarnation begins; `ended` is the one before it, 0 if it is the first."""
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
        """Whether this process has heard everything since an incarnation; 0 is its first one."""
        return incarnation in self._incarnations if incarnation else bool(self._incarnations)

    def of(self, channel: bytes) -> dict[int, int]:
        """The streams of a channel. No client has the id 0, so streams with it are garbage and left out."""
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
        """The streams of earlier incarnations, without those that are current."""
        self._forget(second)
        return {
            key: last
            for key, (last, _) in self._previous.items()
            if key not in current and (glob_match(name, key[0]) if pattern else key[0] == name)
        }
