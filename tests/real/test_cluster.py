"""A local cluster of real processes: it becomes ready, restarts crashed processes, maintains its ring, and cleans up.

Agents are stand-ins that only hold their lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.connections import ask, connect_coordinator
from tests.support.redis_server import RedisServer

from shoal.balance.balancer_keys import pin_key
from shoal.balance.balancer_options import BalancerOptions
from shoal.cli import main
from shoal.cluster import background, parts, process
from shoal.cluster.acl import ADMIN, CLIENT
from shoal.cluster.child import Child, ChildStatus
from shoal.cluster.cluster_timeouts import DEFAULT_TIMING, Timing
from shoal.cluster.control_socket import request
from shoal.cluster.host_launchers import HostLauncher
from shoal.cluster.local import LocalCluster
from shoal.cluster.local_provider import LocalProcesses
from shoal.cluster.process import ProcessId, is_running, wait_until
from shoal.cluster.servers import free_port
from shoal.cluster.state import ClusterState, StateDir, find_cluster
from shoal.errors import AlreadyRunningError, ClusterError, ClusterNotFoundError, NotRunningError
from shoal.limits import Limits
from shoal.plan.keys import PUBLIC_KEY, RING_KEY
from shoal.plan.kinds import SERVER
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Verifier
from shoal.runtime import PRODUCTION

STANDIN = Path(__file__).parent.parent / "support" / "standin_agent.py"
LEASE_S = 1.0
LIMITS = Limits(server_lease_s=LEASE_S, heartbeat_interval_s=0.2)
TIMING = Timing(restart_pause_s_min=0.05, keeper_poll_s=0.1)
AGENT_TEMPLATE = shlex.join([sys.executable, str(STANDIN), "--server", "{server}", "--address", "{address}"])


def standin(server: ServerAddress) -> Sequence[str]:
    address = f"{server.host}:{server.port}"
    return [
        sys.executable,
        str(STANDIN),
        "--server",
        server.id,
        "--address",
        address,
        "--lease-s",
        str(LEASE_S),
    ]


def a_cluster(servers: int = 2, state_dir: Path | None = None, tls: bool | None = None) -> LocalCluster:
    return LocalCluster(servers, state_dir, limits=LIMITS, timing=TIMING, agent_command=standin, tls=tls)


def ask_admin(cluster: LocalCluster, server: ServerAddress, *command: str) -> object:
    dial = PRODUCTION.with_tls(cluster.state.tls_for(ADMIN)).coordinator_dial
    return ask(server.host, server.port, ADMIN, cluster.state.passwords[ADMIN], *command, dial=dial)


def all_processes(state: ClusterState) -> list[ProcessId]:
    return list(state.processes())


def assert_gone(processes: list[ProcessId], root: Path) -> None:
    assert processes
    assert not [process for process in processes if is_running(process)]
    assert not root.exists()


def my_children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"it never came true that {what}"
        await asyncio.sleep(0.02)


async def stored_ring(cluster: LocalCluster) -> Ring:
    async with await connect_coordinator(cluster.url_for(CLIENT)) as coordinator:
        ring, key = await coordinator.get(RING_KEY), await coordinator.get(PUBLIC_KEY)
    assert ring is not None
    assert key is not None
    assert key.value.hex() == cluster.state.public_key
    return Verifier(key.value).ring(ring.value)


def assert_first_ring(ring: Ring, cluster: LocalCluster) -> None:
    """A new cluster has its servers, and authenticates messages."""
    assert (ring.version, ring.servers, ring.lease_ms) == (1, cluster.servers, 1000)
    assert (ring.scheme, len(ring.agent_keys)) == (1, 1)


async def test_a_cluster_gets_ready_and_leaves_nothing_behind() -> None:
    before = my_children()
    async with a_cluster() as cluster:
        root = cluster.directory.root
        assert find_cluster(root) == cluster.state
        assert cluster.status().ready
        assert_first_ring(await stored_ring(cluster), cluster)
        assert [server.id for server in cluster.servers] == ["s1", "s2"]
        assert len(my_children() - before) == 5
        processes = all_processes(cluster.state)
        assert len(processes) == 5
    assert_gone(processes, root)
    assert my_children() == before


async def test_an_error_inside_leaves_nothing_behind() -> None:
    async def fail() -> None:
        async with a_cluster() as cluster:
            seen.append((all_processes(cluster.state), cluster.directory.root))
            raise RuntimeError("something else")

    seen: list[tuple[list[ProcessId], Path]] = []
    with pytest.raises(RuntimeError, match="something else"):
        await fail()
    assert_gone(*seen[0])


async def test_a_cancelled_start_leaves_nothing_behind(tmp_path: Path) -> None:
    before = my_children()
    start = asyncio.create_task(a_cluster(3, tmp_path / "state", tls=False).__aenter__())
    await until(lambda: len(my_children() - before) >= 2, "some processes run")
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert my_children() == before
    assert not (tmp_path / "state").exists()


async def test_an_agent_that_cannot_start_fails_the_start_with_its_words(tmp_path: Path) -> None:
    before = my_children()
    command = [sys.executable, "-c", "print('I am too tired'); raise SystemExit(5)"]
    cluster = LocalCluster(1, tmp_path / "state", timing=TIMING, agent_command=lambda server: command, tls=False)
    with pytest.raises(ClusterError, match=r"(?s)agent-s1 crashes again.*exit status 5.*I am too tired"):
        async with cluster:
            pass
    assert my_children() == before
    assert [entry.name for entry in (tmp_path / "state").iterdir()] == ["logs"]


async def test_without_agents_only_the_servers_run() -> None:
    async with LocalCluster(2, agents=False) as cluster:
        assert [child.kind for child in cluster.status().processes] == ["coordinator", "server", "server"]
        assert cluster.status().ready


async def test_a_crashed_process_is_restarted_on_its_port() -> None:
    async with a_cluster() as cluster:
        servers = cluster.servers
        ring = await stored_ring(cluster)
        for name in ("s1", "agent-s2", "coordinator"):
            await cluster.kill(name)

        def all_restarted() -> bool:
            children = {child.name: child for child in cluster.status().processes}
            return all(
                children[name].restarts == 1 and children[name].state == "running"
                for name in ("s1", "agent-s2", "coordinator")
            )

        await until(all_restarted, "all three run again")
        assert cluster.servers == servers
        assert ask_admin(cluster, servers[0], "PING")
        assert (await stored_ring(cluster)).version >= ring.version
        assert find_cluster(cluster.directory.root) == cluster.state


async def test_the_coordinator_comes_back_with_all_it_knew() -> None:
    async with a_cluster() as cluster:
        async with await connect_coordinator(cluster.url_for(ADMIN)) as coordinator:
            version = await coordinator.put("plan/test", b"kept")
            await cluster.restart("coordinator")
            kept = await coordinator.get("plan/test")
        assert kept is not None
        assert (kept.value, kept.version) == (b"kept", version)
        assert_first_ring(await stored_ring(cluster), cluster)


async def test_a_server_without_an_agent_leaves_the_ring_and_comes_back() -> None:
    async with a_cluster() as cluster:
        cluster.hold("agent-s1")
        await cluster.kill("agent-s1")
        await until(lambda: not cluster.status().servers[0].in_ring, "s1 has left the ring")
        assert (await stored_ring(cluster)).ids == ("s2",)
        assert not cluster.status().ready
        cluster.release("agent-s1")
        await until(lambda: cluster.status().ready, "s1 is back")
        ring = await stored_ring(cluster)
        assert (ring.version, ring.servers) == (3, (cluster.servers[1], cluster.servers[0]))


async def test_hosts_of_other_kinds_and_sites_come_and_go(tmp_path: Path) -> None:
    async with a_cluster() as cluster:
        provider = LocalProcesses(cluster.directory, BalancerOptions())
        with pytest.raises(ClusterError, match=r"no hosts of kind 'shelf'.*server"):
            await provider.add("shelf", 1)
        sites = {}

        async def start(ids: Sequence[str], site: str) -> None:
            for id in ids:
                sites[id] = site
                await cluster.fleet.start_child(shelf_process(id, tmp_path / id))

        cluster.fleet.offer(HostLauncher("shelf", "h", start, cluster.fleet.end_child))
        assert await provider.add("shelf", 2, "oslo") == ("h1", "h2")
        assert sites == {"h1": "oslo", "h2": "oslo"}
        assert len(cluster.fleet.processes_of("shelf")) == 2
        assert [child.name for child in cluster.status().processes][-4:] == ["agent-s1", "agent-s2", "h1", "h2"]
        written = cluster.directory.read()
        assert written is not None
        assert written.others == {"shelf": cluster.fleet.processes_of("shelf")}
        assert {*written.others["shelf"]} < {*written.processes()}
        with pytest.raises(ClusterError, match=r"name one of .*, agent-s2, h1, h2$"):
            await cluster.kill("h9")
        await provider.remove("h1")
        assert len(cluster.fleet.processes_of("shelf")) == 1
        (server,) = await provider.add(SERVER, 1, "bergen")
        assert server == "s3"
        address = next(member for member in cluster.servers if member.id == server)
        assert address.site == "bergen"
        assert parts.shoal_agent(replace(address, rack="r2"))[-4:] == ["--site", "bergen", "--rack", "r2"]
        await provider.remove(server)
        assert server not in [member.id for member in cluster.servers]


async def test_servers_are_added_and_removed_by_request_and_no_id_comes_twice() -> None:
    async with a_cluster(1) as cluster:

        async def ask_for(do: Any, name: str = "", count: int = 1) -> tuple[str, ...]:
            return (await asyncio.to_thread(request, cluster.directory, do, name, count=count)).servers

        assert await ask_for("add", count=2) == ("s2", "s3")
        await cluster.wait_until_ready()
        ring = await stored_ring(cluster)
        assert ({*ring.ids}, ring.homes) == ({"s1", "s2", "s3"}, ("s1",))
        await ask_for("remove", "s3")
        assert [server.id for server in cluster.servers] == ["s1", "s2"]
        assert [child.name for child in cluster.status().processes if child.name.endswith("s3")] == []
        assert not (cluster.directory.root / "servers" / "s3").exists()
        assert await ask_for("add") == ("s4",)
        for do, name, count, says in (
            ("add", "", 0, "cannot add 0 servers"),
            ("remove", "s3", 1, "no server 's3'"),
        ):
            with pytest.raises(ClusterError, match=says):
                await ask_for(do, name, count)


def shelf_process(id: str, log: Path) -> Child:
    async def ready() -> bool:
        return True

    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    launch = functools.partial(process.start, words, log)
    return Child(id, "shelf", log, DEFAULT_TIMING, launch=launch, ready=ready, changed=lambda: None)


async def test_a_held_server_stays_down_until_it_is_restarted() -> None:
    async with a_cluster(1) as cluster:
        cluster.hold("s1")
        await cluster.kill("s1")
        await asyncio.sleep(10 * TIMING.restart_pause_s_min)
        assert next(child for child in cluster.status().processes if child.name == "s1").pid is None
        await cluster.restart("s1")
        server = cluster.servers[0]
        assert ask_admin(cluster, server, "PING")
        with pytest.raises(ClusterError, match="name one of coordinator, s1, agent-s1"):
            await cluster.kill("s7")


async def test_a_port_that_is_taken_meanwhile_is_given_up_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with RedisServer() as stranger:
        ports = iter([stranger.port, *(free_port(20) for _ in range(3))])
        monkeypatch.setattr(parts, "free_port", lambda tries, avoid: next(ports))
        run_id = ask(stranger.host, stranger.port, None, None, "INFO", "server")
        async with LocalCluster(1, agents=False) as cluster:
            used = {cluster.state.coordinator.port, cluster.servers[0].port}
            assert stranger.port not in used
        assert stranger.running
        assert ask(stranger.host, stranger.port, None, None, "DBSIZE") == 0
        assert run_id is not None


async def test_two_clusters_cannot_share_a_directory(tmp_path: Path) -> None:
    async with LocalCluster(1, tmp_path / "state", agents=False) as cluster:
        with pytest.raises(AlreadyRunningError):
            async with LocalCluster(1, tmp_path / "state", agents=False):
                pass
        assert find_cluster(tmp_path / "state") == cluster.state


# -- in the background -------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDir]:
    """A state directory with a path too long for a Unix socket; its processes are stopped after the test."""
    directory = StateDir(tmp_path / ("deep" * 30) / "state")
    yield directory
    with contextlib.suppress(NotRunningError):
        background.down(directory)


def test_up_and_down(directory: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    status = background.up(directory, 2, AGENT_TEMPLATE)
    assert status.ready
    state = find_cluster(directory.root)
    processes = [state.supervisor, *all_processes(state)]
    with pytest.raises(AlreadyRunningError, match="shoal down"):
        background.up(directory, 2, AGENT_TEMPLATE)
    assert main(["status", "--json", "--state-dir", str(directory.root)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ring_version"] == 1
    assert [server["load"]["connections"] >= 0 for server in facts["servers"]] == [True, True]
    assert (facts["silent"], facts["moving"], facts["pinned"]) == ([], 0, 0)
    assert main(["status", "--state-dir", str(directory.root)]) == 0
    text = capsys.readouterr().out
    assert "agent-s2" in text
    assert max(map(len, text.replace(str(directory.root), "").splitlines())) <= 80
    status_by_address(state, capsys)
    assert main(["up", "--state-dir", str(directory.root)]) == 1
    assert main(["down", "--json", "--state-dir", str(directory.root)]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopped": True, "clean": True, "killed": 0, "kept": False}
    assert_gone(processes, directory.root)
    assert main(["down", "--state-dir", str(directory.root)]) == 1
    assert "there is nothing to stop" in capsys.readouterr().err


def status_by_address(state: ClusterState, capsys: pytest.CaptureFixture[str]) -> None:
    """Any cluster has a status, by its address; a frozen server is named, and the others are shown."""
    words = ["status", "--url", state.url_for(ADMIN), "--json"]
    assert main(words) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["leader"]
    assert [(server["id"], server["lease"], server["state"]) for server in facts["servers"]] == [
        ("s1", True, "home"),
        ("s2", True, "home"),
    ]
    assert main(["status", "--url", state.url_for(CLIENT), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["leader"], facts["pinned"], facts["servers"][0]["lease"]) == (None, None, None)
    frozen = state.servers[0].process
    assert frozen is not None
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        assert main(words) == 1
        facts = json.loads(capsys.readouterr().out)
        assert (facts["silent"], facts["ready"]) == (["s1"], False)
        assert facts["servers"][0]["trouble"] == "does not answer within 1 s"
        assert facts["servers"][1]["load"]["connections"] >= 0
    finally:
        os.kill(frozen.pid, signal.SIGCONT)


def test_requests_reach_the_processes(directory: StateDir) -> None:
    background.up(directory, 1, AGENT_TEMPLATE)

    def child() -> tuple[str, int | None, int]:
        status = request(directory, "status").status
        assert status is not None
        found = next(child for child in status.processes if child.name == "s1")
        return found.state, found.pid, found.restarts

    request(directory, "pause", "s1")
    assert child()[0] == "paused"
    request(directory, "resume", "s1")
    request(directory, "hold", "s1")
    request(directory, "kill", "s1")
    assert wait_until(lambda: child()[0] == "waiting", 10)
    request(directory, "release", "s1")
    assert wait_until(lambda: child()[0] == "running", 10)
    request(directory, "restart", "s1")
    assert child()[2] == 2
    with pytest.raises(ClusterError, match="there is no process 'nobody'"):
        request(directory, "kill", "nobody")


def test_a_supervisor_that_was_killed_takes_all_with_it_and_down_cleans_up(directory: StateDir) -> None:
    background.up(directory, 1, AGENT_TEMPLATE)
    state = find_cluster(directory.root)
    os.kill(state.supervisor.pid, signal.SIGKILL)
    processes = [state.supervisor, *all_processes(state)]
    assert wait_until(lambda: not any(map(is_running, processes)), 10)
    with pytest.raises(ClusterNotFoundError, match="ended without cleaning up"):
        find_cluster(directory.root)
    assert not background.down(directory).clean
    assert_gone(processes, directory.root)


async def test_up_continues_the_cluster_of_a_killed_supervisor(directory: StateDir) -> None:
    """The same servers, ports, passwords, key and plan, whatever the number of servers that is given."""
    assert not background.up(directory, 2, AGENT_TEMPLATE).resumed
    first = find_cluster(directory.root)
    async with await connect_coordinator(first.url_for(ADMIN)) as coordinator:
        await coordinator.put(pin_key(b"tile"), b"a pin")
        ring = await coordinator.get(RING_KEY)
    os.kill(first.supervisor.pid, signal.SIGKILL)
    assert wait_until(lambda: not is_running(first.supervisor), 10)
    status = await asyncio.to_thread(background.up, directory, 1, AGENT_TEMPLATE)
    assert (status.resumed, status.ready) == (True, True)
    now = find_cluster(directory.root)
    assert (now.cluster, now.passwords, now.public_key) == (first.cluster, first.passwords, first.public_key)
    assert now.url_for(CLIENT) == first.url_for(CLIENT)
    assert [(one.id, one.port) for one in now.servers] == [(one.id, one.port) for one in first.servers]
    assert {*all_processes(now)}.isdisjoint(all_processes(first))
    async with await connect_coordinator(first.url_for(ADMIN)) as coordinator:
        pin = await coordinator.get(pin_key(b"tile"))
        assert pin is not None
        assert pin.value == b"a pin"
        again = await coordinator.get(RING_KEY)
        assert ring is not None
        assert again is not None
        ids = [Verifier(bytes.fromhex(now.public_key)).ring(kept.value).ids for kept in (ring, again)]
        assert ids[0] == ids[1]


def _binds(server: socket.socket, port: int) -> bool:
    try:
        server.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def test_a_cluster_whose_port_is_taken_is_not_continued_and_not_removed(directory: StateDir) -> None:
    background.up(directory, 1, AGENT_TEMPLATE)
    first = find_cluster(directory.root)
    os.kill(first.supervisor.pid, signal.SIGKILL)
    assert wait_until(lambda: not any(map(is_running, all_processes(first))), 10)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # A connection of another test may have the port for a moment.
        assert wait_until(lambda: _binds(other, first.coordinator.port), 30)
        other.listen()
        with pytest.raises(ClusterError, match=f"port {first.coordinator.port}, of the coordinator .* is in use"):
            background.up(directory, 1, AGENT_TEMPLATE)
    kept = directory.resumable()
    assert kept is not None
    assert kept.passwords == first.passwords
    background.down(directory)
    assert not directory.root.exists()


def test_down_ends_a_supervisor_that_hangs(directory: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    background.up(directory, 1, AGENT_TEMPLATE)
    monkeypatch.setattr(background, "_ASK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(background, "_STOP_TIMEOUT_S", 0.2)
    state = find_cluster(directory.root)
    os.kill(state.supervisor.pid, signal.SIGSTOP)
    assert not background.down(directory).clean
    assert_gone([state.supervisor, *all_processes(state)], directory.root)


def test_a_start_that_fails_says_why_and_keeps_its_logs(directory: StateDir) -> None:
    template = shlex.join([sys.executable, "-c", "print('I am too tired'); raise SystemExit(5)"])
    with pytest.raises(ClusterError, match=r"(?s)did not start.*agent-s1 crashes again.*I am too tired"):
        background.up(directory, 1, template)
    with pytest.raises(ClusterError, match=f"logs of all its processes are in {directory.logs}"):
        background.up(directory, 1, template)
    assert [entry.name for entry in directory.root.iterdir()] == ["logs"]
    assert "I am too tired" in directory.log("agent-s1").read_text()


async def test_a_full_disk_does_not_end_the_supervision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state file cannot be written: a process that dies is restarted all the same, and the file follows later."""

    def fail(directory: StateDir, state: ClusterState) -> None:
        raise OSError(28, "No space left on device")

    async with LocalCluster(1, tmp_path / "state", timing=TIMING, agents=False) as cluster:

        def coordinator() -> ChildStatus:
            return next(child for child in cluster.status().processes if child.name == "coordinator")

        with monkeypatch.context() as disk:
            disk.setattr(StateDir, "write", fail)
            for restarts in (1, 2):
                await cluster.kill("coordinator")
                await until(lambda: coordinator().restarts == restarts, "the coordinator runs again")  # noqa: B023
        now = cluster.state.coordinator
        await until(lambda: find_cluster(tmp_path / "state").coordinator == now, "the file is written")
