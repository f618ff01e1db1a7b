"""The dispatcher: forwards messages and sends notices for channels that move, and for clients with an outdated plan.

Owns the order in which its parts are called. A core without I/O beside `AgentCore`, whose connection it shares.

    message on a watched channel -> forward targets -> other servers (`forward_queues`), notices (`notices`)
    entry or ring                -> forward targets, notices, handover (`handover`), counts for the conductor (`report`)

A channel that belongs here and does not move is not watched: its messages are only counted. Whether a channel is
watched is decided with its first message, and again with the first one after its entry or the ring has changed.
"""

from __future__ import annotations

from typing import Final

from shoal.channels.agent.forward_queues import Forwards
from shoal.channels.agent.forward_targets import ForwardTargets, Servers
from shoal.channels.agent.handover import Announcements, Handovers
from shoal.channels.agent.moving_channel import DispatchHost, MovingChannel
from shoal.channels.agent.notices import Notices
from shoal.channels.agent.report import Reporting
from shoal.channels.states import ANNOUNCE
from shoal.channels.telemetry.lane_check import FALSE, FRESH
from shoal.plan.entry import Phase
from shoal.plan.move_request import MoveReport
from shoal.rules import Rules, rule
from shoal.wire.envelope import (
    BEACON,
    FORWARDED,
    HEADER,
    RESERVED_PREFIX,
    beacon,
    client_of,
    forwarded,
    is_envelope,
)

FORWARD_AUTHENTIC: Final = rule(
    "forward_authentic", "An agent forwards authentic messages only, and the numbers of a stream in growing order."
)
MARK_FORWARDED: Final = rule("mark_forwarded", "Forwarded messages are marked, and are not forwarded again.")


TARGETS_MAX: Final = 100_000
"""Channels whose forward targets are cached; when there are more, the cache starts over."""


class Dispatcher:
    """The dispatcher of one agent."""

    def __init__(self, host: DispatchHost, rules: Rules) -> None:
        self._host = host
        self._rules = rules
        self._targets: dict[bytes, ForwardTargets] = {}
        self._members: set[str] = set()
        self._moving: dict[bytes, MovingChannel] = {}
        self.forwards = Forwards(host.limits.forward_buffer_bytes_max)
        self._notices = Notices(host, self._moving)
        self._handovers = Handovers(host, self._moving, self.forwards, self._send_beacon)
        self._announcements = Announcements(host, self._send_beacon)
        self._reporting = Reporting(host, self._moving, self._notices, self._handovers, self.targets)
        host.scanner.watch_new(metered=True)

    @property
    def moving(self) -> int:
        """The number of moving channels that concern this server."""
        return self._reporting.moving

    @property
    def wants_all_present(self) -> bool:
        """Whether anything waits for clients that have not answered the resync."""
        return self._handovers.waiting

    def targets(self, channel: bytes) -> ForwardTargets | None:
        """The forward targets of a channel; None before there is a ring."""
        targets = self._targets.get(channel)
        if targets is None and self._host.book.ring is not None:
            targets = ForwardTargets(self._host.book, channel, self._host.server, self._rules)
            if targets.watched or self._host.recorder.marked(channel):
                if len(self._targets) >= TARGETS_MAX:
                    self._targets.clear()
                self._targets[channel] = targets
        return targets

    # The plan

    def entry_changed(self, channel: bytes, now: float) -> None:
        """The channel has a newer entry, or none any more."""
        self._targets.pop(channel, None)
        self._host.scanner.watch(channel, True)
        entry = self._host.book.entry(channel)
        if entry is None:
            self._moving.pop(channel, None)
            self._handovers.forget(channel)
            self._reporting.follow(channel, None, now)
            return
        moving = self._moving.get(channel)
        if moving is None:
            moving = self._moving[channel] = MovingChannel()
        else:
            self._announcements.drop(channel)
        moving.follow(entry)
        self._follow(channel, now)

    def ring_changed(self, first: bool, now: float) -> None:
        """The ring has other members, so every channel may belong elsewhere. `first`: there was no ring before."""
        ring = self._host.book.ring
        assert ring is not None
        self._targets.clear()
        self._host.scanner.watch_all()
        self.forwards.keep(ring.ids)
        changed = self._members ^ {*ring.ids}
        self._members = {*ring.ids}
        for channel, entry in self._host.book.entries.items():
            if entry.phase is not Phase.END:
                self._follow(channel, now)
            if not first and not changed.isdisjoint(entry.servers):
                self._announce_heard(channel)
        if not first:
            self._announcements.clear()
        for channel in self._announcements.channels:
            self._announce(channel)

    def _follow(self, channel: bytes, now: float) -> None:
        """Starts what an entry requires at once, without waiting for a message."""
        entry = self._host.book.entry(channel)
        targets = self.targets(channel)
        if entry is None or targets is None:
            return
        self._reporting.follow(channel, targets, now)
        self._handovers.follow(entry)
        self._announce(channel)
        if entry.eager:
            self._notices.due(channel, targets, now)

    def _announce_heard(self, channel: bytes) -> None:
        """A placement has lost servers, or has some of them again. Until this agent heard of it, nothing was forwarded
        there: beacons tell subscribers the last numbers of this server's streams."""
        targets = self.targets(channel)
        if targets is None or not targets.of_foreign:
            return
        for stream, last, quiet_s in self._host.live_streams(channel):
            blob = beacon(targets.publishing.version, stream, last, 0, quiet_s)
            for server in targets.of_foreign:
                self._send_beacon(server, channel, blob)

    def _announce(self, channel: bytes) -> None:
        targets = self.targets(channel)
        if targets is not None:
            self._announcements.look(channel, targets)

    # Messages

    def heard(self, channel: bytes, blob: bytes, standing: int, now: float) -> None:
        """A message on a channel that is watched, or new. Forwarding gives a message a valid tag, so only messages of
        `standing` FRESH are forwarded: a copy may have another payload."""
        targets = self.targets(channel)
        if targets is None:
            return
        version: int | None = None
        speech = True
        if standing == FALSE and FORWARD_AUTHENTIC in self._rules:
            speech = False
        elif is_envelope(blob):
            _, flags, version, stream, _, _ = HEADER.unpack_from(blob)
            speech = not flags & BEACON
            if not flags & FORWARDED:
                if standing == FRESH or FORWARD_AUTHENTIC not in self._rules:
                    self._forward(channel, blob, targets.of_version(version))
                if speech and targets.is_behind(version):
                    self._notices.publisher(channel, client_of(stream), now)
        else:
            self._forward(channel, blob, targets.of_foreign)
        moving = self._moving.get(channel)
        if moving is not None and speech and not moving.spoken:
            moving.spoken = True
            self._notices.due(channel, targets, now)
        quiet = targets.quiet_version if moving is None or moving.spoken else None
        if self._host.recorder.marked(channel):
            return
        if not targets.watched or (quiet is not None and version == quiet):
            self._host.scanner.watch(channel, targets.watched, quiet)

    def _forward(self, channel: bytes, blob: bytes, servers: Servers) -> None:
        if servers:
            marked = self._mark(blob)
            for server in servers:
                self.forwards.add(server, channel, self._host.tags.tagged(server, channel, marked))
            counters = self._host.counters
            counters.forwarded += len(servers)
            counters.forwarded_dropped = self.forwards.dropped

    def _send_beacon(self, server: str, channel: bytes, blob: bytes) -> None:
        if ANNOUNCE in self._rules:
            self.forwards.add(server, channel, self._host.tags.tagged(server, channel, self._mark(blob)))

    def _mark(self, blob: bytes) -> bytes:
        return forwarded(blob) if MARK_FORWARDED in self._rules else blob

    # Clients

    def registered(self, channel: bytes, now: float) -> None:
        """A client subscribes. It was sent the entry, but may not follow it yet."""
        if channel in self._moving:
            self._host.timers.set_if_absent(("notice", channel), now + self._host.limits.notice_retry_s)
            self._reporting.look(channel, now)

    def acknowledged(self, channel: bytes, now: float) -> None:
        """A subscriber has acknowledged an entry, or has left."""
        self._reporting.look(channel, now)

    def came(self, channel: bytes, stream: int, now: float) -> None:
        """A publisher is about to publish here, perhaps once more."""
        moving = self._moving.get(channel)
        if moving is not None:
            moving.left.discard(stream)
            self._reporting.look(channel, now)

    def left(self, channel: bytes, stream: int, now: float) -> None:
        """A publisher has left with one of its streams."""
        moving = self._moving.get(channel)
        if moving is not None and self._host.scanner.last_of(channel, stream) is not None:
            moving.left.add(stream)
            self._reporting.look(channel, now)

    def presented(self, channel: bytes, stream: int) -> None:
        """A stream was named in a Present: its messages while this agent was away are unknown. `announce` follows."""
        self._announcements.add(channel, stream)

    def announce(self, channel: bytes) -> None:
        """Announces the streams of a channel that were named in a Present."""
        self._announce(channel)

    def announce_here(self, channel: bytes, stream: int, last: int) -> None:
        """A stream was named in a Present after the resync was over: clients answered meanwhile do not know it."""
        targets = None if channel.startswith(RESERVED_PREFIX) else self.targets(channel)
        if targets is not None and ANNOUNCE in self._rules:
            blob = self._mark(beacon(targets.publishing.version, stream, last, 0))
            self._host.ask((b"PUBLISH", channel, self._host.tags.tagged(self._host.server, channel, blob)))

    # Incarnations and time

    def incarnation_began(self) -> None:
        """The agent hears its server again, and does not know what it missed."""
        self._announcements.clear()

    def serves(self, now: float) -> None:
        """The resync is over."""
        self._reporting.begin(now)
        for channel, entry in self._host.book.entries.items():
            if entry.eager:
                self._follow(channel, now)

    def all_present(self) -> None:
        """All clients of the server have sent their Present."""
        self._handovers.look()

    def notice_due(self, channel: bytes, now: float) -> None:
        """Clients that were sent an entry should have acknowledged it by now."""
        targets = self.targets(channel)
        if targets is not None:
            self._notices.due(channel, targets, now)

    # Other servers

    def forward_lost(self, server: str) -> None:
        """A connection to another server is lost."""
        self.forwards.lost(server)
        self._host.counters.forwarded_dropped = self.forwards.dropped

    def forward_replied(self, server: str, count: int) -> None:
        """Another server has replied to the `count` oldest commands."""
        self.forwards.replied(server, count)
        self._handovers.look()

    def take_report(self) -> MoveReport | None:
        """A report that the conductor has not seen."""
        self._handovers.look()
        return self._reporting.take()

    @property
    def report_may_change(self) -> bool:
        """Whether `take_report` may return one."""
        return self._reporting.may_change
