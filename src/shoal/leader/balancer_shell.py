"""The balancer's shell: reads and folds telemetry, passes it to the core, and carries out the core's effects.

Owns the balancer's loop, its calls to the provider and its audit log. It works while this process holds the lease of
the plan; each term as leader starts with a new core and the state in the coordinator. The core runs in a thread,
because it takes long with many channels and the lease must be renewed meanwhile. Decides nothing:
`shoal.balance.balancer` does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import pyarrow as pa

from shoal.balance.balancer import PINNED, Balancer
from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.decision_record import DecisionRecord, Outcome, proposal_of
from shoal.balance.effects import (
    AddHosts,
    BalancerView,
    Effect,
    HurryMove,
    ProposalReady,
    PutMark,
    PutState,
    RecordDecision,
    RecordOutcome,
    RemoveServer,
    Reply,
    WriteMove,
    WriteUnitMove,
)
from shoal.balance.pool_keeper import pinned_servers
from shoal.balance.registry import Registry
from shoal.balance.settings import BalanceSettings
from shoal.balance.warm_up import warm_up
from shoal.balance.window_source import Way, WindowRoute, WindowSource
from shoal.coordination.interface import Lease
from shoal.errors import ShoalError
from shoal.leader import metrics
from shoal.leader.balancer_store import BalancerStore
from shoal.leader.conductor_shell import Leadership
from shoal.leader.forecast_file import ForecastFile
from shoal.leader.providers import Provider
from shoal.leader.record_watch import RecordWatch
from shoal.leader.telemetry_reader import TelemetryReader
from shoal.leader.window_reader import WindowReader
from shoal.load.fold import fold
from shoal.load.fold_state import FoldCounters, FoldState
from shoal.load.reports import refusals
from shoal.load.window import LoadWindow
from shoal.load_kinds import REGISTRY
from shoal.logs import get_log
from shoal.plan.keys import Mark
from shoal.plan.kinds import SERVER
from shoal.rules import ALL_RULES, Rules, rule

FRESH_LOAD: Final = rule(
    "fresh_load", "A balancer that begins to lead drops the load that it measured when it led before."
)
GUEST: Final = rule(
    "guest",
    "A server that the balancer adds is marked as a guest before it joins, so that no channel moves with the ring.",
)
STATE_FIRST: Final = rule(
    "state_first", "The state of the balancer names a plan before the first of its moves is requested."
)


_GATHER_S: Final = 0.02
"""How long changes are collected before the next round."""
_RETRY_S: Final = 1.0
"""Pause after an error, before the state is read again."""
_REFUSED_LOG_S: Final = 60.0
"""Shortest time between two log lines about unreadable telemetry."""
_log: Final = get_log(__name__)


class Audit(Protocol):
    """Records decisions; the calls may block."""

    def write_decision(self, record: DecisionRecord, *, quiet: bool) -> object:
        """Records a decision; `quiet` if it changes nothing."""

    def write_outcome(self, outcome: Outcome) -> object:
        """Records the outcome of a decision."""


class BalancerShell:
    """Runs a balancer. `leading` returns the right to write the plan, None while another process leads. `poll_s` is the
    interval of rounds without changes; `spark` reads the load windows of a Spark job, if one is configured; `records`
    knows which drained servers hold records, if these must be archived; `registry` has the kinds of units and hosts."""

    def __init__(
        self,
        store: BalancerStore,
        reader: TelemetryReader,
        provider: Provider,
        audit: Audit,
        leading: Callable[[], Leadership | None],
        settings: BalanceSettings,
        options: BalancerOptions,
        changed: asyncio.Event,
        poll_s: float,
        spark: WindowReader | None = None,
        records: RecordWatch | None = None,
        rules: Rules = ALL_RULES,
        *,
        wall: Callable[[], float],
        registry: Registry = REGISTRY,
    ) -> None:
        self._registry = registry
        self._store = store
        self._reader = reader
        self._provider = provider
        self._audit = audit
        self._leading = leading
        self._settings = settings
        self._options = options
        self._changed = changed
        self._poll_s = poll_s
        self._spark = spark
        self._records = records
        self._rules = rules
        self._wall = wall
        self._windows = WindowSource(wall(), wanted=spark is not None)
        self._route: WindowRoute | None = None
        self._expected = ForecastFile(options.forecast, wall)
        self._core: Balancer | None = None
        self._token = 0
        self._fold = FoldState()
        self._news: list[Callable[[Balancer], None]] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._trouble = ""
        self._refused_at = -_REFUSED_LOG_S

    @property
    def fold_counters(self) -> FoldCounters:
        """Counters of the telemetry that was read in this term as leader."""
        return self._fold.counters

    async def run(self) -> None:
        """Balances until it is cancelled; logs errors and retries."""
        follow = asyncio.create_task(self._store.follow(), name="balancer-watch")
        self._start(self._warm_up())
        if self._spark is not None:
            self._start(self._spark.run())
        try:
            while True:
                await self._turn()
                await self._wait()
        finally:
            for task in (follow, *self._calls):
                task.cancel()
            await asyncio.gather(follow, *self._calls, return_exceptions=True)
            await self._reader.close()
            if self._records is not None:
                await self._records.close()

    async def _turn(self) -> None:
        self._changed.clear()
        leading = self._leading()
        metrics.LEADING.set(leading is not None)
        if leading is None:
            self._core = None
            self._reader.follow(())
            self._reader.take()  # discarded: it would be outdated in the next term as leader
            if self._records is not None:
                self._records.follow(())
            return
        try:
            await self._look(leading)
            self._complain("")
        except ShoalError as error:
            self._core = None
            self._complain(str(error))
            await asyncio.sleep(_RETRY_S)
        except Exception:
            if not self._trouble:
                _log.exception("balancer failed, retrying")
            self._core = None
            self._trouble = "the balancer failed"
            await asyncio.sleep(_RETRY_S)

    async def _look(self, leading: Leadership) -> None:
        lease = leading.lease
        if self._core is None or lease.token != self._token:
            state, moved_at = await self._store.load()
            await self._store.sweep(leading.fence)
            self._core = Balancer(self._settings, self._options, self._registry, state, moved_at, self._rules)
            if FRESH_LOAD in self._rules:
                self._fold = FoldState()
            self._windows = WindowSource(self._wall(), wanted=self._spark is not None)
            self._route = None
            self._token = lease.token
            _log.info(
                "balancer started", policy=self._options.policy, auto=self._options.auto, moved_before=len(moved_at)
            )
        core = self._core
        self._reader.follow((*(leading.ring.servers if leading.ring else ()), *self._store.other_hosts))
        for news in self._news:
            news(core)
        self._news.clear()
        view = BalancerView(
            leading.ring,
            self._store.entries,
            self._store.requests,
            self._store.marks,
            self._provider.state(),
            self._store.asks,
            self._store.proposals,
            self._holding(leading),
            self._store.others,
            self._store.pins,
        )
        effects = await asyncio.to_thread(self._think, core, self._reader.take(), view, self._wall())
        metrics.MOVES_WAITING.set(core.waiting)
        await self._publish_route(leading.fence)
        await self._carry_out(effects, leading, core)

    def _holding(self, leading: Leadership) -> frozenset[str]:
        """The drained servers with records that are not archived."""
        if self._records is None or leading.ring is None:
            return frozenset()
        marks = self._store.marks
        self._records.follow(server for server in leading.ring.servers if marks.get(server.id) is Mark.DRAIN)
        return self._records.holding

    def _think(self, core: Balancer, read: pa.Table, view: BalancerView, now_s: float) -> list[Effect]:
        """Folds the telemetry and calls the core; runs in a thread."""
        windows: list[LoadWindow]
        garbage = self._fold.counters.garbage
        windows, self._fold = fold(self._fold, read, now_s, self._settings, self._registry.load)
        if self._fold.counters.garbage > garbage:
            self._report_refused(read, now_s)
        metrics.WINDOWS.inc(len(windows))
        if self._spark is not None:
            windows = self._windows.step(windows, self._spark.take(), now_s, alive=self._spark.alive)
        core.expect(self._expected.look())
        return core.observe(windows, view, now_s)

    def _report_refused(self, read: pa.Table, now_s: float) -> None:
        """Logs why telemetry cannot be read, at most every `_REFUSED_LOG_S`."""
        if now_s - self._refused_at < _REFUSED_LOG_S:
            return
        self._refused_at = now_s
        for row, why in refusals(read, 1, self._registry.load):
            host = read["host"][row].as_py()
            _log.warning("unreadable telemetry dropped", host=host, why=why)

    async def _publish_route(self, fence: Lease | None) -> None:
        """Stores and logs the source of load windows when it has changed."""
        route, before = self._windows.route, self._route
        if route == before:
            return
        await self._store.put_windows(route, fence)
        self._route = route
        metrics.FROM_SPARK.set(route.way is Way.SPARK)
        if route.way is Way.SPARK:
            _log.info("load windows now come from Spark", why=route.why)
        elif before is not None:
            metrics.FALLBACKS.inc()
            _log.warning("load windows are folded in process again", why=route.why)

    async def _warm_up(self) -> None:
        """Loads the policy before the first decision. Errors are ignored here; they show in the first decision."""
        with contextlib.suppress(Exception):
            await asyncio.to_thread(warm_up, self._options.policy, settings=self._settings)

    # -- effects ---------------------------------------------------------------------------------------------

    def _without_pinned(
        self, effects: list[Effect], leading: Leadership
    ) -> list[WriteMove | WriteUnitMove | HurryMove]:
        """The moves to request, without those of channels that were pinned while the core decided."""
        moves = [effect for effect in effects if isinstance(effect, (WriteMove, WriteUnitMove, HurryMove))]
        if PINNED not in self._rules or leading.ring is None:
            return moves
        held = pinned_servers(self._store.pins, self._store.entries, leading.ring)
        return [move for move in moves if not isinstance(move, WriteMove) or move.request.unit not in held]

    async def _carry_out(self, effects: list[Effect], leading: Leadership, core: Balancer) -> None:
        """Records decisions, carries them out, and then answers. The state is written first, so that the next leader
        knows which requests may exist, and that the fence stops a deposed leader here."""
        fence = leading.fence
        for effect in effects:
            if isinstance(effect, RecordDecision):
                await self._record(effect)
        calls = [effect for effect in effects if isinstance(effect, (AddHosts, RemoveServer))]
        state = PutState(core.state) if calls or any(isinstance(effect, PutState) for effect in effects) else None
        if state is not None and STATE_FIRST in self._rules:
            await self._store.put_state(state, fence)
        moves = self._without_pinned(effects, leading)
        if moves:
            await self._store.write_moves(moves, fence)
            hurried = sum(isinstance(move, HurryMove) for move in moves)
            metrics.MOVES.inc(len(moves) - hurried)
            metrics.MOVES_HURRIED.inc(hurried)
        for effect in effects:
            match effect:
                case RecordOutcome():
                    await self._record(effect)
                case PutMark():
                    await self._store.put_mark(effect, fence)
                    _log.info(
                        "server pool state changed",
                        server=effect.server,
                        mark=effect.mark.value if effect.mark else "home",
                        why=effect.why,
                    )
                case ProposalReady():
                    await self._store.put_proposal(effect, fence)
                case Reply():
                    await self._store.reply(effect, fence)
                    if effect.answer.error:
                        metrics.REFUSALS.inc()
                        _log.warning("request refused", why=effect.answer.error)
        if state is not None and STATE_FIRST not in self._rules:
            await self._store.put_state(state, fence)
        for call in calls:
            self._start(self._add(call, fence) if isinstance(call, AddHosts) else self._remove(call))

    async def _record(self, effect: RecordDecision | RecordOutcome) -> None:
        """Writes to the audit log. A failed write is logged and does not stop the decision."""
        try:
            if isinstance(effect, RecordDecision):
                self._report_decision(effect)
                await asyncio.to_thread(self._audit.write_decision, effect.record, quiet=effect.is_empty)
            else:
                self._report_outcome(effect)
                await asyncio.to_thread(self._audit.write_outcome, effect.outcome)
        except OSError as error:
            _log.error("audit log cannot be written", why=str(error))

    def _report_decision(self, effect: RecordDecision) -> None:
        proposal = proposal_of(effect.record)
        metrics.DECISIONS.labels("nothing" if effect.is_empty else "changes").inc()
        metrics.MAX_RATIO.set(proposal.max_ratio_before)
        if not effect.is_empty:
            _log.info(
                "decided",
                digest=effect.record.digest[:12],
                policy=proposal.policy,
                moves=proposal.moves_count,
                servers=",".join(f"{change.what} {change.server or change.count}" for change in proposal.servers),
                hosts=",".join(f"add {wanted.count} {wanted.kind}" for wanted in proposal.hosts),
                max_ratio=round(proposal.max_ratio_before, 3),
                expected=round(proposal.max_ratio_after, 3),
            )

    def _report_outcome(self, effect: RecordOutcome) -> None:
        outcome = effect.outcome
        for how in ("moved", "given_up", "late"):
            count = outcome.facts.get(how, 0)
            if isinstance(count, int) and count:
                metrics.MOVES_ENDED.labels(how).inc(count)
        _log.info("plan outcome", digest=outcome.digest[:12], state=outcome.state, **outcome.facts)

    # -- the provider ----------------------------------------------------------------------------------------

    def _start(self, call: Coroutine[Any, Any, None]) -> None:
        """Starts a task that rounds do not await, such as a call to the provider. The core gets its result before the
        next round."""
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _add(self, wanted: AddHosts, fence: Lease | None) -> None:
        kind = wanted.kind
        try:
            hosts = await self._provider.add(kind, wanted.count, wanted.site)
            for host in hosts if kind == SERVER and GUEST in self._rules else ():
                if self._store.marks.get(host) is not Mark.GUEST:
                    await self._store.put_mark(PutMark(host, Mark.GUEST, "it is added"), fence)
        except (ShoalError, OSError) as error:
            metrics.REFUSALS.inc()
            _log.warning("hosts not added", kind=kind, wanted=wanted.count, why=str(error))
            self._tell(lambda core: core.refused(kind, self._wall()))
            return
        if kind == SERVER:
            metrics.SERVERS_ADDED.inc(len(hosts))
        _log.info("hosts being added", kind=kind, hosts=",".join(hosts))
        self._tell(lambda core: core.added(kind, hosts, self._wall()))

    async def _remove(self, remove: RemoveServer) -> None:
        try:
            await self._provider.remove(remove.server)
            self._tell(lambda core: core.removed(remove.server))
        except (ShoalError, OSError) as error:
            metrics.REFUSALS.inc()
            _log.warning("server not removed", server=remove.server, why=str(error))
            return
        metrics.SERVERS_REMOVED.inc()
        _log.info("server removed", server=remove.server)

    def _tell(self, news: Callable[[Balancer], None]) -> None:
        self._news.append(news)
        self._changed.set()

    # -- errors and waiting ----------------------------------------------------------------------------------

    def _complain(self, trouble: str) -> None:
        """Logs an error that prevents balancing, once."""
        if trouble and trouble != self._trouble:
            _log.warning("load is not balanced", why=trouble)
        self._trouble = trouble

    async def _wait(self) -> None:
        """Waits for a change or the poll interval, then a moment more, so that one round handles several changes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._poll_s):
                await self._changed.wait()
        await asyncio.sleep(_GATHER_S)
