"""The streams that an agent knows: those heard in this incarnation, and those of earlier ones.

Owns the answer to "which streams are there on a channel or pattern, how far have they come, and for how long have they
been quiet". The numbers of this incarnation are in the scanner's tables; a stream of an earlier one is kept apart until
it has been heard in this one.
"""

from __future__ import annotations

import math
from typing import Final

from shoal.channels.telemetry.scanner import Scanner
from shoal.wire import control
from shoal.wire.envelope import client_of
from shoal.wire.glob import glob_match

Streams = dict[tuple[bytes, int], tuple[int, int]]
"""Streams by channel and id, each with its last sequence number and the second in which it was last heard."""

ROUNDING_S: Final = 2
"""Both ends of a quiet time, and the offset between the clocks, are known to the second."""
INCARNATIONS_MAX: Final = 1000
"""Incarnations that an agent remembers. Clients that come back from an older one are told that something may be
missing."""


class StreamMemory:
    """The streams on one server. Those silent for `idle_s` have ended, and are not waited for."""

    def __init__(self, scanner: Scanner, idle_s: float) -> None:
        self._scanner = scanner
        self._idle_s = idle_s
        self._previous: Streams = {}
        self._incarnations: dict[int, None] = {}
        self._second = 0
        self._ahead_s = 0.0
        self._ahead_s_min = math.inf

    def tell_time(self, second: int, now: float) -> None:
        """Takes the second by the wall clock, and the time by the loop's clock, which is never set."""
        self._second = second
        self._ahead_s = second - now
        self._ahead_s_min = min(self._ahead_s_min, self._ahead_s)

    def begin_incarnation(self, ended: int) -> None:
        """A new incarnation begins; `ended` is the one before it, 0 if it is the first."""
        if ended:
            self._incarnations[ended] = None
            if len(self._incarnations) > INCARNATIONS_MAX:
                del self._incarnations[next(iter(self._incarnations))]
            self._forget()
            for channel in self._scanner.channels():
                streams, _ = self.current(channel, False)
                self._previous.update(streams)
            self._scanner.clear()

    def _forget(self) -> None:
        oldest = self._second - self._idle_s
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
            for (stream, last), second in zip(listing.streams, listing.seconds, strict=True):
                if client_of(stream):
                    streams[channel, stream] = last, second
        return streams, complete

    def absent(self, name: bytes, pattern: bool, current: Streams) -> Streams:
        """The streams of earlier incarnations, without those that are current."""
        self._forget()
        return {
            key: heard
            for key, heard in self._previous.items()
            if key not in current and (glob_match(name, key[0]) if pattern else key[0] == name)
        }

    def listed(self, streams: Streams) -> control.HeardList:
        """Streams as an Answer lists them, each with the seconds for which it has been quiet at least. Where the wall
        clock may have been set forward meanwhile, they are fewer."""
        now = self._second - ROUNDING_S - math.ceil(max(self._ahead_s - self._ahead_s_min, 0.0))
        return [(channel, stream, last, max(now - second, 0)) for (channel, stream), (last, second) in streams.items()]
