"""The network of an experiment: limited links where that is possible, the loopback interface elsewhere, and nothing
left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.cluster.process import wait_until
from shoal.cluster.servers import HOST
from shoal.lab.experiments.real import network as networks
from shoal.lab.experiments.real.limited_cluster import FAIL_RATIO, LinkLimit
from shoal.lab.experiments.real.network import ExperimentNetwork, may_limit, run_on_network

LINK_BYTES_PER_S = 500_000
SENT_BYTES = 400_000

SEND = f"""
import socket, sys
with socket.create_server((sys.argv[1], 7000)) as server:
    print("listens", flush=True)
    for _ in range(2):
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"x" * {SENT_BYTES})
"""
RECEIVE = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000)) as connection:
    while connection.recv(65536):
        pass
"""
CRASH = """
import asyncio, os, signal, sys
from pathlib import Path
from shoal.cluster.process import start
from shoal.lab.experiments.real.network import run_on_network

async def work(network):
    child = start([*network.site("s1").prefix, "sleep", "600"], Path(os.devnull))
    while os.readlink(f"/proc/{child.pid}/ns/net") == os.readlink("/proc/thread-self/ns/net"):
        await asyncio.sleep(0.01)
    print(child.pid, os.readlink(f"/proc/{child.pid}/ns/net"), flush=True)
    await asyncio.sleep(600)

run_on_network(1e6, work)
"""


def interfaces() -> list[str]:
    return sorted(os.listdir("/sys/class/net"))


def test_without_limits_servers_are_on_the_loopback_interface() -> None:
    async def work(network: ExperimentNetwork) -> tuple[str, tuple[str, ...], dict[str, int]]:
        site = network.site("s1")
        return site.host, (*site.prefix, *network.clients_prefix), network.sent()

    assert run_on_network(None, work) == (HOST, (), {})


def test_links_cannot_be_limited_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not may_limit()
    assert LinkLimit(1e6, 1.4).limit is None


def test_links_cannot_be_limited_without_tc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "PROGRAMS", ("ip", "no-such-program"))
    assert not may_limit()


def test_an_error_in_an_experiment_is_raised() -> None:
    async def work(network: ExperimentNetwork) -> None:
        raise ValueError("a reason")

    with pytest.raises(ValueError, match="a reason"):
        run_on_network(None, work)


def test_a_link_is_full_at_the_ratio_at_which_servers_fail() -> None:
    link = LinkLimit(bytes_per_s=1e6, wire_share=1.25)
    assert link.capacity_bytes_per_s * FAIL_RATIO * link.wire_share == pytest.approx(link.bytes_per_s)


if may_limit():  # as root, with ip, tc and nsenter

    def test_traffic_to_clients_is_limited_and_counted_and_other_traffic_is_not() -> None:
        async def work(network: ExperimentNetwork) -> tuple[float, int, int]:
            site = network.site("s1")
            server = await asyncio.create_subprocess_exec(
                *(*site.prefix, sys.executable, "-c", SEND, site.host), stdout=asyncio.subprocess.PIPE
            )
            assert server.stdout is not None
            await server.stdout.readline()
            receive = (sys.executable, "-c", RECEIVE, site.host)
            await (await asyncio.create_subprocess_exec(*receive)).wait()
            near = network.sent()["s1"]
            began = time.monotonic()
            await (await asyncio.create_subprocess_exec(*network.clients_prefix, *receive)).wait()
            took_s = time.monotonic() - began
            await server.wait()
            return took_s, near, network.sent()["s1"] - near

        took_s, near, far = run_on_network(LINK_BYTES_PER_S, work)
        assert took_s > 0.8 * SENT_BYTES / LINK_BYTES_PER_S, "the link was faster than its limit"
        assert far > SENT_BYTES
        assert near < SENT_BYTES / 10

    def test_the_network_of_the_machine_does_not_change() -> None:
        before = interfaces()

        async def work(network: ExperimentNetwork) -> list[str]:
            network.site("s1")
            return interfaces()

        assert run_on_network(LINK_BYTES_PER_S, work) == before
        assert interfaces() == before

    def test_a_run_that_is_killed_leaves_neither_process_nor_namespace() -> None:
        run = subprocess.Popen([sys.executable, "-c", CRASH], stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None
        try:
            pid, namespace = run.stdout.readline().split()
            assert _in_namespace(namespace) == {int(pid)}
        finally:
            run.send_signal(signal.SIGKILL)
            run.wait()
        assert wait_until(lambda: not _in_namespace(namespace), timeout_s=20.0)


def _in_namespace(namespace: str) -> set[int]:
    """The processes in a network namespace."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(path / "ns/net") == namespace:
                found.add(int(path.name))
        except OSError:  # it has ended, or is none of ours
            continue
    return found
