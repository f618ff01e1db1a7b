"""Serving: an agent core at work on an open connection, with clocks.

Owns the connection while it lasts, the one timer and the two clocks: `now` is the event loop's time, the
number of a second is the wall clock's. What is said on the connection is decided by the core and the
monitor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from shoal.channels.agent.connection import AgentConnection
from shoal.channels.agent.core import AgentCore
from shoal.channels.states import Agent as AgentState
from shoal.channels.telemetry.monitor import Monitor
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.runtime import TIMER_GRAIN_S

SILENT_LEASES_MAX: Final = 3
"""Lease times without a sign of life after which the connection counts as half open and is made anew."""

_log: Final = get_log(__name__)


class ServerSession:
    """A core and its monitor; `serve` takes one connection after the other. `forward` is called when the core may have
    something to say on other servers."""

    def __init__(
        self, core: AgentCore, monitor: Monitor, limits: Limits, forward: Callable[[], None], wall: Callable[[], float]
    ) -> None:
        self.core = core
        self.monitor = monitor
        self._forward = forward
        self._wall = wall
        self.heard_at = float("-inf")
        """When the server last gave a sign of life."""
        self._silent_s_max = SILENT_LEASES_MAX * limits.server_lease_s
        self._loop = asyncio.get_running_loop()
        self._connection: AgentConnection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: float | None = None

    @property
    def speaks(self) -> bool:
        """Whether the agent can be heard on its server."""
        return self.core.state is not AgentState.AWAY

    async def serve(self, connection: AgentConnection, run_id: str) -> None:
        """Serves on a connection until it is gone."""
        core = self.core
        now = self._loop.time()
        self._connection = connection
        self.heard_at = now
        core.second = int(self._wall())
        core.opened(run_id, now)
        self.monitor.opened()
        connection.attach(self._received)
        _log.info(
            "serves",
            server=core.server,
            incarnation=f"{core.incarnation:016x}",
            lease_s=core.lease.remaining_s(None, now),
        )
        try:
            self.turn()
            await connection.ended.wait()
        finally:
            self._connection = None
            if self._timer is not None:
                self._timer.cancel()
            core.lost(self._loop.time())

    def probe(self) -> None:
        """Asks the server for a sign of life."""
        if self.speaks:
            self.core.ask((b"PING",))
            self.flush()

    def speak(self) -> None:
        """Gives the agent's word now, if it can be heard."""
        if self.speaks:
            self.core.timers.set("heartbeat", self._loop.time())
            self.turn()

    def flush(self) -> None:
        """Sends what the core wants to say."""
        if self._connection is not None and self.core.outbox:
            self._connection.send(self.core.outbox)
            self.core.outbox.clear()
        self._forward()

    def _received(self, data: bytes) -> None:
        """Bytes of the server: the one hot call of the process."""
        now = self.heard_at = self._loop.time()
        self._keep_time(now)
        self.core.received(data, now)
        self.flush()
        if self.core.next_timer() != self._armed_for:
            self._arm(now)

    def turn(self) -> None:
        """Does what has come due, and sets the timer anew."""
        if self._connection is None:
            return
        now = self._loop.time()
        try:
            self._keep_time(now)
            self.core.timer(now)
            self.flush()
            self._arm(now)
        except Exception:
            _log.exception("what had come due could not be done; begins anew", server=self.core.server)
            self._connection.abort()
        if now - self.heard_at > self._silent_s_max:
            self._connection.abort()

    def _keep_time(self, now: float) -> None:
        """Seconds are those of the wall clock, so that the telemetry of all servers can be laid side by
        side."""
        second = int(self._wall())
        if second != self.core.second:
            over, self.core.second = self.core.second, second
            self.monitor.second_over(over, now)

    def _arm(self, now: float) -> None:
        """One timer: the core's next one, or the end of the second."""
        self._armed_for = self.core.next_timer()
        at = now + 1.0 - self._wall() % 1.0
        if self._armed_for is not None:
            at = min(at, self._armed_for)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at + TIMER_GRAIN_S, self.turn)
