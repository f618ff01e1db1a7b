"""The agent's process: starts the parts of an agent in order, connects them, and stops them.

Owns the coordinator's client, the reconnects to the server and the end of the process. Decisions are made in the parts:
`core` and `monitor` (run by `session`), `lease_keeper`, `peers` (heartbeats of the other agents), `forward_links`
(messages published on other servers), `report_writer` (reports to the conductor) and `queue_requests` (queues that
clients ask for).

    coordinator --plan, keys--> core <--bytes-- its server --heartbeats, answers, telemetry--> clients, balancer
        ^---- lease, membership (lease_keeper)   other servers --heartbeats (peers)--> lease
        ^---- report (report_writer)             core --forwarded messages (forward_links)--> other servers

Connections to the server, the coordinator and the other servers are retried without limit; a server that restarts on
the same address is a new incarnation. Only errors that a retry cannot cure end the process: a wrong password, a server
that is too old, a cluster with another key.

Clients wait for the heartbeat of a restarted agent, so the start is short: modules that load slowly load in a thread
while the connections open, and the predecessor's lease is taken over meanwhile. The scanner's loops are machine code in
a file, which loads at once. Where there is none yet, the agent runs them as Python, has another process compile them,
and changes over when it is done (`_compile_loops`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.agents.coordinator_access import first_of, reach_coordinator, reconnect_backoff, watch_keys
from shoal.agents.lease_keeper import LeaseKeeper
from shoal.agents.report_writer import write_reports
from shoal.channels.agent.connection import AgentConnection
from shoal.channels.agent.forward_links import ForwardLinks
from shoal.channels.agent.peers import PEER_PATTERN, Peers
from shoal.channels.agent.queue_requests import write_queue_requests
from shoal.coordination.interface import Change, Versioned
from shoal.coordination.link import parse_address
from shoal.errors import (
    ConnectError,
    PlanError,
    ProtocolError,
)
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan import keys
from shoal.plan.book import PlanBook
from shoal.plan.format import FORMAT, stored_format
from shoal.plan.kinds import QUEUE
from shoal.plan.move_request import encode_report
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_request import CreateQueue
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Verifier
from shoal.rules import ALL_RULES, Rules, rule
from shoal.runtime import PRODUCTION, Runtime
from shoal.wire.backoff import Backoff
from shoal.wire.control import Heartbeat
from shoal.wire.identity import KEY_BYTES
from shoal.wire.tls import page_context

DELETIONS: Final = rule(
    "deletions", "An agent drops what is deleted from the plan, such as the mark of a recorded channel."
)


if TYPE_CHECKING:
    from shoal.channels.agent.core import AgentCore
    from shoal.channels.agent.metrics import AgentMetrics
    from shoal.channels.agent.session import ServerSession

MAX_OUT_BYTES_PER_S: Final = 125_000_000.0
"""Default limit of a server's output: a network of 1 Gbit/s."""

ANSWER_AGE_S_MAX: Final = 1.0
"""The lease is renewed only if the server has sent something within this time."""

LISTED_MAX: Final = 1000
"""Publishers and subscribers of a channel that telemetry lists; the counts beside the lists are exact."""

_log: Final = get_log(__name__)


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an agent. User, password and TLS of `url` are used for the coordinator and all servers."""

    address: ServerAddress
    url: str
    limits: Limits
    max_out_bytes_per_s: float = MAX_OUT_BYTES_PER_S
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"


class Agent:
    """The agent of one server: the shell around its core. `run_agent` is the process around it."""

    def __init__(self, options: AgentOptions, runtime: Runtime, rules: Rules = ALL_RULES) -> None:
        self._address = options.address
        self._options = options
        self._limits = options.limits
        self._login = parse_address(options.url, None, None)
        self._runtime = runtime = runtime.with_tls(self._login.tls)
        self._rules = rules
        self._random = runtime.random
        self._instance = self._random.getrandbits(64)
        self._session: ServerSession | None = None
        self._forward_links: ForwardLinks | None = None
        self._metrics: AgentMetrics | None = None
        self._peers = Peers(
            self._address.id,
            self._login.username,
            self._login.password,
            self._limits,
            self._heartbeat_heard,
            lambda: self.core,
            self._random,
            book=runtime.address_book,
            rules=rules,
        )
        self._plan: dict[str, bytes] = {}
        self._secrets: dict[int, bytes] = {}
        self._secrets_changed = asyncio.Event()
        self._format: int | None = None
        self._stored_key: bytes | None = None
        self._plan_moved = False
        self._report_changed = asyncio.Event()
        self._queues_asked = asyncio.Event()
        self._granted_at: float | None = None
        self._opened_at: float | None = None

    @property
    def core(self) -> AgentCore | None:
        """The core, once the agent has read the plan and reached its server."""
        return self._session.core if self._session is not None else None

    async def work(self, load: Callable[[], Awaitable[None]]) -> None:
        """Serves until it is cancelled, then gives up its lease. `load` loads the slow modules; the session waits for
        it."""
        self._loop = asyncio.get_running_loop()
        self._key: asyncio.Future[bytes] = self._loop.create_future()
        loaded = asyncio.ensure_future(load())
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(loaded.cancel)
            if self._options.metrics_port:
                self._start_metrics(stack)
            coordinator = await reach_coordinator(self._runtime, self._options.url, self._limits)
            stack.push_async_callback(coordinator.close)
            stack.push_async_callback(self._peers.close)
            stack.push_async_callback(self._close_forward_links)
            holder = f"{self._address.id}-{self._instance:016x}"
            lease_keeper = LeaseKeeper(
                coordinator, self._address, holder, self._limits, self, self._answers, self._is_connected
            )
            stack.push_async_callback(lease_keeper.leave)
            retry_s = self._limits.heartbeat_interval_s
            await first_of(
                lease_keeper.run(),
                watch_keys(coordinator, keys.PLAN_PREFIX, self._plan_changed, retry_s),
                watch_keys(coordinator, keys.AGENT_SECRETS_PREFIX, self._secret_changed, retry_s),
                self._keep_session(lease_keeper, loaded),
                write_reports(
                    coordinator,
                    keys.report_key(self._address.id),
                    self._take_report,
                    self._report_changed,
                    retry_s,
                ),
                write_queue_requests(
                    coordinator, self._take_queue_request, self._queue_request_written, self._queues_asked
                ),
            )

    def _start_metrics(self, stack: contextlib.AsyncExitStack) -> None:
        from shoal.channels.agent.metrics import AgentMetrics

        port, host = self._options.metrics_port, self._options.metrics_host
        self._metrics = AgentMetrics(self._address.id, port, page_context(self._login.tls), host)
        stack.callback(self._metrics.close)

    async def _close_forward_links(self) -> None:
        if self._forward_links is not None:
            await self._forward_links.close()

    # The coordinator

    def _secret_changed(self, change: Change) -> None:
        """The secret that all agents share: a new generation, or the end of one."""
        generation = keys.agent_secret_generation(change.key)
        value = change.now.value if change.now is not None else None
        if generation is None or (value is not None and len(value) != KEY_BYTES):
            _log.error("unreadable secret ignored", key=change.key)
            return
        if value is None:
            self._secrets.pop(generation, None)
        else:
            self._secrets[generation] = value
        self._secrets_changed.set()
        if self._session is not None:
            self._session.core.secret(generation, value)
            self._follow_soon(self._session)

    def _plan_changed(self, change: Change) -> None:
        value = change.now.value if change.now is not None else None
        if value is None and DELETIONS not in self._rules:
            return
        if change.key == keys.FORMAT_KEY and value is not None:
            self._format = stored_format(value)
            self._key_found(self._stored_key)
        elif change.key == keys.PUBLIC_KEY and value is not None:
            self._key_found(value)
        elif self._session is not None:
            self._plan_to_core(self._session, change.key, value)
        elif value is not None:
            self._plan[change.key] = value
        else:
            self._plan.pop(change.key, None)

    def _key_found(self, key: bytes | None) -> None:
        """The agent begins to serve when it has the key, and the plan has the format of this version."""
        if key is None:
            return
        self._stored_key = key
        if self._format != FORMAT:
            _log.warning("waits for a leader of this version to upgrade the plan", format=FORMAT)
        elif not self._key.done():
            self._key.set_result(key)
        elif self._key.result() != key:
            raise PlanError("the cluster has another key than when this agent started", do="start the agent again")

    def _plan_to_core(self, session: ServerSession, key: str, value: bytes | None) -> None:
        core = session.core
        version, forged = core.book.version, core.counters.forged
        if key == keys.RING_KEY and value is not None:
            core.ring(value)
        elif (pattern := keys.recorded_pattern(key)) is not None:
            core.mark(pattern, value is not None)
        elif (queue := keys.entry_unit(key, QUEUE)) is not None:
            core.queue_requests.listed(queue, value is not None and self._is_queue(value))
        elif (channel := keys.entry_unit(key)) is not None:
            if value is None:
                core.forget_entry(channel)
            else:
                core.entry(value)
        if core.counters.forged != forged:
            _log.error("plan value forged or outdated", key=key)
        ring = core.book.ring
        if ring is not None and ring.version != version:
            _log.info("new ring", version=ring.version, servers=",".join(ring.ids))
            self._peers.follow(ring)
            if self._forward_links is not None:
                self._forward_links.follow(ring)
        self._follow_soon(session)

    def _is_queue(self, line: bytes) -> bool:
        """Whether an entry is that of a queue that is not being dropped."""
        try:
            return not Verifier(self._key.result()).line(line, QueueEntry).dropped
        except PlanError as error:
            _log.error("plan entry of a queue forged", why=str(error))
            return False

    def _follow_soon(self, session: ServerSession) -> None:
        if not self._plan_moved:
            self._plan_moved = True
            self._loop.call_soon(self._follow_plan, session)

    def _follow_plan(self, session: ServerSession) -> None:
        """Runs the core once for all plan changes that came together."""
        self._plan_moved = False
        session.flush()
        session.turn()

    def _flushed(self) -> None:
        """The core has been given something, and its commands were sent."""
        session, forward_links = self._session, self._forward_links
        if forward_links is not None:
            forward_links.flush()
        if session is not None and session.core.report_may_change:
            self._report_changed.set()
        if session is not None and session.core.queue_requests:
            self._queues_asked.set()

    def _take_queue_request(self) -> CreateQueue | None:
        return self._session.core.queue_requests.take() if self._session is not None else None

    def _queue_request_written(self, name: bytes, error: str | None) -> None:
        if self._session is not None:
            self._session.core.queue_requests.written(name, error)
            self._session.flush()

    def _take_report(self) -> bytes | None:
        report = self._session.core.take_report() if self._session is not None else None
        return None if report is None else encode_report(report)

    # The coordinator's answers about the lease (see `lease_keeper.Verdicts`)

    def granted(self, sent_at: float, lapsed: bool) -> None:
        """The lease is held; if it was not before, a heartbeat is sent at once."""
        self._granted_at = sent_at
        if self._session is not None:
            core = self._session.core
            silent = not core.lease.is_granted(self._loop.time())
            core.lease.granted(sent_at, core.book.version if lapsed else None)
            if silent:
                self._session.send_heartbeat()

    def ring_read(self, ring: Versioned) -> None:
        """The ring as read after a lapsed lease was taken; the watch may bring it later."""
        self._plan_changed(Change(keys.RING_KEY, ring))

    def refused(self) -> None:
        """The lease is another agent's."""
        self._granted_at = None
        if self._session is not None:
            self._session.core.lease.refused()

    def asked(self) -> None:
        """The coordinator is asked."""
        if self._session is not None:
            self._session.core.lease.asked(self._loop.time())

    def answered(self) -> None:
        """The coordinator has answered, or is not asked any more."""
        if self._session is not None:
            self._session.core.lease.answered()

    def _heartbeat_heard(self, heartbeat: Heartbeat) -> None:
        if self._session is not None:
            self._session.core.lease.heard(heartbeat, self._loop.time())

    def _answers(self) -> bool:
        """Whether the server has sent something recently; sends the next PING."""
        heard_at = self._opened_at
        if heard_at is not None and self._session is not None:
            heard_at = max(heard_at, self._session.heard_at)
            self._session.probe()
        return heard_at is not None and self._loop.time() - heard_at <= ANSWER_AGE_S_MAX

    def _is_connected(self) -> bool:
        return self._session is not None and self._session.connected

    # The server

    async def _keep_session(self, lease_keeper: LeaseKeeper, loaded: asyncio.Future[None]) -> None:
        """Keeps a connection to the server and hands it to the core."""
        backoff = reconnect_backoff(self._limits, self._runtime)
        while True:
            connection, run_id = await self._open(backoff)
            self._opened_at = self._loop.time()
            lease_keeper.hurry()
            try:
                if self._session is None:
                    await loaded
                    self._session = self._make_session(await self._key)
                await self._secret_known(self._session.core)
                if not connection.ended.is_set():
                    self._loop.call_soon(lease_keeper.hurry)
                    await self._session.serve(connection, run_id)
                    backoff.reset()
            finally:
                self._opened_at = None
                connection.abort()
            _log.warning("server connection lost", server=self._address.id, why=str(connection.error))
            await asyncio.sleep(backoff.next_delay_s())

    async def _secret_known(self, core: AgentCore) -> None:
        """Waits for the agents' secret, if messages are authenticated: the core cannot check earlier messages."""
        while not core.authentication.ready:
            self._secrets_changed.clear()
            await self._secrets_changed.wait()

    async def _open(self, backoff: Backoff) -> tuple[AgentConnection, str]:
        """A connection and the server's run id. Before the first session, permanent errors end the process."""
        address = self._address
        complained = False
        while True:
            endpoint = self._runtime.address_book.reach(address)
            connection = AgentConnection(
                endpoint.host,
                endpoint.port,
                username=self._login.username,
                password=self._login.password,
                name=f"shoal-agent-{address.id}",
                connect_timeout_s=self._limits.connect_timeout_s,
                dial=endpoint.dial,
            )
            try:
                return connection, await connection.open()
            except (ConnectError, ProtocolError) as error:
                if type(error) is not ConnectError and self._session is None:
                    raise
                if not complained:
                    _log.warning("server not reachable", server=address.id, why=str(error))
                complained = True
            await asyncio.sleep(backoff.next_delay_s())

    def _make_session(self, key: bytes) -> ServerSession:
        from shoal.channels.agent.core import AgentCore
        from shoal.channels.agent.monitor import Monitor
        from shoal.channels.agent.session import ServerSession
        from shoal.channels.telemetry.analyzer import Analyzer
        from shoal.channels.telemetry.scanner import Scanner
        from shoal.channels.telemetry.tables import TableLimits

        scanner = Scanner(
            self._limits.command_reply_bytes_max,
            TableLimits(
                channels_max=self._limits.known_channels_max,
                streams_max=self._limits.known_streams_max,
                hash_seed=self._random.getrandbits(64),
            ),
            observed_bytes_max=self._limits.delivery_bytes_max,
        )
        core = AgentCore(self._address.id, self._instance, scanner, PlanBook(Verifier(key)), self._limits, self._rules)
        if self._granted_at is not None:
            core.lease.granted(self._granted_at)
        monitor = Monitor(
            core,
            Analyzer(scanner, LISTED_MAX),
            self._options.max_out_bytes_per_s,
            frozenset({b"*", PEER_PATTERN}),
            self._address.site,
        )
        if self._metrics is not None:
            self._metrics.watch(core, monitor, self._loop.time)
        login = self._login
        self._forward_links = ForwardLinks(
            self._address.id,
            login.username,
            login.password,
            self._limits,
            core,
            self._random,
            book=self._runtime.address_book,
        )
        session = ServerSession(core, monitor, self._limits, self._flushed, self._runtime, key)
        for generation, secret in self._secrets.items():
            core.secret(generation, secret)
        for name, value in self._plan.items():
            self._plan_to_core(session, name, value)
        self._plan.clear()
        return session


def run_agent(options: AgentOptions) -> None:
    """Runs an agent on uvloop until SIGTERM or SIGINT."""
    import uvloop

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, ended.set)
        loaded = asyncio.Event()

        async def load() -> None:
            await _load_in_thread()
            loaded.set()

        compiling = asyncio.ensure_future(_compile_loops(loaded))
        try:
            await first_of(Agent(options, PRODUCTION).work(load), ended.wait())
        finally:
            compiling.cancel()
        _log.info("agent stopped", server=options.address.id)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def _load() -> None:
    """Loads the slow modules and the compiled loops. They are never freed, so they are excluded from garbage
    collection: a collection took 100 ms, in which the agent served no client."""
    from shoal.channels.agent import session  # noqa: F401
    from shoal.channels.telemetry import analyzer, loop_image  # noqa: F401

    loop_image.load_image()
    gc.collect()
    gc.freeze()


async def _compile_loops(loaded: asyncio.Event) -> None:
    """If there was no machine code to load, has the loops compiled in another process, and then uses the result."""
    await loaded.wait()
    from shoal.channels.telemetry import loop_image

    if loop_image.is_compiled():
        return
    _log.info("loops run as Python until they are compiled, once for this version: this takes up to a minute")
    builder = await asyncio.create_subprocess_exec(*loop_image.build_command(), stdout=subprocess.DEVNULL)
    try:
        status = await builder.wait()
    finally:
        if builder.returncode is None:
            builder.terminate()
    if loop_image.load_image():
        _log.info("loops compiled")
    else:
        _log.error("loops not compiled: the agent is slow", status=status, do="see the messages before this one")


async def _load_in_thread() -> None:
    """Calls `_load` in a daemon thread."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def work() -> None:
        failure: BaseException | None = None
        try:
            _load()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, failure)

    threading.Thread(target=work, name="load", daemon=True).start()
    await done
