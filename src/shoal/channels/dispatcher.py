"""The dispatcher: what an agent does about channels that move, and about those who do not know where a channel lives.

Owns the order in which its parts are asked. A core without I/O beside `AgentCore`, whose connection it shares.

    message on a watched channel -> course -> other servers (`forwarding`), notices to those behind (`notices`)
    entry or ring                -> course, notices, hand-over (`handover`), counting for the mover (`reporting`)

A channel that lives here and does not move is not watched: its messages are only counted. Whether a channel is watched
is found out with its first message, and again with the first one after its entry or the ring has changed.
"""

from __future__ import annotations

from typing import Final

from shoal.channels.course import Course, Servers
from shoal.channels.forwarding import Forwards
from shoal.channels.handover import Announcements, HandOvers
from shoal.channels.motion import Host, Motion
from shoal.channels.notices import Notices
from shoal.channels.reporting import Reporting
from shoal.channels.rules import Rules
from shoal.plan.entry import Phase
from shoal.plan.moving import Report
from shoal.wire.envelope import (
    BEACON,
    ENDED,
    FORWARDED,
    HEADER,
    RESERVED_PREFIX,
    beacon,
    client_of,
    forwarded,
    is_envelope,
)

COURSES_MAX: Final = 100_000
"""Courses that are remembered; when there are more, all are found out again."""


class Dispatcher:
    """Serves one agent."""

    def __init__(self, host: Host, rules: Rules) -> None:
        self._host = host
        self._rules = rules
        self._courses: dict[bytes, Course] = {}
        self._members: set[str] = set()
        self._motions: dict[bytes, Motion] = {}
        self.forwards = Forwards(host.limits.forward_buffer_bytes_max)
        self._notices = Notices(host, self._motions)
        self._handovers = HandOvers(host, self._motions, self.forwards, self._say_beacon)
        self._announcements = Announcements(host, self._say_beacon)
        self._reporting = Reporting(host, self._motions, self._notices, self._handovers, self.course)
        host.scanner.watch_new()

    @property
    def moving(self) -> int:
        """How many channels move that concern this server."""
        return self._reporting.moving

    @property
    def wants_all_present(self) -> bool:
        """Whether something waits for clients that have not answered the roll-call."""
        return self._handovers.waiting

    def course(self, channel: bytes) -> Course | None:
        """The course of a channel; None before there is a ring."""
        course = self._courses.get(channel)
        if course is None and self._host.book.ring is not None:
            course = Course(self._host.book, channel, self._host.server, self._rules)
            if course.watched or self._host.recorder.marked(channel):
                if len(self._courses) >= COURSES_MAX:
                    self._courses.clear()
                self._courses[channel] = course
        return course

    # The plan

    def entry_changed(self, channel: bytes, now: float) -> None:
        """The channel has a newer entry, or none any more."""
        self._courses.pop(channel, None)
        self._host.scanner.watch(channel, True)
        entry = self._host.book.entry(channel)
        if entry is None:
            self._motions.pop(channel, None)
            self._handovers.forget(channel)
            self._reporting.follow(channel, None, now)
            return
        motion = self._motions.get(channel)
        if motion is None:
            motion = self._motions[channel] = Motion()
        else:
            self._announcements.drop(channel)
        motion.follow(entry)
        self._follow(channel, now)

    def ring_changed(self, first: bool, now: float) -> None:
        """The ring has other members: every channel may live elsewhere. `first`: there was no ring before."""
        ring = self._host.book.ring
        assert ring is not None
        self._courses.clear()
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
        """Does at once what an entry asks for, beside what messages bring about."""
        entry = self._host.book.entry(channel)
        course = self.course(channel)
        if entry is None or course is None:
            return
        self._reporting.follow(channel, course, now)
        self._handovers.follow(entry)
        self._announce(channel)
        if entry.eager:
            self._notices.due(channel, course, now)

    def _announce_heard(self, channel: bytes) -> None:
        """A placement has lost servers, or has some of them again. Until this agent heard of it, nothing was forwarded
        there: subscribers are told how far the streams of this server have come."""
        course = self.course(channel)
        if course is None or not course.of_foreign:
            return
        for stream, last in self._host.streams(channel).items():
            if not last & ENDED:
                blob = beacon(course.publishing.version, stream, last, 0, 0)
                for server in course.of_foreign:
                    self._say_beacon(server, channel, blob)

    def _announce(self, channel: bytes) -> None:
        course = self.course(channel)
        if course is not None:
            self._announcements.look(channel, course)

    # Messages

    def heard(self, channel: bytes, blob: bytes, now: float) -> None:
        """A message on a channel that is watched, or new."""
        course = self.course(channel)
        if course is None:
            return
        version: int | None = None
        speech = True
        if is_envelope(blob):
            _, flags, version, stream, _, _ = HEADER.unpack_from(blob)
            speech = not flags & BEACON
            if not flags & FORWARDED:
                self._forward(channel, blob, course.of_version(version))
                if speech and course.is_behind(version):
                    self._notices.publisher(channel, client_of(stream), now)
        else:
            self._forward(channel, blob, course.of_foreign)
        motion = self._motions.get(channel)
        if motion is not None and speech and not motion.spoken:
            motion.spoken = True
            self._notices.due(channel, course, now)
        quiet = course.quiet_version if motion is None or motion.spoken else None
        if self._host.recorder.marked(channel):
            return
        if not course.watched or (quiet is not None and version == quiet):
            self._host.scanner.watch(channel, course.watched, quiet)

    def _forward(self, channel: bytes, blob: bytes, servers: Servers) -> None:
        if servers:
            marked = self._mark(blob)
            for server in servers:
                self.forwards.add(server, channel, marked)
            counters = self._host.counters
            counters.forwarded += len(servers)
            counters.forwarded_dropped = self.forwards.dropped

    def _say_beacon(self, server: str, channel: bytes, blob: bytes) -> None:
        if self._rules.beacon:
            self.forwards.add(server, channel, self._mark(blob))

    def _mark(self, blob: bytes) -> bytes:
        return forwarded(blob) if self._rules.mark_forwarded else blob

    # Clients

    def registered(self, channel: bytes, now: float) -> None:
        """Somebody subscribes: they have been told the entry, but may not stand by it."""
        if channel in self._motions:
            self._host.timers.set_if_absent(("notice", channel), now + self._host.limits.notice_retry_s)
            self._reporting.look(channel, now)

    def confirmed(self, channel: bytes, now: float) -> None:
        """A subscriber has confirmed an entry, or has left."""
        self._reporting.look(channel, now)

    def came(self, channel: bytes, stream: int, now: float) -> None:
        """A publisher is about to publish here, perhaps once more."""
        motion = self._motions.get(channel)
        if motion is not None:
            motion.gone.discard(stream)
            self._reporting.look(channel, now)

    def gone(self, channel: bytes, stream: int, now: float) -> None:
        """A publisher has left with one of its streams."""
        motion = self._motions.get(channel)
        if motion is not None:
            motion.gone.add(stream)
            self._reporting.look(channel, now)

    def presented(self, channel: bytes, stream: int) -> None:
        """A stream has presented itself in a roll-call: nobody knows what it published while this agent was away."""
        self._announcements.add(channel, stream)
        self._announce(channel)

    def announce_here(self, channel: bytes, stream: int, last: int) -> None:
        """A stream has presented itself after the roll-call was over: who was answered meanwhile was not told of it."""
        course = None if channel.startswith(RESERVED_PREFIX) else self.course(channel)
        if course is not None and self._rules.beacon:
            blob = self._mark(beacon(course.publishing.version, stream, last, 0, 0))
            self._host.ask((b"PUBLISH", channel, blob))

    # Life and time

    def life_began(self) -> None:
        """The agent hears its server again, and does not know what it missed."""
        self._announcements.clear()

    def serves(self, now: float) -> None:
        """The roll-call is over."""
        self._reporting.begin(now)
        for channel, entry in self._host.book.entries.items():
            if entry.eager:
                self._follow(channel, now)

    def all_present(self) -> None:
        """Everybody on the server has said what they do there."""
        self._handovers.look()

    def notice_due(self, channel: bytes, now: float) -> None:
        """Somebody who was told of an entry should have confirmed it."""
        course = self.course(channel)
        if course is not None:
            self._notices.due(channel, course, now)

    # Other servers

    def forward_lost(self, server: str) -> None:
        """A connection to another server is gone."""
        self.forwards.lost(server)
        self._host.counters.forwarded_dropped = self.forwards.dropped

    def forward_confirmed(self, server: str, count: int) -> None:
        """Another server has answered."""
        self.forwards.confirmed(server, count)
        self._handovers.look()

    def take_report(self) -> Report | None:
        """A report that the mover has not seen."""
        self._handovers.look()
        return self._reporting.take()

    @property
    def report_may_change(self) -> bool:
        """Whether `take_report` may return one."""
        return self._reporting.may_change
