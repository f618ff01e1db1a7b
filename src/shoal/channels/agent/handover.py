"""Beacons that an agent publishes on other servers, with the last numbers of its streams.

Owns two kinds of beacons that an agent publishes in place of the publishers:

    handover       a channel leaves this server: the agents of the new servers learn the last number of each stream, so
                   that new subscribers there start at the right number. Done when the new servers have replied to it.
    announcement   this agent was away for a while: subscribers elsewhere that missed messages of that time see the
                   hole, and ask the publisher.

Neither says that anything is settled: an agent knows only its own server's part of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from shoal.channels.agent.forward_queues import ForwardMark, Forwards
from shoal.channels.agent.forward_targets import ForwardTargets
from shoal.channels.agent.moving_channel import DispatchHost, MovingChannel
from shoal.plan.entry import Entry, Phase
from shoal.wire.envelope import beacon

SendBeacon = Callable[[str, bytes, bytes], None]
"""Publishes a beacon on another server: server, channel, beacon."""


class Handovers:
    """Hands streams over, once for each newest placement."""

    def __init__(
        self, host: DispatchHost, moving: Mapping[bytes, MovingChannel], forwards: Forwards, send: SendBeacon
    ) -> None:
        self._host = host
        self._moving = moving
        self._forwards = forwards
        self._send = send
        self._waiting: dict[bytes, None] = {}
        self._under_way: dict[bytes, tuple[int, dict[str, ForwardMark]]] = {}

    @property
    def waiting(self) -> bool:
        """Whether a handover waits for clients that have not sent their Present."""
        return bool(self._waiting)

    def handed(self, entry: Entry) -> int:
        """The revision that a channel's handover covers; 0 if it is not complete."""
        return entry.newness if self._moving[entry.unit].handed == entry.placement.version else 0

    def follow(self, entry: Entry) -> None:
        """Begins a handover if the entry requires one."""
        channel, version = entry.unit, entry.placement.version
        if entry.phase not in (Phase.SWITCH, Phase.NARROW) or not self._is_left(entry):
            self._waiting.pop(channel, None)
            self._under_way.pop(channel, None)
        elif self._moving[channel].handed != version and self._under_way.get(channel, (0, {}))[0] != version:
            self._under_way.pop(channel, None)
            if self._host.complete:
                self._begin(channel)
            else:
                self._waiting[channel] = None

    def _is_left(self, entry: Entry) -> bool:
        return any(self._host.server in placement.servers for placement in entry.earlier)

    def forget(self, channel: bytes) -> None:
        """The channel has no entry any more."""
        self._waiting.pop(channel, None)
        self._under_way.pop(channel, None)

    @property
    def pending(self) -> bool:
        """Whether a handover waits or is under way."""
        return bool(self._waiting or self._under_way)

    def look(self) -> None:
        """Begins waiting handovers if all clients have sent their Present, and ends those that have arrived."""
        if self._waiting and self._host.complete:
            waiting, self._waiting = self._waiting, {}
            for channel in waiting:
                self._begin(channel)
        for channel, (version, marks) in list(self._under_way.items()):
            states = [self._arrived(server, mark) for server, mark in marks.items()]
            if None in states:
                self._begin(channel)
            elif all(states):
                del self._under_way[channel]
                self._moving[channel].handed = version
                self._host.counters.handovers += 1

    def _arrived(self, server: str, mark: ForwardMark) -> bool | None:
        return self._forwards.arrived(server, mark) if self._host.book.address(server) else True

    def _begin(self, channel: bytes) -> None:
        entry = self._host.book.entry(channel)
        if entry is None:
            return
        aims = [s for s in entry.placement.servers if s != self._host.server and self._host.book.address(s)]
        starts = {server: self._forwards.position(server) for server in aims}
        for stream, last, quiet_s in self._host.live_streams(channel):
            blob = beacon(entry.placement.version, stream, last, 0, quiet_s)
            for server in aims:
                self._send(server, channel, blob)
        marks = {server: ForwardMark(start, self._forwards.position(server)) for server, start in starts.items()}
        self._under_way[channel] = entry.placement.version, marks


ANNOUNCED_STREAMS_MAX: Final = 50_000
"""Streams that were named in a Present and may have to be announced."""


class Announcements:
    """Announces streams that were named in a Present and that the agent had not heard.

    The plan may come after the streams; servers that a later part of it adds are told then.
    """

    def __init__(self, host: DispatchHost, send: SendBeacon) -> None:
        self._host = host
        self._send = send
        self._told: dict[bytes, dict[int, set[str]]] = {}
        self._count = 0

    def clear(self) -> None:
        """A new incarnation begins, or the ring has changed: streams heard from now on need no announcement."""
        self._told.clear()
        self._count = 0

    def add(self, channel: bytes, stream: int) -> None:
        """A stream was named in a Present. One that does not fit is left to its publisher, which announces it too."""
        if self._count < ANNOUNCED_STREAMS_MAX:
            streams = self._told.setdefault(channel, {})
            if stream not in streams:
                streams[stream] = set()
                self._count += 1

    def drop(self, channel: bytes) -> None:
        """The channel has a newer entry: its streams have been heard since."""
        self._count -= len(self._told.pop(channel, ()))

    @property
    def channels(self) -> tuple[bytes, ...]:
        """The channels with such streams."""
        return tuple(self._told)

    def look(self, channel: bytes, targets: ForwardTargets) -> None:
        """Announces the streams of a channel to servers that may miss messages and have not been told yet."""
        untold = self._told.get(channel, {})
        if not untold or not targets.of_streams:
            return
        for stream, last, quiet_s in self._host.live_streams(channel):
            told = untold.get(stream)
            if told is None:
                continue
            blob = beacon(targets.publishing.version, stream, last, 0, quiet_s)
            for server in targets.of_streams:
                if server not in told:
                    self._send(server, channel, blob)
            told.update(targets.of_streams)
