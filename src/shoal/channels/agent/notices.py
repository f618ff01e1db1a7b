"""Notices: which clients do not know a channel's entry, and when they are told.

Owns both decisions. A subscriber is behind if it has not acknowledged a revision with the current subscriber servers; a
publisher if it publishes with another version than the current one.

Notices are sent only when needed: to a subscriber with the first message on its channel after the entry came, to a
publisher with its own next message. Those of an eager entry are sent immediately. A notice that is not acknowledged is
sent again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shoal.channels import states
from shoal.channels.agent.forward_targets import ForwardTargets
from shoal.channels.agent.moving_channel import DispatchHost, MovingChannel
from shoal.plan.entry import Phase
from shoal.wire import control
from shoal.wire.envelope import ENDED, client_of

PAGE_CLIENTS: Final = 1000
PAGE_PAUSE_S: Final = 0.01
"""Clients that are told at once, and the pause before the next page, so that the server can read on."""

TOLD_PUBLISHERS_MAX: Final = 50_000
"""Publishers whose last notice is remembered. Beyond it some are told once too often."""


class Notices:
    """Sends notices to the clients of one server."""

    def __init__(self, host: DispatchHost, moving: Mapping[bytes, MovingChannel]) -> None:
        self._host = host
        self._moving = moving
        self._publishers: dict[tuple[bytes, int, int], float] = {}

    def behind(self, channel: bytes) -> list[int]:
        """The registered subscribers of a channel that are behind."""
        entry, register = self._host.book.entry(channel), self._host.register
        if entry is None or not entry.follows_from:
            return []
        clients = register.channels.get(channel, ())
        return [client for client in clients if register.acknowledged(client, channel) < entry.follows_from]

    def stale_streams(self, channel: bytes, targets: ForwardTargets) -> list[int]:
        """The live streams that should be elsewhere and have not left."""
        here, left = self._host.server, self._moving[channel].left
        return [
            stream
            for stream, last in self._host.streams(channel).items()
            if not last & ENDED
            and stream not in left
            and here not in targets.publishing.publish_servers(client_of(stream))
        ]

    def publisher(self, channel: bytes, client: int, now: float) -> None:
        """Sends a publisher a notice, unless it was sent one recently."""
        key = (channel, client, self._host.book.revision(channel))
        told_at = self._publishers.get(key)
        if not client or (told_at is not None and now < told_at + self._host.limits.notice_retry_s):
            return
        if len(self._publishers) >= TOLD_PUBLISHERS_MAX:
            self._publishers.clear()
        self._publishers[key] = now
        self._tell(channel, client)

    def due(self, channel: bytes, targets: ForwardTargets, now: float) -> None:
        """Sends notices to clients that are behind and got none recently; repeats while there are such clients."""
        entry, moving = targets.entry, self._moving.get(channel)
        if entry is None or moving is None or not (moving.spoken or entry.eager):
            return
        if self._host.state is states.AgentState.AWAY:
            return
        waits = self._subscribers(channel, moving, now)
        if entry.eager and entry.phase not in (Phase.PREPARE, Phase.WIDEN):
            stale = self.stale_streams(channel, targets)
            for stream in stale[:PAGE_CLIENTS]:
                self.publisher(channel, client_of(stream), now)
            if stale:
                waits.append(self._host.limits.notice_retry_s)
        if waits:
            self._host.timers.set(("notice", channel), now + min(waits))

    def _subscribers(self, channel: bytes, moving: MovingChannel, now: float) -> list[float]:
        """Sends one page of notices to subscribers that are behind; returns when the rest is due."""
        retry_s = self._host.limits.notice_retry_s
        behind = self.behind(channel)
        due = [client for client in behind if now >= moving.told.get(client, -retry_s) + retry_s]
        for client in due[:PAGE_CLIENTS]:
            moving.told[client] = now
            self._tell(channel, client)
        if len(due) > PAGE_CLIENTS:
            return [PAGE_PAUSE_S]
        return [retry_s] if behind else []

    def _tell(self, channel: bytes, client: int) -> None:
        self._host.counters.notices += 1
        entry = self._host.book.signed_entry(channel)
        self._host.tell_client(client, control.Notice(self._host.server, channel, entry))
