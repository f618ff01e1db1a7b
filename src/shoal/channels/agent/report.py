"""An agent's report to the conductor about the moving channels that concern its server.

Owns the question to the server (how many clients subscribe, and which of the registered ones are connected) and the
report.

A count that was taken before the newest entry came would tell the conductor that no client is behind. So a channel is
reported with a new revision only when the server has been asked again. In the phase `prepare` the revision is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from shoal.channels import states
from shoal.channels.agent.forward_targets import ForwardTargets
from shoal.channels.agent.handover import Handovers
from shoal.channels.agent.moving_channel import Counted, DispatchHost, MovingChannel
from shoal.channels.agent.notices import Notices
from shoal.plan.entry import Entry, Phase
from shoal.plan.move_request import ChannelReport, MoveReport
from shoal.plan.placement import Mode
from shoal.wire.envelope import inbox_channel

POLL_S: Final = 0.1
"""The shortest time between two questions about channels with news."""

LOOK_AGAIN_S: Final = 1.0
"""The time between two questions about a channel without news: a client may have died."""

PAGE_NAMES: Final = 500
"""Names in one NUMSUB: the server does nothing else while it answers."""

ROUND_NAMES_MAX: Final = 5000
"""Names in one round, but at least those of one channel. The other channels come in the next round."""

NAMES_PER_S_MAX: Final = 50_000
"""Names in a second; large rounds are further apart."""


class _Round:
    """One question about several channels, each with the revision of its entry at that time."""

    def __init__(self) -> None:
        self.revisions: dict[bytes, int] = {}
        self.names: dict[bytes, None] = {}
        self.counts: dict[bytes, int] = {}


class Reporting:
    """Counts and reports."""

    def __init__(
        self,
        host: DispatchHost,
        moving: Mapping[bytes, MovingChannel],
        notices: Notices,
        handovers: Handovers,
        targets_of: Callable[[bytes], ForwardTargets | None],
    ) -> None:
        self._host = host
        self._moving = moving
        self._notices = notices
        self._handovers = handovers
        self._targets_of = targets_of
        self._due_at: dict[bytes, float] = {}
        """The channels that are reported, and when the server is to be asked about each."""
        self._round: _Round | None = None
        self._last: MoveReport | None = None

    @property
    def moving(self) -> int:
        """The number of reported channels."""
        return len(self._due_at)

    def follow(self, channel: bytes, targets: ForwardTargets | None, now: float) -> None:
        """An entry, or the ring, has changed."""
        entry = targets.entry if targets is not None else None
        if targets is None or entry is None or entry.phase is Phase.END or not targets.concerned:
            self._due_at.pop(channel, None)
            return
        self._due_at[channel] = now
        self._host.timers.set_if_absent(self.poll, now)

    def look(self, channel: bytes, now: float) -> None:
        """The subscribers of a channel may have changed."""
        if channel in self._due_at:
            self._due_at[channel] = now

    def begin(self, now: float) -> None:
        """The agent serves in a new incarnation: earlier counts are void."""
        self._round = None
        for channel in self._due_at:
            self._moving[channel].counted = None
            self._due_at[channel] = now
        if self._due_at:
            self._host.timers.set(self.poll, now)

    # Asking

    def poll(self, now: float) -> None:
        """Asks the server about the moving channels."""
        if not self._due_at or self._host.state is not states.AgentState.SERVING:
            return
        wait_s = POLL_S
        if self._round is None and (asked := self._make_round(now)).names:
            self._round = asked
            wait_s = max(POLL_S, len(asked.names) / NAMES_PER_S_MAX)
            for page in _pages(asked.names):
                self._host.ask((b"PUBSUB", b"NUMSUB", *page), self._taker(asked))
        self._host.timers.set(self.poll, now + wait_s)

    def _make_round(self, now: float) -> _Round:
        asked = _Round()
        for channel, due_at in self._due_at.items():
            if due_at > now:
                continue
            if len(asked.names) >= ROUND_NAMES_MAX:
                break
            self._due_at[channel] = now + LOOK_AGAIN_S
            asked.revisions[channel] = self._host.book.revision(channel)
            asked.names[channel] = None
            asked.names.update((inbox_channel(c), None) for c in self._host.register.channels.get(channel, ()))
        return asked

    def _taker(self, asked: _Round) -> Callable[[Any, float], None]:
        def take(reply: Any, now: float) -> None:
            if self._round is not asked:
                return
            if not isinstance(reply, list) or len(reply) % 2:
                self._round = None
                for channel in asked.revisions:
                    self.look(channel, now)
                return
            asked.counts.update(zip(reply[::2], reply[1::2], strict=True))
            if len(asked.counts) >= len(asked.names):
                self._round = None
                for channel, revision in asked.revisions.items():
                    self._count(channel, revision, asked.counts)

        return take

    def _count(self, channel: bytes, revision: int, counts: Mapping[bytes, int]) -> None:
        """Registered subscribers are behind if they are connected and have not acknowledged the entry; foreign ones
        always, because they cannot be told. Clients that registered since the question was asked count as connected. A
        client that left while the connection was down is still registered, so at most as many are behind as there are
        subscribers."""
        entry = self._host.book.entry(channel)
        if entry is None or entry.newness != revision or channel not in self._due_at:
            return
        here = counts[channel]
        registered = self._host.register.channels.get(channel, ())
        behind = min(here, sum(counts.get(inbox_channel(client), 1) > 0 for client in self._notices.behind(channel)))
        foreign = here - sum(counts.get(inbox_channel(client), 0) > 0 for client in registered)
        if foreign > 0 and not self._suits_foreign(entry):
            behind += foreign
        targets = self._targets_of(channel)
        streams = len(self._notices.stale_streams(channel, targets)) if targets is not None else 0
        self._moving[channel].counted = Counted(revision, behind, here, streams)

    def _suits_foreign(self, entry: Entry) -> bool:
        """Whether a subscriber of this server alone hears everything by the newest placement."""
        newest = entry.placement
        suits = newest.mode is not Mode.ALL_SUBSCRIBERS or len(newest.servers) == 1
        return suits and entry.phase is not Phase.PREPARE and self._host.server in newest.servers

    # The report

    @property
    def may_change(self) -> bool:
        """Whether the report can differ from the one taken last: channels move, or did at that time, or the agent began
        a new incarnation."""
        last = self._last
        return self._host.state is states.AgentState.SERVING and (
            bool(self._due_at)
            or self._handovers.pending
            or last is None
            or bool(last.channels)
            or last.incarnation != self._host.incarnation
        )

    def take(self) -> MoveReport | None:
        """The report, if it has changed; None while the agent does not serve."""
        if self._host.state is not states.AgentState.SERVING:
            return None
        lines = {channel: line for channel in sorted(self._due_at) if (line := self._line(channel)) is not None}
        report = MoveReport(self._host.server, self._host.incarnation, lines)
        if report == self._last:
            return None
        self._last = report
        return report

    def _line(self, channel: bytes) -> ChannelReport | None:
        moving, entry = self._moving[channel], self._host.book.entry(channel)
        counted = moving.counted
        if entry is None:
            return None
        if entry.phase is Phase.PREPARE and (counted is None or counted.revision != entry.newness):
            counted = Counted(entry.newness, 0, counted.here if counted else 0, 0)
        if counted is None:
            return None
        handed = self._handovers.handed(entry)
        return ChannelReport(counted.revision, handed, counted.behind, counted.here, counted.streams, moving.spoken)


def _pages(names: Mapping[bytes, None]) -> Iterator[tuple[bytes, ...]]:
    rest = iter(names)
    while page := tuple(islice(rest, PAGE_NAMES)):
        yield page
