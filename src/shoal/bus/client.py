"""`connect()` and `Bus`: the client API.

Owns the guarantees of the calls: what `publish`, `subscribe` and `drain` wait for and what they raise. The protocol is
in the router, the I/O in the shell.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, overload

import msgspec

from shoal.bus import collector
from shoal.bus.enrolment import enrol
from shoal.bus.location import find_url, named_cluster
from shoal.bus.plan_cache import PlanCache
from shoal.bus.plan_source import PlanSource
from shoal.bus.shell import BusShell
from shoal.bus.subscription import Subscription
from shoal.bus.times import time_us_of
from shoal.bus.waiters import ItemNotice
from shoal.channels.client.router import Posted, Router
from shoal.errors import BusClosedError, ClusterNotFoundError, CoordinatorUnavailableError, NotConfirmedError
from shoal.filters.filter import Filter
from shoal.filters.language import parse
from shoal.folders import default_cache_dir
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.message import GivenAttributes
from shoal.plan.book import PlanBook
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Verifier
from shoal.rules import ALL_RULES, Rules
from shoal.runtime import PRODUCTION, Runtime
from shoal.wire.commands import Request
from shoal.wire.connection import Connection
from shoal.wire.envelope import CLIENT_ID_BITS, check_channel_name, check_pattern, check_payload, encode_attributes
from shoal.wire.identity import ClientKey

if TYPE_CHECKING:
    from shoal.bus.event_reader import BusMatching, Matching, MatchingStatistics
    from shoal.bus.queues import BusQueues
    from shoal.queues.queue import Queue

NAMES_MAX: Final = 8192
"""Size of the cache of validated channel names; it is cleared when full."""

NONCE_BITS: Final = 60
"""Number of random bits in the first request number of a bus, so that other clients cannot guess it."""

_NOT_OPEN: Final = "enter it first: async with shoal.connect() as bus"


class BusStatistics(msgspec.Struct, frozen=True):
    """Counters and state of a bus."""

    client_id: int
    published: int
    pending_messages: int
    pending_bytes: int
    subscriptions: int
    ring_version: int
    links: dict[str, str]
    """Connection state by server: down, connecting, greeting, usable or stale."""
    counters: dict[str, int]


def connect(
    url: str | None = None,
    *,
    limits: Limits | None = None,
    name: str | None = None,
    archive: str | Path | None = None,
    cache_dir: str | Path | None = None,
) -> Bus:
    """Create a bus for the cluster at `shoal://user:password@host:port`, or with TLS at
    `shoals://user:password@host:port?ca=FILE&cert=FILE`; None means the local cluster.

    The host is the coordinator's. More places can follow, separated by commas: the coordinator or servers, which are
    asked for the plan if the first does not answer. `?cluster_key=...` pins the cluster's public key.

    Enter it (`async with`) or await its `open()`; nothing is sent before. `name` appears in logs and metrics. `archive`
    is the directory or URL of an archive, which `subscribe(since=...)` reads in addition to the records. `cache_dir` is
    the directory of the plan that is used when no place answers; None means the user's cache directory.
    """
    cache = Path(cache_dir).expanduser() if cache_dir else default_cache_dir()
    return Bus(url, runtime=PRODUCTION, limits=limits, name=name, archive=archive, cache_dir=cache)


class Bus:
    """A client of a cluster: publishes on channels and subscribes to them, and uses queues. One event loop owns it."""

    def __init__(
        self,
        url: str | None = None,
        *,
        runtime: Runtime,
        limits: Limits | None = None,
        name: str | None = None,
        archive: str | Path | None = None,
        cache_dir: Path | None = None,
        rules: Rules = ALL_RULES,
    ) -> None:
        """See `connect`, which chooses the `runtime` and the directory of the cached plan (None: no cache). `rules` is
        for the simulator.
        """
        self.limits = limits or DEFAULT_LIMITS
        self.limits.validate()
        self.runtime = runtime
        """Connections, clocks and randomness. Not for applications."""
        self._rules = rules
        self.clock = runtime.monotonic
        self._name = name
        self.archive = archive or None
        self._url = url
        self._cache_dir = cache_dir
        self._source: PlanSource | None = None
        self._plan: tuple[bytes, bytes] | None = None
        self._shell: BusShell | None = None
        self._queues: BusQueues | None = None
        self._matching: BusMatching | None = None
        self._closed = False
        self._names: dict[str | bytes, bytes] = {}
        self._payload_max = self.limits.payload_bytes_max

    @property
    def client_id(self) -> int:
        """The number that identifies this client; 0 until the bus is open. It changes if the agents' secret is revoked
        while this client is away."""
        return self._shell.router.client if self._shell is not None else 0

    @property
    def published(self) -> int:
        """The number of messages that were accepted."""
        return self._shell.router.published if self._shell is not None else 0

    @property
    def name(self) -> str:
        """The name in logs and metrics."""
        return self._name or f"shoal:{self.client_id:012x}"

    def sibling(self) -> Bus:
        """Create another bus to the same cluster with its own connections. It opens without asking the coordinator."""
        shell = self.shell
        bus = Bus(self._url, limits=self.limits, archive=self.archive, runtime=self.runtime, rules=self._rules)
        bus._source = self._source
        if self._plan is not None:
            bus._plan = (self._plan[0], shell.router.book.signed_ring)
        return bus

    # Opening and closing

    async def open(self) -> Self:
        """Find the cluster, read its plan, and get an id and a key from one of its agents. Raises EnrolmentError if no
        agent answers within `enrol_timeout_s`. Servers are connected to when a channel needs them.
        """
        if self._shell is not None or self._closed:
            raise BusClosedError("the bus was already opened", do="call connect() again for a new bus")
        if self._source is None:
            self._source = self._make_source()
            self.runtime = self.runtime.with_tls(self._source.address.tls)
        if self._plan is None:
            self._plan = await self._read_plan(self._source)
        key, ring = self._plan
        book = PlanBook(Verifier(key))
        book.accept_ring(ring)  # raises if the signature is wrong; the router would only count that
        client_key = await self._enrol(self._source, book)
        if self._closed:
            raise BusClosedError()
        client = client_key.client if client_key else self.runtime.random.getrandbits(CLIENT_ID_BITS) or 1
        number = self.runtime.random.getrandbits(NONCE_BITS)
        router = Router(client, PlanBook(Verifier(key)), self.limits, self._rules, number, client_key)
        shell = BusShell(router, self._source, self.limits, self.runtime)
        router.ring(book.signed_ring, shell.now)
        shell.flush()
        self._shell = shell
        collector.add(self)
        return self

    async def _enrol(self, source: PlanSource, book: PlanBook) -> ClientKey | None:
        """Return the key of this client; None if the cluster does not authenticate messages (scheme 0)."""
        assert book.ring is not None
        return await enrol(source, book, self.limits, self.runtime) if book.ring.scheme else None

    def _make_source(self) -> PlanSource:
        url = self._url
        find = partial(find_url, servers=True) if url is None else lambda: url
        directory = self._cache_dir
        make_cache = None if directory is None else partial(PlanCache, directory)
        return PlanSource(find, self.limits.connect_timeout_s, self.runtime, make_cache)

    async def _read_plan(self, source: PlanSource) -> tuple[bytes, bytes]:
        try:
            return await source.key_and_ring()
        except CoordinatorUnavailableError as error:
            if self._url is not None or named_cluster() is not None:
                raise
            raise ClusterNotFoundError(
                f"the local cluster does not answer ({error.what})",
                do="check `shoal status`, or run `shoal up`",
            ) from error

    async def aclose(self) -> None:
        """Drain, send goodbye and close. Raises the errors of `drain`, but closes in any case."""
        await self._close(quick=False)

    async def _close(self, *, quick: bool) -> None:
        shell = self._shell
        if shell is None or self._closed:
            self._closed = True
            return
        try:
            if not quick:
                if self._matching is not None:
                    await self._matching.drain()
                await self.drain()
                if self._queues is not None:
                    await self._queues.drain()
        except BaseException:
            quick = True
            raise
        finally:
            try:
                if self._matching is not None:
                    await self._matching.aclose()
                if self._queues is not None:
                    await self._queues.aclose()
            finally:
                self._closed = True
            try:
                await shell.close(quick=quick)
            finally:
                self._keep_plan(shell)
                collector.remove(self)

    def _keep_plan(self, shell: BusShell) -> None:
        """Keep the newest ring for the next bus, if it is newer than the one that this bus began with."""
        if self._source is not None and self._plan is not None and shell.router.book.signed_ring != self._plan[1]:
            self._source.keep(self._plan[0], shell.router.book.signed_ring)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(quick=error is not None)

    @property
    def closed(self) -> bool:
        """Whether the bus was closed."""
        return self._closed

    @property
    def shell(self) -> BusShell:
        """The I/O of an open bus; raises BusClosedError if it is not open. Not for applications."""
        if self._closed:
            raise BusClosedError()
        if self._shell is None:
            raise BusClosedError("the bus is not open", do=_NOT_OPEN)
        return self._shell

    # Publishing

    async def publish(
        self,
        channel: str | bytes,
        payload: bytes | str | bytearray | memoryview,
        *,
        attributes: GivenAttributes | None = None,
        confirm: bool = False,
    ) -> None:
        """Publish a message. Returns when it is accepted; waits only while the publish buffer is full.

        With `confirm`, it returns when a server has confirmed the message. Text is sent as UTF-8. Attributes that are
        None are not sent. Raises PublishError or a subclass for a message that cannot be sent, and for messages that
        servers have refused since the last call.
        """
        posted = self._post(channel, payload, attributes)
        while posted is None:
            await self.shell.room()
            posted = self._post(channel, payload, attributes)
        if confirm:
            await (self._shell or self.shell).confirmation(posted)

    async def publish_counted(self, channel: str | bytes, payload: bytes | str | bytearray | memoryview) -> int:
        """Publish, wait for the confirmation and return the number of connections the server delivered the message to.

        The server's agent, which receives all messages, counts as one.
        """
        shell = self.shell
        shell.counting += 1
        try:
            while (posted := self._post(channel, payload, None)) is None:
                await shell.room()
            return await shell.confirmation(posted)
        finally:
            shell.counting -= 1

    def _post(
        self,
        channel: str | bytes,
        payload: bytes | str | bytearray | memoryview,
        attributes: GivenAttributes | None,
    ) -> Posted | None:
        """Check a message and pass it to the router; None while the buffer is full."""
        try:
            raw = self._names.get(channel) or self._check_name(channel)
        except TypeError:  # unhashable: bytearray, memoryview, or the wrong type
            raw = check_channel_name(channel, self.limits)
        if type(payload) is not bytes:
            payload = _to_bytes(payload)
        if len(payload) > self._payload_max:
            check_payload(payload, self.limits)
        encoded = b"" if attributes is None else encode_attributes(attributes, self.limits)
        shell = self._shell
        if shell is None or self._closed:
            shell = self.shell
        if shell.refusals.count:
            shell.refusals.raise_all()
        if shell.scheduled:
            return shell.router.publish(raw, payload, encoded, shell.time_us, shell.now)
        idle = shell.router.settled
        shell.schedule()
        posted = shell.router.publish(raw, payload, encoded, shell.time_us, shell.now)
        if idle:
            shell.flush()  # nothing is in flight that later messages could be batched behind
        return posted

    def _check_name(self, channel: str | bytes) -> bytes:
        raw = check_channel_name(channel, self.limits)
        if len(self._names) >= NAMES_MAX:
            self._names.clear()
        self._names[channel] = raw
        return raw

    async def drain(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait until servers have confirmed all published messages, including those published during the wait.

        Raises NotConfirmedError after `timeout` seconds (None: `drain_timeout_s`) with the unconfirmed channels,
        PublishError for messages that servers have refused, and VersionError if an agent uses another version.
        """
        shell = self.shell
        timeout_s = self.limits.drain_timeout_s if timeout is None else timeout
        shell.clear_refusal()
        done = await shell.until(lambda: shell.router.settled or shell.closed or shell.refused is not None, timeout_s)
        if shell.refused is not None and not shell.router.settled:
            raise shell.refused
        if not done:
            raise self._not_confirmed(shell, timeout_s)
        shell.refusals.raise_all()

    def _not_confirmed(self, shell: BusShell, timeout_s: float) -> NotConfirmedError:
        unconfirmed = shell.router.unconfirmed().items()
        waiting = sorted((name.decode("utf-8", "backslashreplace"), count) for name, count in unconfirmed)
        named = ", ".join(f"{name} ({count})" for name, count in waiting[:5])
        more = f" and {len(waiting) - 5} more" if len(waiting) > 5 else ""
        reasons = "; ".join(f"{server}: {error}" for server, error in sorted(shell.errors.items()))
        return NotConfirmedError(
            f"{shell.router.pending_messages} messages are not confirmed after {timeout_s:g} s, "
            f"on {named}{more}" + (f" ({reasons})" if reasons else ""),
            do="check `shoal status`; unconfirmed messages may have arrived",
        )

    # Subscribing

    @overload
    def subscribe(
        self,
        channel: str | bytes,
        *,
        pattern: None = None,
        where: str | Filter | None = None,
        since: dt.datetime | dt.timedelta | float | str | None = None,
    ) -> Subscription: ...

    @overload
    def subscribe(
        self, channel: None = None, *, pattern: str | bytes, where: str | Filter | None = None, since: None = None
    ) -> Subscription: ...

    @overload
    def subscribe(
        self, channel: None = None, *, pattern: None = None, where: str | Filter, since: None = None
    ) -> Matching: ...

    def subscribe(
        self,
        channel: str | bytes | None = None,
        *,
        pattern: str | bytes | None = None,
        where: str | Filter | None = None,
        since: dt.datetime | dt.timedelta | float | str | None = None,
    ) -> Subscription | Matching:
        """Create a subscription to a channel, or to all channels that a Redis pattern matches; enter it to start.

        With `where`, only messages whose attributes match the filter are delivered; raises FilterError for an invalid
        filter. With `where` alone, it is the same as `match(where)`: a reader of all events that match, on whatever bus
        they are emitted. With `since` (a time, an age as seconds or timedelta, or a text like "15m"), the recorded
        messages since then come first, followed by live messages without gaps or duplicates; raises SubscribeError for
        an invalid time.
        """
        if channel is not None and pattern is not None:
            raise TypeError("subscribe() takes either a channel or pattern=..., not both")
        if channel is None and since is not None:
            raise TypeError("since=... needs a channel: messages are recorded per channel, not per pattern or filter")
        name = channel if channel is not None else pattern
        if name is None:
            if where is None:
                raise TypeError("subscribe() takes a channel, pattern=... or where=...; none of them was given")
            return self.match(where)
        if self._shell is not None and self._shell.refusals.count:
            self._shell.refusals.raise_all()
        wanted = where if where is None or isinstance(where, Filter) else parse(where, self.limits)
        since_us = None if since is None else time_us_of(since, self.runtime.wall())
        check = check_pattern if channel is None else check_channel_name
        return Subscription(self, check(name, self.limits), channel is None, wanted, since_us)

    def psubscribe(self, pattern: str | bytes, *, where: str | Filter | None = None) -> Subscription:
        """Create a subscription to all channels that a pattern matches; same as `subscribe(pattern=...)`."""
        return self.subscribe(pattern=pattern, where=where)

    # Queues

    def queue(self, name: str) -> Queue:
        """Return the queue of this name, the same object each time. It connects when it is used.

        The first `put` or `take` creates a queue that does not exist, with the default settings; `create` chooses
        others. Raises QueueNameError for an invalid name.
        """
        return self._open_queues().queue(name)

    async def queues(self) -> list[str]:
        """Return the names of the cluster's queues, sorted. Raises QueueUnavailableError if the coordinator is
        away."""
        return await self._open_queues().names()

    def _open_queues(self) -> BusQueues:
        shell = self.shell
        if self._queues is None:
            from shoal.bus.queues import BusQueues  # buses without queues do not pay for loading it

            assert self._source is not None, "an open bus has a coordinator"
            assert self._plan is not None, "an open bus has a plan"
            self._queues = BusQueues(
                self._source, Verifier(self._plan[0]), self.limits, self.runtime, self._rules, shell.request_queue
            )
        return self._queues

    # Content matching

    def match(self, where: str | Filter | None = None) -> Matching:
        """Create a reader of events that match a filter, on whatever bus they are emitted; enter it to start. Without a
        filter, `add` or `add_many` add some later, and each event comes once, with the names of those that it matches.
        Raises FilterError for an invalid filter.
        """
        wanted = where if where is None or isinstance(where, Filter) else parse(where, self.limits)
        return self._open_matching().reader(wanted)

    async def emit(
        self,
        attributes: GivenAttributes,
        payload: bytes | str | bytearray | memoryview = b"",
        *,
        confirm: bool = False,
    ) -> int:
        """Emit an event to every reader with a filter that its attributes match; return its number. Returns when it is
        accepted; waits while too many earlier ones are not delivered. With `confirm`, it returns when all deliveries of
        the event are safe. Raises EventError for attributes that are not an event, and EngineUnavailableError if the
        engine does not answer within `drain_timeout_s`.
        """
        return await self._open_matching().emit(attributes, _to_bytes(payload), confirm)

    @property
    def matching(self) -> MatchingStatistics | None:
        """Counts of `emit` and `match`; None before their first use."""
        return None if self._matching is None else self._matching.statistics

    def _open_matching(self) -> BusMatching:
        shell = self.shell
        if self._matching is None:
            from shoal.bus.event_reader import BusMatching  # buses that do not match do not pay for loading it

            self._matching = BusMatching(self, shell, self._rules)
        return self._matching

    def post(self, channel: bytes, payload: bytes) -> asyncio.Future[int] | None:
        """Publish on a channel of Shoal's own; return a future for the confirmation, or None while the buffer is full.
        Not for applications."""
        shell = self.shell
        if not shell.scheduled:
            shell.schedule()
        posted = shell.router.publish(channel, payload, b"", shell.time_us, shell.now)
        return None if posted is None else shell.confirmation(posted)

    async def listen(self, channel: bytes, heard: Callable[[], None]) -> Subscription:
        """Subscribe to a channel of Shoal's own; `heard` is called when there are items to take with `get_nowait`.
        Not for applications."""
        return await Subscription(self, channel, False, listener=ItemNotice(heard)).open()

    # Inspection

    async def recorded_patterns(self) -> list[bytes]:
        """Return the patterns of recorded channels. Raises CoordinatorError if the coordinator is unavailable."""
        assert self._source is not None, "an open bus has a coordinator"
        return await self._source.recorded()

    @property
    def login(self) -> tuple[str | None, str | None]:
        """User and password for the servers. Not for applications."""
        assert self._source is not None, "an open bus has a coordinator"
        return self._source.login

    async def ask_servers(self, *command: bytes | str | int) -> dict[str, Any]:
        """Run one command (PING, PUBSUB ...) on every server of the ring; return the replies by server id."""
        ring = self.ring
        replies = await asyncio.gather(*(self._ask_server(server, command) for server in ring.servers))
        return dict(zip(ring.ids, replies, strict=True))

    def fetch_ring(self) -> None:
        """Ask the coordinator for the newest ring, in the background. Not for applications."""
        self.shell.fetch_ring()

    async def disconnect(self) -> None:
        """Cut every connection. The bus reopens them, and no message is lost. Not for applications."""
        await self.shell.disconnect_all()

    @property
    def breaks(self) -> int:
        """Number of connections that a server closed, or that broke, while a subscription used them. Not for
        applications: the bus reconnects."""
        return (self._shell or self.shell).breaks

    async def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition holds after a change; return False after `timeout_s`. Not for applications."""
        return await self.shell.until(condition, timeout_s)

    @property
    def router(self) -> Router:
        """The protocol core of an open bus. Not for applications."""
        return (self._shell or self.shell).router

    async def _ask_server(self, server: ServerAddress, command: Request) -> Any:
        username, password = self.login
        endpoint = self.runtime.address_book.reach(server)
        connection = Connection(
            endpoint.host,
            endpoint.port,
            username=username,
            password=password,
            name="shoal-ask",
            dial=endpoint.dial,
            connect_timeout_s=self.limits.connect_timeout_s,
            answer_timeout_s=self.limits.connect_timeout_s,
        )
        async with connection:
            (reply,) = await connection.ask(command)
        return reply

    @property
    def ring(self) -> Ring:
        """The newest ring known to the bus."""
        ring = self.shell.router.book.ring
        assert ring is not None, "an open bus has a ring"
        return ring

    def statistics(self) -> BusStatistics:
        """Return counters and state of the bus; the last ones if it is closed."""
        router = self.router
        now = router.statistics()
        return BusStatistics(
            client_id=self.client_id,
            published=self.published,
            pending_messages=now.pending_messages,
            pending_bytes=now.pending_bytes,
            subscriptions=now.subscriptions,
            ring_version=now.ring_version,
            links=now.links,
            counters=msgspec.structs.asdict(router.counters),
        )


def _to_bytes(payload: str | bytes | bytearray | memoryview) -> bytes:
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise TypeError(f"a payload must be bytes or str, not {type(payload).__name__}")
