"""A cluster of local child processes: coordinator, servers, stores, agents, and a leader. The leader is either part of
this process (ring keeper and conductor), or one of several balancer processes.

Owns the order in which they start and stop. No child survives this process, however it ends. The background cluster of
`shoal up` runs in a supervisor process; tests, the demo and measurements use this class directly.

    async with LocalCluster(servers=3) as cluster:
        bus = shoal.connect(cluster.url)
        await cluster.kill("s1")
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from shoal.balance.balancer_options import DEFAULT_OPTIONS
from shoal.balance.window_source import Way
from shoal.cluster.acl import ADMIN, AGENT, CLIENT, ENGINE, PIPELINE, READER
from shoal.cluster.cluster_timeouts import DEFAULT_TIMING, Timing
from shoal.cluster.control_socket import serve_requests
from shoal.cluster.engine_caller import EngineCaller
from shoal.cluster.fleet import COORDINATOR as COORDINATOR
from shoal.cluster.fleet import NO_METRICS, Fleet
from shoal.cluster.host_launchers import HostLauncher
from shoal.cluster.local_certificates import CertificateRenewal, LocalCertificates
from shoal.cluster.metrics_ports import MetricsPorts
from shoal.cluster.parts import (
    ENGINE_PREFIX,
    AgentCommand,
    Sites,
    agent_name,
    engine_name,
    engine_processes_max,
    limited,
    loopback,
    shoal_agent,
    with_metrics,
)
from shoal.cluster.process import ProcessId, log_tail, start_ticks
from shoal.cluster.ring_watch import RingWatch
from shoal.cluster.servers import choose_program
from shoal.cluster.state import ClusterState, Lock, StateDir, write_private
from shoal.cluster.status import ClusterStatus as ClusterStatus
from shoal.cluster.status import SecretStatus, ServerStatus, StoreStatus
from shoal.cluster.store_directory import mark_store, read_store_mark
from shoal.cluster.users import Users
from shoal.coordination.acl import STORES
from shoal.coordination.interface import Coordinator
from shoal.engine.engine_report import read_report
from shoal.engine.messages import MAIN
from shoal.errors import ClusterError, NotRunningError
from shoal.leader.keeper_shell import KeeperView
from shoal.leader.leadership import Leader
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.logs import get_log
from shoal.plan.keys import RING_KEY, Mark, pool_key
from shoal.plan.kinds import ENGINE as ENGINE_KIND
from shoal.plan.kinds import SERVER, STORE
from shoal.plan.ring import ServerAddress
from shoal.plan.secret_rotation import generations
from shoal.plan.signature import Signer, Verifier
from shoal.runtime import PRODUCTION

_READY_POLL_S: Final = 0.02

_STATE_RETRY_S: Final = 1.0
"""How long to wait before the state file is written again after an error."""

_USED_BY: Final = {
    "agent": frozenset({AGENT}),
    "balancer": frozenset({ADMIN, READER}),
    "pipeline": frozenset({PIPELINE}),
    "engine": frozenset({ENGINE}),
}
"""The roles whose passwords the processes of a kind use."""

_log: Final = get_log(__name__)
_NO_VIEW: Final = KeeperView(False, False, (), None, "the ring keeper does not run")


class LocalCluster:
    """An async context manager; entering returns when all servers and stores hold their lease and the ring is written.

    `state_dir` None means a temporary directory. Without `agents` there are no leases and no ring, and entering returns
    when the servers answer. With `balancers`, one of them leads with `policy`, carries out its decisions if `auto`, and
    keeps the number of servers between `servers_min` (default: the initial number) and `servers_max`. Without
    balancers, this process keeps the ring and moves channels. `balancer_environment` has settings of the balancers
    (`shoal.config.environment_of`). `max_out_bytes_per_s` is the capacity of each server. If `windows` is Spark, a
    Spark job folds load windows for the balancers. With `tls` all connections use TLS, with certificates of an
    authority of the cluster's own; None means `default_tls`. `metrics` are the ports of metrics pages. `stores` is the
    number of stores at first; balancers add one when the first queue is created. With `engine`, an engine matches
    events; with `engine_when_asked`, it is started when a client emits or matches. The end of a cluster with stores
    keeps its data in `state_dir`. With `resume`, a cluster in `state_dir` whose supervisor was killed, or that was
    stopped and has stores, is continued: the same servers, stores, ports, passwords, key and plan. Messages that its
    servers had recorded are gone.
    """

    default_tls: ClassVar[bool] = False
    """Whether clusters use TLS unless they are told. Tests change it."""

    def __init__(
        self,
        servers: int = 3,
        state_dir: str | Path | None = None,
        agents: bool = True,
        *,
        limits: Limits = DEFAULT_LIMITS,
        timing: Timing = DEFAULT_TIMING,
        agent_command: AgentCommand = shoal_agent,
        balancers: int = 0,
        engine: bool = False,
        engine_when_asked: bool = False,
        policy: str = "shoal",
        auto: bool = True,
        servers_min: int | None = None,
        servers_max: int | None = None,
        max_out_bytes_per_s: float | None = None,
        balancer_environment: Mapping[str, str] | None = None,
        sites: Sites = loopback,
        windows: Way = Way.IN_PROCESS,
        tls: bool | None = None,
        metrics: MetricsPorts = NO_METRICS,
        resume: bool = False,
        stores: int = 0,
    ) -> None:
        if servers < 1:
            raise ClusterError(f"a cluster cannot have {servers} servers", do="give a number from 1")
        if stores and not agents:
            raise ClusterError("stores need agents", do="start the cluster with agents")
        self._first_stores = stores
        self._first_servers = servers
        self._named_dir = None if state_dir is None else Path(state_dir).absolute()
        self._with_agents = agents
        self._limits = limits
        self._timing = timing
        self._metrics = metrics
        self._may_resume = resume
        self._before: ClusterState | None = None
        """The cluster that is continued."""
        self._awaited: frozenset[str] | None = None
        """The servers that the start waits for; None means all."""
        self._agent_command = with_metrics(limited(agent_command, max_out_bytes_per_s), metrics)
        self._balancers = balancers
        self._with_engine = engine
        self._engine_when_asked = engine_when_asked and not engine
        least = servers if servers_min is None else servers_min
        most = max(servers, DEFAULT_OPTIONS.servers_max) if servers_max is None else servers_max
        self._balancer_flags = (
            *("--policy", policy, "--auto" if auto else "--no-auto"),
            *("--servers-min", str(least), "--servers-max", str(most)),
            *("--windows", windows.value),
        )
        self._windows = windows
        self._balancer_environment = balancer_environment or {}
        self._max_out_bytes_per_s = max_out_bytes_per_s
        self._sites = sites
        self._with_tls = self.default_tls if tls is None else tls
        self._certificates: LocalCertificates | None = None
        self._renewal: CertificateRenewal | None = None
        self._id = secrets.token_hex(4)
        self._started_at = time.time()
        self._users = Users()
        self._signer = Signer(Signer.generate())
        self._fleet: Fleet | None = None
        self._leader: Leader | RingWatch | None = None
        self._coordinator: Coordinator | None = None
        self._directory: StateDir | None = None
        self._lock: Lock | None = None
        self._started = False
        self._entered = False
        """Whether the whole cluster has started."""
        self._last_state: ClusterState | None = None
        """The last state of a cluster that is being stopped; None if its start failed."""
        self._unwritten = False
        """Whether the state file lacks the last change."""
        self._stack = contextlib.AsyncExitStack()
        self.ended = asyncio.Event()
        """Set when the end of the cluster was requested."""

    # -- state -----------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The address for applications."""
        return self.url_for(CLIENT)

    def url_for(self, role: str) -> str:
        """The address for a role."""
        return self.state.url_for(role)

    @property
    def servers(self) -> tuple[ServerAddress, ...]:
        """The servers and their addresses."""
        return self._running.servers

    @property
    def stores(self) -> tuple[ServerAddress, ...]:
        """The stores and their addresses."""
        return self._running.stores

    @property
    def directory(self) -> StateDir:
        """The state directory, while the cluster runs."""
        if self._directory is None:
            raise NotRunningError("the cluster has not been started, or has ended", do="enter its context first")
        return self._directory

    @property
    def state(self) -> ClusterState:
        """The state as recorded in the state directory."""
        fleet = self._running
        coordinator = fleet.coordinator
        if coordinator is None:
            raise NotRunningError("the cluster has not been started, or has ended", do="enter its context first")
        return ClusterState(
            cluster=self._id,
            started_at=self._started_at,
            supervisor=ProcessId(os.getpid(), start_ticks(os.getpid()) or 0),
            coordinator=coordinator,
            servers=fleet.endpoints(),
            agents=fleet.agent_states(),
            passwords=self._users.passwords,
            public_key=self._signer.public.hex(),
            balancers=fleet.processes_of("balancer"),
            pipeline=fleet.processes_of("pipeline"),
            others=fleet.other_processes(),
            max_out_bytes_per_s=self._max_out_bytes_per_s,
            tls_dir=str(self.directory.tls) if self._with_tls else "",
            numbered=fleet.numbered,
            stores=fleet.store_endpoints(),
        )

    def status(self) -> ClusterStatus:
        """The current status."""
        view = self._view
        ring_ids = view.ring.ids if view.ring else ()
        state = self.state
        return ClusterStatus(
            cluster=self._id,
            state_dir=str(self.directory.root),
            started_at=self._started_at,
            ready=self._is_ready(),
            coordinator=f"{state.coordinator.host}:{state.coordinator.port}",
            contact=view.contact,
            ring_version=view.ring.version if view.ring else 0,
            servers=tuple(
                ServerStatus(server.id, server.host, server.port, server.id in view.leases, server.id in ring_ids)
                for server in self.servers
            ),
            processes=self._running.statuses(),
            trouble=view.trouble,
            windows=view.windows,
            certificates_expire_at=self._certificates.expires_at() if self._certificates else None,
            agents_secret=_secret_status(view),
            resumed=self._before is not None,
            stores=tuple(StoreStatus(store.id, store.host, store.port) for store in self.stores),
        )

    # -- actions ---------------------------------------------------------------------------------------------

    async def kill(self, name: str) -> None:
        """Kills a process (`s1`, `agent-s1`, `coordinator`, `balancer-1`); it is restarted unless it is held."""
        await self._running.child(name).kill()

    async def restart(self, name: str) -> None:
        """Stops a process if it runs, starts it again, even if it is held, and returns when it answers."""
        await self._running.child(name).restart()

    def hold(self, name: str) -> None:
        """Prevents the restart of a process after its next exit, until `release`."""
        self._running.child(name).hold()

    def release(self, name: str) -> None:
        """Ends `hold`."""
        self._running.child(name).release()

    def pause(self, name: str) -> None:
        """Freezes a process."""
        self._running.child(name).pause()

    def resume(self, name: str) -> None:
        """Continues a frozen process."""
        self._running.child(name).resume()

    async def add_server(self) -> ServerAddress:
        """Starts one more server with its agent. It will join the ring as a guest."""
        (server,) = await self.add_servers(1)
        return next(address for address in self.servers if address.id == server)

    async def add_servers(self, count: int) -> tuple[str, ...]:
        """Starts more servers with their agents, with new ids. They will join the ring as guests."""
        return await self.add_hosts(SERVER, count)

    @property
    def fleet(self) -> Fleet:
        """The processes. Launchers of other kinds of hosts are added to it."""
        return self._running

    async def add_hosts(self, kind: str, count: int, site: str = "") -> tuple[str, ...]:
        """Starts more hosts of a kind, with new ids."""
        return await self._running.add(kind, count, site)

    async def run_engines(self, count: int) -> None:
        """Starts processes of the engine until there are `count`."""
        for number in range(1, count + 1):
            await self._running.start_engine(number)

    async def _add_engines(self, ids: Sequence[str], site: str) -> None:
        """Starts processes of the engine, at most as many as the machine can use."""
        numbers = [int(id.removeprefix(ENGINE_PREFIX)) for id in ids]
        if max(numbers) > engine_processes_max():
            raise ClusterError(
                f"this cluster starts up to {engine_processes_max()} processes of the engine",
                do="run `shoal engine run` on other machines",
            )
        for number in numbers:
            await self._running.start_engine(number)

    async def remove_host(self, name: str) -> None:
        """Stops a host and its agent permanently, even if it has channels: drain it first."""
        await self._running.remove(name)

    async def rotate(self, role: str = "") -> tuple[list[str], tuple[str, ...]]:
        """Gives a role, or all roles, a new password beside the old one; the cluster's own processes use it at once.
        Returns the roles, and the servers that did not answer."""
        fleet = self._running
        roles = self._users.rotate(role)
        try:
            fleet.write_users()
        except OSError as error:
            self._users.undo(roles)
            raise ClusterError(f"the users were not written: {error.strerror}", do="check the disk") from error
        missed = await fleet.tell_servers(self._users.additions(roles))
        self._note_change()
        if ADMIN in roles and self._coordinator is not None:
            self._coordinator.use_password(self._users.passwords[ADMIN])
        for kind, users in _USED_BY.items():
            if not users.isdisjoint(roles):
                await fleet.restart_kind(kind)
        return roles, missed

    async def revoke(self, role: str = "") -> tuple[list[str], tuple[str, ...]]:
        """Ends the old password of a role, or of all roles, and the connections of these users. Returns as
        `rotate`."""
        roles = self._users.revocable(role)
        commands = self._users.revoke(roles)
        try:
            self._running.write_users()
        except OSError as error:
            _log.error("users not written", why=str(error), do="check the disk, then run `shoal users rotate`")
        return roles, await self._running.tell_servers(commands)

    def _agent_url(self) -> str:
        return self.url_for(AGENT)

    async def _add_servers(self, ids: Sequence[str], site: str) -> None:
        if not self._with_agents or self._coordinator is None:
            raise ClusterError("a cluster without agents has no ring to join", do="start it with agents")
        fleet = self._running
        try:
            for server in ids:  # before an agent can take the lease
                await self._coordinator.put(pool_key(server), Mark.GUEST.value.encode(), 0)
            await fleet.start_servers(ids, site)
            self._write_state()
            await fleet.start_agents(ids, self._agent_url)
        except BaseException:
            for server in {*ids} & {*fleet.ids}:
                await fleet.remove_server(server)
            for server in ids:
                await self._coordinator.delete(pool_key(server))
            raise

    async def _add_stores(self, ids: Sequence[str], site: str) -> None:
        if not self._with_agents:
            raise ClusterError("stores need agents", do="start the cluster with agents")
        fleet = self._running
        try:
            await fleet.start_stores(ids, site)
            self._mark_stores()
            self._write_state()
            await fleet.start_agents(ids, self._agent_url)
        except BaseException:
            for store in {*ids} & {*fleet.store_ids}:
                await fleet.remove_store(store)
            raise

    def _mark_stores(self) -> None:
        for store in self._running.stores:
            mark_store(self._running.store_directory(store.id), self._id, store)

    async def recover_store(self, source: Path, replace: bool = False) -> str:
        """Starts a store of this cluster that is gone again from its directory, or a copy of it; returns its id. With
        `replace`, also a store that runs, because it has lost its data."""
        mark = read_store_mark(source)
        if mark.cluster != self._id:
            raise ClusterError(f"{source} is of another cluster, {mark.cluster}", do="name a directory of this one")
        await self._running.recover_store(mark.store, mark.port, source, replace)
        self._mark_stores()
        self._write_state()
        await self._running.start_agents([mark.store], self._agent_url)
        self._note_change()
        return mark.store

    async def renew_certificates(self) -> tuple[str, ...]:
        """Renews all certificates now; returns the servers that have not loaded theirs yet; they are notified again."""
        if self._renewal is None:
            raise ClusterError("the cluster does not use TLS", do="start it with `shoal up --tls`")
        return await self._renewal.renew()

    async def wait_until_ready(self) -> None:
        """Waits until the ring has all servers. If a process keeps crashing, raises ClusterError with its log."""
        deadline = time.monotonic() + self._timing.start_timeout_s
        while not self._is_ready(self._awaited) or await self._missing_stores():
            for child in self._running.watched:
                if child.status().crashing:
                    raise ClusterError(
                        f"{child.name} crashes again and again ({child.status().last_exit})",
                        do=f"see the end of its log\n{log_tail(child.log)}",
                    )
            if time.monotonic() > deadline:
                raise self._not_ready()
            await asyncio.sleep(_READY_POLL_S)

    # -- starting and stopping -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except Exception:
            await self._stop(keep_logs=True)
            raise
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        directory = StateDir(self._named_dir or Path(tempfile.mkdtemp(prefix="shoal-")))
        directory.prepare()
        self._lock = directory.lock()
        self._before = before = directory.resumable() if self._may_resume else None
        if before is None:
            directory.protect_stores()
        self._directory = directory
        if before is not None:
            self._id, self._with_tls = before.cluster, bool(before.tls_dir)
            if self._max_out_bytes_per_s is None:
                self._max_out_bytes_per_s = before.max_out_bytes_per_s
                self._agent_command = limited(self._agent_command, before.max_out_bytes_per_s)
            _log.info("cluster continued", cluster=self._id, servers=len(before.servers))
        self._metrics.check(metered(self._balancers, self._first_servers, self._first_stores))
        program = choose_program(tls=self._with_tls)
        self._users = Users(before.passwords if before else None)
        self._signer = Signer(directory.key_file.read_bytes()) if before else self._new_key()
        if self._with_tls:
            timing = self._timing
            self._certificates = LocalCertificates(directory.tls, self._id, timing.certificate_s, timing.authority_s)
        self._fleet = fleet = Fleet(
            directory,
            program,
            self._users,
            self._timing,
            self._agent_command,
            self._sites,
            self._note_change,
            self._certificates,
            self._metrics,
        )
        fleet.offer(HostLauncher(SERVER, "s", self._add_servers, fleet.remove_server))
        fleet.offer(HostLauncher(STORE, "q", self._add_stores, fleet.remove_store))
        fleet.offer(HostLauncher(ENGINE_KIND, ENGINE_PREFIX, self._add_engines, fleet.end_child))
        if self._certificates is not None:
            self._renewal = CertificateRenewal(
                self._certificates, lambda: fleet.certified, self._users.supervisor_password
            )
            self._stack.push_async_callback(
                _cancel, asyncio.create_task(self._renewal.run(), name="renewal of certificates")
            )
        if before is not None:
            fleet.resume(before)
        await fleet.start_coordinator()
        ids = [server.id for server in before.servers] if before else fleet.new_ids(self._first_servers)
        await fleet.start_servers(ids)
        stores = [store.id for store in before.stores] if before else []
        await fleet.start_stores([*stores, *fleet.new_ids(max(0, self._first_stores - len(stores)), "q")])
        self._mark_stores()
        self._started = True
        self._write_state()
        if self._with_agents:
            await self._start_leader(fleet)
            await fleet.start_agents((*fleet.ids, *fleet.store_ids), self._agent_url)
            await self.wait_until_ready()
            if self._windows is Way.SPARK and self._balancers:
                await fleet.start_windows_job(self._balancer_environment)
            if self._with_engine:
                await fleet.start_engine()
                await self._engine_serves()
            elif self._engine_when_asked:
                tls = None if self._certificates is None else self._certificates.settings(ADMIN)
                caller = EngineCaller(
                    lambda: self.servers, lambda: self._users.passwords[ADMIN], tls, fleet.start_engine
                )
                calling = asyncio.create_task(caller.run(), name="engine caller")
                self._stack.push_async_callback(_cancel, calling)
        await self._stack.enter_async_context(serve_requests(self, self.ended.set))
        self._entered = True

    async def _engine_serves(self) -> None:
        """Waits until the engine serves. The first one on a machine compiles its kernels."""
        assert self._coordinator is not None
        deadline = time.monotonic() + 2 * self._timing.start_timeout_s
        while await read_report(self._coordinator, MAIN) is None:
            if time.monotonic() > deadline:
                log = log_tail(self.directory.log(engine_name()))
                raise ClusterError("the engine does not serve in time", do=f"see the end of its log\n{log}")
            await asyncio.sleep(_READY_POLL_S)

    def _new_key(self) -> Signer:
        private = Signer.generate()
        write_private(self.directory.key_file, private)
        return Signer(private)

    async def _start_leader(self, fleet: Fleet) -> None:
        coordinator = await PRODUCTION.coordinator(self.url_for(ADMIN), self._limits.server_lease_s / 2)
        self._coordinator = coordinator
        if self._before is not None:
            self._awaited = await self._members(coordinator)
        self._stack.push_async_callback(coordinator.close)
        leader: Leader | RingWatch
        if self._balancers:
            await fleet.start_balancers(self._balancers, self._balancer_flags, self._balancer_environment)
            leader = RingWatch(coordinator, self._signer.public, self._timing.keeper_poll_s)
        else:
            holder = f"{self._id}-{os.getpid()}"
            leader = Leader(
                coordinator,
                self._signer,
                self._limits,
                self._timing,
                fleet.ids,
                holder,
                PRODUCTION.random,
                wall=PRODUCTION.wall,
            )
        self._leader = leader
        self._stack.push_async_callback(_cancel, asyncio.create_task(leader.run(), name="leader"))

    async def _members(self, coordinator: Coordinator) -> frozenset[str]:
        """The servers of the stored ring. Others may have been drained or lost when the supervisor was killed."""
        stored = await coordinator.get(RING_KEY)
        ring = Verifier(self._signer.public).ring(stored.value) if stored else None
        return frozenset(ring.ids if ring else ()) & {*self._running.ids}

    def _not_ready(self) -> ClusterError:
        view = self._view
        missing = [server for server in self._running.ids if server not in view.leases]
        missing = missing or [*self._running.store_ids]
        what = f"the cluster was not ready after {self._timing.start_timeout_s:g} s"
        if view.trouble:
            return ClusterError(f"{what}: {view.trouble}")
        logs = "\n".join(log_tail(self.directory.log(agent_name(server))) for server in missing[:1])
        return ClusterError(
            f"{what}: no lease for {', '.join(missing) or 'any server'}",
            do=f"see the end of the agent's log\n{logs}",
        )

    async def _stop(self, *, keep_logs: bool = False) -> None:
        """Stops leader, agents, servers and coordinator, in this order, so that none reports the loss of another.
        Removes the files last."""
        self._last_state = self.state if self._entered else None
        self._started = self._entered = False
        try:
            await self._stack.aclose()
            if self._fleet is not None:
                await self._fleet.stop()
        finally:
            if self._fleet is not None:
                self._fleet.stop_now()
            self._clear(keep_logs)

    def _clear(self, keep_logs: bool) -> None:
        if self._directory is not None and self._before is not None and self._last_state is None:
            self._directory.clear_processes()  # a start that failed can be repeated
        elif self._directory is not None and self._last_state is not None and self._last_state.stores:
            try:
                self._directory.keep(self._last_state)
            except OSError as error:
                _log.error("state file not written; the cluster is kept", why=str(error), do="check the disk")
        elif self._directory is not None:
            self._directory.clear(keep_logs=keep_logs)
        if self._lock is not None:
            self._lock.close()
        if self._named_dir is None and self._directory is not None:
            shutil.rmtree(self._directory.root, ignore_errors=True)
        self._directory = self._lock = self._fleet = self._leader = self._coordinator = None

    # -- helpers ---------------------------------------------------------------------------------------------

    @property
    def _running(self) -> Fleet:
        if self._fleet is None:
            raise NotRunningError("the cluster has not been started, or has ended", do="enter its context first")
        return self._fleet

    @property
    def _view(self) -> KeeperView:
        return self._leader.view if self._leader else _NO_VIEW

    def _is_ready(self, servers: Set[str] | None = None) -> bool:
        """Whether the ring has these servers, or all, and they hold their lease."""
        if not self._with_agents:
            return self._started
        view = self._view
        wanted = {*self._running.ids} if servers is None else servers
        return view.ring is not None and wanted <= {*view.ring.ids} & {*view.leases}

    async def _missing_stores(self) -> bool:
        """Whether a store has no lease yet."""
        stores = self._running.store_ids
        if not stores or self._coordinator is None:
            return False
        held = await self._coordinator.leases(f"{STORES}/")
        return any(f"{STORES}/{store}" not in held for store in stores)

    def _write_state(self) -> None:
        """Updates the state file. Nothing is written before all servers have started."""
        if self._started:
            self.directory.write(self.state)
            self._running.write_targets()
            self._unwritten = False

    def _note_change(self) -> None:
        """Updates the state file after a change of the processes. Processes are supervised even if the disk is full:
        then it is written later."""
        try:
            self._write_state()
        except OSError as error:
            if not self._unwritten:
                self._unwritten = True
                _log.error(
                    "state file not written, retrying", why=str(error), do="check the disk of the state directory"
                )
                self._write_later()

    def _write_later(self) -> None:
        asyncio.get_running_loop().call_later(_STATE_RETRY_S, self._write_again)

    def _write_again(self) -> None:
        if self._unwritten and self._started:
            try:
                self._write_state()
            except OSError:
                self._write_later()


def metered(balancers: int, servers: int, stores: int = 0) -> list[str]:
    """The processes of a new cluster with a metrics page."""
    hosts = (*(f"s{number}" for number in range(1, servers + 1)), *(f"q{number}" for number in range(1, stores + 1)))
    return [*(f"balancer-{number}" for number in range(1, balancers + 1)), *map(agent_name, hosts)]


def _secret_status(view: KeeperView) -> SecretStatus | None:
    if view.ring is None or not view.ring.agent_keys:
        return None
    return SecretStatus(tuple(generations(view.ring)), view.rotation.since_s if view.rotation is not None else 0.0)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
