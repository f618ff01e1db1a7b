"""What an agent costs: its own CPU for each message that it observes, and what observing adds to its server.

Owns the measurement. `redis-benchmark` publishes as fast as one server takes it, in pipelines, on channels
that nobody subscribes to: the hardest case, for everything that the server then sends goes to the agent.

    PYTHONPATH=src python benchmarks/agent_cost.py
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from typing import Any, Final

from shoal.channels.telemetry import DATA_FIELD, decode
from shoal.cluster.acl import CLIENT, READER
from shoal.cluster.local import LocalCluster
from shoal.cluster.parts import AgentCommand, agent_name, shoal_agent
from shoal.errors import ClusterError
from shoal.plan.ring import ServerAddress
from shoal.wire.ask import ask
from shoal.wire.envelope import ATTRIBUTES, HEADER, MAGIC, TELEMETRY_KEY

SERVER: Final = "s1"
SETTLE_TIMEOUT_S: Final = 30.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_NO_NUL: Final = 0x0101010101010101
"""An argument of a command cannot hold a zero byte, so no field of the envelope does."""


async def measure_agent_cost(
    messages: int = 2_000_000,
    payload_bytes: int = 100,
    channels: int = 1000,
    pipeline: int = 100,
    agent_command: AgentCommand = shoal_agent,
) -> dict[str, Any]:
    """Publishes `messages` with and without the agent; CPU in microseconds for each message."""
    if shutil.which("redis-benchmark") is None:
        raise ClusterError("redis-benchmark was not found", do="install it (Debian: apt install redis-tools)")
    async with LocalCluster(1, agent_command=agent_command) as cluster:
        (server,) = cluster.servers
        passwords = cluster.state.passwords
        (endpoint,) = cluster.state.servers
        assert endpoint.process is not None
        command = _command(server, passwords[CLIENT], messages, payload_bytes, channels, pipeline)
        idle_us = await _agent_idle_us_per_s(_agent_pid(cluster))
        before = await _observed(server, passwords[READER])
        observed_run = await _run(command, messages, endpoint.process.pid, _agent_pid(cluster))
        observed = await _settled(server, passwords[READER], before + messages) - before
        agent_s = _cpu_s(_agent_pid(cluster)) - observed_run.pop("agent_cpu_before_s")
        cluster.hold(agent_name(SERVER))
        await cluster.kill(agent_name(SERVER))
        alone_run = await _run(command, messages, endpoint.process.pid, None)
    return {
        "messages": messages,
        "payload_bytes": payload_bytes,
        "channels": channels,
        "pipeline": pipeline,
        "observed": observed,
        "agent_cpu_us_per_message": 1e6 * agent_s / messages,
        "agent_idle_cpu_us_per_s": idle_us,
        "server_cpu_us_per_message": observed_run["server_cpu_us_per_message"],
        "server_cpu_us_per_message_without_agent": alone_run["server_cpu_us_per_message"],
        "messages_per_s": observed_run["messages_per_s"],
        "messages_per_s_without_agent": alone_run["messages_per_s"],
    }


def _command(
    server: ServerAddress, password: str, messages: int, payload_bytes: int, channels: int, pipeline: int
) -> list[str | bytes]:
    payload = HEADER.pack(MAGIC, ATTRIBUTES, _NO_NUL & 0xFFFFFFFF, _NO_NUL, _NO_NUL, _NO_NUL)
    payload += b"x" * max(payload_bytes - len(payload), 0)
    words = f"redis-benchmark -h {server.host} -p {server.port} --user {CLIENT} -a {password} -q"
    words += f" -n {messages} -c 4 -P {pipeline} -r {channels} PUBLISH tile.__rand_int__"
    return [*words.split(), payload]


async def _run(command: list[str | bytes], messages: int, server_pid: int, agent_pid: int | None) -> dict[str, float]:
    """Publishes, and says how fast, and what it cost the server."""
    server_s = _cpu_s(server_pid)
    agent_s = 0.0 if agent_pid is None else _cpu_s(agent_pid)
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if await process.wait() != 0:
        raise ClusterError("redis-benchmark failed", do="run it by hand to see why")
    return {
        "messages_per_s": messages / (time.monotonic() - began),
        "server_cpu_us_per_message": 1e6 * (_cpu_s(server_pid) - server_s) / messages,
        "agent_cpu_before_s": agent_s,
    }


def _agent_pid(cluster: LocalCluster) -> int:
    (agent,) = cluster.state.agents
    assert agent.process is not None
    return agent.process.pid


async def _agent_idle_us_per_s(pid: int, seconds: float = 3.0) -> float:
    """What the agent costs when nobody publishes."""
    before = _cpu_s(pid)
    await asyncio.sleep(seconds)
    return 1e6 * (_cpu_s(pid) - before) / seconds


def _cpu_s(pid: int) -> float:
    """The CPU time that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


async def _settled(server: ServerAddress, password: str, expected: int) -> int:
    """How many messages telemetry tells of, once it tells of all of them, or of no more."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    observed = 0
    while observed < expected and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        observed = await _observed(server, password)
    return observed


async def _observed(server: ServerAddress, password: str) -> int:
    reply = await asyncio.to_thread(ask, server.host, server.port, READER, password, "XRANGE", TELEMETRY_KEY, "-", "+")
    records = [decode(dict(zip(fields[::2], fields[1::2], strict=True))[DATA_FIELD]) for _, fields in reply]
    return sum(int(record.channels.column("publications").to_numpy().sum()) for record in records)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure_agent_cost()), indent=2))
