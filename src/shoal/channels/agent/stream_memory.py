"""The streams that an agent knows: those heard in this incarnation, and those of earlier ones.

Owns the answer to "which streams are there on a channel or pattern, how far have they come, and for how long have they
been quiet". The numbers of this incarnation are in the scanner's tables; a stream of an earlier one is kept apart until
it has been heard in this one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shoal.channels.telemetry.loop_image import match_names
from shoal.channels.telemetry.scanner import Scanner
from shoal.rules import ALL_RULES, Rules, rule
from shoal.wire import control
from shoal.wire.envelope import ENDED, client_of

EARLIER_STREAMS: Final = rule(
    "earlier_streams", "An agent lists the streams of its earlier incarnations to subscribers that come back."
)

TOLD_STREAMS: Final = rule(
    "told_streams", "An agent vouches for a stream only if its publisher has told how far it has come."
)

Streams = dict[tuple[bytes, int], tuple[int, float]]
"""Streams by channel and id, each with its last sequence number and the time by which it was last heard."""

FORGET_S: Final = 1.0
"""How often what is old is dropped, at most."""
INCARNATIONS_MAX: Final = 1000
"""Incarnations that an agent remembers. Clients that come back from an older one are told that something may be
missing."""
PREVIOUS_STREAMS_MAX: Final = 50_000
"""Streams of earlier incarnations that an agent remembers, those of channels with few streams first. For the other
channels Answers are incomplete, until the streams would have been forgotten."""
PREVIOUS_INCOMPLETE_MAX: Final = 10_000
"""Channels that are known to be incomplete in this way; with more, all channels are."""
MATCH_STEPS_MAX: Final = 20_000_000
"""Steps of matching one pattern with all channels, about 40 ms. If they do not suffice, the Answer is incomplete."""


class Known(NamedTuple):
    """The streams of a channel or pattern; `complete` is False if some are not known. `steps` counts the work. The
    publishers of `untold` streams have not announced their positions: the agent may have heard a repeated message."""

    streams: Streams
    complete: bool
    steps: int
    untold: frozenset[tuple[bytes, int]] = frozenset()


class StreamMemory:
    """The streams on one server. Those silent for `idle_s` have ended, and are not waited for."""

    def __init__(self, scanner: Scanner, idle_s: float, rules: Rules = ALL_RULES) -> None:
        self._scanner = scanner
        self._rules = rules
        self._idle_s = idle_s
        self._previous: dict[bytes, dict[int, tuple[int, float]]] = {}
        self._incomplete: dict[bytes, float] = {}
        self._all_incomplete: float | None = None
        self._forgot_at = float("-inf")
        self._incarnations: dict[int, None] = {}

    def begin_incarnation(self, ended: int, now: float, whole: bool) -> None:
        """A new incarnation begins; `ended` is the one before it, 0 if it is the first. `whole`: the agent knew every
        publisher when it ended. Otherwise an unknown one may have published after it."""
        if ended:
            if whole:
                self._incarnations[ended] = None
            if len(self._incarnations) > INCARNATIONS_MAX:
                del self._incarnations[next(iter(self._incarnations))]
            self._forget(now)
            if EARLIER_STREAMS in self._rules:
                self._remember(now)
            self._scanner.clear()

    def forget_all(self) -> None:
        """Forgets all streams, because their messages could not be checked. Their publishers name them again."""
        self._previous.clear()
        self._scanner.clear()

    def _remember(self, now: float) -> None:
        """Moves the streams of the scanner's tables to those of earlier incarnations."""
        heard, left_out = self._scanner.smallest_channels(PREVIOUS_STREAMS_MAX)
        room = PREVIOUS_STREAMS_MAX - sum(map(len, heard.values()))
        for channel, streams in self._previous.items():
            if len(streams) <= room:
                room -= len(streams)
                heard[channel] = streams | heard.get(channel, {})
            else:
                left_out.append(channel)
        self._previous = heard
        if self._scanner.refuses_channels or len(self._incomplete) + len(left_out) > PREVIOUS_INCOMPLETE_MAX:
            self._all_incomplete = now
        else:
            self._incomplete |= dict.fromkeys(left_out, now)

    def _forget(self, now: float) -> None:
        """Drops streams that are older than `idle_s`, at most once every `FORGET_S`."""
        if now < self._forgot_at + FORGET_S:
            return
        self._forgot_at = now
        oldest = now - self._idle_s
        for channel, streams in list(self._previous.items()):
            kept = {stream: seen for stream, seen in streams.items() if seen[1] >= oldest}
            if len(kept) < len(streams):
                self._previous[channel] = kept
                if not kept:
                    del self._previous[channel]
        self._incomplete = {channel: since for channel, since in self._incomplete.items() if since >= oldest}
        if self._all_incomplete is not None and self._all_incomplete < oldest:
            self._all_incomplete = None

    def remembers(self, incarnation: int) -> bool:
        """Whether this process has known every publisher since an incarnation; 0 is its first one."""
        return incarnation in self._incarnations if incarnation else bool(self._incarnations)

    def of(self, channel: bytes) -> dict[int, int]:
        """The streams of a channel. No client has the id 0, so streams with it are garbage and left out."""
        return {stream: last for stream, last in self._scanner.streams(channel).streams if client_of(stream)}

    def live(self, channel: bytes, now: float) -> list[tuple[int, int, float]]:
        """The streams of a channel that have not ended: id, last sequence number, and seconds of quiet at least."""
        heard = self.listed(self.current(channel, False).streams, now)
        return [(stream, last, quiet_s) for _, stream, last, quiet_s in heard if not last & ENDED]

    def current(self, name: bytes, pattern: bool, fresh: bool = False) -> Known:
        """The streams of a channel, or of channels that match a pattern, in this incarnation. To a `fresh` subscription
        nothing is owed yet of a channel that does not fit the tables."""
        channels, complete, steps = [name], True, 0
        if pattern:
            channels, steps, complete = self._scanner.matching(name, MATCH_STEPS_MAX)
            complete = complete and (fresh or not self._scanner.refuses_channels)
        streams: Streams = {}
        untold = set()
        for channel in channels:
            listing = self._scanner.streams(channel)
            complete = complete and (listing.complete or (fresh and not listing.known))
            for (stream, last), heard_by, told in zip(listing.streams, listing.heard_by, listing.told, strict=True):
                if client_of(stream):
                    streams[channel, stream] = last, heard_by
                    if not told and not last & ENDED and TOLD_STREAMS in self._rules:
                        untold.add((channel, stream))
        return Known(streams, complete, steps, frozenset(untold))

    def absent(self, name: bytes, pattern: bool, current: Known, now: float) -> Known:
        """The streams of earlier incarnations, without those that are current, and the untold ones."""
        self._forget(now)
        channels, complete, steps = [name], True, 0
        if pattern and self._previous:
            channels, steps, complete = matching(name, list(self._previous), MATCH_STEPS_MAX)
        if self._all_incomplete is not None or (self._incomplete and (pattern or name in self._incomplete)):
            complete = False
        streams = {
            (channel, stream): seen
            for channel in channels
            for stream, seen in self._previous.get(channel, {}).items()
            if client_of(stream) and ((channel, stream) not in current.streams or (channel, stream) in current.untold)
        }
        for key in sorted(current.untold):
            streams[key] = max(streams.get(key, current.streams[key]), current.streams[key])
        return Known(streams, complete, steps)

    @staticmethod
    def listed(streams: Streams, now: float) -> list[control.Heard]:
        """Streams as an Answer lists them, each with the seconds for which it has been quiet at least."""
        return [(channel, stream, last, max(now - by, 0.0)) for (channel, stream), (last, by) in streams.items()]


def matching(pattern: bytes, names: list[bytes], steps_max: int) -> tuple[list[bytes], int, bool]:
    """The names that a pattern matches, the number of steps, and whether all names were looked at."""
    offsets = np.zeros(len(names) + 1, np.int32)
    np.fromiter(map(len, names), np.int32, len(names)).cumsum(out=offsets[1:])
    blob = np.frombuffer(b"".join(names), np.uint8).copy()
    found, steps, whole = match_names(blob, offsets, pattern, steps_max)
    return [names[row] for row in found.nonzero()[0].tolist()], steps, whole
