"""Runs a router on an event loop: connections, sending, one timer, and waking waiting callers.

Owns all I/O of one bus. After every call into the router, `flush` empties the router's outputs. It makes no decisions
about channels; it only adds the delay between connection attempts and limits requests to the coordinator to one at a
time.

    application, network, timer  -->  router  -->  flush: effects, commands, subscriptions with news
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from shoal.bus.connections import BusConnection, Dialer, is_internal_error
from shoal.bus.departure import Departure
from shoal.bus.enrolment import KeyRenewal
from shoal.bus.plan_source import PlanSource, RingFetcher
from shoal.bus.waiters import Listener, PendingSubscription, Refusals, agent_refusal, fail, refusal, resolve
from shoal.channels.client.context import (
    Abandoned,
    AgentRefused,
    CommandRefused,
    Confirmed,
    Connect,
    Disconnect,
    Effect,
    Enrol,
    FetchRing,
    PublishRefused,
    QueueAnswered,
    UnknownFlags,
    Unreachable,
)
from shoal.channels.client.router import Posted, Router
from shoal.channels.client.subscription import SubscriptionCore, Wanted
from shoal.errors import (
    AuthenticationError,
    BusClosedError,
    NotConfirmedError,
    PublishError,
    ShoalError,
    SubscribeError,
    SubscribeTimeoutError,
    UnreachableError,
)
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.runtime import TIMER_GRAIN_S, Runtime
from shoal.wire.envelope import RESERVED_PREFIX

CLOSE_WAIT_S: Final = 1.0
"""How long a closing bus waits for its servers to read its last commands."""

CHECK_STATUS: Final = "check `shoal status`"
MAYBE: Final = "they may have arrived; publish them again if they may come twice"
CHECK_RIGHTS: Final = "check the user's permissions on the server"
KEPT: Final = "check `shoal status`; the message stays in the buffer and is sent when the server can be used again"

_log: Final = get_log(__name__)


class BusShell:
    """One router on the running event loop."""

    # From 30 attributes on, Python 3.11 looks them up in a plain dictionary, a third more slowly.
    __slots__ = (
        "_armed_count",
        "_conditions",
        "_connections",
        "_dialer",
        "_fetcher",
        "_listeners",
        "_monotonic",
        "_queue_requests",
        "_renewal",
        "_room_bytes",
        "_room_messages",
        "_rooms",
        "_source",
        "_tasks",
        "_timer",
        "_timer_at",
        "_timers",
        "_turn_s_max",
        "_wall",
        "breaks",
        "closed",
        "counting",
        "departure",
        "errors",
        "limits",
        "loop",
        "now",
        "refusals",
        "refused",
        "router",
        "scheduled",
        "time_us",
    )

    def __init__(self, router: Router, source: PlanSource, limits: Limits, runtime: Runtime) -> None:
        self.router = router
        self.loop = asyncio.get_running_loop()
        self.limits = limits
        self.closed = False
        self.scheduled = False
        self.now = self.loop.time()
        self.time_us = 0
        self.counting = 0
        self.errors: dict[str, str] = {}
        self.breaks = 0
        """Number of connections that a server closed, or that broke, while a subscription used them."""
        self.refusals = Refusals()
        self.refused: ShoalError | None = None
        """The error if unconfirmed messages wait for a server that cannot be used."""
        self._source = source
        self._wall = runtime.wall
        self._monotonic = runtime.monotonic
        self._fetcher = RingFetcher(source, self._take_ring, limits, runtime.random)
        self._renewal = KeyRenewal(router, source, limits, runtime)
        self._dialer = Dialer(
            lambda: source.login, f"shoal:{router.client:012x}", limits, runtime.random, runtime.address_book
        )
        self._connections: dict[str, BusConnection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: dict[SubscriptionCore, Listener] = {}
        self._conditions: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._rooms: list[asyncio.Future[None]] = []
        self._queue_requests: set[asyncio.Future[QueueAnswered]] = set()
        self._room_messages = limits.publish_buffer_messages_max * 3 // 4
        self._room_bytes = limits.publish_buffer_bytes_max * 3 // 4
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._timers = router.timers
        self._armed_count = -1
        self._turn_s_max = 0.0
        self.departure = Departure(router, limits)

    # After every call into the router

    def schedule(self) -> None:
        """Flush in the next turn of the loop, once for all calls of this turn; they share one clock reading."""
        self.scheduled = True
        self.now = self.loop.time()
        self.time_us = int(self._wall() * 1e6)
        self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._note_turn(self.loop.time())
        self.scheduled = False
        self.flush()

    def _note_turn(self, now: float) -> None:
        """Messages may have been published until `now`, under the clock reading of their turn. Call it only while one
        is scheduled."""
        took_s = now - self.now
        if took_s > self._turn_s_max:
            self._turn_s_max = took_s
            self.router.turn_took(took_s)

    def flush(self) -> None:
        """Empty the router's outputs, wake finished waiters, and set the timer."""
        router = self.router
        while router.effects:
            self._execute(0)
        if router.unsent:
            for server, commands in router.take_commands():
                connection = self._connections.get(server)
                if connection is not None:
                    connection.send(commands)
        if router.unread:
            for core in router.take_ready():
                listener = self._listeners.get(core)
                if listener is not None:
                    listener.wake()
        if self._rooms and self._has_room():
            rooms, self._rooms = self._rooms, []
            for waiter in rooms:
                resolve(waiter)
        if self._conditions:
            for condition, done in self._conditions:
                if condition():
                    resolve(done)
        if self._timers.count != self._armed_count:
            self._arm()

    def _execute(self, reply: int) -> None:
        """Execute the router's effects; `reply` is the server's reply to the confirmed message."""
        effects = self.router.effects[:]
        self.router.effects.clear()
        for effect in effects:
            if type(effect) is Confirmed:
                _confirm(effect.tokens, reply)
            elif type(effect) is PublishRefused:
                self._publish_refused(effect)
            else:
                self._execute_io(effect)

    def _execute_io(self, effect: Effect) -> None:
        if self.closed:
            return
        if isinstance(effect, Connect):
            self._connections[effect.server] = self._dialer.dial(effect, self)
        elif isinstance(effect, Disconnect):
            self._disconnect(effect.server)
        elif isinstance(effect, FetchRing):
            self.fetch_ring()
        elif isinstance(effect, AgentRefused):
            self._refused_by_agent(effect)
        elif isinstance(effect, CommandRefused):
            self._command_refused(effect)
        elif isinstance(effect, Unreachable):
            self._unreachable(effect)
        elif isinstance(effect, Enrol):
            self._renewal.want(self.flush)
        elif isinstance(effect, Abandoned):
            self._abandoned(effect)
        elif isinstance(effect, QueueAnswered):
            assert isinstance(effect.token, asyncio.Future)
            if not effect.token.done():
                effect.token.set_result(effect)
        elif isinstance(effect, UnknownFlags):
            _log.warning(
                "message with unknown flags not delivered",
                channel=_text(effect.channel),
                flags=f"0x{effect.flags:02x}",
                do="install the version of Shoal that its publisher runs, or a newer one",
            )

    def clear_refusal(self) -> None:
        """Clear `refused`, so that it reports only new refusals; agents repeat theirs."""
        self.refused = None

    def _refused_by_agent(self, refused: AgentRefused) -> None:
        """Fail the calls that wait for a server whose agent refuses this client. The router keeps retrying."""
        if self.errors.get(refused.server) != refused.text:
            _log.error("client refused by an agent", server=refused.server, code=refused.code, reason=refused.text)
        self.errors[refused.server] = refused.text
        error = agent_refusal(refused)
        if error is None:
            return
        self._fail_publishing(refused.server, error, error)
        self._fail_subscribing(refused.server, error)

    def _abandoned(self, effect: Abandoned) -> None:
        """Report the unconfirmed messages of a client that continues with another id."""
        error = NotConfirmedError("the identity of this bus was revoked before a server confirmed messages", do=MAYBE)
        for token in effect.tokens:
            assert isinstance(token, asyncio.Future)
            fail(token, error)
        if effect.unawaited:
            self.refusals.abandon(effect.unawaited, error)

    def _fail_publishing(self, server: str, error: ShoalError, full: ShoalError) -> None:
        """Fail the calls that wait until a server confirms messages, and with `full` those that wait for room."""
        for token in self.router.awaited_confirms(server):
            assert isinstance(token, asyncio.Future)
            fail(token, error)
        if self.router.unconfirmed(server):
            self.refused = error
            rooms, self._rooms = self._rooms, []
            for waiter in rooms:
                fail(waiter, full)

    def _fail_subscribing(self, server: str, error: ShoalError) -> None:
        """Fail the calls that wait until a subscription is in force on a server."""
        for core, listener in self._listeners.items():
            if isinstance(listener, PendingSubscription) and core.uses(server):
                listener.fail(error)

    def _fail_reading(self, server: str, error: ShoalError, seconds: float = 0.0) -> None:
        """Fail the readers of subscriptions none of whose servers could be used for this long."""
        now = self.loop.time()
        for core, listener in list(self._listeners.items()):
            if core.uses(server) and self.router.cut_off(core, seconds, now):
                listener.fail(error)

    def _login_refused(self, connection: BusConnection, error: AuthenticationError) -> None:
        """Fail the calls that wait for a server that refuses this client's user or password, unless there is another
        password by now. The bus keeps trying.
        """
        server = connection.server
        self._source.refresh_login()
        if connection.login != self._source.login:
            _log.info("login refused, trying the new one", server=server)
            return
        self._fail_publishing(server, error, error)
        self._fail_subscribing(server, error)
        self._fail_reading(server, error)

    def _command_refused(self, refused: CommandRefused) -> None:
        """Fail the calls that wait for a command that a server refused."""
        what = "messages to its agent" if refused.channel is None else f"a subscription to {_text(refused.channel)!r}"
        _log.error("command refused by a server", server=refused.server, command=what, reason=refused.error)
        reason = f"server {refused.server} refused {what} ({refused.error})"
        if refused.channel is None:
            error = PublishError(reason, do=CHECK_RIGHTS)
            self._fail_publishing(refused.server, error, error)
        for core, listener in list(self._listeners.items()):
            concerned = (
                refused.channel is None or refused.channel == core.name or refused.channel.startswith(RESERVED_PREFIX)
            )
            pending = isinstance(listener, PendingSubscription)
            if core.uses(refused.server) and concerned and (pending or refused.channel is not None):
                listener.fail(SubscribeError(reason, do=CHECK_RIGHTS))

    def _unreachable(self, effect: Unreachable) -> None:
        """Fail the calls that have waited too long for a server that cannot be used. The router keeps trying."""
        why = self.errors.get(effect.server, "its agent does not extend the lease")
        gone = f"server {effect.server} could not be used for {effect.seconds:.0f} s ({why})"
        _log.warning("server unreachable", server=effect.server, seconds=round(effect.seconds, 1), reason=why)
        self._fail_publishing(
            effect.server,
            NotConfirmedError(f"{gone}, so the message is not confirmed", do=KEPT),
            PublishError(f"the publish buffer is full, and {gone}; the message was not accepted", do=CHECK_STATUS),
        )
        self._fail_subscribing(effect.server, SubscribeTimeoutError(gone, do=CHECK_STATUS))
        self._fail_reading(effect.server, UnreachableError(gone, do=CHECK_STATUS), self.router.unreachable_s)

    def cut_off(self, core: SubscriptionCore, seconds: float) -> UnreachableError | None:
        """Return the error of a subscription none of whose servers could be used for this long."""
        if not self.router.cut_off(core, seconds, self.loop.time()):
            return None
        why = "; ".join(f"{server}: {self.errors[server]}" for server in sorted(self.errors) if core.uses(server))
        return UnreachableError(
            f"no server of {core.text!r} could be used for {seconds:g} s" + (f" ({why})" if why else ""),
            do=CHECK_STATUS,
        )

    def fetch_ring(self) -> None:
        """Ask the coordinator for the newest ring, in the background."""
        self._fetcher.want()

    def _arm(self) -> None:
        """Set the timer to the router's next deadline. An earlier timer is kept; when it fires, the deadline is checked
        again.
        """
        self._armed_count = self._timers.count
        at = self.router.next_timer()
        if at is None or self.closed:
            return
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_at(at + TIMER_GRAIN_S, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._armed_count = -1
        now = self.loop.time()
        if self.scheduled:
            self._note_turn(now)
        self.router.timer(now)
        self.departure.update(now)
        self.flush()

    # Waiting

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition holds after a flush; return False after `timeout_s`."""
        if condition():
            return True
        done = self.loop.create_future()
        entry = (condition, done)
        self._conditions.append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await done
        except TimeoutError:
            return condition()
        finally:
            self._conditions.remove(entry)
        return True

    def _has_room(self) -> bool:
        router = self.router
        return router.pending_messages <= self._room_messages and router.pending_bytes <= self._room_bytes

    async def room(self) -> None:
        """Wait until a quarter of the publish buffer is free."""
        waiter = self.loop.create_future()
        self._rooms.append(waiter)
        if not self.scheduled:
            self.schedule()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._rooms:
                self._rooms.remove(waiter)
            raise

    def confirmation(self, posted: Posted) -> asyncio.Future[int]:
        """Return a future for the confirmation of the message that was posted last on a stream: the server's reply
        count if `counting` is on."""
        token: asyncio.Future[int] = self.loop.create_future()
        if not self.router.await_confirm(posted, posted.seq, token):
            token.set_result(0)
        return token

    def _publish_refused(self, refused: PublishRefused) -> None:
        """Fail the call that waits for the message; without one, the next `publish` or `drain` raises the refusal."""
        token = refused.token
        if isinstance(token, asyncio.Future) and not token.done():
            token.set_exception(refusal([refused]))
        else:
            self.refusals.remember(refused)

    def _fail_confirms(self) -> None:
        """Fail the calls that wait for a confirmation, because the bus closes."""
        for token in self.router.awaited_confirms():
            assert isinstance(token, asyncio.Future)
            fail(token, NotConfirmedError("the bus was closed before a server confirmed the message"))

    async def request_queue(self, name: bytes, settings: bytes) -> QueueAnswered:
        """Ask agents for a queue until one answers. The caller sets the time limit."""
        answer: asyncio.Future[QueueAnswered] = self.loop.create_future()
        self._queue_requests.add(answer)
        self.router.request_queue(name, settings, answer, self.loop.time())
        self.flush()
        try:
            return await answer
        finally:
            self._queue_requests.discard(answer)
            self.router.withdraw_queue(answer)

    # Subscriptions

    async def subscribe(
        self, name: bytes, pattern: bool, wanted: Wanted | None, listener: Listener
    ) -> SubscriptionCore:
        """Subscribe and wait until the subscription is in force; from then on `listener` is notified."""
        core = self.router.subscribe(name, pattern, self.loop.time(), wanted)
        pending = PendingSubscription(core, self.loop.create_future())
        self._listeners[core] = pending
        if not self.scheduled:
            self.schedule()
        try:
            async with asyncio.timeout(self.limits.subscribe_timeout_s):
                await pending.done
        except TimeoutError:
            self.unsubscribe(core)
            raise self._not_in_force(core) from None
        except BaseException:
            self.unsubscribe(core)
            raise
        self._listeners[core] = listener
        if core.inbox.items:
            listener.wake()
        return core

    def _not_in_force(self, core: SubscriptionCore) -> SubscribeTimeoutError:
        reasons = "; ".join(f"{server}: {error}" for server, error in sorted(self.errors.items()))
        return SubscribeTimeoutError(
            f"no agent has answered for the subscription to {core.text!r} "
            f"within {self.limits.subscribe_timeout_s:g} s" + (f" ({reasons})" if reasons else ""),
            do="check `shoal status`: every server needs a running agent",
        )

    def unsubscribe(self, core: SubscriptionCore) -> None:
        """End a subscription. Does nothing if it has already ended."""
        if self._listeners.pop(core, None) is not None and not self.closed:
            self.router.unsubscribe(core, self.loop.time())
            if not self.scheduled:
                self.schedule()

    def made_room(self, core: SubscriptionCore) -> None:
        """Continue a subscription that had overflowed, after the application took items."""
        if core.inbox.roomy and not self.closed:
            self.router.consumed(core, self.loop.time())
            self.flush()

    # Connections

    def _disconnect(self, server: str) -> None:
        connection = self._connections.get(server)
        if connection is None:
            return
        if connection.open:
            connection.abort()
        else:
            self._cancel(connection)
            self.connection_gone(connection, None)

    def _cancel(self, connection: BusConnection) -> None:
        task = connection.cancel()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def disconnect_all(self) -> None:
        """Cut every connection. The router reopens them, and no message is lost."""
        cut = list(self._connections.values())
        for connection in cut:
            connection.abort()
        await self.until(lambda: not any(connection.open for connection in cut), CLOSE_WAIT_S)

    def connection_opened(self, connection: BusConnection) -> None:
        """See `connections.ConnectionOwner`."""
        self.errors.pop(connection.server, None)
        self.router.opened(connection.server, self.loop.time())
        self.flush()

    def connection_received(self, connection: BusConnection, frames: list[Any]) -> None:
        """See `connections.ConnectionOwner`. Frames are passed one by one only while a caller wants the reply itself.
        They may have arrived after the loop read its clock: the time since the subscription must not seem shorter than
        it is."""
        now = self._monotonic()
        if self.scheduled:
            self._note_turn(now)
        server = connection.server
        if self.counting:
            for frame in frames:
                self.router.received(server, [frame], now)
                if self.router.effects:
                    self._execute(frame if type(frame) is int else 0)
        else:
            self.router.received(server, frames, now)
        self.flush()

    def connection_gone(self, connection: BusConnection, error: Exception | None) -> None:
        """See `connections.ConnectionOwner`."""
        server = connection.server
        if self._connections.get(server) is not connection:
            return
        del self._connections[server]
        if connection.proved:
            self._dialer.reset(server)
        if error is not None:
            self.errors[server] = str(error)
            self.breaks += connection.proved and any(core.uses(server) for core in self._listeners)
            if is_internal_error(error):
                _log.error("connection cut by an internal error", server=server, error=repr(error))
            else:
                _log.info("connection lost", server=server, error=str(error))
        now = self.loop.time()
        self.departure.note_loss(now)
        self.router.lost(server, now)
        if isinstance(error, AuthenticationError):
            self._login_refused(connection, error)
        self.flush()

    def _take_ring(self, ring: bytes) -> None:
        self.router.ring(ring, self.loop.time())
        self.flush()

    # Closing

    async def close(self, *, quick: bool) -> None:
        """Linger if others may need resends, send goodbye, close. `quick` only closes."""
        try:
            if not quick:
                self.router.timer(self.loop.time())  # leases that ran out while this process was suspended
                self.flush()
                await self.departure.linger()
            self._fail_confirms()
            self.router.close(self.loop.time())
            self.flush()
            if not quick:
                await self.until(lambda: not self.router.awaits_replies, CLOSE_WAIT_S)
            for connection in list(self._connections.values()):
                if connection.open:
                    connection.close()
                else:
                    self._cancel(connection)
                    self.connection_gone(connection, None)
            await self.until(lambda: not self._connections, CLOSE_WAIT_S)
        finally:
            self.abandon()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def abandon(self) -> None:
        """Release everything immediately; waiting callers get BusClosedError or NotConfirmedError."""
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            self._cancel(connection)
            connection.abort()
        for task in (self._fetcher.cancel(), self._renewal.cancel()):
            if task is not None:
                self._tasks.add(task)
        self._fail_confirms()
        for waiter in self._rooms:
            fail(waiter, BusClosedError())
        for request in self._queue_requests:
            if not request.done():
                request.set_exception(BusClosedError())
        for listener in self._listeners.values():
            listener.end()


def _confirm(tokens: list[Any], reply: int) -> None:
    """Wake the callers that wait for messages."""
    for token in tokens:
        if not token.done():
            token.set_result(reply)


def _text(channel: bytes) -> str:
    return channel.decode("utf-8", "backslashreplace")
