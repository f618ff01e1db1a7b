"""The processes of a local cluster: coordinator, hosts by kind (servers and stores with their agents), and balancers.

Owns the list of processes, their names, and starting and stopping single ones. The order in which a whole cluster
starts and stops is in `shoal.cluster.local`. The id of a host is never reused.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from shoal.cluster.acl import ADMIN, SUPERVISOR
from shoal.cluster.child import Child, ChildStatus
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.host_launchers import HostLauncher
from shoal.cluster.local_certificates import LocalCertificates
from shoal.cluster.metrics_ports import MetricsPorts
from shoal.cluster.parts import (
    ENGINE_PREFIX,
    WINDOWS_JOB,
    AgentCommand,
    ServerPart,
    ServerPlan,
    Sites,
    agent_name,
    answers,
    engine_name,
    make_agent,
    make_balancer,
    make_engine,
    make_windows_job,
    start_server,
    store_agent,
    tell,
    with_metrics,
)
from shoal.cluster.process import ProcessId
from shoal.cluster.servers import ServerProgram, port_is_free, replace_users
from shoal.cluster.state import AgentRecord, ClusterState, ServerProcess, StateDir, write_private
from shoal.cluster.store_directory import take_in
from shoal.cluster.users import Users
from shoal.errors import ClusterError, ConnectError, PortInUseError, ProtocolError
from shoal.plan.kinds import SERVER, STORE
from shoal.plan.ring import ServerAddress
from shoal.wire.commands import Request
from shoal.wire.tls import TlsSettings

COORDINATOR: Final = "coordinator"
NO_METRICS: Final = MetricsPorts()
_OWN_KINDS: Final = ("coordinator", "server", "store", "agent", "balancer", "pipeline")
"""Kinds of the processes that the fleet starts itself; all others belong to hosts of kinds that were offered to it."""


class Fleet:
    """All children of one cluster. `changed` is called after every start and end of a child. With `certificates` the
    servers use TLS."""

    def __init__(
        self,
        directory: StateDir,
        program: ServerProgram,
        users: Users,
        timing: Timing,
        agent_command: AgentCommand,
        sites: Sites,
        changed: Callable[[], None],
        certificates: LocalCertificates | None = None,
        metrics: MetricsPorts = NO_METRICS,
    ) -> None:
        self._directory = directory
        self._program = program
        self._users = users
        self._timing = timing
        self._agent_command = agent_command
        self._store_agent_command = with_metrics(store_agent, metrics)
        self._sites = sites
        self._changed = changed
        self._certificates = certificates
        self._metrics = metrics
        self._ports_before: dict[str, int] = {}
        self._taken_ports = metrics.reserved()
        self._children: dict[str, Child] = {}
        self._servers: dict[str, ServerPart] = {}
        self._stores: dict[str, ServerPart] = {}
        self._coordinator: ServerPart | None = None
        self._kinds: dict[str, HostLauncher] = {}
        self._numbered: Counter[str] = Counter()
        self._kind_of: dict[str, str] = {}

    # -- the list --------------------------------------------------------------------------------------------

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the servers."""
        return tuple(self._servers)

    @property
    def servers(self) -> tuple[ServerAddress, ...]:
        """The servers and their addresses."""
        return tuple(part.address for part in self._servers.values())

    @property
    def store_ids(self) -> tuple[str, ...]:
        """The ids of the stores."""
        return tuple(self._stores)

    @property
    def stores(self) -> tuple[ServerAddress, ...]:
        """The stores and their addresses."""
        return tuple(part.address for part in self._stores.values())

    @property
    def agents(self) -> Iterator[tuple[str, Child]]:
        """The agents, with the ids of their servers and stores."""
        for server in (*self._servers, *self._stores):
            if child := self._children.get(agent_name(server)):
                yield server, child

    @property
    def watched(self) -> Iterator[Child]:
        """The processes without which a start cannot succeed, besides the servers: agents and balancers."""
        yield from (child for child in self._children.values() if child.kind in ("agent", "balancer"))

    @property
    def coordinator(self) -> ServerProcess | None:
        """The coordinator; None before it runs."""
        return _endpoint(self._coordinator) if self._coordinator else None

    @property
    def certified(self) -> tuple[ServerAddress, ...]:
        """Everything that has a server's certificate: the coordinator, the servers and the stores."""
        return (*((self._coordinator.address,) if self._coordinator else ()), *self.servers, *self.stores)

    @property
    def _supervisor_tls(self) -> TlsSettings | None:
        return None if self._certificates is None else self._certificates.settings(ADMIN)

    def endpoints(self) -> tuple[ServerProcess, ...]:
        """The servers and their processes."""
        return tuple(_endpoint(part) for part in self._servers.values())

    def store_endpoints(self) -> tuple[ServerProcess, ...]:
        """The stores and their processes."""
        return tuple(_endpoint(part) for part in self._stores.values())

    def agent_states(self) -> tuple[AgentRecord, ...]:
        """The agents and their processes."""
        return tuple(AgentRecord(server, process_id(child)) for server, child in self.agents)

    def processes_of(self, kind: str) -> tuple[ProcessId, ...]:
        """The running processes of one kind."""
        children = (child for child in self._children.values() if child.kind == kind)
        return tuple(process for child in children if (process := process_id(child)) is not None)

    def other_processes(self) -> dict[str, tuple[ProcessId, ...]]:
        """The processes that run of other kinds than those that every cluster has, by kind."""
        kinds = sorted({child.kind for child in self._children.values()} - {*_OWN_KINDS})
        return {kind: self.processes_of(kind) for kind in kinds}

    def statuses(self) -> tuple[ChildStatus, ...]:
        """All processes, in the order of the status display."""
        return tuple(self._children[name].status() for name in self._names())

    def child(self, name: str) -> Child:
        """The process with this name; ClusterError if there is none."""
        child = self._children.get(name)
        if child is None:
            raise ClusterError(f"there is no process {name!r}", do=f"name one of {', '.join(self._names())}")
        return child

    def _names(self) -> list[str]:
        """All processes; those of hosts of other kinds come after the agents."""
        hosts = (*self._servers, *self._stores)
        first = (COORDINATOR, *hosts, *map(agent_name, hosts))
        last = (*sorted(name for name, child in self._children.items() if child.kind == "balancer"), WINDOWS_JOB)
        others = [name for name in self._children if name not in {*first, *last}]
        return [name for name in (*first, *others, *last) if name in self._children]

    # -- starting --------------------------------------------------------------------------------------------

    async def start_coordinator(self) -> None:
        """Starts the coordinator."""
        self._coordinator = await self._start_server(COORDINATOR, COORDINATOR)

    def resume(self, before: ClusterState) -> None:
        """Continues a cluster: its servers get their ports again, and new ones get new ids. PortInUseError if another
        process has the port of the coordinator, which clients know, or of a store, which the entries of queues name."""
        for where in (before.coordinator, *before.stores):
            if not port_is_free(where.port):
                name = "the coordinator" if where.id == COORDINATOR else f"store {where.id}"
                raise PortInUseError(
                    f"port {where.port}, of {name} of the cluster to continue, is in use",
                    do="stop the program that uses it; or remove the cluster with `shoal down --purge`",
                )
        hosts = (before.coordinator, *before.servers, *before.stores)
        self._ports_before = {host.id: host.port for host in hosts}
        self._kind_of.update({store.id: STORE for store in before.stores})
        self._taken_ports |= {*self._ports_before.values()}
        self._numbered.update(before.numbered)

    @property
    def numbered(self) -> dict[str, int]:
        """By prefix of ids: the highest number that a host has had."""
        return {prefix: count for prefix, count in self._numbered.items() if prefix != ENGINE_PREFIX}

    def offer(self, kind: HostLauncher) -> None:
        """Allows hosts of this kind to be added from now on."""
        self._kinds[kind.kind] = kind

    async def add(self, kind: str, count: int, site: str = "") -> tuple[str, ...]:
        """Starts hosts of a kind under new ids; ClusterError if there is no such kind."""
        offered = self._kinds.get(kind)
        if offered is None:
            names = ", ".join(sorted(self._kinds)) or "none"
            raise ClusterError(f"this cluster has no hosts of kind {kind!r}", do=f"name one of: {names}")
        ids = self.new_ids(count, offered.prefix)
        await offered.start(ids, site)
        self._kind_of.update(dict.fromkeys(ids, kind))
        return tuple(ids)

    async def remove(self, host: str) -> None:
        """Stops a host permanently; ClusterError if there is no such host."""
        kind = self._kinds.get(self._kind_of.get(host, SERVER))
        if kind is None:
            raise ClusterError(f"no launcher of this cluster can stop {host!r}", do="stop it by hand")
        await kind.remove(host)
        self._kind_of.pop(host, None)

    async def start_child(self, child: Child) -> None:
        """Starts a process of a host and supervises it with the others."""
        self._children[child.name] = child
        await child.start()
        self._changed()

    async def end_child(self, name: str) -> None:
        """Stops a process of a host."""
        if child := self._children.pop(name, None):
            await child.stop()
            self._changed()

    def new_ids(self, count: int, prefix: str = "s") -> list[str]:
        """Ids that no host has used."""
        first = self._numbered[prefix] + 1
        self._numbered[prefix] += count
        return [f"{prefix}{number}" for number in range(first, first + count)]

    async def start_servers(self, ids: Sequence[str], site: str = "") -> None:
        """Starts servers in parallel. If one fails, the others are awaited too, so that the clean-up knows all of
        them."""
        await self._start_hosts(ids, SERVER, site, self._servers)

    async def start_stores(self, ids: Sequence[str], site: str = "") -> None:
        """Starts stores, as `start_servers`. A store finds what an earlier one of its id has kept."""
        await self._start_hosts(ids, STORE, site, self._stores)

    async def recover_store(self, store: str, port: int, source: Path, replace: bool) -> None:
        """Starts a store that is gone again from a directory, at its address. ClusterError if it is alive, unless it
        is to be replaced because it has lost its data."""
        if (part := self._stores.get(store)) is not None and not replace:
            at, password = part.address, self._users.supervisor_password
            if await answers(at.host, at.port, SUPERVISOR, password, self._supervisor_tls):
                raise ClusterError(f"store {store} is alive", do="nothing needs to be recovered; see `shoal status`")
        for name in (agent_name(store), store):
            if child := self._children.pop(name, None):
                await child.stop()
        self._stores.pop(store, None)
        if not port_is_free(port):
            raise PortInUseError(
                f"port {port}, of store {store}, is in use", do="stop the program that uses it, then try again"
            )
        await asyncio.to_thread(take_in, source, self.store_directory(store))
        self._ports_before[store] = port
        self._kind_of[store] = STORE
        await self.start_stores([store])

    def store_directory(self, store: str) -> Path:
        """The directory of a store."""
        return self._directory_of(store, STORE)

    async def _start_hosts(self, ids: Sequence[str], kind: str, site: str, parts: dict[str, ServerPart]) -> None:
        starts = (self._start_server(host, kind, site) for host in ids)
        results = await asyncio.gather(*starts, return_exceptions=True)
        failures = []
        for host, result in zip(ids, results, strict=True):
            if isinstance(result, BaseException):
                failures.append(result)
            else:
                parts[host] = result
        if failures:
            raise failures[0]

    async def start_agents(self, ids: Iterable[str], url: Callable[[], str]) -> None:
        """Starts the agents of servers and stores."""
        for host in ids:
            name = agent_name(host)
            log = self._directory.log(name)
            is_store = host in self._stores
            address = (self._stores if is_store else self._servers)[host].address
            command = self._store_agent_command if is_store else self._agent_command
            child = make_agent(address, command, url, log, self._timing, self._changed)
            self._children[name] = child
            await child.start()

    async def start_balancers(self, count: int, flags: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts balancers. One of them will lead."""
        for number in range(1, count + 1):
            name = f"balancer-{number}"
            port = self._metrics.of(name)
            child = make_balancer(name, self._directory, flags, environment, self._timing, self._changed, port)
            self._children[name] = child
            await child.start()

    def write_targets(self) -> None:
        """Writes the file of metrics pages for Prometheus, if there are any."""
        if self._metrics.port:
            pages = [name for name in self._names() if self._children[name].kind in ("agent", "balancer")]
            new = self._directory.targets_file.with_suffix(".new")
            write_private(new, self._metrics.targets(pages))
            new.replace(self._directory.targets_file)

    async def start_engine(self, number: int = 1) -> None:
        """Starts a process of the engine, if it does not run. One of several has the access point; the others have a
        matcher or an exit point, or stand by."""
        self._numbered[ENGINE_PREFIX] = max(self._numbered[ENGINE_PREFIX], number)
        if engine_name(number) not in self._children:
            await self.start_child(make_engine(engine_name(number), self._directory, self._timing, self._changed))

    async def start_windows_job(self, environment: Mapping[str, str]) -> None:
        """Starts the Spark job that folds load windows."""
        child = make_windows_job(self._directory, environment, self._timing, self._changed)
        self._children[WINDOWS_JOB] = child
        await child.start()

    async def _start_server(self, name: str, kind: str, site: str = "") -> ServerPart:
        launch = self._sites(name)
        tls = None if self._certificates is None else self._certificates.issue_server(name, launch.host)
        plan = ServerPlan(
            id=name,
            kind=kind,
            directory=self._directory_of(name, kind),
            log=self._directory.log(name),
            acl=self._users.acl(self._program.version, kind),
            durable=kind != SERVER,
            supervisor_password=self._users.supervisor_password,
            site=launch,
            announced_site=site,
            tls=tls,
            supervisor_tls=self._supervisor_tls,
        )
        before = self._ports_before.pop(name, 0)
        part = await start_server(plan, self._program, self._timing, self._changed, self._taken_ports, before)
        self._children[name] = part.child
        return part

    def _directory_of(self, name: str, kind: str) -> Path:
        root = self._directory.root
        return root / "coordinator" if kind == COORDINATOR else root / f"{kind}s" / name

    # -- users -----------------------------------------------------------------------------------------------

    def write_users(self) -> None:
        """Writes the ACL files of coordinator, servers and stores, for their next start. OSError without room."""
        for kind, names in ((COORDINATOR, (COORDINATOR,)), (SERVER, self._servers), (STORE, self._stores)):
            for name in names:
                replace_users(self._directory_of(name, kind), self._users.acl(self._program.version, kind))

    async def tell_servers(self, commands: Sequence[Request]) -> tuple[str, ...]:
        """Sends commands as the user `supervisor` to coordinator, servers and stores; returns those that did not
        answer."""
        parts = {COORDINATOR: self._coordinator, **self._servers, **self._stores}
        addresses = {name: part.address for name, part in parts.items() if part is not None}
        password = self._users.supervisor_password
        tls = self._supervisor_tls
        calls = (tell(one.host, one.port, SUPERVISOR, password, *commands, tls=tls) for one in addresses.values())
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        missed = []
        for name, outcome in zip(addresses, outcomes, strict=True):
            if isinstance(outcome, ConnectError | ProtocolError):
                missed.append(name)
            elif isinstance(outcome, BaseException):
                raise outcome
        return tuple(missed)

    async def restart_kind(self, kind: str) -> None:
        """Restarts the running processes of a kind, one after the other."""
        for child in [child for child in self._children.values() if child.kind == kind]:
            if process_id(child) is not None:
                await child.restart()

    # -- stopping --------------------------------------------------------------------------------------------

    async def remove_server(self, server: str) -> None:
        """Stops a server and its agent permanently; ClusterError if there is no such server."""
        await self._remove_host(server, SERVER, self._servers)

    async def remove_store(self, store: str) -> None:
        """Stops a store and its agent permanently, and deletes its data; ClusterError if there is no such store."""
        await self._remove_host(store, STORE, self._stores)

    async def _remove_host(self, host: str, kind: str, parts: dict[str, ServerPart]) -> None:
        if host not in parts:
            raise ClusterError(f"there is no {kind} {host!r}", do=f"name one of {', '.join(parts)}")
        for name in (agent_name(host), host):
            if child := self._children.pop(name, None):
                await child.stop()
        del parts[host]
        shutil.rmtree(self._directory_of(host, kind), ignore_errors=True)
        if self._certificates is not None:
            self._certificates.forget(host)
        self._changed()

    async def stop(self) -> None:
        """Stops all processes, each before the ones that it depends on."""
        others = sorted({child.kind for child in self._children.values()} - {*_OWN_KINDS})
        for kind in ("pipeline", "balancer", *others, "agent", "server", "store", "coordinator"):
            await asyncio.gather(*(child.stop() for child in self._children.values() if child.kind == kind))

    def stop_now(self) -> None:
        """Kills all remaining processes (SIGKILL); needs no event loop."""
        for child in self._children.values():
            child.stop_now()


def _endpoint(part: ServerPart) -> ServerProcess:
    return ServerProcess(part.address.id, part.address.host, part.address.port, process_id(part.child))


def process_id(child: Child) -> ProcessId | None:
    """The process of a child; None if it does not run."""
    return child.process.id if child.process is not None and child.process.exit_code is None else None
