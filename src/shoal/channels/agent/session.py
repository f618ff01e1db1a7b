"""The session of an agent with its server: runs the agent core on an open connection.

Owns the connection while it lasts, the one timer and the clocks: `now` is the event loop's time, the number of a second
is the wall clock's. The loop reads its clock once a turn, so bytes that arrive get a time of their own. The core and
the monitor decide what is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from shoal.channels.agent.connection import AgentConnection
from shoal.channels.agent.core import AgentCore
from shoal.channels.agent.monitor import Monitor
from shoal.channels.states import AgentState
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.plan_copy import PLAN_COPY_KEY, encode_copy
from shoal.runtime import TIMER_GRAIN_S, Runtime
from shoal.wire.connection import READ_BATCH_BYTES

SILENT_LEASES_MAX: Final = 3
"""Lease times without any reply after which the connection counts as half open and is replaced."""

BEHIND_S: Final = 0.02
"""After a large read more bytes wait at the server: for this time reading comes before other work."""

OTHER_FORMATS_EVERY_S: Final = 60.0
"""Messages of other versions, and messages that are passed over, are logged at most once in this time."""

_log: Final = get_log(__name__)


class ServerSession:
    """A core and its monitor; `serve` takes one connection after the other. `flushed` is called after each input to the
    core, which may have commands for other servers or a new report."""

    def __init__(
        self,
        core: AgentCore,
        monitor: Monitor,
        limits: Limits,
        flushed: Callable[[], None],
        runtime: Runtime,
        key: bytes,
    ) -> None:
        """`key` is the cluster's public key, for the copy of the plan on the server."""
        self.core = core
        self.monitor = monitor
        self._flushed = flushed
        self._wall = runtime.wall
        self._monotonic = runtime.monotonic
        self.heard_at = float("-inf")
        """When the server last sent anything."""
        self._silent_s_max = SILENT_LEASES_MAX * limits.server_lease_s
        self._loop = asyncio.get_running_loop()
        self._connection: AgentConnection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: float | None = None
        self._rest: asyncio.Handle | None = None
        """The next turn with control messages, if they did not fit the last one."""
        self._other_formats_at = float("-inf")
        self._key = key
        self._copied = 0
        """The version of the ring in the copy of the plan on the server."""
        self._passed_over_at = float("-inf")
        self._behind_until = float("-inf")

    @property
    def connected(self) -> bool:
        """Whether the agent is connected to its server."""
        return self.core.state is not AgentState.AWAY

    async def serve(self, connection: AgentConnection, run_id: str) -> None:
        """Serves on a connection until it is lost."""
        core = self.core
        now = self._loop.time()
        self._connection = connection
        self.heard_at = now
        core.tell_time(int(self._wall()), now)
        core.opened(run_id, now)
        self.monitor.opened()
        self._copied = 0
        connection.attach(self._received)
        _log.info(
            "agent session started",
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
            if self._rest is not None:
                self._rest.cancel()
                self._rest = None
            core.lost(self._loop.time())

    def probe(self) -> None:
        """Sends a PING to the server."""
        if self.connected:
            self.core.ask((b"PING",))
            self.flush()

    def send_heartbeat(self) -> None:
        """Sends a heartbeat now, if the agent is connected."""
        if self.connected:
            self.core.timers.set("heartbeat", self._loop.time())
            self.turn()

    def flush(self) -> None:
        """Sends the core's commands."""
        if self._connection is not None and self.core.outbox:
            self._connection.send(self.core.outbox)
            self.core.outbox.clear()
        self._flushed()

    def _received(self, data: bytes) -> None:
        """Bytes from the server: the hot path of the process."""
        now = self.heard_at = self._loop.time()
        self._keep_time(now)
        behind = len(data) >= READ_BATCH_BYTES
        if behind:
            self._behind_until = now + BEHIND_S
        self._handled(self.core.received(data, now, behind, self._monotonic()), now)

    def _go_on(self) -> None:
        """The next turn with control messages that did not fit the last one."""
        self._rest = None
        connection = self._connection
        if connection is None:
            return
        now = self._loop.time()
        try:
            self._keep_time(now)
            self._handled(self.core.work(now, now < self._behind_until), now)
        except Exception:
            _log.exception("agent failed on a control message, connection restarted", server=self.core.server)
            connection.abort()

    def _handled(self, done: bool, now: float) -> None:
        self.flush()
        if self.core.next_timer() != self._armed_for:
            self._arm(now)
        if not done and self._rest is None:
            self._rest = self._loop.call_soon(self._go_on)

    def turn(self) -> None:
        """Runs the timers that are due, and sets the next one."""
        if self._connection is None:
            return
        now = self._loop.time()
        try:
            self._keep_time(now)
            self.core.timer(now)
            self._copy_plan()
            self.flush()
            self._arm(now)
        except Exception:
            _log.exception("agent timer failed, connection restarted", server=self.core.server)
            self._connection.abort()
        if now - self.heard_at > self._silent_s_max:
            self._connection.abort()

    def _keep_time(self, now: float) -> None:
        """Seconds are those of the wall clock, so that the telemetry of all servers can be compared."""
        second = int(self._wall())
        if second != self.core.second:
            over = self.core.second
            self.core.tell_time(second, now)
            self.monitor.second_over(over, now)
            self._log_other_formats(now)
            self._log_passed_over(now)

    def _copy_plan(self) -> None:
        """Puts the plan on the server, where clients find it while the coordinator is away."""
        book = self.core.book
        if book.version != self._copied:
            self._copied = book.version
            self.core.ask((b"SET", PLAN_COPY_KEY, encode_copy(self._key, book.signed_ring)))

    def _log_other_formats(self, now: float) -> None:
        """Logs clients of another version on the server: they receive nothing, or others do not receive their
        messages."""
        if now < self._other_formats_at + OTHER_FORMATS_EVERY_S:
            return
        for what, count in self.core.take_other_formats().items():
            self._other_formats_at = now
            _log.warning(
                "client of another version on the server",
                server=self.core.server,
                sent=what,
                count=count,
                do="install the version of the cluster on all clients",
            )

    def _log_passed_over(self, now: float) -> None:
        """Logs that clients send more or larger messages than an agent takes."""
        oversized, unread, not_looked_up = self.core.scanner.take_passed_over()
        counters = self.core.counters
        counters.oversized += oversized
        counters.control_unread += unread
        counters.not_looked_up += not_looked_up
        if (oversized or unread or not_looked_up) and now >= self._passed_over_at + OTHER_FORMATS_EVERY_S:
            self._passed_over_at = now
            _log.warning(
                "messages passed over: a client sends more or larger messages than the agent takes",
                server=self.core.server,
                oversized=counters.oversized,
                control_unread=counters.control_unread,
                not_looked_up=counters.not_looked_up,
            )

    def _arm(self, now: float) -> None:
        """One timer: the core's next one, or the end of the second."""
        self._armed_for = self.core.next_timer()
        at = now + 1.0 - self._wall() % 1.0
        if self._armed_for is not None:
            at = min(at, self._armed_for)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at + TIMER_GRAIN_S, self.turn)
