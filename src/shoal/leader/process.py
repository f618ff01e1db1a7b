"""The process of `shoal balancer`: leader or standby, from start to SIGTERM.

Owns how its parts are put together. What they do is in `shoal.leader.leadership` and `shoal.leader.balancer_shell`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder

import msgspec
import pyarrow as pa

from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.registry import Registry
from shoal.balance.settings import BalanceSettings
from shoal.balance.window_source import Way
from shoal.coordination.link import parse_address
from shoal.leader.balancer_shell import Audit, BalancerShell
from shoal.leader.balancer_store import BalancerStore
from shoal.leader.leader_timeouts import LeaderTiming
from shoal.leader.leadership import Leader
from shoal.leader.providers import FixedPool, NoProvider, Provider
from shoal.leader.record_watch import RecordWatch
from shoal.leader.telemetry_reader import TelemetryReader
from shoal.leader.window_reader import WindowReader
from shoal.limits import Limits
from shoal.load_kinds import REGISTRY
from shoal.metrics import MetricsPage
from shoal.plan.signature import Signer
from shoal.rules import ALL_RULES, Rules
from shoal.runtime import PRODUCTION, Runtime
from shoal.wire.tls import page_context


class BalancerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The setup of a balancer. `url` is the coordinator's, with an admin's login; `reader` the login for telemetry at
    the servers; `key` the private key of the plan; `audit` records the decisions. `provider` adds and removes servers,
    unless `options` name a fixed pool; the first ring waits for the servers `expected`; `windows` from
    Spark are used while they arrive in time."""

    url: str
    reader: tuple[str | None, str | None]
    key: bytes
    audit: Audit
    limits: Limits
    settings: BalanceSettings
    options: BalancerOptions
    provider: Provider | None = None
    expected: tuple[str, ...] = ()
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"
    windows: Way = Way.IN_PROCESS
    timing: LeaderTiming = LeaderTiming()


async def balance(
    setup: BalancerSetup,
    runtime: Runtime = PRODUCTION,
    rules: Rules = ALL_RULES,
    holder: str | None = None,
    begun: Callable[[BalancerShell], None] | None = None,
    registry: Registry = REGISTRY,
) -> None:
    """Leads or stands by until it is cancelled. `holder` names this run of the process in the lease; `begun` is given
    the balancer before its first turn. Both are for the simulator."""
    limits, options = setup.limits, setup.options
    where = parse_address(setup.url, None, None)
    runtime = runtime.with_tls(where.tls)
    signer = Signer(setup.key)
    changed = asyncio.Event()
    async with await runtime.coordinator(setup.url, limits.server_lease_s / 2) as coordinator:
        holder = holder or f"balancer-{os.getpid()}-{runtime.random.getrandbits(32):08x}"
        leader = Leader(
            coordinator,
            signer,
            limits,
            setup.timing,
            setup.expected,
            holder,
            runtime.random,
            rules,
            registry=registry,
            wall=runtime.wall,
        )
        store = BalancerStore(
            *(coordinator, signer.public, changed, registry.planners), lambda: provider.state().engine_processes_max
        )
        provider = _provider(setup, store)
        spark = None
        if setup.windows is Way.SPARK:
            spark = WindowReader(where, limits, changed, runtime, registry.load)
        balancing = BalancerShell(
            store,
            TelemetryReader(*setup.reader, limits, changed, runtime),
            provider,
            setup.audit,
            lambda: leader.leading,
            setup.settings,
            options,
            changed,
            setup.timing.keeper_poll_s,
            spark,
            RecordWatch(*setup.reader, limits, runtime.address_book) if options.keep_records else None,
            rules,
            wall=runtime.wall,
            registry=registry,
        )
        if begun is not None:
            begun(balancing)
        await leader.run(balancing.run())


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        """Finds nothing; pandas is not there."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not used here", name=fullname)


def leave_pandas_out() -> None:
    """Keeps pyarrow from loading pandas. It looks for pandas once, when it converts something for the first time, and
    loads it if it is installed: 0.2 CPU seconds and 50 MB that a balancer has no use for."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([None])
    finally:
        sys.meta_path.remove(finder)


def run_balancer(setup: BalancerSetup) -> None:
    """Runs a balancer on uvloop until SIGTERM or SIGINT."""
    import uvloop

    leave_pandas_out()

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, task.cancel)
        with contextlib.suppress(asyncio.CancelledError), contextlib.ExitStack() as stack:
            if setup.metrics_port:
                tls = parse_address(setup.url, None, None).tls
                stack.enter_context(MetricsPage(setup.metrics_port, host=setup.metrics_host, tls=page_context(tls)))
            await balance(setup)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def _provider(setup: BalancerSetup, store: BalancerStore) -> Provider:
    if setup.options.pool:
        return FixedPool(setup.options, lambda: store.marks)
    return setup.provider or NoProvider(setup.options)
