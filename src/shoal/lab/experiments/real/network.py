"""The network of an experiment, with each server behind a link of limited bandwidth.

Owns the network namespaces. The experiment runs in a thread that has left the machine's network for an empty one with
two bridges: the near network for infrastructure, and the far one for clients, as in the Dynamoth paper (servers in a
cloud, clients far away). Each server shares a namespace with its agent, which has a link to both bridges. Traffic to
clients goes through a token bucket (`tc tbf`), traffic to infrastructure does not. Namespaces have no names: each
exists as long as a process or a descriptor of the experiment is in it. So nothing is left behind, however the
experiment ends, and nothing outside is touched.

    coordinator, balancer, this thread -- near -- s1 and its agent --tbf-- far -- clients
                                            \\---- s2 and its agent --tbf--/

Needs root, `ip`, `tc` and `nsenter`. Without them servers are on the loopback interface, where nothing slows them down:
load is then judged by the capacity that agents are configured with.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from shoal.cluster.fleet import COORDINATOR
from shoal.cluster.parts import LaunchSite, shoal_agent
from shoal.errors import ClusterError
from shoal.plan.ring import ServerAddress

T = TypeVar("T")

PROGRAMS: Final = ("ip", "tc", "nsenter")
BURST_BYTES: Final = 5000
"""What may leave at once after a pause: a few packets, so that a link exceeds its limit only for an instant."""
QUEUE_S: Final = 1.0
"""A packet that would wait longer than this for its link is dropped, and TCP sends it again."""
QUEUE_BYTES_MIN: Final = 256 * 1024
SERVERS_MAX: Final = 250
"""Addresses of one network."""
COMMAND_S_MAX: Final = 10.0

_SERVERS: Final = "10.77.0"
_CLIENTS: Final = "10.77.1"
_INFRASTRUCTURE: Final = "10.77.2"
_CLONE_NEWNET: Final = 0x40000000
_OWN: Final = "/proc/thread-self/ns/net"
_COUNTERS: Final = Path("/proc/thread-self/net/dev")
_libc: Final = ctypes.CDLL(None, use_errno=True)


class ExperimentNetwork:
    """Where the servers of an experiment run. This class is the loopback interface, which limits nothing."""

    is_limited = False

    def site(self, name: str) -> LaunchSite:
        """Where a server, or the coordinator, runs."""
        return LaunchSite()

    @property
    def clients_prefix(self) -> tuple[str, ...]:
        """The prefix for the command of a process with clients."""
        return ()

    def agent(self, server: ServerAddress) -> list[str]:
        """The command of a server's agent."""
        return [*shoal_agent(server)]

    def sent(self) -> dict[str, int]:
        """Bytes that each server has sent over its link so far, headers included; empty if there are no links."""
        return {}

    def close(self) -> None:
        """Releases the namespaces."""


class LimitedNetwork(ExperimentNetwork):
    """Servers behind links of `link_bytes_per_s`. Moves the thread that creates it, and all processes and threads that
    this thread starts later, into a new network permanently."""

    is_limited = True

    def __init__(self, link_bytes_per_s: float) -> None:
        self._link_bytes_per_s = link_bytes_per_s
        self._servers: dict[str, int] = {}
        """Name to the descriptor of its namespace, in the order of their addresses."""
        _leave_network()
        self._own = _open_own()
        _run("ip", "link set lo up", *_bridge("near", _INFRASTRUCTURE), *_bridge("far", _CLIENTS))
        _run("ip", f"route add {_SERVERS}.0/24 dev near")
        with self._new_namespace() as self._clients:
            _run("ip", "link set lo up", f"link add eth0 type veth peer name clients netns {self._path(self._own)}")
            _run("ip", f"addr add {_CLIENTS}.2/24 dev eth0", "link set eth0 up")
            _run("ip", *(f"route add {network}.0/24 dev eth0" for network in (_SERVERS, _INFRASTRUCTURE)))
        _run("ip", "link set clients master far up")

    @property
    def clients_prefix(self) -> tuple[str, ...]:
        """Runs a command on the clients' side."""
        return self._prefix(self._clients)

    def site(self, name: str) -> LaunchSite:
        """Makes the namespace and the links of a server; the coordinator is near."""
        if name == COORDINATOR:
            return LaunchSite(f"{_INFRASTRUCTURE}.1")
        if name not in self._servers:
            self._connect(name)
        host = f"{_SERVERS}.{1 + list(self._servers).index(name)}"
        return LaunchSite(host, self._prefix(self._servers[name]))

    def agent(self, server: ServerAddress) -> list[str]:
        """Runs the agent beside its server, so that the agent's copies of messages do not use the link."""
        return [*self._prefix(self._servers[server.id]), *shoal_agent(server)]

    def sent(self) -> dict[str, int]:
        """As counted where the limited links arrive in the network of this thread."""
        rows = [row.split() for row in _COUNTERS.read_text().splitlines()]
        received = {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}
        return {name: received[f"far{number}:"] for number, name in enumerate(self._servers)}

    def close(self) -> None:
        """Releases all namespaces; each ends with its last process."""
        for descriptor in (self._own, self._clients, *self._servers.values()):
            os.close(descriptor)
        self._servers.clear()

    def _prefix(self, descriptor: int) -> tuple[str, ...]:
        return "nsenter", f"--net={self._path(descriptor)}"

    def _path(self, descriptor: int) -> str:
        return f"/proc/{os.getpid()}/fd/{descriptor}"

    def _connect(self, name: str) -> None:
        number = len(self._servers)
        if number >= SERVERS_MAX:
            raise ClusterError(f"the experiment's network has no room for {name}", do="use fewer servers")
        outside = self._path(self._own)
        rate, queue = self._link_bytes_per_s, max(self._link_bytes_per_s * QUEUE_S, QUEUE_BYTES_MIN)
        with self._new_namespace() as descriptor:
            self._servers[name] = descriptor
            _run(
                "ip",
                "link set lo up",
                f"link add near type veth peer name near{number} netns {outside}",
                f"link add far type veth peer name far{number} netns {outside}",
                f"addr add {_SERVERS}.{1 + number}/24 dev near",
                "link set near up",
                "link set far up",
                f"route add {_INFRASTRUCTURE}.0/24 dev near",
                f"route add {_CLIENTS}.0/24 dev far src {_SERVERS}.{1 + number}",
            )
            _run("tc", f"qdisc add dev far root tbf rate {rate:.0f}bps burst {BURST_BYTES} limit {queue:.0f}")
        _run("ip", f"link set near{number} master near up", f"link set far{number} master far up")

    @contextlib.contextmanager
    def _new_namespace(self) -> Iterator[int]:
        """Enters a new namespace to set it up, and returns. Blocks, so that nothing else runs in this thread
        meanwhile."""
        _leave_network()
        try:
            yield _open_own()
        finally:
            _enter(self._own)


def may_limit() -> bool:
    """Whether a limited network can be made here."""
    if os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)):
        return False
    tried: list[bool] = []
    thread = threading.Thread(target=lambda: tried.append(_try()), name="network trial")
    thread.start()
    thread.join()
    return tried == [True]


def run_on_network(link_bytes_per_s: float | None, work: Callable[[ExperimentNetwork], Coroutine[Any, Any, T]]) -> T:
    """Runs an experiment in a new thread with its own event loop and network; None limits nothing.

    An interrupt (Ctrl-C) cancels the work, waits until it has cleaned up, and is raised again.
    """
    runner = _Runner(link_bytes_per_s, work)
    thread = threading.Thread(target=runner.run, name="experiment")
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        runner.cancel()
        thread.join()
        raise
    if runner.error is not None:
        raise runner.error
    return runner.results[0]


class _Runner(Generic[T]):
    """The work of the thread."""

    def __init__(
        self, link_bytes_per_s: float | None, work: Callable[[ExperimentNetwork], Coroutine[Any, Any, T]]
    ) -> None:
        self._link_bytes_per_s = link_bytes_per_s
        self._work = work
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T] | None = None
        self.results: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                self.results.append(runner.run(self._main()))
        except BaseException as error:
            self.error = error

    def cancel(self) -> None:
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def _main(self) -> T:
        limit = self._link_bytes_per_s
        network = ExperimentNetwork() if limit is None else LimitedNetwork(limit)
        try:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.create_task(self._work(network))
            return await self._task
        finally:
            network.close()


def _try() -> bool:
    try:
        network = LimitedNetwork(1e6)
        try:
            network.site("s1")
        finally:
            network.close()
    except (ClusterError, OSError):
        return False
    return True


def _leave_network() -> None:
    """Moves this thread into a new network namespace."""
    if _libc.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot make a network namespace")


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot return to the experiment's network")


def _open_own() -> int:
    return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


def _bridge(name: str, network: str) -> tuple[str, ...]:
    return f"link add {name} type bridge", f"addr add {network}.1/24 dev {name}", f"link set {name} up"


def _run(program: str, *commands: str) -> None:
    """Runs commands of `ip` or `tc` in the network of this thread."""
    lines = "".join(f"{command}\n" for command in commands)
    done = subprocess.run(
        [program, "-batch", "-"], input=lines, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False
    )
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise ClusterError(f"the experiment's network could not be set up ({program}: {said})")
