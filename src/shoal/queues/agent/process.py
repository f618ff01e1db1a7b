"""The process of a store's agent: connects the core to its store and to the coordinator.

Owns the connections and the end of the process. Decisions are made in `core`; lease, membership and report are kept by
the parts that all agents share (`shoal.agents`).

    coordinator --entries of queues, key--> core --commands--> its store
        ^---- lease, membership               ^---- replies ----'
        ^---- report

Connections are retried without limit. An agent that starts while the coordinator is away waits for it. Only errors that
a retry cannot cure end the process: a wrong password, a store that is too old, a cluster with another key.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Final

import hiredis
import msgspec

from shoal.agents.coordinator_access import first_of, reach_coordinator, reconnect_backoff, watch_keys
from shoal.agents.lease_keeper import LeaseKeeper
from shoal.agents.report_writer import write_reports
from shoal.coordination.acl import STORES
from shoal.coordination.interface import Change, Coordinator, Versioned
from shoal.coordination.link import parse_address
from shoal.errors import ConnectError, CoordinatorError, ForgedEntryError, PlanError, ProtocolError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan import keys
from shoal.plan.format import FORMAT, stored_format
from shoal.plan.kinds import QUEUE
from shoal.plan.queue_report import QueueReport, decode_queue_report, encode_queue_report
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Verifier
from shoal.queues.agent.core import Ask, StoreAgentCore
from shoal.queues.agent.meter import StoreMeter
from shoal.queues.agent.telemetry import StoreTelemetry
from shoal.queues.mover_shell import MoverShell
from shoal.queues.script_loader import load_scripts
from shoal.queues.shard_mover import ShardStatus
from shoal.queues.store_link import Login
from shoal.rules import ALL_RULES, Rules
from shoal.runtime import PRODUCTION, Runtime
from shoal.wire.connection import Connection
from shoal.wire.tls import page_context

ANSWER_AGE_S_MAX: Final = 2.0
"""The lease is renewed only if the store has answered within this time. A store waits for its disk on every write, so
it may be silent for longer than a server."""

_log: Final = get_log(__name__)


class StoreAgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a store's agent. User, password and TLS of `url` are used for the coordinator and the store."""

    address: ServerAddress
    url: str
    limits: Limits
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"


class StoreAgent:
    """The agent of one store: the shell around its core. `run_store_agent` is the process around it."""

    def __init__(self, options: StoreAgentOptions, runtime: Runtime, rules: Rules = ALL_RULES) -> None:
        self._options = options
        self._address = options.address
        self._limits = options.limits
        self._login = parse_address(options.url, None, None)
        self._runtime = runtime.with_tls(self._login.tls)
        self._scripts = load_scripts(rules)
        self._instance = self._runtime.random.getrandbits(64)
        self._meter = StoreMeter(options.address.id, f"{self._instance:016x}", options.address.site)
        self._core: StoreAgentCore | None = None
        self._lines: dict[bytes, bytes] = {}
        """Entries that came before the key."""
        self._format: int | None = None
        self._key: asyncio.Future[bytes] | None = None
        self._connection: Connection | None = None
        self._heard_at: float | None = None
        self._wake = asyncio.Event()
        self._report_changed = asyncio.Event()
        self._granted = asyncio.Event()
        """Set when the lease was granted or renewed."""
        self._movers: dict[bytes, tuple[MoverShell, asyncio.Task[None]]] = {}

    @property
    def core(self) -> StoreAgentCore | None:
        """The core, once the agent has read the cluster's key."""
        return self._core

    async def work(self) -> None:
        """Serves until it is cancelled, then gives up its lease."""
        self._clock = asyncio.get_running_loop().time
        self._key = asyncio.get_running_loop().create_future()
        retry_s = self._limits.heartbeat_interval_s
        async with contextlib.AsyncExitStack() as stack:
            if self._options.metrics_port:
                from shoal.queues.agent.metrics import StoreMetrics

                port, host = self._options.metrics_port, self._options.metrics_host
                page = StoreMetrics(
                    lambda: self._core, lambda: self._meter.figures, port, page_context(self._login.tls), host
                )
                stack.callback(page.close)
            coordinator = await reach_coordinator(self._runtime, self._options.url, self._limits)
            stack.push_async_callback(coordinator.close)
            holder = f"{self._address.id}-{self._instance:016x}"
            lease_keeper = LeaseKeeper(
                coordinator, self._address, holder, self._limits, self, self._answers, self._is_ready, STORES
            )
            stack.push_async_callback(lease_keeper.leave)
            stack.push_async_callback(self._end_movers)
            await first_of(
                lease_keeper.run(),
                watch_keys(coordinator, keys.FORMAT_KEY, self._key_changed, retry_s),
                watch_keys(coordinator, keys.PUBLIC_KEY, self._key_changed, retry_s),
                watch_keys(coordinator, keys.entries_prefix(QUEUE), self._entry_changed, retry_s),
                self._serve(coordinator, lease_keeper),
                write_reports(
                    coordinator,
                    keys.report_key(self._address.id, QUEUE),
                    self._take_report,
                    self._report_changed,
                    retry_s,
                ),
            )

    # -- the coordinator -------------------------------------------------------------------------------------

    def _key_changed(self, change: Change) -> None:
        """The agent begins when it has the key, and the plan has the format of this version."""
        value = change.now.value if change.now is not None else None
        if value is None or self._key is None:
            return
        if change.key == keys.FORMAT_KEY:
            self._format = stored_format(value)
            if self._format != FORMAT:
                _log.warning("waits for a leader of this version to upgrade the plan", format=FORMAT)
        elif change.key == keys.PUBLIC_KEY:
            if not self._key.done():
                self._key.set_result(value)
            elif self._key.result() != value:
                raise PlanError("the cluster has another key than when this agent started", do="start the agent again")
        self._wake.set()

    def _entry_changed(self, change: Change) -> None:
        unit = keys.entry_unit(change.key, QUEUE)
        if unit is None:
            return
        if self._core is not None:
            self._entry_to_core(self._core, unit, change.now.value if change.now else None)
        elif change.now is not None:
            self._lines[unit] = change.now.value
        else:
            self._lines.pop(unit, None)

    def _entry_to_core(self, core: StoreAgentCore, unit: bytes, line: bytes | None) -> None:
        if line is None:
            core.forget(unit)
            if (mover := self._movers.pop(unit, None)) is not None:
                mover[1].cancel()
        else:
            try:
                core.entry(line)
            except ForgedEntryError as error:
                _log.error("plan entry forged", queue=unit, why=str(error))
        self._moved()

    def _moved(self) -> None:
        """The core has got something: it may have commands, and another report."""
        self._wake.set()
        self._report_changed.set()

    def _take_report(self) -> bytes | None:
        report = self._core.take_report() if self._core is not None else None
        return None if report is None else encode_queue_report(report)

    async def _begin(self, coordinator: Coordinator) -> StoreAgentCore:
        """Waits for the cluster's key and format, and makes the core."""
        assert self._key is not None
        key = await self._key
        while self._format != FORMAT:
            self._wake.clear()
            await self._wake.wait()
        core = StoreAgentCore(self._address.id, Verifier(key), self._scripts, await self._report_before(coordinator))
        self._core = core
        for unit, line in self._lines.items():
            self._entry_to_core(core, unit, line)
        self._lines.clear()
        return core

    async def _report_before(self, coordinator: Coordinator) -> QueueReport | None:
        """The last report of an earlier agent of this store."""
        while True:
            try:
                stored = await coordinator.get(keys.report_key(self._address.id, QUEUE))
                return None if stored is None else decode_queue_report(stored.value)
            except ProtocolError as error:
                _log.warning("unreadable report of an earlier agent ignored", why=str(error))
                return None
            except CoordinatorError:
                await asyncio.sleep(self._limits.heartbeat_interval_s)

    # -- the lease (see `shoal.agents.lease_keeper.Verdicts`) ------------------------------------------------

    def granted(self, sent_at: float, lapsed: bool) -> None:
        """The lease is held."""
        if self._core is not None:
            self._core.lease(True)
            self._granted.set()
            self._wake.set()

    def refused(self) -> None:
        """The lease is another agent's, which acts for the store."""
        if self._core is not None:
            self._core.lease(False)

    def ring_read(self, ring: Versioned) -> None:
        """Stores are in no ring."""

    def asked(self) -> None:
        """The coordinator is asked."""

    def answered(self) -> None:
        """The coordinator has answered, or is not asked any more."""

    def _answers(self) -> bool:
        """Whether the store has answered recently."""
        return self._heard_at is not None and self._clock() - self._heard_at <= ANSWER_AGE_S_MAX

    def _is_ready(self) -> bool:
        return self._core is not None and self._core.ready

    # -- the store -------------------------------------------------------------------------------------------

    async def _serve(self, coordinator: Coordinator, lease_keeper: LeaseKeeper) -> None:
        """Keeps a connection to the store and carries out the core's commands."""
        core = await self._begin(coordinator)
        backoff = reconnect_backoff(self._limits, self._runtime)
        complained = served = False
        while True:
            connection = self._new_connection()
            try:
                await connection.open()
                complained, served = False, True
                backoff.reset()
                await self._use(connection, core, lease_keeper, coordinator)
                _log.warning("store connection lost", store=self._address.id, why=str(connection.error))
            except (ConnectError, ProtocolError) as error:
                if type(error) is not ConnectError and not served:
                    raise
                if not complained:
                    _log.warning("store not reachable", store=self._address.id, why=str(error))
                complained = True
            finally:
                connection.abort()
                core.disconnected()
                self._heard_at = None
            await asyncio.sleep(backoff.next_delay_s())

    def _new_connection(self) -> Connection:
        endpoint = self._runtime.address_book.reach(self._address)
        return Connection(
            endpoint.host,
            endpoint.port,
            username=self._login.username,
            password=self._login.password,
            name=f"shoal-agent-{self._address.id}",
            dial=endpoint.dial,
            connect_timeout_s=self._limits.connect_timeout_s,
            answer_timeout_s=self._limits.connect_timeout_s,
            frame_bytes_max=self._limits.command_reply_bytes_max,
        )

    def _ship(self, core: StoreAgentCore) -> None:
        """Let movers carry out the entries of queues that are on the store."""
        for entry in core.ships():
            if entry.unit not in self._movers:
                self._movers[entry.unit] = self._new_mover(core, entry.unit)
            self._movers[entry.unit][0].observe(entry)

    def _new_mover(self, core: StoreAgentCore, unit: bytes) -> tuple[MoverShell, asyncio.Task[None]]:
        def report(status: ShardStatus) -> None:
            core.shipped(unit, status)
            self._report_changed.set()

        def login() -> Login:
            return self._login.username, self._login.password

        mover = MoverShell(unit.decode(), self._address, self._scripts, login, report, self._limits, self._runtime)
        return mover, asyncio.create_task(mover.run(), name=f"mover of {unit.decode()}")

    async def _end_movers(self) -> None:
        tasks = [task for _, task in self._movers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _use(
        self, connection: Connection, core: StoreAgentCore, lease_keeper: LeaseKeeper, coordinator: Coordinator
    ) -> None:
        """Uses a connection until it ends."""
        core.connected()
        self._granted.clear()
        reading = asyncio.create_task(self._read_plan(core, coordinator), name="the plan in this life of the store")
        probing = asyncio.create_task(self._probe(connection), name="probe of the store")
        telemetry = StoreTelemetry(self._meter, self._scripts, lambda: core.measured, self._runtime)
        measuring = asyncio.create_task(telemetry.write(connection), name="telemetry of the store")
        watching = asyncio.create_task(self._wake_at_end(connection), name="end of the store's connection")
        try:
            was_ready = False
            while connection.usable:
                self._wake.clear()
                asks = core.asks(self._clock())
                self._ship(core)
                if asks:
                    await asyncio.gather(*(self._carry_out(connection, core, ask) for ask in asks))
                    self._report_changed.set()
                    if core.ready and not was_ready:
                        was_ready = True
                        _log.info("store ready", store=self._address.id)
                        lease_keeper.hurry()
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(core.next_check_s(self._clock())):
                        await self._wake.wait()
        finally:
            tasks = (reading, probing, measuring, watching)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_plan(self, core: StoreAgentCore, coordinator: Coordinator) -> None:
        """Reads all entries, after the lease was granted: the leader abandons no shards of a store whose lease runs. So
        the store is opened by a plan that still counts, also if the news of a watch are late."""
        await self._granted.wait()
        while True:
            try:
                listed = await coordinator.list(keys.entries_prefix(QUEUE))
                break
            except CoordinatorError:
                await asyncio.sleep(self._limits.heartbeat_interval_s)
        for key, stored in listed.items():
            if (unit := keys.entry_unit(key, QUEUE)) is not None:
                self._entry_to_core(core, unit, stored.value)
        core.plan_read()
        self._wake.set()

    async def _carry_out(self, connection: Connection, core: StoreAgentCore, ask: Ask) -> None:
        try:
            replies = await connection.ask(*ask.requests)
        except hiredis.ReplyError as error:
            core.failed(ask.unit, str(error), self._clock())
        except ConnectError:
            return  # the connection has ended; everything is read again in the next one
        else:
            self._heard_at = self._clock()
            core.replied(ask.unit, replies, self._clock())

    async def _probe(self, connection: Connection) -> None:
        """Asks the store for a sign of life, at every heartbeat."""
        while True:
            try:
                await connection.ask((b"PING",))
                self._heard_at = self._clock()
            except hiredis.ReplyError:
                pass  # it still loads its data
            except ConnectError:
                return
            await asyncio.sleep(self._limits.heartbeat_interval_s)

    async def _wake_at_end(self, connection: Connection) -> None:
        await connection.ended.wait()
        self._wake.set()


def run_store_agent(options: StoreAgentOptions) -> None:
    """Runs a store's agent on uvloop until SIGTERM or SIGINT."""
    import uvloop

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, ended.set)
        await first_of(StoreAgent(options, PRODUCTION).work(), ended.wait())
        _log.info("agent stopped", store=options.address.id)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
