"""A cluster of local processes that belongs to this process: coordinator, servers, agents, and the keeper of
the ring.

Owns the order in which they start and stop, and that none of them is left behind: children die with this
process whatever happens to it. The background cluster of `shoal up` is one of these in a process of its own;
tests, the demo and measurements use it directly.

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
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from shoal.cluster.acl import ADMIN, AGENT, CLIENT, ROLES, coordinator_acl_file, data_acl_file
from shoal.cluster.child import Child, ChildStatus
from shoal.cluster.keeping import KeeperView, Keeping
from shoal.cluster.moving import Moving
from shoal.cluster.parts import (
    AgentCommand,
    ServerPart,
    ServerPlan,
    agent_name,
    make_agent,
    shoal_agent,
    start_server,
)
from shoal.cluster.process import ProcessId, log_tail, start_ticks
from shoal.cluster.servers import ServerProgram, choose_program
from shoal.cluster.state import AgentState, ClusterState, Endpoint, Lock, StateDir, write_private
from shoal.cluster.timing import DEFAULT_TIMING, Timing
from shoal.coordination.redis import RedisCoordinator
from shoal.errors import ClusterError, NotRunningError
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.plan.keeper import Keeper
from shoal.plan.mover import Mover
from shoal.plan.ring import ServerAddress
from shoal.plan.signing import Signer

COORDINATOR: Final = "coordinator"
_READY_POLL_S: Final = 0.02
_NO_VIEW: Final = KeeperView(False, False, (), None, "the keeper does not run")


class ServerStatus(msgspec.Struct, frozen=True):
    """One server: where it is, and whether it takes channels."""

    id: str
    host: str
    port: int
    lease: bool
    in_ring: bool


class ClusterStatus(msgspec.Struct, frozen=True):
    """How the cluster is."""

    cluster: str
    state_dir: str
    started_at: float
    ready: bool
    coordinator: str
    contact: bool
    ring_version: int
    servers: tuple[ServerStatus, ...]
    processes: tuple[ChildStatus, ...]
    trouble: str | None


class LocalCluster:
    """An async context manager; entering returns when all servers hold their lease and the ring is written.

    `state_dir` None means a temporary directory. Without `agents` nobody holds leases, so there is no ring
    either, and entering returns when the servers answer.
    """

    def __init__(
        self,
        servers: int = 3,
        state_dir: str | Path | None = None,
        agents: bool = True,
        *,
        limits: Limits = DEFAULT_LIMITS,
        timing: Timing = DEFAULT_TIMING,
        agent_command: AgentCommand = shoal_agent,
    ) -> None:
        if servers < 1:
            raise ClusterError(f"a cluster of {servers} servers cannot be", do="ask for at least one")
        self._ids = [f"s{number}" for number in range(1, servers + 1)]
        self._named_dir = None if state_dir is None else Path(state_dir).absolute()
        self._with_agents = agents
        self._limits = limits
        self._timing = timing
        self._agent_command = agent_command
        self._id = secrets.token_hex(4)
        self._started_at = time.time()
        self._passwords: dict[str, str] = {}
        self._signer = Signer(Signer.generate())
        self._taken_ports: set[int] = set()
        self._children: dict[str, Child] = {}
        self._servers: dict[str, ServerPart] = {}
        self._coordinator: ServerPart | None = None
        self._keeping: Keeping | None = None
        self._directory: StateDir | None = None
        self._lock: Lock | None = None
        self._started = False
        self._stack = contextlib.AsyncExitStack()

    # -- what it is ------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The address for applications."""
        return self.url_for(CLIENT)

    def url_for(self, role: str) -> str:
        """The address for a role."""
        return self.state.url_for(role)

    @property
    def servers(self) -> tuple[ServerAddress, ...]:
        """The servers and where they listen."""
        return tuple(self._servers[server].address for server in self._ids)

    @property
    def directory(self) -> StateDir:
        """The state directory, while the cluster runs."""
        if self._directory is None:
            raise NotRunningError("the cluster has not been started, or has ended", do="enter its context first")
        return self._directory

    @property
    def state(self) -> ClusterState:
        """What is written down about the cluster."""
        if self._coordinator is None:
            raise NotRunningError("the cluster has not been started, or has ended", do="enter its context first")
        return ClusterState(
            cluster=self._id,
            started_at=self._started_at,
            supervisor=ProcessId(os.getpid(), start_ticks(os.getpid()) or 0),
            coordinator=_endpoint(self._coordinator),
            servers=tuple(_endpoint(self._servers[server]) for server in self._ids),
            agents=tuple(AgentState(server, _process_id(child)) for server, child in self._agents()),
            passwords=self._passwords,
            public_key=self._signer.public.hex(),
        )

    def status(self) -> ClusterStatus:
        """How it is now."""
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
            processes=tuple(self._children[name].status() for name in self._names() if name in self._children),
            trouble=view.trouble,
        )

    # -- what can be done to it ------------------------------------------------------------------------------

    async def kill(self, name: str) -> None:
        """Crashes a process (`s1`, `agent-s1`, `coordinator`); it is mended unless it is held."""
        await self._child(name).kill()

    async def restart(self, name: str) -> None:
        """Ends a process if it runs, and starts it now, held or not; returns when it answers."""
        await self._child(name).restart()

    def hold(self, name: str) -> None:
        """Keeps a process down once it has ended, until `release`."""
        self._child(name).hold()

    def release(self, name: str) -> None:
        """Ends `hold`."""
        self._child(name).release()

    def pause(self, name: str) -> None:
        """Freezes a process."""
        self._child(name).pause()

    def resume(self, name: str) -> None:
        """Lets a frozen process go on."""
        self._child(name).resume()

    def _child(self, name: str) -> Child:
        child = self._children.get(name)
        if child is None:
            raise ClusterError(f"there is no process {name!r}", do=f"name one of {', '.join(self._names())}")
        return child

    # -- starting and stopping -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self._start()
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
        self._directory = directory
        program = choose_program()
        self._passwords = {role: secrets.token_urlsafe(24) for role in ROLES}
        self._signer = self._new_key()
        self._coordinator = await self._start_server(COORDINATOR, program)
        await self._start_servers(program)
        self._started = True
        self._write_state()
        if self._with_agents:
            await self._start_keeper()
            await self._start_agents()
            await self._wait_until_ready()

    def _new_key(self) -> Signer:
        private = Signer.generate()
        write_private(self.directory.key_file, private)
        return Signer(private)

    async def _start_servers(self, program: ServerProgram) -> None:
        """All servers at once; when one fails the others are waited for, so that the clean-up knows
        them all."""
        results = await asyncio.gather(
            *(self._start_server(server, program) for server in self._ids), return_exceptions=True
        )
        for server, result in zip(self._ids, results, strict=True):
            if isinstance(result, BaseException):
                raise result
            self._servers[server] = result

    async def _start_server(self, name: str, program: ServerProgram) -> ServerPart:
        coordinator = name == COORDINATOR
        root = self.directory.root
        acl = coordinator_acl_file if coordinator else data_acl_file
        plan = ServerPlan(
            id=name,
            kind="coordinator" if coordinator else "server",
            directory=root / "coordinator" if coordinator else root / "servers" / name,
            log=self.directory.log(name),
            acl=acl(self._passwords, program.version),
            durable=coordinator,
            admin_password=self._passwords[ADMIN],
        )
        part = await start_server(plan, program, self._timing, self._write_state, self._taken_ports)
        self._children[name] = part.child
        return part

    async def _start_keeper(self) -> None:
        coordinator = await RedisCoordinator.connect(self.url_for(ADMIN), timeout_s=self._limits.server_lease_s / 2)
        self._stack.push_async_callback(coordinator.close)
        keeper = Keeper(self._signer, self._limits, self._ids, self._timing.first_ring_wait_s)
        self._keeping = Keeping(coordinator, self._signer, keeper, self._timing, f"{self._id}-{os.getpid()}")
        keeping = self._keeping
        moving = Moving(
            coordinator,
            lambda: Mover(self._signer, self._limits),
            lambda: keeping.leading,
            self._timing.keeper_poll_s,
        )
        for name, work in (("keeper", keeping.run()), ("mover", moving.run())):
            self._stack.push_async_callback(_cancel, asyncio.create_task(work, name=name))

    async def _start_agents(self) -> None:
        url = self.url_for(AGENT)
        for server in self.servers:
            log = self.directory.log(agent_name(server.id))
            child = make_agent(server, self._agent_command, url, log, self._timing, self._write_state)
            self._children[child.name] = child
            await child.start()

    async def _wait_until_ready(self) -> None:
        """Until the ring holds all servers; an error with the log of whoever is in the way."""
        deadline = time.monotonic() + self._timing.start_timeout_s
        while not self._is_ready():
            for _, child in self._agents():
                if child.status().crashing:
                    raise ClusterError(
                        f"{child.name} crashes again and again ({child.status().last_exit})",
                        do=f"see the end of its log\n{log_tail(child.log)}",
                    )
            if time.monotonic() > deadline:
                raise self._not_ready()
            await asyncio.sleep(_READY_POLL_S)

    def _not_ready(self) -> ClusterError:
        view = self._view
        missing = [server for server in self._ids if server not in view.leases]
        what = f"the cluster was not ready after {self._timing.start_timeout_s:g} s"
        if view.trouble:
            return ClusterError(f"{what}: {view.trouble}")
        logs = "\n".join(log_tail(self.directory.log(agent_name(server))) for server in missing[:1])
        return ClusterError(
            f"{what}: no lease for {', '.join(missing) or 'any server'}",
            do=f"see the end of the agent's log\n{logs}",
        )

    async def _stop(self) -> None:
        """Ends everything in the order that upsets nobody: keeper, agents, servers, coordinator. Then the
        files."""
        self._started = False
        try:
            await self._stack.aclose()
            for kind in ("agent", "server", "coordinator"):
                await asyncio.gather(*(child.stop() for child in self._children.values() if child.kind == kind))
        finally:
            for child in self._children.values():
                child.stop_now()
            self._clear()

    def _clear(self) -> None:
        if self._directory is not None:
            self._directory.clear()
        if self._lock is not None:
            self._lock.close()
        if self._named_dir is None and self._directory is not None:
            shutil.rmtree(self._directory.root, ignore_errors=True)
        self._directory = self._lock = self._coordinator = self._keeping = None

    # -- small things ----------------------------------------------------------------------------------------

    @property
    def _view(self) -> KeeperView:
        return self._keeping.view if self._keeping else _NO_VIEW

    def _names(self) -> list[str]:
        """The names of all processes, in the order in which people expect them."""
        return [COORDINATOR, *self._ids, *map(agent_name, self._ids)]

    def _agents(self) -> Iterator[tuple[str, Child]]:
        for server in self._ids:
            if child := self._children.get(agent_name(server)):
                yield server, child

    def _is_ready(self) -> bool:
        if not self._with_agents:
            return self._started
        view = self._view
        return view.ring is not None and set(self._ids) <= {*view.ring.ids} & {*view.leases}

    def _write_state(self) -> None:
        """Keeps the file in step with the processes; before all servers are there, nothing is worth
        writing."""
        if self._started:
            self.directory.write(self.state)


def _endpoint(part: ServerPart) -> Endpoint:
    return Endpoint(part.address.id, part.address.host, part.address.port, _process_id(part.child))


def _process_id(child: Child) -> ProcessId | None:
    return child.process.id if child.process is not None and child.process.exit_code is None else None


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
