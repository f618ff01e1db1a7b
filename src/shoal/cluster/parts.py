"""The parts of a local cluster: servers, each with a fixed port and an agent, balancers, and the Spark job.

Owns the command of each kind of child and its readiness check. `shoal.cluster.local` starts and stops the children,
`shoal.cluster.child` restarts them after a crash.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import hiredis
import msgspec

from shoal.cluster import process
from shoal.cluster.acl import SUPERVISOR
from shoal.cluster.child import Child
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.metrics_ports import MetricsPorts
from shoal.cluster.process import ChildProcess
from shoal.cluster.servers import HOST, ServerProgram, ServerSetup, free_port, port_is_free, port_was_taken, write_setup
from shoal.cluster.state import StateDir
from shoal.errors import ClusterError, PortInUseError, ShoalError
from shoal.plan.ring import ServerAddress
from shoal.runtime import PRODUCTION
from shoal.wire.commands import Request
from shoal.wire.connection import Connection
from shoal.wire.dial import over_tls
from shoal.wire.tls import TlsSettings

AgentCommand: TypeAlias = Callable[[ServerAddress], Sequence[str]]

URL_VARIABLE: Final = "SHOAL_URL"
WINDOWS_JOB: Final = "load-windows"
_ANSWER_TIMEOUT_S: Final = 1.0


class LaunchSite(msgspec.Struct, frozen=True):
    """Where a server runs: its listening address, and a prefix of its command (to enter a network namespace, for
    example)."""

    host: str = HOST
    prefix: tuple[str, ...] = ()


Sites: TypeAlias = Callable[[str], LaunchSite]
"""Returns the launch site of a server, or of the coordinator, by name."""


def loopback(_: str) -> LaunchSite:
    """The default launch site of every server."""
    return LaunchSite()


class ServerPlan(msgspec.Struct, frozen=True):
    """The description of a server that has no port yet."""

    id: str
    kind: str
    directory: Path
    log: Path
    acl: str
    durable: bool
    supervisor_password: str
    site: LaunchSite = LaunchSite()
    announced_site: str = ""
    """The site that the server's agent announces (`ServerAddress.site`)."""
    tls: TlsSettings | None = None
    """The server's TLS files; None means no TLS."""
    supervisor_tls: TlsSettings | None = None
    """The TLS files with which the supervisor connects."""


class ServerPart(msgspec.Struct, frozen=True):
    """A server that runs or is being restarted: its child process and its address, which a restart does not change."""

    child: Child
    address: ServerAddress


def shoal_agent(server: ServerAddress) -> Sequence[str]:
    """The command of the agent of a server that Shoal ships."""
    return _agent_command("--server", server)


def store_agent(store: ServerAddress) -> Sequence[str]:
    """The command of the agent of a store."""
    return _agent_command("--store", store)


def _agent_command(kind: str, server: ServerAddress) -> Sequence[str]:
    address = f"{server.host}:{server.port}"
    command = [sys.executable, "-m", "shoal.cli", "agent", kind, server.id, "--address", address]
    for flag, name in (("--site", server.site), ("--rack", server.rack)):
        command += [flag, name] if name else []
    return command


def limited(command: AgentCommand, max_out_bytes_per_s: float | None) -> AgentCommand:
    """The agent command with a capacity for its server; None means the agent's own default."""
    if max_out_bytes_per_s is None:
        return command
    return lambda server: [*command(server), "--max-out-bytes-per-s", repr(max_out_bytes_per_s)]


def with_metrics(command: AgentCommand, ports: MetricsPorts) -> AgentCommand:
    """The agent command with the port of its metrics page."""
    if not ports.port:
        return command
    return lambda server: [*command(server), "--metrics-port", str(ports.free(agent_name(server.id)))]


async def start_server(
    plan: ServerPlan,
    program: ServerProgram,
    timing: Timing,
    changed: Callable[[], None],
    taken: set[int],
    wanted: int = 0,
) -> ServerPart:
    """Starts a server on the port `wanted` if that is free, else on a free port; tries another port if a foreign
    process takes it in the meantime."""
    for number in range(timing.port_tries_max):
        here = wanted if not number and wanted and port_is_free(wanted) else 0
        port = here or free_port(timing.port_tries_max, taken)
        taken.add(port)
        setup = ServerSetup(plan.directory, port, plan.acl, plan.durable, plan.site.host, plan.tls)
        command = [*plan.site.prefix, *write_setup(setup, program)]
        child = Child(
            plan.id,
            plan.kind,
            plan.log,
            timing,
            launch=_launcher(command, plan.log),
            ready=_answer_check(plan.site.host, port, plan.supervisor_password, plan.supervisor_tls),
            changed=changed,
        )
        try:
            await child.start()
        except ClusterError as error:
            if port_was_taken(str(error)):
                continue
            raise
        except BaseException:
            child.stop_now()
            raise
        address = ServerAddress(plan.id, plan.site.host, port, plan.announced_site, tls=plan.tls is not None)
        return ServerPart(child, address)
    raise PortInUseError(
        f"{plan.id} found {timing.port_tries_max} ports taken one after the other",
        do="try again when fewer programs are starting",
    )


def make_agent(
    server: ServerAddress,
    command: AgentCommand,
    url: Callable[[], str],
    log: Path,
    timing: Timing,
    changed: Callable[[], None],
) -> Child:
    """The agent of a server, not yet started. It counts as started when its process runs; leases are checked
    elsewhere. `url` is called at each start, because the password may change."""
    words = command(server)
    return Child(
        agent_name(server.id),
        "agent",
        log,
        timing,
        launch=lambda: process.start(words, log, {URL_VARIABLE: url()}),
        ready=_at_once,
        changed=changed,
    )


def make_balancer(
    name: str,
    directory: StateDir,
    flags: Sequence[str],
    environment: Mapping[str, str],
    timing: Timing,
    changed: Callable[[], None],
    metrics_port: int,
) -> Child:
    """A balancer of a local cluster, not yet started. It reads all addresses from the state directory."""
    words = [sys.executable, "-m", "shoal.cli", "balancer", "--state-dir", str(directory.root), *flags]
    words += ["--metrics-port", str(metrics_port)]
    log = directory.log(name)
    return Child(
        name,
        "balancer",
        log,
        timing,
        launch=lambda: process.start(words, log, environment),
        ready=_at_once,
        changed=changed,
    )


def make_engine(name: str, directory: StateDir, timing: Timing, changed: Callable[[], None]) -> Child:
    """An engine of a local cluster, not yet started. Clients see when it serves."""
    words = [sys.executable, "-m", "shoal.cli", "engine", "run", "--name", name, "--state-dir", str(directory.root)]
    log = directory.log(name)
    return Child(
        name,
        "engine",
        log,
        timing,
        launch=lambda: process.start(words, log),
        ready=_at_once,
        changed=changed,
    )


def make_windows_job(
    directory: StateDir, environment: Mapping[str, str], timing: Timing, changed: Callable[[], None]
) -> Child:
    """The Spark job that folds load windows, not yet started. The balancer sees when it is warm."""
    words = [sys.executable, "-m", "shoal.cli", "pipeline", "load", "--state-dir", str(directory.root)]
    log = directory.log(WINDOWS_JOB)
    # PySpark leaves a temporary folder behind if it is killed while Java starts: one that ends with the cluster.
    environment = {**environment, "TMPDIR": str(directory.root / "pipeline")}
    return Child(
        WINDOWS_JOB,
        "pipeline",
        log,
        timing,
        launch=lambda: process.start([*words, "--log-level", "info"], log, environment),
        ready=_at_once,
        changed=changed,
    )


def agent_name(server: str) -> str:
    """The name of a server's agent among the children."""
    return f"agent-{server}"


ENGINE_PREFIX: Final = "engine-main-"


def engine_name(number: int = 1) -> str:
    """The name of an engine among the children. Those after the first stand by."""
    return f"{ENGINE_PREFIX}{number}"


def engine_processes_max() -> int:
    """How many processes of an engine balancers start: more than the machine has cores would slow each other down."""
    return max(2, os.cpu_count() or 1)


async def answers(host: str, port: int, user: str, password: str, tls: TlsSettings | None = None) -> bool:
    """Whether a server of ours answers on the port: one that knows the user, and that has read its data."""
    try:
        await tell(host, port, user, password, ("PING",), tls=tls)
    except (ShoalError, hiredis.ReplyError):  # a server that still reads its data refuses PING
        return False
    return True


async def tell(
    host: str,
    port: int,
    user: str,
    password: str,
    *commands: Request,
    tls: TlsSettings | None = None,
    timeout_s: float = _ANSWER_TIMEOUT_S,
) -> None:
    """Sends commands to a server. ConnectError if it does not answer, hiredis.ReplyError if it refuses one. Its
    certificate may have expired: a server that did not answer in time could not be given another one otherwise."""
    connection = Connection(
        host,
        port,
        username=user,
        password=password,
        name="shoal-supervisor",
        dial=PRODUCTION.dial if tls is None else over_tls(tls, ignore_expiry=True),
        connect_timeout_s=timeout_s,
        answer_timeout_s=timeout_s,
    )
    async with connection:
        await connection.ask(*commands)


def _launcher(command: Sequence[str], log: Path) -> Callable[[], ChildProcess]:
    return lambda: process.start(command, log)


def _answer_check(host: str, port: int, password: str, tls: TlsSettings | None) -> Callable[[], Awaitable[bool]]:
    return lambda: answers(host, port, SUPERVISOR, password, tls)


async def _at_once() -> bool:
    return True
