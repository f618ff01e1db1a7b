"""The processes of a local cluster: coordinator, servers, their agents, and balancers.

Owns which of them there are, under which names, and how single ones come and go. In which order a whole cluster starts
and stops is the business of `shoal.cluster.local`. The id of a server is never given to another one.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from shoal.cluster.acl import ADMIN, coordinator_acl_file, data_acl_file
from shoal.cluster.child import Child, ChildStatus
from shoal.cluster.parts import (
    WINDOWS_JOB,
    AgentCommand,
    ServerPart,
    ServerPlan,
    Sites,
    agent_name,
    make_agent,
    make_balancer,
    make_windows_job,
    start_server,
)
from shoal.cluster.process import ProcessId
from shoal.cluster.servers import ServerProgram
from shoal.cluster.state import AgentState, Endpoint, StateDir
from shoal.cluster.timing import Timing
from shoal.errors import ClusterError
from shoal.plan.ring import ServerAddress

COORDINATOR: Final = "coordinator"


class Fleet:
    """All children of one cluster. `changed` is told of every start and end of one."""

    def __init__(
        self,
        directory: StateDir,
        program: ServerProgram,
        passwords: Mapping[str, str],
        timing: Timing,
        agent_command: AgentCommand,
        sites: Sites,
        changed: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._program = program
        self._passwords = passwords
        self._timing = timing
        self._agent_command = agent_command
        self._sites = sites
        self._changed = changed
        self._taken_ports: set[int] = set()
        self._children: dict[str, Child] = {}
        self._servers: dict[str, ServerPart] = {}
        self._coordinator: ServerPart | None = None
        self._numbered = 0

    # -- who is there ----------------------------------------------------------------------------------------

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the servers."""
        return tuple(self._servers)

    @property
    def servers(self) -> tuple[ServerAddress, ...]:
        """The servers and where they listen."""
        return tuple(part.address for part in self._servers.values())

    @property
    def agents(self) -> Iterator[tuple[str, Child]]:
        """The agents, with the ids of their servers."""
        for server in self._servers:
            if child := self._children.get(agent_name(server)):
                yield server, child

    @property
    def coordinator(self) -> Endpoint | None:
        """Where the coordinator is, once it runs."""
        return _endpoint(self._coordinator) if self._coordinator else None

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The servers and their processes."""
        return tuple(_endpoint(part) for part in self._servers.values())

    def agent_states(self) -> tuple[AgentState, ...]:
        """The agents and their processes."""
        return tuple(AgentState(server, process_id(child)) for server, child in self.agents)

    def processes_of(self, kind: str) -> tuple[ProcessId, ...]:
        """The processes of one kind that run."""
        children = (child for child in self._children.values() if child.kind == kind)
        return tuple(process for child in children if (process := process_id(child)) is not None)

    def statuses(self) -> tuple[ChildStatus, ...]:
        """All processes, in the order in which people expect them."""
        return tuple(self._children[name].status() for name in self._names() if name in self._children)

    def child(self, name: str) -> Child:
        """The process of a name; ClusterError if there is none."""
        child = self._children.get(name)
        if child is None:
            raise ClusterError(f"there is no process {name!r}", do=f"name one of {', '.join(self._names())}")
        return child

    def _names(self) -> list[str]:
        balancers = sorted(name for name, child in self._children.items() if child.kind == "balancer")
        return [COORDINATOR, *self._servers, *map(agent_name, self._servers), *balancers, WINDOWS_JOB]

    # -- coming ----------------------------------------------------------------------------------------------

    async def start_coordinator(self) -> None:
        """Starts the coordinator."""
        self._coordinator = await self._start_server(COORDINATOR)

    def new_ids(self, count: int) -> list[str]:
        """Ids that no server has had."""
        first = self._numbered + 1
        self._numbered += count
        return [f"s{number}" for number in range(first, first + count)]

    async def start_servers(self, ids: Sequence[str]) -> None:
        """Starts servers, all at once; when one fails the others are waited for, so that the clean-up knows them
        all."""
        results = await asyncio.gather(*map(self._start_server, ids), return_exceptions=True)
        failures = []
        for server, result in zip(ids, results, strict=True):
            if isinstance(result, BaseException):
                failures.append(result)
            else:
                self._servers[server] = result
        if failures:
            raise failures[0]

    async def start_agents(self, ids: Iterable[str], url: str) -> None:
        """Starts the agents of servers."""
        for server in ids:
            name = agent_name(server)
            log = self._directory.log(name)
            address = self._servers[server].address
            child = make_agent(address, self._agent_command, url, log, self._timing, self._changed)
            self._children[name] = child
            await child.start()

    async def start_balancers(self, count: int, flags: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts balancers: one of them will lead."""
        for number in range(1, count + 1):
            name = f"balancer-{number}"
            child = make_balancer(name, self._directory, flags, environment, self._timing, self._changed)
            self._children[name] = child
            await child.start()

    async def start_windows_job(self, environment: Mapping[str, str]) -> None:
        """Starts the Spark job that folds load windows."""
        child = make_windows_job(self._directory, environment, self._timing, self._changed)
        self._children[WINDOWS_JOB] = child
        await child.start()

    async def _start_server(self, name: str) -> ServerPart:
        coordinator = name == COORDINATOR
        root = self._directory.root
        acl = coordinator_acl_file if coordinator else data_acl_file
        plan = ServerPlan(
            id=name,
            kind="coordinator" if coordinator else "server",
            directory=root / "coordinator" if coordinator else root / "servers" / name,
            log=self._directory.log(name),
            acl=acl(self._passwords, self._program.version),
            durable=coordinator,
            admin_password=self._passwords[ADMIN],
            site=self._sites(name),
        )
        part = await start_server(plan, self._program, self._timing, self._changed, self._taken_ports)
        self._children[name] = part.child
        return part

    # -- going -----------------------------------------------------------------------------------------------

    async def remove(self, server: str) -> None:
        """Ends a server and its agent for good; ClusterError if there is no such server."""
        if server not in self._servers:
            raise ClusterError(f"there is no server {server!r}", do=f"name one of {', '.join(self._servers)}")
        for name in (agent_name(server), server):
            if child := self._children.pop(name, None):
                await child.stop()
        del self._servers[server]
        shutil.rmtree(self._directory.root / "servers" / server, ignore_errors=True)
        self._changed()

    async def stop(self) -> None:
        """Ends all processes in the order that upsets nobody."""
        for kind in ("pipeline", "balancer", "agent", "server", "coordinator"):
            await asyncio.gather(*(child.stop() for child in self._children.values() if child.kind == kind))

    def stop_now(self) -> None:
        """Ends all processes that are left by SIGKILL; needs no event loop."""
        for child in self._children.values():
            child.stop_now()


def _endpoint(part: ServerPart) -> Endpoint:
    return Endpoint(part.address.id, part.address.host, part.address.port, process_id(part.child))


def process_id(child: Child) -> ProcessId | None:
    """The process of a child, while it runs."""
    return child.process.id if child.process is not None and child.process.exit_code is None else None
